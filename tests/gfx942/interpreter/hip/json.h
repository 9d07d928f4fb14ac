// SPDX-License-Identifier: Apache-2.0
// What the functions of gfx942_control.h answer with.
#pragma once

#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>

#include "runtime.h"

namespace gfx942::hip {

// JSON as it grows; a comma goes before each member but the first.
class Json {
 public:
  Json& open(char bracket) {
    separate();
    text_ += bracket;
    first_ = true;
    return *this;
  }
  Json& close(char bracket) {
    text_ += bracket;
    first_ = false;
    return *this;
  }
  Json& key(const char* name) {
    value(std::string_view(name));
    text_ += ':';
    first_ = true;
    return *this;
  }
  template <std::integral T>
  Json& value(T x) {
    separate();
    text_ += std::to_string(x);
    return *this;
  }
  Json& value(double x) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.9g", x);
    separate();
    text_ += digits;
    return *this;
  }
  Json& value(std::string_view x) {
    separate();
    text_ += '"';
    for (char c : x) {
      if (c == '"' || c == '\\' || c == '\n') text_ += '\\';
      text_ += c == '\n' ? 'n' : uint8_t(c) < 32 ? ' ' : c;
    }
    text_ += '"';
    return *this;
  }
  template <class T>
  Json& member(const char* name, const T& x) {
    return key(name).value(x);
  }
  template <class Range>
  Json& list(const Range& xs) {
    open('[');
    for (const auto& x : xs) value(x);
    return close(']');
  }
  const std::string& text() const { return text_; }

 private:
  void separate() {
    if (!first_) text_ += ',';
    first_ = false;
  }
  std::string text_;
  bool first_ = true;
};

// The text that body writes, which lives in `buffer`; null where it fails, with the reason in gfx942_last_fault().
template <class Body>
const char* kept(std::string& buffer, Body body) {
  const hipError_t status = call([&] {
    const std::lock_guard guard(runtime().lock);
    buffer = body();
  });
  return status == hipSuccess ? buffer.c_str() : nullptr;
}

}  // namespace gfx942::hip

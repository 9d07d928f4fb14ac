// SPDX-License-Identifier: Apache-2.0
// MessagePack, as far as a code object's note has it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "fault.h"

namespace gfx942 {

struct Value {
  std::string text;
  int64_t number = 0;
  std::vector<Value> list;
  std::map<std::string, Value> map;

  const Value* find(const std::string& key) const {
    const auto at = map.find(key);
    return at == map.end() ? nullptr : &at->second;
  }
  int64_t number_at(const std::string& key, int64_t otherwise = 0) const {
    const Value* v = find(key);
    return v ? v->number : otherwise;
  }
  std::string text_at(const std::string& key) const {
    const Value* v = find(key);
    return v ? v->text : "";
  }
};

class MessagePack {
 public:
  explicit MessagePack(std::span<const uint8_t> bytes) : at_(bytes.data()), end_(at_ + bytes.size()) {}

  Value read() {
    const uint8_t tag = uint8_t(big(1));
    Value v;
    if (tag < 0x80)
      v.number = tag;
    else if (tag < 0x90)
      map(v, tag & 15);
    else if (tag < 0xa0)
      list(v, tag & 15);
    else if (tag < 0xc0)
      text(v, tag & 31);
    else if (tag >= 0xe0)
      v.number = int8_t(tag);
    else
      switch (tag) {
        case 0xc0:
        case 0xc2:
          break;
        case 0xc3:
          v.number = 1;
          break;
        case 0xcc:
          v.number = int64_t(big(1));
          break;
        case 0xcd:
          v.number = int64_t(big(2));
          break;
        case 0xce:
          v.number = int64_t(big(4));
          break;
        case 0xcf:
          v.number = int64_t(big(8));
          break;
        case 0xd0:
          v.number = int8_t(big(1));
          break;
        case 0xd1:
          v.number = int16_t(big(2));
          break;
        case 0xd2:
          v.number = int32_t(big(4));
          break;
        case 0xd3:
          v.number = int64_t(big(8));
          break;
        case 0xd9:
          text(v, big(1));
          break;
        case 0xda:
          text(v, big(2));
          break;
        case 0xdb:
          text(v, big(4));
          break;
        case 0xdc:
          list(v, big(2));
          break;
        case 0xdd:
          list(v, big(4));
          break;
        case 0xde:
          map(v, big(2));
          break;
        case 0xdf:
          map(v, big(4));
          break;
        default:
          throw Fault("metadata: unexpected MessagePack tag " + std::to_string(tag));
      }
    return v;
  }

 private:
  uint64_t big(int bytes) {
    if (end_ - at_ < bytes) throw Fault("metadata: it ends too early");
    uint64_t x = 0;
    while (bytes--) x = x << 8 | *at_++;
    return x;
  }
  void text(Value& v, uint64_t size) {
    if (uint64_t(end_ - at_) < size) throw Fault("metadata: it ends too early");
    v.text.assign(reinterpret_cast<const char*>(at_), size);
    at_ += size;
  }
  void list(Value& v, uint64_t size) {
    while (size--) v.list.push_back(read());
  }
  void map(Value& v, uint64_t size) {
    while (size--) {
      const std::string key = read().text;
      v.map[key] = read();
    }
  }

  const uint8_t *at_, *end_;
};

}  // namespace gfx942

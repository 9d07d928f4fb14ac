// SPDX-License-Identifier: Apache-2.0
// What a kernel did that the hardware would punish, or may.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace emulator {

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[gnu::format(printf, 1, 2)]] inline std::string text(const char* format, ...) {
  char buffer[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

// Ends the launch: the thread that calls this is not resumed, and the launch throws Fault, which says who it was.
[[noreturn]] void fault(const std::string& message);

}  // namespace emulator

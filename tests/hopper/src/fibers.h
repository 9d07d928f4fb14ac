// SPDX-License-Identifier: Apache-2.0
// Stacks to switch between: what a thread of a block runs on.
#pragma once

#include <cstddef>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

class Fiber {
 public:
  Fiber();
  ~Fiber();

  void begin(void (*entry)());  // never returns: it leaves for good
  void enter();                 // from the scheduler, until the fiber leaves
  void leave();

 private:
  static constexpr size_t kStackBytes = 128 << 10;

  std::unique_ptr<char[]> stack_;
#if defined(__x86_64__)
  void *fiber_ = nullptr, *scheduler_ = nullptr;
#else
  ucontext_t fiber_, scheduler_;
#endif
};

}  // namespace emulator

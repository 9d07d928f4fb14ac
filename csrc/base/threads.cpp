// SPDX-License-Identifier: Apache-2.0
#include "base/threads.h"

#include <system_error>
#include <thread>
#include <vector>

namespace xlstm {

int32_t hardware_threads() {
  const unsigned n = std::thread::hardware_concurrency();
  return n ? int32_t(n) : 1;
}

void run_on_new_threads(void*, int32_t workers, void (*body)(void*, int32_t), void* arg) {
  std::vector<std::thread> threads;
  threads.reserve(size_t(workers));
  try {
    for (int32_t w = 1; w < workers; ++w) threads.emplace_back(body, arg, w);
  } catch (const std::system_error&) {
    // The system has no more threads. Workers take tasks until none is left, so the threads that run do all tasks.
  }
  body(arg, 0);
  for (std::thread& t : threads) t.join();
}

void spin_or_yield(int64_t tries) {
  constexpr int64_t kPauses = 4096;  // about 100 us, longer than the wait after a part whose tasks are spread evenly
  if (tries >= kPauses) {
    std::this_thread::yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

}  // namespace xlstm

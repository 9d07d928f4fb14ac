// SPDX-License-Identifier: Apache-2.0
// A buffer of exactly the requested size between guard bytes. Under the address sanitizer the guards are poisoned, so
// that an access outside the buffer ends the test; without the sanitizer a changed guard is a failed check. The buffer
// starts as NaN in every dtype, so that a read of uninitialised memory shows in the results.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "check.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(from, bytes) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(from, bytes) ((void)0)
#endif

class Buffer {
 public:
  static constexpr unsigned char kUnset = 0xff, kGuard = 0xa5;

  explicit Buffer(size_t bytes, size_t misaligned_by = 0)
      : bytes_(bytes), before_(kGuardBytes + misaligned_by), total_((before_ + bytes + kGuardBytes + 63) / 64 * 64) {
    block_ = static_cast<unsigned char*>(std::aligned_alloc(64, total_));
    std::memset(block_, kGuard, total_);
    std::memset(data(), kUnset, bytes);
    ASAN_POISON_MEMORY_REGION(block_, before_);
    ASAN_POISON_MEMORY_REGION(block_ + before_ + bytes_, total_ - before_ - bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    ASAN_UNPOISON_MEMORY_REGION(block_, total_);
    for (size_t at = 0; at < total_; ++at)
      if (at < before_ || at >= before_ + bytes_)
        CHECK(block_[at] == kGuard, "wrote %lld bytes from the start of a buffer of %zu", (long long)(at - before_),
              bytes_);
    std::free(block_);
  }

  void* data() { return block_ + before_; }
  const void* data() const { return block_ + before_; }
  size_t size() const { return bytes_; }

 private:
  static constexpr size_t kGuardBytes = 64;

  unsigned char* block_;
  size_t bytes_, before_, total_;
};

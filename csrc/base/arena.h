// SPDX-License-Identifier: Apache-2.0
// A bump allocator: it takes aligned arrays from one block. With no block it only counts, so that layout and size are
// one code. Always inline: CPU kernels are compiled for several instruction sets, and the linker would keep the copy of
// one set for all.
#pragma once

#include <cstddef>
#include <cstdint>

namespace xlstm {

class Arena {
 public:
  [[gnu::always_inline]] explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  [[gnu::always_inline]] T* take(int64_t n) {
    constexpr size_t kLine = 256;
    char* p = base_ ? base_ + used_ : nullptr;
    used_ += (size_t(n) * sizeof(T) + kLine - 1) / kLine * kLine;
    return reinterpret_cast<T*>(p);
  }
  [[gnu::always_inline]] size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace xlstm

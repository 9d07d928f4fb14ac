// SPDX-License-Identifier: Apache-2.0
// Loads and stores of a range of device memory that check its bounds: beyond them loads read zeros, and stores do
// nothing. On CDNA the instructions check (buffer_load), so that no branch is needed at the end of a tensor.
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

struct MemoryRange {  // uniform; offsets into it are multiples of 16, and so is its size
  const char* base;
  uint32_t bytes;
};

constexpr uint32_t kNowhere = 0xfffffff0u;  // an offset beyond every range
constexpr uint32_t kFar = 1u << 31;         // beyond ranges of less, also where less than that is added to it

#if !defined(__CUDACC__) && !defined(__GFX11__) && !defined(__GFX12__)
#define XLSTM_BUFFER_INSTRUCTIONS
typedef uint32_t Words4 __attribute__((ext_vector_type(4)));
XLSTM_DEVICE __amdgpu_buffer_rsrc_t buffer_of(const MemoryRange& range) {
  constexpr int kFormat32 = 0x00020000;  // CDNA: raw elements of 32 bits
  return __builtin_amdgcn_make_buffer_rsrc(const_cast<char*>(range.base), 0, int(range.bytes), kFormat32);
}
#endif

XLSTM_DEVICE Vec16 load_vec16(const MemoryRange& range, uint32_t offset) {
#if defined(XLSTM_BUFFER_INSTRUCTIONS)
  return __builtin_bit_cast(Vec16, __builtin_amdgcn_raw_buffer_load_b128(buffer_of(range), offset, 0, 0));
#else
  return offset < range.bytes ? read_vec16(range.base + offset) : Vec16{{0, 0, 0, 0}};
#endif
}
// Half a vector; of it offsets and sizes are multiples of 8.
XLSTM_DEVICE uint64_t load_vec8(const MemoryRange& range, uint32_t offset) {
#if defined(XLSTM_BUFFER_INSTRUCTIONS)
  return __builtin_bit_cast(uint64_t, __builtin_amdgcn_raw_buffer_load_b64(buffer_of(range), offset, 0, 0));
#else
  return offset < range.bytes ? *reinterpret_cast<const uint64_t*>(range.base + offset) : 0;
#endif
}
// A word; of it offsets and sizes are multiples of 4.
XLSTM_DEVICE uint32_t load_word(const MemoryRange& range, uint32_t offset) {
#if defined(XLSTM_BUFFER_INSTRUCTIONS)
  return __builtin_amdgcn_raw_buffer_load_b32(buffer_of(range), offset, 0, 0);
#else
  return offset < range.bytes ? *reinterpret_cast<const uint32_t*>(range.base + offset) : 0;
#endif
}
XLSTM_DEVICE void store_vec16(const MemoryRange& range, uint32_t offset, const Vec16& vec) {
#if defined(XLSTM_BUFFER_INSTRUCTIONS)
  __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(Words4, vec), buffer_of(range), offset, 0, 0);
#else
  if (offset < range.bytes) *reinterpret_cast<Vec16*>(const_cast<char*>(range.base) + offset) = vec;
#endif
}
XLSTM_DEVICE void store_word(const MemoryRange& range, uint32_t offset, uint32_t word) {
#if defined(XLSTM_BUFFER_INSTRUCTIONS)
  __builtin_amdgcn_raw_buffer_store_b32(word, buffer_of(range), offset, 0, 0);
#else
  if (offset < range.bytes) *reinterpret_cast<uint32_t*>(const_cast<char*>(range.base) + offset) = word;
#endif
}

}  // namespace xlstm::gpu

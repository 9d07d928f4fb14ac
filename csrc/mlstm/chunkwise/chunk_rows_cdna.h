// SPDX-License-Identifier: Apache-2.0
// The rows of a tensor, chunk by chunk, for loads and stores that check bounds (CDNA).
#pragma once

#include "arch/memory_range.h"
#include "tile/lds_tile.h"

namespace xlstm::gpu::mlstm {

constexpr uint32_t kBeyond = 1u << 31;  // an offset beyond every range: such a load moves nothing

template <class E, int kChunk>
struct ChunkRows {
  const char* first;  // token 0 of chunk 0
  uint32_t stride;    // bytes from token to token
  int columns;

  XLSTM_DEVICE ChunkRows(const TokenRows<E>& of, int64_t begin)
      : first(reinterpret_cast<const char*>(of.data + begin * of.stride)),
        stride(uint32_t(of.stride) * sizeof(E)),
        columns(of.columns) {}
  // valid: tokens that exist, at least one.
  XLSTM_DEVICE MemoryRange chunk(int at, int valid) const {
    return {first + uint64_t(uint32_t(at)) * (stride * kChunk), (valid - 1) * stride + columns * int(sizeof(E))};
  }
  // A lane's offset in a chunk; beyond every range where the column does not exist.
  XLSTM_DEVICE uint32_t offset(uint32_t token, int column) const {
    return column < columns ? token * stride + column * sizeof(E) : kBeyond;
  }
};

}  // namespace xlstm::gpu::mlstm

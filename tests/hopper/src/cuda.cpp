// SPDX-License-Identifier: Apache-2.0
// What of CUDA's host side is more than a name.
#include "cuda.h"

#include <algorithm>
#include <cstring>

#include "cuda_runtime.h"

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* data,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* every, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const auto refused = [](uint64_t stride) { return stride % 16 != 0 || stride >= uint64_t(1) << 40; };
  if (rank != 4 || reinterpret_cast<uintptr_t>(data) % 16 || std::any_of(strides, strides + 3, refused) ||
      std::any_of(sizes, sizes + 4, [](uint64_t n) { return n == 0 || n > uint64_t(1) << 32; }) || box[0] != 64 ||
      box[1] > 256 || box[2] != 1 || box[3] != 1 || std::any_of(every, every + 4, [](uint32_t n) { return n != 1; }))
    return CUDA_ERROR_INVALID_VALUE;
  map->data = static_cast<char*>(data);
  std::copy_n(sizes, 4, map->size);
  std::copy_n(strides, 3, map->stride);
  map->rows = int(box[1]);
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, int,
                                             cudaDriverEntryPointQueryResult* how) {
  if (std::strcmp(name, "cuTensorMapEncodeTiled") != 0) return cudaErrorInvalidValue;
  *found = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  *how = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

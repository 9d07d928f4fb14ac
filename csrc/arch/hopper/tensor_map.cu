// SPDX-License-Identifier: Apache-2.0
// Tensor maps are encoded by the driver. No binary links the driver's library: the runtime finds the function.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "arch/hopper/hopper.h"

namespace xlstm::gpu {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult how;
  const Status status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &how);
  if (status != kSuccess || how != cudaDriverEntryPointSuccess)
    throw std::runtime_error("the driver has no tensor maps: a driver for CUDA 12 or later is needed");
  return reinterpret_cast<Encode>(found);
}

}  // namespace

CUtensorMap tensor_map(const void* data, int columns, int64_t tokens, int64_t heads, int64_t batch,
                       const int64_t (&stride)[3], int panel_tokens) {
  static const Encode encode = find_encode();
  const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(tokens), cuuint64_t(heads), cuuint64_t(batch)};
  // The stride of an axis of size one is never used, and may have any value.
  const auto bytes = [](int64_t size, int64_t elements) { return cuuint64_t(size == 1 ? 16 : elements * 2); };
  const cuuint64_t strides[] = {bytes(tokens, stride[2]), bytes(heads, stride[1]), bytes(batch, stride[0])};
  const cuuint32_t box[] = {kPanelColumns, cuuint32_t(panel_tokens), 1, 1}, every[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(data), sizes, strides,
                                 box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw std::runtime_error("the driver refuses a tensor map: error " + std::to_string(int(result)));
  return map;
}

}  // namespace xlstm::gpu

// SPDX-License-Identifier: Apache-2.0
// The GPU kernels of the mLSTM as the C API calls them: a plan, workspace and a stream in, launches out. Nothing waits,
// allocates or reads the device. A launch that fails throws std::runtime_error.
#pragma once

#include <cstddef>

#include "base/tensors.h"
#include "mlstm/chunkwise/chunkwise_plan.h"

namespace xlstm::gpu::mlstm {

// Whether a token's columns are whole pieces of 16 bytes, at multiples of 16. Pieces within a chunk are found by 32-bit
// offsets.
inline bool whole_rows(const xlstm_tensor& x, int64_t columns, const xlstm_mlstm& in) {
  const int64_t bytes = element_bytes(x), sizes[] = {in.batch, in.heads, in.length};
  bool whole = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && columns * bytes % 16 == 0 && x.stride[2] >= 0 &&
               x.stride[2] * bytes < int64_t(1) << 26;
  for (int axis = 0; axis < 3; ++axis) whole = whole && (sizes[axis] == 1 || x.stride[axis] * bytes % 16 == 0);
  return whole;
}

// Whether bulk copies can take it: bfloat16, whole rows, and strides that go forward.
inline bool has_panels(const xlstm_tensor& x, int64_t columns, const xlstm_mlstm& in) {
  return x.dtype == XLSTM_BFLOAT16 && has_forward_strides(x, {in.batch, in.heads, in.length}) && whole_rows(x, columns, in);
}

size_t chunkwise_workspace(const xlstm_mlstm_forward&, const ForwardPlan&);
void chunkwise(const xlstm_mlstm_forward&, const ForwardPlan&, void* workspace, void* stream);

size_t backward_workspace(const xlstm_mlstm_backward&, const BackwardPlan&);
void backward(const xlstm_mlstm_backward&, const BackwardPlan&, void* workspace, void* stream);

size_t recurrent_workspace(const xlstm_mlstm_forward&, const Chip&);
void recurrent(const xlstm_mlstm_forward&, const Chip&, void* workspace, void* stream);

}  // namespace xlstm::gpu::mlstm

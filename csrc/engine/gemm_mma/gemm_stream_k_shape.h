// SPDX-License-Identifier: Apache-2.0
// How gemm_stream_k_kernel lies on a block and in shared memory. Plan, kernel and tests use the same functions.
#pragma once

#include "engine/gemm_mma/gemm_mma_shape.h"

namespace xlstm::gpu::engine {

constexpr int kStreamKBatch[] = {16, 32, 64, 128};  // the rows of the batch that kernels are made for
// The sums of a group of quantised weights take as many registers as all sums, and float16 has two parts. converted:
// the weights are not bfloat16 in memory.
constexpr int most_stream_k_batch(bool converted) { return converted ? 64 : 128; }
constexpr int kStreamKRows = 128;     // of weights in a tile
constexpr int kStreamKThreads = 256;  // four warps share a tile's rows, two its rows of the batch
constexpr int kStreamKRowWarps = 4, kStreamKBatchWarps = 2;
constexpr int kStreamKChains = kStreamKRows / kStreamKRowWarps / kStripColumns;  // of a warp
constexpr int kLeastPartSteps = 8;  // of a block: fewer would not pay for the sum of parts
constexpr int kMostStages = 8;

// The row of a tile that a warp's chain begins with. SwiGLU's rows alternate by chains, so that a thread has both sides
// of its outputs.
constexpr int stream_k_slot(int row_warp, int chain) { return (row_warp * kStreamKChains + chain) * kStripColumns; }

// Steps in a stage of the pipeline: a barrier for each is dear where a step has few bytes.
constexpr int stage_steps(int bits, int batch) { return bits < 16 && batch <= 32 ? 2 : 1; }

// Where a stage has what. Weights are at its beginning.
struct StreamKStage {
  int x, scales, offsets, x_sums, bytes;
};
constexpr StreamKStage stream_k_stage(int bits, int batch) {
  const int steps = stage_steps(bits, batch), group_words = bits < 16 ? steps * kStreamKRows * 4 : 0;
  StreamKStage at{};
  at.x = steps * kStreamKRows * kStepFeatures * bits / 8;
  at.scales = at.x + steps * packed_step_bytes(batch);
  at.offsets = at.scales + group_words;
  at.x_sums = at.offsets + group_words;
  at.bytes = at.x_sums + (bits < 16 ? steps * batch * 4 : 0);
  return at;
}
// The stages that LDS holds, less what the kernel declares.
constexpr int stream_k_stages(int bits, int batch, int lds_bytes) {
  const int stages = (lds_bytes - 256) / stream_k_stage(bits, batch).bytes;
  return stages < kMostStages ? stages : kMostStages;
}
static_assert(stream_k_stages(16, 128, kMinLds[0]) >= 2 && stream_k_stages(8, 64, kMinLds[0]) >= 2);

// The partial sums of a tile in memory.
constexpr int stream_k_tile_floats(int batch) { return kStreamKRows * batch; }

}  // namespace xlstm::gpu::engine

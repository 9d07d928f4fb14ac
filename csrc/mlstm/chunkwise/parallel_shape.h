// SPDX-License-Identifier: Apache-2.0
// How the kernels of the parallel schedule lie on a block and in LDS. Kernels, launches and tests use the same.
#pragma once

namespace xlstm::gpu::mlstm {

constexpr int kParallelChunk = 32, kMaxParallelChunks = 32;  // tokens of a chunk; chunks of a sequence
// parallel_scores.h: a block has the pairs of a chunk with kScoreWaves others. LDS: five floats of each of the chunk's
// tokens, and of each wave three, and the pairs that it turns.
constexpr int kScoreWaves = 4, kScoreThreads = 64 * kScoreWaves;
constexpr int parallel_score_lds_bytes(bool backward) {
  return 5 * 4 * kParallelChunk +
         kScoreWaves * (3 * 4 * kParallelChunk + (backward ? 2 * kParallelChunk * kParallelChunk : 16));
}
// parallel_products.h: the tokens and columns of a block.
constexpr int kProductThreads = 512, kProductTokens = 2 * kParallelChunk, kProductColumns = 128;
constexpr int kProductLds = kProductTokens * kProductColumns * 4;

}  // namespace xlstm::gpu::mlstm

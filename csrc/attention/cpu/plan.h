// SPDX-License-Identifier: Apache-2.0
// How an attention call is cut into tasks: pure functions of the shape and the machine.
//
// The queries of the heads that share a key head are rows of one matrix, token by token: rows = queries * (HQ / HK).
#pragma once

#include <cstdint>

namespace xlstm {

struct AttentionShape {
  int64_t batch, heads_k, rows, keys;  // of the longest sequence
  int64_t panel;                       // rows that fill a register tile
  bool wants_probs;                     // the weights are wanted, so the keys may not be split
};

struct AttentionCpuPlan {
  int64_t block_k;  // keys of a tile
  int64_t rows;     // of a task: whole panels
  int64_t blocks;   // tasks along the rows
  int64_t splits;   // tasks along the keys
  int64_t workers;
};

constexpr int64_t kAttentionBlocks[] = {32, 64, 128, 256};  // legal sizes of a key tile
constexpr int64_t kMaxSplits = 256;                        // parts of the keys, or backward of a key head's rows
constexpr int64_t kMaxRowPanels = 8;                       // that a group of rows of a backward pass may have

// Forward: a task is a block of rows against a part of the keys. Large blocks pack the keys less often; small ones fill
// the threads. Keys are split only where even single panels do not fill them, and only in parts of four tiles or more.
// block_k, splits: 0 leaves them to the plan.
AttentionCpuPlan plan_attention_cpu(const AttentionShape&, int64_t block_k, int64_t splits, int64_t threads);

struct AttentionBackwardCpuPlan {
  int64_t block_k;
  int64_t group;  // rows that are taken at once: whole panels
  int64_t parts;  // tasks that share the rows of one key head, each with sums of dk and dv of its own
  int64_t workers;
};

// Backward: a task is a key head with all its rows; where those do not fill the threads, its groups of rows are dealt
// out to several. block_k, row_panels (of a group), parts: 0 leaves them to the plan.
AttentionBackwardCpuPlan plan_attention_backward_cpu(const AttentionShape&, int64_t block_k, int64_t row_panels,
                                                     int64_t parts, int64_t threads);

}  // namespace xlstm

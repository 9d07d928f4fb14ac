// SPDX-License-Identifier: Apache-2.0
// How an attention call is split into tasks: pure functions of the shape and the machine.
//
// The queries of the heads that share a key head are rows of one matrix, token by token: rows = queries * (HQ / HK).
#pragma once

#include <cstdint>

namespace xlstm {

struct AttentionShape {
  int64_t batch, heads_k, rows, keys;  // of the longest sequence
  int64_t panel;                       // rows that fill a register tile
  bool wants_probs;                    // the softmax is an output, so the keys may not be split
};

struct AttentionCpuPlan {
  int64_t block_k;  // keys of a tile
  int64_t rows;     // of a task, a multiple of the panel
  int64_t blocks;   // tasks along the rows
  int64_t splits;   // tasks along the keys
  int64_t workers;
};

constexpr int64_t kAttentionBlocks[] = {32, 64, 128, 256};  // legal sizes of a key tile
constexpr int64_t kMaxSplits = 256;                         // parts of the keys; in backward of a key head's rows
constexpr int64_t kMaxRowPanels = 8;                        // of a group of rows of a backward pass

// Forward: a task is a block of rows against a part of the keys. Large blocks pack the keys less often; small blocks
// fill the threads. Keys are split (split-KV) only where even blocks of a single panel do not fill the threads, and
// only into parts of four tiles or more. block_k, splits: 0 lets the plan choose.
AttentionCpuPlan plan_attention_cpu(const AttentionShape&, int64_t block_k, int64_t splits, int64_t threads);

struct AttentionBackwardCpuPlan {
  int64_t block_k;
  int64_t group;  // rows that are taken at once, a multiple of the panel
  int64_t parts;  // tasks that share the rows of one key head, each with its sums of dk and dv
  int64_t workers;
};

// Backward: a task is a key head with all its rows; where key heads do not fill the threads, the groups of rows of a
// key head are split among several tasks. block_k, row_panels (of a group), parts: 0 lets the plan choose.
AttentionBackwardCpuPlan plan_attention_backward_cpu(const AttentionShape&, int64_t block_k, int64_t row_panels,
                                                     int64_t parts, int64_t threads);

}  // namespace xlstm

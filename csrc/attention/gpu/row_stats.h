// SPDX-License-Identifier: Apache-2.0
// The layout of backward's row statistics, lse and D of each query: constexpr, for kernels, plans and tests.
#pragma once

namespace xlstm::gpu::attention {

// In groups of 16 lse, then 16 D. They exist for full blocks of kStatsPad queries.
constexpr int kStatsGroup = 16, kStatsPad = 128;
constexpr int row_stats_index(int query) { return query / kStatsGroup * 2 * kStatsGroup + query % kStatsGroup; }

}  // namespace xlstm::gpu::attention

// SPDX-License-Identifier: Apache-2.0
// The launch plan of an MLA call on a GPU: a pure function of shape and chip, so that tests run anywhere.
#pragma once

#include <stdexcept>
#include <string>

#include "attention/decode/decode_plan.h"
#include "attention/mla/mla_hopper_shape.h"
#include "base/numbers.h"

namespace xlstm::gpu::attention {

struct MlaPlan {
  int rows, features;  // which kernel
  bool ahead;
  bool hopper;  // the Hopper kernel (mla_hopper.h)
  MlaShape shape;
  int64_t blocks;  // along the rows
  int64_t splits;  // along the keys
  int64_t grid;
};

// splits: 0 lets the plan choose. With more than 16 rows, 64 rows share a tile, with more than 64 on CDNA 128; tiles
// overlap where LDS is large enough; Hopper has a special kernel for 64 rows.
inline MlaPlan plan_mla(const AttentionCall& call, int64_t splits, const Chip& chip) {
  MlaPlan plan{};
  const int64_t rows = call.queries * (call.heads_q / call.heads_k), heads = call.batch * call.heads_k;
  plan.features = int(call.dqk);
  for (const int rows_of_block : kMlaRows) {
    if (plan.rows && rows <= plan.rows) break;
    for (const bool ahead : {false, true}) {
      if (ahead && call.float8) continue;
      const MlaShape shape = mla_shape(chip.family, rows_of_block, plan.features, ahead);
      if (!has_mla(chip.family, rows_of_block, ahead) || shape.lds_bytes > chip.lds_bytes) continue;
      plan.rows = rows_of_block;
      plan.ahead = ahead;
      plan.shape = shape;
    }
  }
  if (plan.rows == 0)
    throw std::invalid_argument("head_dim_v: the kernel for 512 features of " + std::to_string(call.dqk) +
                                " needs more LDS than this GPU has: " + std::to_string(chip.lds_bytes) + " bytes");
  const MlaShape hopper_shape = mla_hopper_shape(plan.features);
  if (chip.hopper && !call.float8 && plan.rows == kMlaHopperRows && hopper_shape.lds_bytes <= chip.lds_bytes) {
    plan.ahead = false;
    plan.hopper = true;
    plan.shape = hopper_shape;
  }
  plan.blocks = std::max<int64_t>(1, ceil_div(rows, plan.rows));
  // With 16 rows memory binds, which four fifths of CDNA's compute units keep busy. With 128 rows a block's out is 256
  // KB, so that more parts than one round of blocks take longer to store and combine than they save.
  const double enough = chip.family == Family::cdna && plan.rows != 64 ? 0.8 : 1;
  const int64_t blocks = std::max<int64_t>(1, heads * plan.blocks);
  plan.splits = splits ? splits : parts_that_fill(blocks, chip.compute_units, call.keys, 256, enough);
  plan.grid = heads * plan.blocks * plan.splits;
  return plan;
}

}  // namespace xlstm::gpu::attention

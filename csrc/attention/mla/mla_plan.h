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
  int64_t blocks;      // along the rows
  int64_t splits;      // along the keys
  bool last_is_short;  // of these parts (short_last_part.h)
  int64_t grid;
};

// Whether the last of so many parts of each block should be short: its blocks have compute units that the others leave,
// for two of them each. For the kernel of 128 rows, which the matrix units bind; memory needs no more compute units.
inline bool has_short_last_part(const MlaPlan& plan, int64_t blocks, int64_t parts, const Chip& chip) {
  const int64_t left = chip.compute_units - (parts - 1) * blocks;
  return plan.rows == kMlaCdnaRows && parts > 1 && left < blocks && blocks <= 2 * left;
}

// splits: 0 lets the plan choose. element_bytes of the call: 1 where q has floats of 8 bits, too. With more than 16
// rows, 64 rows share a tile, with more than 64 on CDNA 128; tiles overlap where LDS is large enough; Hopper has a
// special kernel for 64 rows.
inline MlaPlan plan_mla(const AttentionCall& call, int64_t splits, const Chip& chip) {
  MlaPlan plan{};
  const int64_t rows = call.queries * (call.heads_q / call.heads_k), heads = call.batch * call.heads_k;
  plan.features = int(call.dqk);
  for (const int rows_of_block : kMlaRows) {
    if (plan.rows && rows <= plan.rows) break;
    for (const bool ahead : {false, true}) {
      if (ahead && call.float8) continue;
      const MlaShape shape = mla_shape(chip.family, rows_of_block, plan.features, ahead, call.element_bytes);
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
  if (splits == 0 && call.keys >= 512 * plan.splits && has_short_last_part(plan, blocks, plan.splits + 1, chip))
    ++plan.splits;
  plan.last_is_short = has_short_last_part(plan, blocks, plan.splits, chip);
  plan.grid = heads * plan.blocks * plan.splits;
  return plan;
}

}  // namespace xlstm::gpu::attention

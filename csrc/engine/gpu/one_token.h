// SPDX-License-Identifier: Apache-2.0
// The mLSTM's step within kernels of the engine: what tiles of mlstm/recurrent/recurrent.h need to know beside tensors.
#pragma once

#include <cmath>

#include "mlstm/recurrent/recurrent.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::engine {

inline mlstm::RecurrentParams one_token_params(const xlstm_decode& p, int64_t tiles) {
  mlstm::RecurrentParams step{};
  step.where.heads = p.heads, step.where.sequences = p.batch;
  step.q.columns = int(p.dqk), step.v.columns = int(p.dhv);
  step.tiles = int(tiles), step.interleaved_heads = 1;
  step.sigmoid = p.gate == XLSTM_GATE_SIGMOID;
  step.normalize = !step.sigmoid || p.normalize;
  step.scale = 1 / std::sqrt(double(p.dqk));
  step.eps = p.eps;
  return step;
}

}  // namespace xlstm::gpu::engine

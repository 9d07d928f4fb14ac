// SPDX-License-Identifier: Apache-2.0
// Hopper: the launch of a decode step as one persistent kernel. CUDA libraries only.
#pragma once

#include "arch/runtime.h"
#include "engine/gpu/params.h"
#include "engine/megakernel/megakernel_plan.h"

namespace xlstm::gpu::engine {

// The matrix products of one block of the model, in the order in which a step runs them.
struct BlockGemms {
  GemmParams projections, output, up, down;
};
struct MegakernelCall {
  const xlstm_decode& model;
  const BlockGemms* block;
  const GemmParams& head;
  float* pending_state;  // n and m of all heads after this token, until every tile has read the old ones
  float* mailboxes;      // laid out by struct Mailboxes
};
// Whether the device can run all clusters of a plan at once.
template <class Weights>
bool fits_megakernel(const MegakernelPlan&);
template <class Weights>
void launch_megakernel(const MegakernelPlan&, const MegakernelCall&, Stream);

}  // namespace xlstm::gpu::engine

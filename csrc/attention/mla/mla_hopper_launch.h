// SPDX-License-Identifier: Apache-2.0
// The launch of MLA on Hopper, for bfloat16 and float16; mla_hopper.cu defines it, in a library for CUDA.
#pragma once

#include "attention/forward/forward_params.h"
#include "attention/mla/mla_plan.h"

namespace xlstm::gpu::attention {

template <class E>
void launch_mla_hopper(const MlaPlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu::attention

// SPDX-License-Identifier: Apache-2.0
// Launch functions of the forward, decode and MLA kernels. forward_kernels.hip, decode_kernels.hip and mla_kernels.hip
// define them; CMake compiles these files once per dtype.
#pragma once

#include "attention/decode/decode.h"
#include "attention/decode/decode_plan.h"
#include "attention/forward/forward.h"
#include "attention/mla/mla.h"
#include "attention/mla/mla_plan.h"

namespace xlstm::gpu::attention {

template <class E>
void launch_forward(const AttentionForwardPlan&, const ForwardParams&, Stream);
template <class E>
void launch_decode(const DecodePlan&, const FewRowsParams&, Stream);
template <class E>
void launch_mla(const MlaPlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu::attention

// SPDX-License-Identifier: Apache-2.0
// The launches of the kernels that attend: what they do stands in forward_launch.h, decode_launch.h and mla_launch.h,
// which the files of each dtype include and nobody else, so that each kernel is compiled once.
#pragma once

#include "attention/decode_gpu.h"
#include "attention/decode_plan.h"
#include "attention/forward_gpu.h"
#include "attention/mla_gpu.h"
#include "attention/mla_plan.h"

namespace xlstm::gpu {

template <class E>
void launch_forward(const AttentionForwardPlan&, const ForwardParams&, Stream);
template <class E>
void launch_decode(const DecodePlan&, const FewRowsParams&, Stream);
template <class E>
void launch_mla(const MlaPlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu

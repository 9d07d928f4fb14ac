// SPDX-License-Identifier: Apache-2.0
// Turns a plan into the launch of the decode kernel.
#pragma once

#include "arch/launch.h"
#include "attention/decode/decode.h"
#include "attention/decode/decode_plan.h"

namespace xlstm::gpu::attention {

template <class Elements, int kDqk, int kDv>
void launch_decode_class(const DecodePlan& plan, const FewRowsParams& p, Stream stream) {
  const Grid grid{plan.grid, plan.shape.threads, plan.shape.lds_bytes};
  const bool has_score_mod = p.call.in.softcap > 0 || p.call.in.alibi_slopes;
  if constexpr (sizeof(QueryOf<Elements>) == 2)
    if (!has_score_mod) return launch("attention decode", decode_kernel<Elements, kDqk, kDv, false>, grid, stream, p);
  launch("attention decode", decode_kernel<Elements, kDqk, kDv, true>, grid, stream, p);
}

template <class Elements>
void launch_decode(const DecodePlan& plan, const FewRowsParams& p, Stream stream) {
  if (plan.head.dqk == 64) return launch_decode_class<Elements, 64, 64>(plan, p, stream);
  if (plan.head.dqk == 128) return launch_decode_class<Elements, 128, 128>(plan, p, stream);
  if (plan.head.dqk == 192) return launch_decode_class<Elements, 192, 128>(plan, p, stream);
  launch_decode_class<Elements, 256, 256>(plan, p, stream);
}

}  // namespace xlstm::gpu::attention

// SPDX-License-Identifier: Apache-2.0
// Turns a plan into the launch of the MLA kernel.
#pragma once

#include "arch/launch.h"
#include "attention/mla/mla_cdna.h"
#include "attention/mla/mla_plan.h"

namespace xlstm::gpu::attention {

template <class Elements, int kRows, bool kAhead>
void launch_mla_rows(const MlaPlan& plan, const FewRowsParams& p, Stream stream) {
  const Grid grid{plan.grid, plan.shape.threads, plan.shape.lds_bytes};
  launch("MLA decode",
         plan.features == 512 ? mla_kernel<Elements, kRows, 512, kAhead> : mla_kernel<Elements, kRows, 576, kAhead>,
         grid, stream, p);
}

template <class Elements>
void launch_mla_cdna(const MlaPlan& plan, const FewRowsParams& p, Stream stream) {
  const Grid grid{plan.grid, plan.shape.threads, plan.shape.lds_bytes};
  launch("MLA decode", plan.features == 512 ? mla_cdna_kernel<Elements, 512> : mla_cdna_kernel<Elements, 576>, grid,
         stream, p);
}

template <class Elements>
void launch_mla(const MlaPlan& plan, const FewRowsParams& p, Stream stream) {
  if (plan.rows == 16) return launch_mla_rows<Elements, 16, false>(plan, p, stream);
  if constexpr (kAsyncCopies && !kIsFloat8<KeyOf<Elements>>)
    if (plan.ahead) return launch_mla_rows<Elements, 64, true>(plan, p, stream);
  if constexpr (!kAsyncCopies)
    if (plan.rows == kMlaCdnaRows) return launch_mla_cdna<Elements>(plan, p, stream);
  launch_mla_rows<Elements, 64, false>(plan, p, stream);
}

}  // namespace xlstm::gpu::attention

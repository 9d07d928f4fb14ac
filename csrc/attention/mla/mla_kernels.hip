// SPDX-License-Identifier: Apache-2.0
// Turns a plan into the launch of the MLA kernel.
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16

#include "arch/launch.h"
#include "attention/mla/mla.h"
#include "attention/mla/mla_plan.h"

namespace xlstm::gpu::attention {

namespace {

template <class E, int kRows, bool kAhead>
void launch_mla_rows(const MlaPlan& plan, const FewRowsParams& p, Stream stream) {
  const Grid grid{plan.grid, plan.shape.threads, plan.shape.lds_bytes};
  launch("MLA decode", plan.features == 512 ? mla_kernel<E, kRows, 512, kAhead> : mla_kernel<E, kRows, 576, kAhead>,
         grid, stream, p);
}

}  // namespace

template <class E>
void launch_mla(const MlaPlan& plan, const FewRowsParams& p, Stream stream) {
  if (plan.rows == 16) return launch_mla_rows<E, 16, false>(plan, p, stream);
  if constexpr (kAsyncCopies)
    if (plan.ahead) return launch_mla_rows<E, 64, true>(plan, p, stream);
  launch_mla_rows<E, 64, false>(plan, p, stream);
}

template void launch_mla<XLSTM_ELEMENT>(const MlaPlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu::attention

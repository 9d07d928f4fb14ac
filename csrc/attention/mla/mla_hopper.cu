// SPDX-License-Identifier: Apache-2.0
// Defines launch_mla_hopper().
#include "arch/launch.h"
#include "attention/mla/mla_hopper.h"
#include "attention/mla/mla_plan.h"

namespace xlstm::gpu::attention {

template <class E>
void launch_mla_hopper(const MlaPlan& plan, const FewRowsParams& p, Stream stream) {
  const Grid grid{plan.grid, plan.shape.threads, plan.shape.lds_bytes};
  launch("MLA decode", plan.features == 512 ? mla_hopper_kernel<E, 512> : mla_hopper_kernel<E, 576>, grid, stream, p);
}

template void launch_mla_hopper<BFloat16>(const MlaPlan&, const FewRowsParams&, Stream);
template void launch_mla_hopper<Float16>(const MlaPlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu::attention

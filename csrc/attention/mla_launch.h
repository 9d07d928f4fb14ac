// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of the MLA kernel, for one dtype: included by one file per dtype, so that they compile side
// by side.
#pragma once

#include "arch/launch.h"
#include "attention/launches_gpu.h"

namespace xlstm::gpu {

namespace {

template <class E, int kRows, bool kAhead>
void launch_mla_rows(const MlaPlan& plan, const FewRowsParams& p, Stream stream) {
  const Grid grid{plan.grid, plan.shape.threads, plan.shape.lds_bytes};
  launch("MLA decode", plan.features == 512 ? mla<E, kRows, 512, kAhead> : mla<E, kRows, 576, kAhead>, grid, stream, p);
}

}  // namespace

template <class E>
void launch_mla(const MlaPlan& plan, const FewRowsParams& p, Stream stream) {
  if (plan.rows == 16) return launch_mla_rows<E, 16, false>(plan, p, stream);
  if constexpr (kAsyncCopies)
    if (plan.ahead) return launch_mla_rows<E, 64, true>(plan, p, stream);
  launch_mla_rows<E, 64, false>(plan, p, stream);
}

// Each in a file of its own.
extern template void launch_mla<BFloat16>(const MlaPlan&, const FewRowsParams&, Stream);
extern template void launch_mla<Float16>(const MlaPlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu

// SPDX-License-Identifier: Apache-2.0
// From a plan to the launches of pack_linear_kernel and quantised_linear_kernel (engine/linear/linear_hopper.h), whose
// elements are formats of weights.
// Compiled once for each XLSTM_ELEMENT of: ByteWeights NibbleWeights E4m3fnWeights E4m3fnuzWeights
#include "arch/launch.h"
#include "engine/linear/linear_hopper.h"
#include "engine/linear/linear_launch.h"

namespace xlstm::gpu::engine {
namespace {

template <class Weights, bool kOffsets>
void launch_product(const LinearPlan& plan, const LinearParams& p, Stream stream) {
  const Grid grid{plan.blocks, kLinearThreads, plan.smem.bytes, true, 1 << plan.part_bits};
  const auto start = [&](auto kernel) { launch("quantised linear", kernel, grid, stream, p); };
  if (plan.batch == 16) return start(quantised_linear_kernel<Weights, 16, kOffsets>);
  if (plan.batch == 32) return start(quantised_linear_kernel<Weights, 32, kOffsets>);
  if (plan.batch == 64) return start(quantised_linear_kernel<Weights, 64, kOffsets>);
  start(quantised_linear_kernel<Weights, 128, kOffsets>);
}

}  // namespace

template <class Weights>
void launch_linear(const LinearPlan& plan, const DeviceLinear& w, int rows, const LinearMemory& at, Stream stream) {
  const int steps = int(plan.steps), passes = int(plan.passes);
  const PackLinearParams pack{at.x, at.x_stride, rows, w.columns, plan.batch, steps, passes, at.panels, at.sums};
  const int64_t lanes = plan.passes * plan.batch * plan.steps * 4;
  launch("pack x of a quantised linear", pack_linear_kernel<Weights::kBits>,
         {(lanes + kPackLinearThreads - 1) / kPackLinearThreads, kPackLinearThreads, 0, true}, stream, pack);
  const LinearParams p{tensor_map(w.data, int(w.row_bytes / 2), w.rows, 1, 1, {0, 0, w.row_bytes / 2}, kLinearRows),
                       w,
                       rows,
                       steps,
                       plan.part_bits,
                       passes,
                       plan.smem,
                       at.panels,
                       at.sums,
                       at.y,
                       at.y_stride};
  if constexpr (Weights::kIntegers) {
    if (w.offsets) return launch_product<Weights, true>(plan, p, stream);
  }
  launch_product<Weights, false>(plan, p, stream);
}

template void launch_linear<XLSTM_ELEMENT>(const LinearPlan&, const DeviceLinear&, int rows, const LinearMemory&,
                                           Stream);

}  // namespace xlstm::gpu::engine

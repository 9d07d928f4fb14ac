// SPDX-License-Identifier: Apache-2.0
// y = x W^T for quantised weights and few rows: from a call to the launches of its format.
#include <stdexcept>

#include "arch/compiler.h"
#include "base/arena.h"
#include "engine/gpu/device_linear.h"
#include "engine/linear/linear.h"
#include "engine/linear/linear_launch.h"
#include "engine/linear/linear_shape.h"

namespace xlstm::gpu::engine {
namespace {

LinearShape shape_of(const xlstm_linear_forward& p) {
  return {p.rows,        p.weight.columns,         p.weight.rows,
          p.weight.bits, int(p.weight.group_size), p.weight.offsets != nullptr};
}

// What quantised_linear_kernel asks of memory beyond a plan: rows in pieces of 16 bytes, x in pieces of eight, and
// scales in words that an int counts.
bool fits(const xlstm_linear_forward& p) {
  const DeviceLinear w = linear_of(p.weight);
  return w.is_aligned16 && w.group_size % kStepFeatures == 0 && w.dtype != XLSTM_FLOAT32 && is_aligned16(w.scales) &&
         is_aligned16(w.offsets) && p.weight.rows * w.groups <= INT32_MAX / 2 && p.weight.columns % 4 == 0 &&
         p.x.dtype == XLSTM_BFLOAT16 && p.x.stride % 4 == 0 && is_aligned16(p.x.data) && p.y.dtype == XLSTM_BFLOAT16 &&
         is_aligned16(p.y.data);
}

LinearMemory memory_of(Arena& arena, const xlstm_linear_forward& p, const LinearPlan& plan) {
  return {
      p.x.data, p.x.stride, arena.take<char>(packed_linear_bytes(plan)), arena.take<float>(packed_linear_sums(plan)),
      p.y.data, p.y.stride};
}

template <class F>
void with_format(const xlstm_linear& w, F&& f) {
  if (w.bits == 4) return f(static_cast<NibbleWeights*>(nullptr));
  if (w.code == XLSTM_CODE_E4M3FN) return f(static_cast<E4m3fnWeights*>(nullptr));
  if (w.code == XLSTM_CODE_E4M3FNUZ) return f(static_cast<E4m3fnuzWeights*>(nullptr));
  f(static_cast<ByteWeights*>(nullptr));
}

}  // namespace

LinearPlan plan_linear_call(const xlstm_linear_forward& p, const Chip& chip) {
  return fits(p) ? plan_linear(shape_of(p), chip) : LinearPlan{};
}

size_t linear_workspace(const xlstm_linear_forward& p, const LinearPlan& plan) {
  if (!plan.batch) throw std::runtime_error("linear: no kernel of this GPU takes the call");
  Arena arena(nullptr);
  memory_of(arena, p, plan);
  return arena.used();
}

void linear(const xlstm_linear_forward& p, const LinearPlan& plan, void* workspace, void* stream) {
  Arena arena(workspace);
  const LinearMemory at = memory_of(arena, p, plan);
  if constexpr (kHasHopperKernels)
    with_format(p.weight, [&]<class Weights>(Weights*) {
      launch_linear<Weights>(plan, linear_of(p.weight), int(p.rows), at, static_cast<Stream>(stream));
    });
}

}  // namespace xlstm::gpu::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/gemm_cluster/gemm_cluster_plan.h"

#include <algorithm>

#include "base/numbers.h"

namespace xlstm::gpu::engine {

int clusters_at_once(const Chip& chip, int parts) { return std::max(1, chip.compute_units * 15 / 16 / parts); }

namespace {

// The plan by the kernel for this many rows of the batch; its batch is 0 if shared memory is too small.
ClusterPlan plan_for(const GemmShape& p, int batch, const Chip& chip) {
  const int64_t steps = p.columns / kStepFeatures, items = std::max<int64_t>(units_of(p, kItemRows), 1);
  ClusterPlan plan{};
  plan.passes = int(ceil_div(p.batch, batch));
  plan.part_bits = part_bits_of(steps);
  plan.part_steps = int(ceil_div(steps, plan.parts()));
  plan.clusters = int(std::clamp<int64_t>(clusters_at_once(chip, plan.parts()) / plan.passes, 1, items));
  const auto bytes = [&](int owned) { return cluster_smem(p.bits, batch, plan.parts(), plan.part_steps, owned).bytes; };
  plan.owned = int(ceil_div(ceil_div(items, plan.clusters), plan.parts()));
  while (plan.owned > 1 && bytes(plan.owned) > chip.lds_bytes) plan.owned = (plan.owned + 1) / 2;
  // More than half of it, or two blocks would share a multiprocessor and leave another idle.
  plan.lds_bytes = std::max(bytes(plan.owned), chip.lds_bytes / 2 + 1);
  plan.batch = plan.lds_bytes <= chip.lds_bytes ? batch : 0;
  return plan;
}

}  // namespace

ClusterItems cluster_items(const GemmParams& p) {
  ClusterItems items{};
  if (p.output == Output::swiglu) return {1, 1, {0}, {int(ceil_div(p.linear[0].rows, kItemRows / 2))}};
  const auto quantised = [](const DeviceLinear& w) { return w.rows && w.bits; };
  const bool any_quantised = std::any_of(p.linear, p.linear + p.linear_count, quantised);
  int end = 0;
  const auto add = [&](bool gates) {
    for (int j = 0; j < p.linear_count; ++j) {
      if (p.linear[j].rows == 0 || gates != (any_quantised && !quantised(p.linear[j]))) continue;
      items.linear[items.count] = j;
      items.end[items.count++] = end += int(ceil_div(p.linear[j].rows, kItemRows));
    }
  };
  add(false);
  items.gates_from = items.count;
  if (p.output == Output::store) add(true);
  return items;
}

bool suits_clusters(const GemmParams& p) {
  return p.columns % kStepFeatures == 0 && std::all_of(p.linear, p.linear + p.linear_count, [](const DeviceLinear& w) {
           const int64_t scales = int64_t(w.rows) * w.groups * 2;
           return scales % 16 == 0 && (scales == 0 || scales >= 32) && scales <= INT32_MAX;
         });
}

// The most rows of the batch: beyond them gemm_stream_k_kernel is faster, as measured on an H200
// (docs/lab/decode-h200.md).
int64_t most_rows_of_clusters(int bits) { return bits == 4 ? 32 : bits == 8 ? 16 : 8; }

// A row must have the same sums in all of these batches: so the decision depends on the shape alone, by what a pass of
// eight needs. For bfloat16, gemm_mma is faster at one row (engine/gemm_mma/gemm_mma.h).
ClusterPlan plan_cluster(const GemmShape& p, bool suits, const Chip& chip) {
  const bool is_pair = p.bits == 16;
  if (!chip.hopper || !suits || p.batch > most_rows_of_clusters(p.bits) || (is_pair && (p.converted || p.batch == 1)))
    return {};
  GemmShape widest = p;
  widest.batch = kClusterBatch[1];
  if (!plan_for(widest, kClusterBatch[1], chip).batch) return {};
  ClusterPlan best{};
  for (const int batch : kClusterBatch) {
    if (is_pair && batch > kClusterBatch[1]) break;
    const ClusterPlan plan = plan_for(p, batch, chip);
    if (plan.batch && (!best.batch || best.batch < p.batch)) best = plan;
  }
  return best;
}

}  // namespace xlstm::gpu::engine

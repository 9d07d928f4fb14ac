// SPDX-License-Identifier: Apache-2.0
// The sums of blocks that share outputs, each with some of the features, are added up by whichever comes last: no block
// waits, and the order of sums is that of the shards. CDNA alone has kernels that use it.
#pragma once

#include "arch/device_scope.h"

namespace xlstm::gpu::engine {

// A wave's sums, of all shards, and how many shards have stored theirs; zero before and after.
struct ShardSums {
  float* partials;  // kSums * kWave floats for each shard
  uint32_t* arrived;
};

// Stores this wave's sums of its shard. The wave that is the last gets the sums of all, and true.
template <int kSums>
XLSTM_DEVICE bool add_shards(const ShardSums& at, int shard, int shards, float (&sum)[kSums]) {
  constexpr int kShardFloats = kSums * kWave;
  float* const to = at.partials + shard * kShardFloats + lane_id();
#pragma unroll
  for (int n = 0; n < kSums; ++n) store_device_scope(to + n * kWave, sum[n]);
  wait_for_stores();
  uint32_t before = 0;
  if (lane_id() == 0) before = add_device_scope(opaque(at.arrived), 1);
  if (uniform(int(before)) != shards - 1) return false;
  if (lane_id() == 0) store_device_scope(at.arrived, uint32_t(0));
  float total[kSums] = {};
#pragma unroll 1
  for (int other = 0; other < shards; ++other) {
    if (other == shard) {
#pragma unroll
      for (int n = 0; n < kSums; ++n) total[n] += sum[n];
      continue;
    }
    const float* const from = at.partials + other * kShardFloats + lane_id();
#pragma unroll
    for (int n = 0; n < kSums; ++n) total[n] += load_device_scope(from + n * kWave);
  }
#pragma unroll
  for (int n = 0; n < kSums; ++n) sum[n] = total[n];
  return true;
}

}  // namespace xlstm::gpu::engine

// SPDX-License-Identifier: Apache-2.0
// The sums of blocks that share outputs, each with some of the features, are added up by whichever comes last: no block
// waits, and the order of sums is that of the shards. CDNA alone has kernels that use it.
#pragma once

#include "arch/device_scope.h"

namespace xlstm::gpu::engine {

constexpr int kMostShards = 4;

// A wave's sums, of all shards, and how many shards have stored theirs; zero before and after.
struct ShardSums {
  float* partials;  // kSums * kWave floats for each shard
  uint32_t* arrived;
};

// Stores this wave's sums of its shard. The wave that is the last gets the sums of all, and true.
template <int kSums>
XLSTM_DEVICE bool add_shards(const ShardSums& at, int shard, int shards, float (&sum)[kSums]) {
  constexpr int kVectors = kSums / 4, kVectorBytes = kWave * 16, kShardBytes = kVectors * kVectorBytes;
  static_assert(kSums % 4 == 0);
  const char* const partials = uniform(reinterpret_cast<const char*>(at.partials));
  const auto range_of = [&](int of, bool is_there) -> MemoryRange {
    return {partials + of * kShardBytes, uint32_t(uniform(is_there ? kShardBytes : 0))};
  };
  const uint32_t of_lane = uint32_t(lane_id()) * 16;
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    const float* const of = sum + 4 * n;
    store_vec16_device_scope(range_of(shard, true), of_lane + n * kVectorBytes,
                             {{as_bits(of[0]), as_bits(of[1]), as_bits(of[2]), as_bits(of[3])}});
  }
  wait_for_stores();
  uint32_t before = 0;
  if (lane_id() == 0) before = add_device_scope(opaque(at.arrived), 1);
  if (uniform(int(before)) != shards - 1) return false;
  if (lane_id() == 0) store_device_scope(at.arrived, uint32_t(0));
  // The others' are on their way at once: what comes from memory is waited for once, not once for each shard.
  Vec16 others[kMostShards][kVectors];
#pragma unroll
  for (int other = 0; other < kMostShards; ++other) {
    const MemoryRange range = range_of(other, other != shard && other < shards);
#pragma unroll
    for (int n = 0; n < kVectors; ++n) others[other][n] = load_vec16_device_scope(range, of_lane + n * kVectorBytes);
  }
  sched_barrier();  // the compiler would move loads to their use, and wait for each
#pragma unroll
  for (int n = 0; n < kSums; ++n) {
    float total = 0;
#pragma unroll
    for (int other = 0; other < kMostShards; ++other)
      total += other == shard ? sum[n] : as_float(others[other][n / 4].word[n % 4]);
    sum[n] = total;
  }
  return true;
}

}  // namespace xlstm::gpu::engine

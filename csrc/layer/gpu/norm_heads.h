// SPDX-License-Identifier: Apache-2.0
// The features of a head in the registers of a group of threads, for norms forward and backward.
#pragma once

#include "arch/nvidia/dependent_launch.h"
#include "layer/gpu/plan.h"
#include "layer/gpu/rows.h"

namespace xlstm::gpu::layer {

// Kernels of named dtypes are for heads that fit into a group's registers; kernels of Any also take longer heads.
template <class E, bool kAligned>
constexpr bool kAnyLength = !kAligned || std::is_same_v<E, Any>;

template <class E, bool kAligned, int kChunks>
struct HeadChunks {
  using Raw = RawChunk<typename Roles<E>::X, kAligned>;
  Raw chunk[kChunks];
  Group group;
  int features;  // 0 without a head

  XLSTM_DEVICE HeadChunks(const Group& group_, int features_) : group(group_), features(features_) {}

  XLSTM_DEVICE int offset(int k) const { return kChunk * group.lane() + k * (kChunk * group.lanes); }
  // The offset to load chunk k from: a chunk past the end loads the first, and its values are not used.
  XLSTM_DEVICE int offset_or_first(int k, const xlstm_norm& in) const {
    return offset(k) < int(in.features) ? offset(k) : 0;
  }

  // Calls f(at) for each chunk of this thread beyond those in registers.
  template <class F>
  XLSTM_DEVICE void each_remaining(F&& f) const {
    if constexpr (kAnyLength<E, kAligned>)
      for (int k = kChunks; offset(k) < features; ++k) f(offset(k));
  }
  // Calls f(chunk, at) for each chunk of this thread, from its registers or loaded again by `load`.
  template <class Load, class F>
  XLSTM_DEVICE void each_chunk(Load&& load, F&& f) {
    const auto unpacked = [&](const Raw& raw, int at) {
      Chunk c = unpack(raw);
      f(c, at);
    };
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (offset(k) < features) unpacked(chunk[k], offset(k));
    each_remaining([&](int at) { unpacked(load(at), at); });
  }
};

// Subtracts the mean from the first `valid` features; features beyond the head become 0, so that sums are not changed.
template <bool kAligned>
XLSTM_DEVICE void subtract(Chunk& c, float mean, int64_t valid) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) c.value[j] = kAligned || j < valid ? c.value[j] - mean : 0.0f;
}

}  // namespace xlstm::gpu::layer

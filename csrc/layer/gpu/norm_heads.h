// SPDX-License-Identifier: Apache-2.0
// A head's features as a group of threads holds them, for norms forward and backward.
#pragma once

#include "arch/nvidia/dependent_launch.h"
#include "layer/gpu/plan.h"
#include "layer/gpu/rows.h"

namespace xlstm::gpu::layer {

// Kernels of one dtype are for heads that a group keeps whole; Any takes longer ones too.
template <class E, bool kWhole>
constexpr bool kLonger = !kPacked<E, kWhole>;

template <class E, bool kWhole, int kChunks>
struct HeadChunks {
  using Raw = RawChunk<E, kWhole>;
  Raw kept[kChunks];
  Group group;
  int features;  // 0 without a head

  XLSTM_DEVICE HeadChunks(const Group& group_, int features_) : group(group_), features(features_) {}

  XLSTM_DEVICE int place(int k) const { return kChunk * group.lane() + k * (kChunk * group.lanes); }
  // What is not there is read from where something is, and not looked at.
  XLSTM_DEVICE int place_or_first(int k, const xlstm_norm& in) const {
    return place(k) < int(in.features) ? place(k) : 0;
  }

  // f(at) for each chunk beyond those that are kept.
  template <class F>
  XLSTM_DEVICE void each_beyond(F&& f) const {
    if constexpr (kLonger<E, kWhole>)
      for (int k = kChunks; place(k) < features; ++k) f(place(k));
  }
  // f(chunk, at) for each chunk of this thread, kept or loaded anew by `load`.
  template <class Load, class F>
  XLSTM_DEVICE void each_chunk(Load&& load, F&& f) {
    const auto unpacked = [&](const Raw& raw, int at) {
      Chunk c = unpack(raw);
      f(c, at);
    };
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (place(k) < features) unpacked(kept[k], place(k));
    each_beyond([&](int at) { unpacked(load(at), at); });
  }
};

// Of so many features that are there: those beyond the head count for nothing.
template <bool kWhole>
XLSTM_DEVICE void subtract(Chunk& c, float mean, int64_t there) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) c.value[j] = kWhole || j < there ? c.value[j] - mean : 0.0f;
}

}  // namespace xlstm::gpu::layer

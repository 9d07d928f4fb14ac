// SPDX-License-Identifier: Apache-2.0
// Vec8s of floats as a wave of CDNA loads them. Lanes of the wave's first half load first halves of vec8s and the
// others second halves, so that a load takes all of the lines that it touches: what passes the caches by would be
// fetched again for each part of a line. Lanes then exchange halves.
#pragma once

#include "arch/memory_range.h"
#include "arch/operands.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

struct HalfVec8s {
  static constexpr int kOther = kWave / 2;

  Vec16 of[2];  // halves of the vec8s of lanes `lane % kOther` and `lane % kOther + kOther`

  XLSTM_DEVICE void exchange(int lane, float (&to)[kVec8]) const {
    const bool is_second = lane >= kOther;
#pragma unroll
    for (int e = 0; e < kVec8 / 2; ++e) {
      const float first = as_float(of[0].word[e]), second = as_float(of[1].word[e]);
      const float received = shuffle_xor(is_second ? first : second, kOther, lane);
      to[e] = is_second ? received : first;
      to[kVec8 / 2 + e] = is_second ? second : received;
    }
  }
};
// at(n, lane): the bytes to vec8 n of a lane. load(range, offset): of 16 bytes.
template <int kCount, class At, class Load>
XLSTM_DEVICE void load_halves(const MemoryRange& range, int lane, At&& at, HalfVec8s (&to)[kCount], Load&& load) {
  constexpr int kOther = HalfVec8s::kOther;
#pragma unroll
  for (int n = 0; n < kCount; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      to[n].of[h] = load(range, at(n, lane % kOther + h * kOther) + (lane >= kOther ? 16 : 0));
}

}  // namespace xlstm::gpu::engine

// SPDX-License-Identifier: Apache-2.0
// CDNA: mailboxes, floats that blocks of one launch hand to each other (engine/megakernel_cdna/megakernel_cdna.h). As
// on Hopper (engine/megakernel/mailbox.h), a mailbox begins as kEmpty, its producer publishes it once, and a consumer
// spins until it is not empty. Loads and stores have the scope of the device, since each of an MI300X's dies has an L2
// of its own. A mailbox is its own flag, so nothing has to be released or acquired.
#pragma once

#include "arch/device_scope.h"
#include "engine/gpu/prologue_epilogue.h"

namespace xlstm::gpu::engine::device_mailbox {

// At most once for each mailbox.
XLSTM_DEVICE void publish(float* to, float x) { store_device_scope(to, not_empty(x)); }

// kCount mailboxes: at(n) has the address of mailbox n. All loads are issued before the first is waited for.
template <int kCount, class At>
XLSTM_DEVICE void spin_each(At&& at, float (&to)[kCount]) {
  bool is_empty;
  while (true) {
    is_empty = false;
#pragma unroll
    for (int n = 0; n < kCount; ++n) to[n] = load_device_scope(at(n));
#pragma unroll
    for (int n = 0; n < kCount; ++n) is_empty |= as_bits(to[n]) == kEmpty;
    if (!any_lane(is_empty)) return;
    spin_pause();
  }
}
// Pairs of mailboxes, at multiples of 8 bytes.
template <int kPairs, class At>
XLSTM_DEVICE void spin_pairs(At&& at, float (&to)[2 * kPairs]) {
  bool is_empty;
  while (true) {
    uint64_t bits[kPairs];
#pragma unroll
    for (int n = 0; n < kPairs; ++n) bits[n] = load_device_scope(reinterpret_cast<const uint64_t*>(at(n)));
    is_empty = false;
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const uint32_t low = uint32_t(bits[n]), high = uint32_t(bits[n] >> 32);
      is_empty |= low == kEmpty || high == kEmpty;
      to[2 * n] = as_float(low), to[2 * n + 1] = as_float(high);
    }
    if (!any_lane(is_empty)) return;
    spin_pause();
  }
}
// Vec8s of mailboxes as a wave loads them. Lanes of the wave's first half load first halves of vec8s and the others
// second halves, so that a load takes all of the lines that it touches: what passes the caches by would be fetched
// again for each part of a line. Lanes then exchange halves.
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
// at(n, lane): the bytes to vec8 n of a lane.
template <int kCount, class At>
XLSTM_DEVICE void spin_vec8s(const MemoryRange& range, int lane, At&& at, HalfVec8s (&to)[kCount]) {
  constexpr int kOther = HalfVec8s::kOther;
  while (true) {
    keep_order_of_loads();
#pragma unroll
    for (int n = 0; n < kCount; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        to[n].of[h] = load_vec16_device_scope(range, at(n, lane % kOther + h * kOther) + (lane >= kOther ? 16 : 0));
    bool is_empty = false;
#pragma unroll
    for (const HalfVec8s& vec8 : to)
#pragma unroll
      for (const Vec16& half : vec8.of)
#pragma unroll
        for (const uint32_t word : half.word) is_empty |= word == kEmpty;
    if (!any_lane(is_empty)) return;
    spin_pause();
  }
}

// The epilogue's counterpart of store_output, for the single row of the batch. residual: what Output::add adds to.
XLSTM_DEVICE void publish_output(const GemmParams& p, int linear, int row, float y, float residual) {
  if (p.output == Output::add)
    y += residual;
  else if (p.output == Output::store)
    y = cap_and_mask(p, linear, 0, y);
  publish(global(p.to[linear]) + row, y);
}

}  // namespace xlstm::gpu::engine::device_mailbox

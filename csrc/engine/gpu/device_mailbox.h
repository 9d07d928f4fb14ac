// SPDX-License-Identifier: Apache-2.0
// CDNA: mailboxes, floats that blocks of one launch hand to each other (engine/megakernel_cdna/megakernel_cdna.h). As
// on Hopper (engine/megakernel/mailbox.h), a mailbox begins as kEmpty, its producer publishes it once, and a consumer
// spins until it is not empty. Loads and stores have the scope of the device, since each of an MI300X's dies has an L2
// of its own. A mailbox is its own flag, so nothing has to be released or acquired.
#pragma once

#include "arch/device_scope.h"
#include "engine/gpu/half_vec8s.h"
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
// Vec8s of mailboxes: see load_halves().
template <int kCount, class At>
XLSTM_DEVICE void spin_vec8s(const MemoryRange& range, int lane, At&& at, HalfVec8s (&to)[kCount]) {
  while (true) {
    keep_order_of_loads();
    load_halves(range, lane, at, to, load_vec16_device_scope);
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

// What a product of one row (engine/gemm_row_cdna/row_product.h) is given and gives, between blocks of one launch.
struct BetweenBlocks {
  static constexpr bool kLoadsBehind = true;  // there is a next product, whose first weights are loaded behind the last

  template <int kCount, class At>
  XLSTM_DEVICE static void load_vec8s(const MemoryRange& range, int lane, At&& at, HalfVec8s (&to)[kCount]) {
    spin_vec8s(range, lane, at, to);
  }
  // x of this row, which this block has seen in full; of another where it is not used.
  XLSTM_DEVICE static float load_residual(const float* from, int, int row, bool is_used) {
    return load_device_scope(from + (is_used ? row : 0));
  }
  XLSTM_DEVICE static void store(float* to, float y) { publish(to, y); }
};

}  // namespace xlstm::gpu::engine::device_mailbox

// SPDX-License-Identifier: Apache-2.0
// Mailboxes: how the blocks of a persistent grid hand floats to each other within a launch
// (engine/megakernel/megakernel.h). A mailbox is a float in device memory that begins as kEmpty. Its producer publishes
// it once; a consumer spins until it is not empty. So there is no counter of arrivals and no fence, and the load that
// finds a mailbox full already has the value. (A counter cost one trip to L2 for the fence, one for the counter, one
// for the consumer to see it and one for the data.)
#pragma once

#include "arch/hopper/hopper.h"
#include "engine/gpu/prologue_epilogue.h"

namespace xlstm::gpu::engine {

// At most once for each mailbox.
XLSTM_DEVICE void publish(float* to, float x) { store_relaxed_gpu(to, as_bits(not_empty(x))); }

XLSTM_DEVICE bool any_empty(const Vec16& data) {
  bool is_empty = false;
#pragma unroll
  for (int w = 0; w < 4; ++w) is_empty |= data.word[w] == kEmpty;
  return is_empty;
}

XLSTM_DEVICE float spin_until_published(const float* from) {
  uint32_t bits;
  do bits = load_relaxed_gpu(from);
  while (bits == kEmpty && spin_again());
  return as_float(bits);
}
// Four mailboxes at a multiple of 16 bytes.
XLSTM_DEVICE Vec16 spin_until_vec16_published(const float* from) {
  Vec16 data;
  do data = load_relaxed_gpu_vec16(from);
  while (any_empty(data) && spin_again());
  return data;
}
// Vec8s of mailboxes: all loads are issued before the first is waited for. while_waiting(n) runs while the nth round of
// loads is in flight.
template <int kCount, class WhileWaiting>
XLSTM_DEVICE void spin_until_vec8s_published(const float* const (&from)[kCount], float (&to)[kCount][kVec8],
                                             WhileWaiting&& while_waiting) {
  Vec16 data[2 * kCount];
  bool is_empty;
  int look = 0;
  do {
    is_empty = false;
#pragma unroll
    for (int n = 0; n < 2 * kCount; ++n) data[n] = load_relaxed_gpu_vec16(from[n / 2] + n % 2 * 4);
    while_waiting(look++);
#pragma unroll
    for (int n = 0; n < 2 * kCount; ++n) is_empty |= any_empty(data[n]);
  } while (is_empty && spin_again());
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int e = 0; e < kVec8; ++e) to[i][e] = as_float(data[2 * i + e / 4].word[e % 4]);
}

}  // namespace xlstm::gpu::engine

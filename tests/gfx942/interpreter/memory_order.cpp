// SPDX-License-Identifier: Apache-2.0
#include "memory_order.h"

namespace gfx942 {

namespace {

// FNV-1a, over what the lanes are about to change.
uint64_t digest(const LaneAddresses& p, uint32_t bytes) {
  uint64_t x = 0xcbf29ce484222325u;
  for (Mask m = p.memory; m; m &= m - 1) {
    const auto* byte = reinterpret_cast<const uint8_t*>(p.address[std::countr_zero(m)]);
    for (uint32_t k = 0; k < bytes; ++k) x = (x ^ byte[k]) * 0x100000001b3u;
  }
  return x;
}

}  // namespace

OrderedStore::OrderedStore(Wave& w, const LaneAddresses& p, uint32_t bytes)
    : order_(w.order), lanes_(p), bytes_(bytes) {
  if (order_) before_ = digest(lanes_, bytes_);
}

OrderedStore::~OrderedStore() {
  if (order_) order_->changes_ += digest(lanes_, bytes_) != before_;
}

}  // namespace gfx942

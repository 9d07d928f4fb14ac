// SPDX-License-Identifier: Apache-2.0
// What the waves of one launch do to each other through memory, where they take turns (schedule.h).
#pragma once

#include "memory_access.h"

namespace gfx942 {

class MemoryOrder {
 public:
  uint64_t changes() const { return changes_; }  // of memory's contents

 private:
  friend class OrderedStore;
  uint64_t changes_ = 0;
};

// Around a store, or an atomic, of lanes in memory.
class OrderedStore {
 public:
  OrderedStore(Wave& w, const LaneAddresses& p, uint32_t bytes);
  ~OrderedStore();
  OrderedStore(const OrderedStore&) = delete;

 private:
  MemoryOrder* order_;  // null where waves do not take turns
  const LaneAddresses& lanes_;
  uint32_t bytes_;
  uint64_t before_ = 0;
};

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
// What the waves of one launch do to each other through memory, where they take turns (schedule.h): which stores of
// other waves a load may see.
//
// Each XCD of a chip has an L2 of its own, and each compute unit an L1. Any two workgroups may be on two XCDs, so what
// one passes to another is right only by LLVM's memory model of gfx942 (AMDGPUUsage), for the scope of the device:
//   device scope   a load or a store with sc1, or an atomic: it passes the caches by
//   release        buffer_wbl2 sc1, then s_waitcnt vmcnt(0), then a store or an atomic of device scope
//   acquire        a load or an atomic of device scope that sees what that stored, s_waitcnt, then buffer_inv sc1
// Waves of one workgroup have a barrier between a store and its load. Memory itself is always as the last store left
// it: the check does not depend on which turns were taken, but on what orders two accesses.
//
// On gfx90a every store passes L1 by, and a load does with glc: these have device scope.
//
// Not seen: a store over what another wave has yet to read; two stores of device scope that arrive in the other order,
// if both are read at device scope; what one workgroup passes to another on gfx90a, whose device has one L2.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory_access.h"

namespace gfx942 {

struct Launch;

// Of each wave, up to which of its stores. Copies share one list until they change.
class Clock {
 public:
  uint32_t of(uint32_t wave) const;  // 0: of none
  void join(const Clock& other);
  void raise(uint32_t wave, uint32_t time);
  bool empty() const { return !times_; }

 private:
  using Times = std::vector<std::pair<uint32_t, uint32_t>>;  // in the order of waves
  std::shared_ptr<const Times> times_;
};

class MemoryOrder {
 public:
  explicit MemoryOrder(const Launch& launch);

  enum class Use : uint8_t { load, scalar_load, store, atomic };
  void access(Wave& w, const Instruction& i, const LaneAddresses& p, uint32_t bytes, Use use);
  void write_back(const Wave& w);                // buffer_wbl2 of device scope
  void invalidate(const Wave& w);                // buffer_inv of device scope
  void wait(const Wave& w, bool for_all);        // s_waitcnt has passed; for all that vmcnt counts
  void meet(const Workgroup& group);             // at a barrier
  uint64_t changes() const { return changes_; }  // of memory's contents

 private:
  friend class OrderedStore;
  // A wave. Its stores between two releases, or barriers, have one time.
  struct Agent {
    uint32_t time = 1;
    Clock known;         // what its loads see
    Clock observed;      // what loads of device scope have seen released, and no buffer_inv has followed
    Clock released;      // what its flags say
    Clock written_back;  // what `released` becomes at the next wait for all
    bool writes_back = false;
    struct Load {
      uint32_t number;  // of vmcnt
      Clock clock;
    };
    std::vector<Load> loads;  // of device scope, that no wait has passed
  };
  struct Stored {
    uint32_t wave = kNone, time = 0;
    bool device = false;
    bool operator==(const Stored&) const = default;
  };
  static constexpr uint32_t kNone = ~0u, kLine = 128;
  using Line = std::array<Stored, kLine>;

  uint32_t number_of(const Wave& w) const;
  bool has_device_scope(const Instruction& i, Use use) const;
  bool is_ordered(const Wave& w, const Stored& s, Use use, bool device) const;
  template <class F>
  void for_each_line(uint64_t at, uint32_t bytes, bool make, F f);
  void check(const Wave& w, const Instruction& i, uint64_t at, uint32_t bytes, int lane, Use use, bool device);
  std::string why(uint32_t wave, const Stored& s, Use use, bool device) const;
  void note(uint32_t wave, uint64_t at, uint32_t bytes, Use use, bool device);
  void observe(Agent& me, uint64_t at, uint32_t bytes, uint32_t number) const;

  const Launch& launch_;
  const uint32_t waves_of_group_;
  const bool has_many_l2_;
  std::vector<Agent> agents_;
  std::unordered_map<uint64_t, std::unique_ptr<Line>> lines_;  // by address / 128, of those that were stored to
  std::unordered_map<uint64_t, Clock> flags_;                  // by address / 4: what a store of device scope releases
  uint64_t changes_ = 0;
};

// Before a load of lanes in memory.
inline void order_load(Wave& w, const Instruction& i, const LaneAddresses& p, uint32_t bytes) {
  if (w.order) [[unlikely]]
    w.order->access(w, i, p, bytes, MemoryOrder::Use::load);
}

// Around a store, or an atomic.
class OrderedStore {
 public:
  OrderedStore(Wave& w, const Instruction& i, const LaneAddresses& p, uint32_t bytes,
               MemoryOrder::Use use = MemoryOrder::Use::store);
  ~OrderedStore();
  OrderedStore(const OrderedStore&) = delete;

 private:
  MemoryOrder* order_;  // null where waves do not take turns
  const LaneAddresses& lanes_;
  uint32_t bytes_;
  uint64_t before_ = 0;
};

}  // namespace gfx942

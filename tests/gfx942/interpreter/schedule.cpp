// SPDX-License-Identifier: Apache-2.0
#include "schedule.h"

#include <random>

#include "memory_order.h"

namespace gfx942 {
namespace {

// The registers of a wave, to see whether it comes back to where it was.
class Snapshot {
 public:
  void take(const Wave& w) {
    pc_ = w.pc, mode_ = w.mode.bits, scc_ = w.scc;
    scalars_.assign(w.s, w.s + kScalars);
    vectors_.assign(w.v.get(), w.v.get() + kVectors);
  }
  bool is_of(const Wave& w) const {
    return !scalars_.empty() && pc_ == w.pc && mode_ == w.mode.bits && scc_ == w.scc &&
           std::equal(scalars_.begin(), scalars_.end(), w.s) &&
           std::memcmp(vectors_.data(), w.v.get(), kVectors * sizeof(Vector)) == 0;
  }

 private:
  uint32_t pc_ = 0, mode_ = 0;
  bool scc_ = false;
  std::vector<uint32_t> scalars_;
  std::vector<Vector> vectors_;
};

class Turns {
 public:
  Turns(const Launch& launch, Tally& tally, uint64_t seed)
      : launch_(launch),
        tally_(tally),
        random_(seed),
        all_(uint64_t(launch.grid[0]) * launch.grid[1] * launch.grid[2]),
        order_(launch) {}

  void run() {
    const uint64_t held = uint64_t(workgroups_of_unit(launch_)) * uint64_t(launch_.code->object->chip().compute_units);
    begin_more(held);
    while (!running_.empty()) {
      const size_t k = random_() % running_.size();
      const uint32_t most = 1 + uint32_t(random_() % kMostInstructions);
      running_[k].wave->run_turn(most);
      quiet_instructions_ += most;
      settle(k);
      if (const uint64_t changes = order_.changes() + ended_; changes != seen_changes_) {
        seen_changes_ = changes, quiet_instructions_ = 0, patience_ = kPatience;
      } else if (quiet_instructions_ > patience_ * running_.size()) {
        find_deadlock();
      }
    }
  }

 private:
  static constexpr uint32_t kMostInstructions = 64;  // of a turn
  static constexpr uint64_t kPatience =
      2048;  // instructions of each wave, without a change, until a deadlock is looked for

  struct Slot {  // that workgroups have one after the other
    std::unique_ptr<Workgroup> group;
    size_t running = 0;  // waves that have neither ended nor wait at the barrier
  };
  struct Running {
    Wave* wave;
    size_t slot;
  };

  void begin_more(uint64_t most) {
    for (; begun_ < all_ && slots_.size() < most;) {
      slots_.push_back({std::make_unique<Workgroup>(launch_, tally_), 0});
      begin_in(slots_.size() - 1);
    }
  }

  void begin_in(size_t slot) {
    const uint64_t at = begun_++;
    Workgroup& group = *slots_[slot].group;
    group.begin({uint32_t(at % launch_.grid[0]), uint32_t(at / launch_.grid[0] % launch_.grid[1]),
                 uint32_t(at / launch_.grid[0] / launch_.grid[1])});
    for (const auto& w : group.waves()) w->order = &order_;
    go_on(slot);
  }

  void go_on(size_t slot) {
    for (const auto& w : slots_[slot].group->waves()) {
      if (w->ended) continue;
      running_.push_back({w.get(), slot});
      ++slots_[slot].running;
    }
  }

  // After a turn: a wave that cannot go on leaves; the last of its workgroup opens the barrier, or makes way.
  void settle(size_t k) {
    const auto [wave, at] = running_[k];
    if (!wave->ended && !wave->at_barrier) return;
    running_[k] = running_.back();
    running_.pop_back();
    Slot& slot = slots_[at];
    if (--slot.running) return;
    bool ended = true;
    for (const auto& w : slot.group->waves()) ended &= w->ended;
    if (!ended) {
      slot.group->leave_barrier();
      go_on(at);
    } else {
      ++ended_;
      if (begun_ < all_) begin_in(at);
    }
  }

  // Whether a wave, left alone, comes back to the same registers without a change of memory: it then does so for ever.
  bool repeats(size_t k) {
    Wave& w = *running_[k].wave;
    snapshot_ = {};
    uint64_t next = 1;
    for (uint64_t n = 1; n <= patience_; ++n) {
      w.run_turn(1);
      if (w.ended || w.at_barrier || order_.changes() + ended_ != seen_changes_) return false;
      if (snapshot_.is_of(w)) return true;
      if (n == next) snapshot_.take(w), next *= 2;
    }
    return false;
  }

  void find_deadlock() {
    for (size_t k = 0; k < running_.size(); ++k)
      if (!repeats(k)) {
        settle(k);
        quiet_instructions_ = 0, patience_ *= 2;
        return;
      }
    const Wave& first = *running_[0].wave;
    const Instruction& next = first.code.instructions[first.pc];
    const auto words = [&] {
      return "deadlock: " + std::to_string(running_.size()) +
             " waves repeat what they do without a change of memory; " + std::to_string(begun_) + " of " +
             std::to_string(all_) + " workgroups have begun, and the chip holds " + std::to_string(slots_.size()) +
             " at once";
    };
    if (begun_ == all_) first.fail(next, words() + named(Check::deadlock));
    first.complain(Check::deadlock, next, -1, words);
    begin_more(all_);
    quiet_instructions_ = 0;
  }

  const Launch& launch_;
  Tally& tally_;
  std::mt19937_64 random_;
  const uint64_t all_;
  uint64_t begun_ = 0, ended_ = 0;  // workgroups
  std::vector<Slot> slots_;
  std::vector<Running> running_;
  MemoryOrder order_;
  uint64_t seen_changes_ = 0, quiet_instructions_ = 0, patience_ = kPatience;
  Snapshot snapshot_;
};

}  // namespace

void run_in_turns(const Launch& launch, Tally& tally, uint64_t seed) {
  ++tally.launches;
  Tally mine(launch.code->instructions.size());
  Turns(launch, mine, seed).run();
  tally.add(mine);
}

}  // namespace gfx942

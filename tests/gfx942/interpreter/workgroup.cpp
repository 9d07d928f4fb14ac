// SPDX-License-Identifier: Apache-2.0
#include "workgroup.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "memory_order.h"

namespace gfx942 {

void Tally::add(const Tally& other) {
  const auto sum = [](std::vector<uint64_t>& to, const std::vector<uint64_t>& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t k = 0; k < from.size(); ++k) to[k] += from[k];
  };
  sum(executed, other.executed), sum(lanes, other.lanes), sum(cycles, other.cycles), sum(ideal, other.ideal);
  sum(bytes, other.bytes), sum(lines, other.lines);
  workgroups += other.workgroups, waves += other.waves, launches += other.launches;
}

// ---- a workgroup

Workgroup::Workgroup(const Launch& l, Tally& tally, bool records)
    : launch(l), lds(l.lds_bytes(), int(l.waves())), tally_(tally), events_(records ? l.waves() : 0) {
  const int waves = int(l.waves());
  for (int k = 0; k < waves; ++k) waves_.push_back(std::make_unique<Wave>(*this, *l.code, k));
}

// The registers that the hardware fills: https://llvm.org/docs/AMDGPUUsage.html#initial-kernel-execution-state
void Workgroup::start(Wave& w, int number) {
  const Code& code = *launch.code;
  int next = 0;
  const auto give = [&](uint32_t x) { w.s[next] = x, w.s_defined[next++] = ~0u; };
  const auto give_pointer = [&](const void* p) {
    const auto x = reinterpret_cast<uint64_t>(p);
    give(uint32_t(x)), give(uint32_t(x >> 32));
  };
  enum {
    kSegmentBuffer = 1,
    kDispatchPtr = 2,
    kQueuePtr = 4,
    kKernargPtr = 8,
    kDispatchId = 16,
    kFlatScratch = 32,
    kPrivateSize = 64
  };
  // gfx90a's kernels ask for what scratch would need, whether they use it or not. Those that do are refused.
  const auto leave_undefined = [&](int registers) { next += registers; };
  const bool scratch_is_a_buffer = code.properties & (kSegmentBuffer | kFlatScratch);
  if (code.properties & kQueuePtr) throw Fault("kernel " + code.name + " wants a queue: not implemented");
  if (scratch_is_a_buffer && code.scratch_bytes)
    throw Fault("kernel " + code.name + " has scratch, which is a buffer on this chip: not implemented");
  if (code.properties & kSegmentBuffer) leave_undefined(4);
  if (code.properties & kDispatchPtr) give_pointer(launch.packet);
  if (code.properties & kKernargPtr) give_pointer(launch.arguments);
  if (code.properties & kDispatchId) give(0), give(0);
  if (code.properties & kFlatScratch) leave_undefined(2);
  if (code.properties & kPrivateSize) give(code.scratch_bytes);
  const uint32_t preloaded = code.properties >> 16 & 127, skipped = code.properties >> 23;  // in dwords
  if (4 * (preloaded + skipped) > code.kernarg_bytes)
    throw Fault("kernel " + code.name + " wants more preloaded arguments than it has");
  for (uint32_t k = 0; k < preloaded; ++k) {
    uint32_t x;
    std::memcpy(&x, launch.arguments + 4 * (skipped + k), 4);
    give(x);
  }
  if (next > int(code.user_sgprs)) throw Fault("kernel " + code.name + " has fewer user registers than it asks for");
  next = int(code.user_sgprs);
  for (int axis = 0; axis < 3; ++axis)
    if (code.rsrc2 >> (7 + axis) & 1) give(id[axis]);
  if (code.rsrc2 >> 10 & 1) throw Fault("kernel " + code.name + " wants workgroup info: not implemented");

  const uint32_t first = uint32_t(number) * kLanes, threads = launch.threads();
  const uint32_t lanes = std::min<uint32_t>(kLanes, threads - first);
  const Mask on = lanes == kLanes ? ~Mask(0) : (Mask(1) << lanes) - 1;
  for (uint32_t l = 0; l < lanes; ++l) {
    const uint32_t t = first + l;
    w.v[0].lane[l] = t % launch.block[0] | t / launch.block[0] % launch.block[1] << 10 |
                     t / (launch.block[0] * launch.block[1]) << 20;
  }
  w.v_defined[0] = on;
  w.set_exec(on);
  w.set_pair_defined(kExec, ~uint64_t(0));
  w.mode.bits = code.mode;
  w.scratch.assign(size_t(code.scratch_bytes) * kLanes, 0);
  w.scratch_defined.assign(w.scratch.size(), 0);
  w.tally = &tally_;
}

void Workgroup::begin(std::array<uint32_t, 3> position) {
  id = position;
  lds.reset();
  for (size_t k = 0; k < waves_.size(); ++k) {
    waves_[k]->reset();
    start(*waves_[k], int(k));
    if (!events_.empty()) events_[k].clear(), waves_[k]->events = &events_[k];
  }
  ++tally_.workgroups;
  tally_.waves += waves_.size();
}

void Workgroup::run(std::array<uint32_t, 3> position, uint64_t most_words) {
  begin(position);
  // A wave runs until it ends or waits for the others.
  for (;;) {
    size_t ended = 0;
    for (auto& w : waves_) {
      if (!w->ended && !w->at_barrier) w->run();
      ended += w->ended;
    }
    if (ended == waves_.size()) return;
    uint64_t words = 0;
    for (const Events& e : events_) words += e.words.size();
    if (most_words && words > most_words) return check_barrier();
    leave_barrier();
  }
}

void Workgroup::leave_barrier() {
  check_barrier();
  lds.next_epoch();
  if (MemoryOrder* order = waves_[0]->order) order->meet(*this);
  for (auto& w : waves_)
    if (w->at_barrier) w->leave_barrier();
}

// Hardware counts a wave that has ended as arrived, which hides the mistake if it is one. Waves that take turns wait at
// different barriers on purpose; compilers' code does not.
void Workgroup::check_barrier() const {
  const Wave* first = nullptr;
  bool ended = false;
  for (const auto& w : waves_) {
    ended |= w->ended;
    if (!first && w->at_barrier) first = w.get();
  }
  for (const auto& w : waves_) {
    if (!w->at_barrier) continue;
    const Instruction& barrier = w->code.instructions[w->pc - 1];
    if (ended)
      w->complain(Check::ended_barrier, barrier, -1,
                  [] { return std::string("divergent barrier: other waves have ended"); });
    if (w->pc != first->pc)
      w->complain(Check::divergent_barrier, barrier, -1,
                  [&] { return "divergent barrier: wave " + std::to_string(first->number) + " waits at another one"; });
  }
}

std::vector<std::vector<uint32_t>> Workgroup::take_events() {
  std::vector<std::vector<uint32_t>> words;
  for (Events& e : events_) words.push_back(std::move(e.words));
  return words;
}

// ---- a launch

uint32_t workgroups_of_unit(const UnitLimits& limits, uint32_t vgprs, uint32_t lds_bytes, uint32_t waves) {
  constexpr uint32_t kGranule = 8;
  const uint32_t registers = std::max(1u, (vgprs + kGranule - 1) / kGranule) * kGranule;
  const uint32_t by_waves = std::min(limits.waves_of_simd, limits.vgprs_of_simd / registers) * limits.simds / waves;
  return std::max(1u, lds_bytes ? std::min(by_waves, limits.lds_bytes / lds_bytes) : by_waves);
}

uint32_t workgroups_of_unit(const Launch& launch) {
  const UnitLimits limits{4, 8, 512, launch.code->object->chip().lds_bytes};
  return workgroups_of_unit(limits, launch.code->vgprs, launch.lds_bytes(), launch.waves());
}

void run(const Launch& launch, Tally& tally, const RunOptions& options) {
  const uint64_t all = uint64_t(launch.grid[0]) * launch.grid[1] * launch.grid[2];
  const auto& chosen = options.chosen;
  const uint64_t count = chosen.empty() ? (all + options.sample - 1) / options.sample : chosen.size();
  std::atomic<uint64_t> next{0};
  std::atomic<bool> stop{false};
  std::exception_ptr first;
  std::mutex lock;
  const auto work = [&] {
    Tally mine(launch.code->instructions.size());
    try {
      Workgroup group(launch, mine, options.recorded != nullptr);
      for (uint64_t k; !stop && (k = next++) < count;) {
        const uint64_t at = chosen.empty() ? k * options.sample : chosen[k];
        group.run({uint32_t(at % launch.grid[0]), uint32_t(at / launch.grid[0] % launch.grid[1]),
                   uint32_t(at / launch.grid[0] / launch.grid[1])},
                  options.most_words);
        if (!options.recorded) continue;
        const std::lock_guard guard(lock);
        (options.most_words ? options.recorded->begun : options.recorded->groups)[at] = group.take_events();
      }
    } catch (...) {
      const std::lock_guard guard(lock);
      if (!first) first = std::current_exception();
      stop = true;
    }
    const std::lock_guard guard(lock);
    tally.add(mine);
  };
  const uint64_t cores = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (uint64_t k = 1; k < std::min(cores, count); ++k) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
  ++tally.launches;
  if (first) std::rethrow_exception(first);
}

}  // namespace gfx942

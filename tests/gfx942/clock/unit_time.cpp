// SPDX-License-Identifier: Apache-2.0
#include "unit_time.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

namespace gfx942::clock {

const std::array<std::string_view, kSpent> kSpentNames = {"MFMA",
                                                          "VALU",
                                                          "SALU",
                                                          "LDS",
                                                          "memory",
                                                          "other",
                                                          "wait: MFMA unit",
                                                          "wait: VALU port",
                                                          "wait: issue port",
                                                          "wait: MFMA result",
                                                          "wait: result",
                                                          "wait: memory",
                                                          "wait: LDS",
                                                          "wait: scalar memory",
                                                          "wait: full queue",
                                                          "wait: barrier",
                                                          "wait: instructions",
                                                          "s_nop, s_sleep"};

namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

// When what is out of one of a wave's counters comes back, in the order of issue.
class Outstanding {
 public:
  explicit Outstanding(double most) : when_(std::bit_ceil(size_t(most) + 1)) {}

  size_t size() const { return end_ - begin_; }
  void push(uint64_t when, bool scalar) {
    if (size() == when_.size()) throw std::logic_error("more is out than the counter counts");
    when_[end_++ & (when_.size() - 1)] = {when, scalar};
    scalars_ += scalar;
  }
  void drop_until(uint64_t now) {
    for (; size() && front().when <= now; ++begin_) scalars_ -= front().scalar;
  }
  // The last time at which one comes back, but for the newest `most`.
  uint64_t last(size_t most) const {
    uint64_t found = 0;
    for (size_t k = begin_; k + most < end_; ++k) found = std::max(found, when_[k & (when_.size() - 1)].when);
    return found;
  }
  bool has_scalars() const { return scalars_; }

 private:
  struct Access {
    uint64_t when;
    bool scalar;
  };
  const Access& front() const { return when_[begin_ & (when_.size() - 1)]; }

  std::vector<Access> when_;  // a ring
  size_t begin_ = 0, end_ = 0, scalars_ = 0;
};

struct Wave {
  Wave(const Constants& c, const std::vector<uint32_t>& words, uint32_t g, uint32_t n, int s)
      : cursor(words), group(g), number(n), simd(s), vm(c.counter_vm), lgkm(c.counter_lgkm) {}

  Cursor cursor;
  uint32_t group, number;
  int simd;
  int priority = 0;
  bool at_barrier = false, ended = false;
  uint64_t issued = 0;                         // when its last instruction left
  uint64_t ready = 0;                          // when this one could at the earliest, as far as the wave itself goes
  uint64_t asks = 0;                           // when it asks for a slot again
  Spent waits_for = Spent::wait_instructions;  // until then
  Spent refused_by = Spent::wait_port;         // since then
  uint32_t instruction_line = 0;               // of the cache, where this one is
  Outstanding vm, lgkm;
  uint64_t newest_result = 0;  // of those below
  struct Result {
    uint64_t when : 63 = 0;
    uint64_t of_matrix : 1 = 0;
  };
  std::vector<Result> result = std::vector<Result>(kScalars + kVectors);
};

struct Group {
  size_t which;
  bool counts;
  uint64_t begin;
  std::vector<std::unique_ptr<Wave>> waves;
  size_t waiting = 0, ended = 0;
};

class UnitClock {
 public:
  UnitClock(const Constants& c, const std::vector<Step>& steps, const Share& share,
            const std::vector<const GroupWords*>& groups, const UnitOptions& options)
      : c_(c),
        steps_(steps),
        given_(groups),
        options_(options),
        memory_(c, share),
        instruction_lines_(uint32_t(c.instruction_cache_bytes / c.instruction_line_bytes), 8),
        simds_(size_t(c.simds)),
        slot_(uint64_t(c.issue_cycles)) {
    time_.stalls.resize(steps.size()), time_.executed.resize(steps.size()), time_.stalled_for.resize(steps.size());
    worst_.resize(steps.size());
  }

  UnitTime run();

 private:
  struct Simd {
    std::vector<Wave*> waves;  // oldest first
    uint64_t next = 0;         // when it looks at them again
    uint64_t vector_free = 0, matrix_free = 0;
    bool matrix_issued_last = false;
  };

  void admit(uint64_t now);
  void begin(Wave& w, uint64_t now);
  void prepare(Wave& w);
  void wait(Wave& w, uint64_t until, Spent spent);
  void wait_for_counter(Wave& w, const Outstanding& out, double most, Spent spent);
  void wait_for_registers(Wave& w, const Step& s);
  void slot(Simd& simd, uint64_t now);
  bool refused(Simd& simd, Wave& w, const Step& s, uint64_t now, std::array<bool, kPorts>& taken);
  void issue(Simd& simd, Wave& w, const Step& s, uint64_t now);
  void execute(Simd& simd, Wave& w, const Step& s, uint64_t now);
  void occupy_lds(uint64_t now, double cycles);
  void note_results(Wave& w, const Step& s, uint64_t when);
  void account(Wave& w, const Step& s, uint64_t now);
  void spend(const Wave& w, uint64_t begin, uint64_t end, Spent spent);
  void end(Wave& w, uint64_t now);
  void leave_barrier(Group& g, uint64_t now);
  uint64_t at_slot(int simd, uint64_t time) const;

  const Constants& c_;
  const std::vector<Step>& steps_;
  const std::vector<const GroupWords*>& given_;
  const UnitOptions& options_;
  MemoryTime memory_;
  Cache instruction_lines_;
  std::vector<Simd> simds_;
  uint64_t slot_;
  std::vector<std::unique_ptr<Group>> groups_;
  size_t next_group_ = 0, counted_left_ = 0;
  uint64_t next_simd_ = 0;
  double lds_free_ = 0;
  std::vector<std::array<uint64_t, kSpent>> worst_;
  UnitTime time_;
};

Spent spent_of(const Step& s) {
  switch (s.unit) {
    case Unit::matrix:
      return Spent::matrix;
    case Unit::vector:
    case Unit::transcendental:
      return Spent::vector;
    case Unit::scalar:
    case Unit::scalar_memory:
      return Spent::scalar;
    case Unit::lds:
      return Spent::lds;
    case Unit::memory:
      return Spent::memory;
    default:
      return Spent::other;
  }
}

// A SIMD issues each fourth cycle, one after the other.
uint64_t UnitClock::at_slot(int simd, uint64_t time) const {
  const uint64_t turn = uint64_t(simd) & (slot_ - 1);
  return turn + ((std::max(time, turn) - turn + slot_ - 1) & ~(slot_ - 1));
}

// ---- workgroups come and go

void UnitClock::admit(uint64_t now) {
  size_t resident = 0;
  for (const auto& g : groups_) resident += g != nullptr;
  while (resident < size_t(options_.resident) && counted_left_) {
    const bool again = next_group_ >= given_.size();
    if (again && !options_.refill) return;
    const size_t which = next_group_++ % given_.size();
    auto g = std::make_unique<Group>();
    g->which = which, g->counts = !again, g->begin = now;
    const uint32_t number = uint32_t(groups_.size());
    uint64_t start = now + uint64_t(c_.group_launch_cycles);
    for (const auto& words : *given_[which]) {
      const int simd = int(next_simd_++ % simds_.size());
      g->waves.push_back(std::make_unique<Wave>(c_, words, number, uint32_t(g->waves.size()), simd));
      Wave& w = *g->waves.back();
      w.issued = now;
      simds_[size_t(simd)].waves.push_back(&w);
      start += uint64_t(c_.wave_launch_cycles);
      begin(w, start);
    }
    groups_.push_back(std::move(g));
    ++resident;
  }
}

void UnitClock::begin(Wave& w, uint64_t now) {
  w.ready = now, w.waits_for = Spent::wait_instructions;
  if (!w.cursor.next()) throw std::invalid_argument("a wave without instructions");
  prepare(w);
}

void UnitClock::end(Wave& w, uint64_t now) {
  w.ended = true;
  Group& g = *groups_[w.group];
  std::erase(simds_[size_t(w.simd)].waves, &w);
  if (++g.ended < g.waves.size()) {
    if (g.waiting + g.ended == g.waves.size()) leave_barrier(g, now);
    return;
  }
  if (g.counts) {
    time_.groups.push_back({g.which, g.begin, now});
    --counted_left_;
  }
  groups_[w.group].reset();
  admit(now);
}

void UnitClock::leave_barrier(Group& g, uint64_t now) {
  g.waiting = 0;
  for (auto& w : g.waves) {
    if (!w->at_barrier) continue;
    w->at_barrier = false;
    w->ready = now + uint64_t(c_.barrier_cycles), w->waits_for = Spent::wait_barrier;
    w->cursor.next();
    prepare(*w);
  }
}

// ---- what a wave waits for

void UnitClock::wait(Wave& w, uint64_t until, Spent spent) {
  if (until > w.ready) w.ready = until, w.waits_for = spent;
}

void UnitClock::wait_for_counter(Wave& w, const Outstanding& out, double most, Spent spent) {
  if (double(out.size()) > most) wait(w, out.last(size_t(most)), spent);
}

void UnitClock::wait_for_registers(Wave& w, const Step& s) {
  if (w.newest_result <= w.ready) return;
  const auto look = [&](const Registers& r) {
    if (s.port == Port::vector && r.first < kScalars) return;  // VCC and others are passed on
    for (int k = r.first; k < r.first + r.count; ++k) {
      const Wave::Result& x = w.result[size_t(k)];
      wait(w, x.when, x.of_matrix ? Spent::wait_matrix_result : Spent::wait_result);
    }
  };
  for (int k = 0; k < s.reads; ++k)
    if (k != s.accumulator) look(s.read[size_t(k)]);
  // D as C of the next product is passed on inside the matrix unit; other results wait until it is there.
  if (s.accumulator == 255)
    for (int k = 0; k < s.writes; ++k) look(s.written[size_t(k)]);
}

// When the instruction that the cursor is at could issue, as far as its wave goes.
void UnitClock::prepare(Wave& w) {
  const Step& s = steps_[w.cursor.index];
  bool hit;
  double& there = instruction_lines_.find(s.line, hit, w.instruction_line);
  if (!hit) there = double(w.ready) + c_.instruction_miss_cycles;
  wait(w, uint64_t(there), Spent::wait_instructions);
  if (s.vmcnt >= 0) wait_for_counter(w, w.vm, s.vmcnt, Spent::wait_memory);
  if (s.lgkmcnt >= 0)
    wait_for_counter(w, w.lgkm, s.lgkmcnt, w.lgkm.has_scalars() ? Spent::wait_scalar_memory : Spent::wait_lds);
  if (s.port == Port::memory) wait_for_counter(w, w.vm, c_.counter_vm - 1, Spent::wait_queue);
  if (s.port == Port::lds || s.unit == Unit::scalar_memory)
    wait_for_counter(w, w.lgkm, c_.counter_lgkm - 1, Spent::wait_queue);
  if (s.port != Port::none) wait_for_registers(w, s);
  w.refused_by = Spent::wait_port;
  w.asks = at_slot(w.simd, w.ready);
  Simd& simd = simds_[size_t(w.simd)];
  simd.next = std::min(simd.next, w.asks);
}

// ---- issue

// A wave that is refused asks again when what is in its way may be gone; until then nothing else can be.
bool UnitClock::refused(Simd& simd, Wave& w, const Step& s, uint64_t now, std::array<bool, kPorts>& taken) {
  const auto refuse = [&](Spent why, uint64_t until) {
    w.refused_by = why, w.asks = std::max(now + slot_, at_slot(w.simd, until));
    return true;
  };
  if (s.port == Port::none) return false;
  if (s.port == Port::vector) {
    if (s.unit == Unit::matrix && simd.matrix_free > now) return refuse(Spent::wait_matrix_unit, simd.matrix_free);
    if (simd.vector_free > now)
      return refuse(simd.matrix_issued_last ? Spent::wait_matrix_unit : Spent::wait_vector_unit, simd.vector_free);
  }
  // The queues in front of LDS and the address unit hold a few accesses.
  if (s.port == Port::lds || s.port == Port::memory) {
    const double free = s.port == Port::lds ? lds_free_ : memory_.free();
    if (free > double(now) + c_.queue_cycles) return refuse(Spent::wait_queue, uint64_t(free - c_.queue_cycles));
  }
  if (taken[size_t(s.port)]) return refuse(s.port == Port::vector ? Spent::wait_vector_unit : Spent::wait_port, now);
  taken[size_t(s.port)] = true;
  return false;
}

void UnitClock::spend(const Wave& w, uint64_t begin, uint64_t end, Spent spent) {
  if (end <= begin) return;
  const uint64_t cycles = end - begin;
  time_.spent[size_t(spent)] += cycles;
  time_.wave_cycles += cycles;
  if (time_.trace.size() >= options_.trace) return;
  time_.trace.push_back({w.group, w.number, uint32_t(w.simd), begin, end, spent});
}

// The time since the last instruction, and the slot of this one.
void UnitClock::account(Wave& w, const Step& s, uint64_t now) {
  const size_t index = w.cursor.index;
  ++time_.executed[index], ++time_.instructions;
  const uint64_t from = w.issued, own = std::clamp(w.ready, from, now);
  spend(w, from, own, w.waits_for);
  // Up to a slot of the SIMD passes before it is asked: that is of the port.
  spend(w, own, now, w.refused_by);
  spend(w, now, now + slot_, spent_of(s));
  w.issued = now + slot_;
  if (now <= from) return;
  time_.stalls[index] += now - from;
  worst_[index][size_t(w.waits_for)] += own - from, worst_[index][size_t(w.refused_by)] += now - own;
}

void UnitClock::note_results(Wave& w, const Step& s, uint64_t when) {
  for (int k = 0; k < s.writes; ++k)
    for (int r = s.written[size_t(k)].first; r < s.written[size_t(k)].first + s.written[size_t(k)].count; ++r)
      w.result[size_t(r)] = {when, s.unit == Unit::matrix};
  w.newest_result = std::max(w.newest_result, when);
}

// What the instruction keeps busy, and when its result is there.
void UnitClock::execute(Simd& simd, Wave& w, const Step& s, uint64_t now) {
  switch (s.unit) {
    case Unit::matrix: {
      const uint64_t blocks = std::max(slot_, uint64_t(c_.matrix_blocks_vector * s.cycles));
      simd.vector_free = now + blocks, simd.matrix_free = now + s.cycles, simd.matrix_issued_last = true;
      time_.matrix_busy += s.cycles;
      note_results(w, s, now + s.cycles + uint64_t(c_.matrix_result_cycles));
      break;
    }
    case Unit::vector:
    case Unit::transcendental: {
      simd.vector_free = now + s.cycles, simd.matrix_issued_last = false;
      time_.vector_busy += s.cycles;
      uint64_t there = now + s.cycles;
      if (s.unit == Unit::transcendental) there += uint64_t(c_.transcendental_result_cycles);
      if (s.vector_writes_scalar) there += uint64_t(c_.vector_to_scalar_cycles);
      if (there > now + slot_) note_results(w, s, there);
      break;
    }
    case Unit::lds:
      occupy_lds(now, w.cursor.touches_lds ? w.cursor.lds : c_.lds_cycles_without_banks);
      w.lgkm.drop_until(now);
      w.lgkm.push(uint64_t(lds_free_ + c_.lds_latency), false);
      break;
    case Unit::scalar_memory:
      w.lgkm.drop_until(now);
      w.lgkm.push(uint64_t(memory_.scalar(double(now), w.cursor)), true);
      break;
    case Unit::memory: {
      w.vm.drop_until(now);
      double done = memory_.vector(double(now), s, w.cursor);
      if (w.cursor.touches_lds) occupy_lds(now, w.cursor.lds), done += w.cursor.lds;  // straight to LDS
      w.vm.push(uint64_t(done), false);
      break;
    }
    default:
      break;
  }
}

void UnitClock::occupy_lds(uint64_t now, double cycles) {
  lds_free_ = std::max(double(now), lds_free_) + cycles;
  time_.lds_busy += cycles;
}

void UnitClock::issue(Simd& simd, Wave& w, const Step& s, uint64_t now) {
  account(w, s, now);
  w.ready = now + slot_ + s.pause, w.waits_for = s.pause ? Spent::pause : Spent::wait_port;
  execute(simd, w, s, now);
  if (s.priority >= 0) w.priority = s.priority;
  if (s.ends) {  // a workgroup's registers and LDS are free when all that is out has come back
    const uint64_t last = std::max(now + slot_, w.vm.last(0));
    spend(w, now + slot_, last, Spent::wait_memory);
    return end(w, last);
  }
  if (s.unit == Unit::barrier) {
    w.at_barrier = true, w.asks = kNever;
    Group& g = *groups_[w.group];
    if (++g.waiting + g.ended == g.waves.size()) leave_barrier(g, now + slot_);
    return;
  }
  const uint32_t before = w.cursor.index;
  if (!w.cursor.next()) throw std::invalid_argument("a wave's words end before it does");
  if (s.unit == Unit::branch) {
    const bool taken = w.cursor.index != before + 1;
    w.ready = now + uint64_t(taken ? c_.taken_branch_cycles : c_.branch_cycles);
    w.waits_for = Spent::wait_instructions;
  }
  prepare(w);
}

void UnitClock::slot(Simd& simd, uint64_t now) {
  std::array<bool, kPorts> taken{};
  std::array<Wave*, 16> in_order;  // those that ask: by priority, then by age
  size_t count = 0;
  simd.next = kNever;
  for (Wave* w : simd.waves) {
    if (w->asks > now) {
      simd.next = std::min(simd.next, w->asks);
      continue;
    }
    size_t at = count++;
    for (; at && in_order[at - 1]->priority < w->priority; --at) in_order[at] = in_order[at - 1];
    in_order[at] = w;
  }
  for (size_t k = 0; k < count; ++k) {
    Wave& w = *in_order[k];
    const Step& s = steps_[w.cursor.index];
    if (refused(simd, w, s, now, taken))
      simd.next = std::min(simd.next, w.asks);
    else
      issue(simd, w, s, now);
  }
}

UnitTime UnitClock::run() {
  for (Simd& s : simds_) s.next = kNever;
  counted_left_ = given_.size();
  admit(0);
  uint64_t now = 0;
  while (counted_left_) {
    Simd* simd = &simds_[0];
    for (Simd& s : simds_)
      if (s.next < simd->next) simd = &s;
    if (simd->next == kNever) throw std::logic_error("no wave can go on: a barrier that some never reach");
    now = simd->next;
    slot(*simd, now);
  }
  time_.cycles = now;
  for (const GroupTime& g : time_.groups) time_.cycles = std::max(time_.cycles, g.end);
  time_.memory = memory_.counts;
  for (size_t i = 0; i < steps_.size(); ++i)
    time_.stalled_for[i] = Spent(std::max_element(worst_[i].begin(), worst_[i].end()) - worst_[i].begin());
  return std::move(time_);
}

}  // namespace

UnitTime time_unit(const Constants& c, const std::vector<Step>& steps, const Share& share,
                   const std::vector<const GroupWords*>& groups, const UnitOptions& options) {
  return UnitClock(c, steps, share, groups, options).run();
}

}  // namespace gfx942::clock

// SPDX-License-Identifier: Apache-2.0
#include "memory_order.h"

#include "workgroup.h"

namespace gfx942 {

// ---- clocks

uint32_t Clock::of(uint32_t wave) const {
  if (!times_) return 0;
  const auto at = std::lower_bound(times_->begin(), times_->end(), std::pair(wave, 0u));
  return at != times_->end() && at->first == wave ? at->second : 0;
}

void Clock::join(const Clock& other) {
  if (!other.times_ || other.times_ == times_) return;
  if (!times_) {
    times_ = other.times_;
    return;
  }
  auto joined = std::make_shared<Times>();
  joined->reserve(times_->size() + other.times_->size());
  auto a = times_->begin(), b = other.times_->begin();
  bool more = false;  // than this clock has
  while (a != times_->end() || b != other.times_->end()) {
    if (b == other.times_->end() || (a != times_->end() && a->first < b->first)) {
      joined->push_back(*a++);
    } else if (a == times_->end() || b->first < a->first) {
      joined->push_back(*b++), more = true;
    } else {
      more |= b->second > a->second;
      joined->emplace_back(a->first, std::max(a->second, b->second));
      ++a, ++b;
    }
  }
  if (more) times_ = std::move(joined);
}

void Clock::raise(uint32_t wave, uint32_t time) {
  Clock one;
  one.times_ = std::make_shared<const Times>(Times{{wave, time}});
  join(one);
}

// ---- what waves do

MemoryOrder::MemoryOrder(const Launch& launch)
    : launch_(launch),
      waves_of_group_(launch.waves()),
      has_many_l2_(launch.code->object->chip().isa != Isa::cdna2),
      agents_(size_t(launch.grid[0]) * launch.grid[1] * launch.grid[2] * waves_of_group_) {}

uint32_t MemoryOrder::number_of(const Wave& w) const {
  const auto& id = w.group.id;
  return ((id[2] * launch_.grid[1] + id[1]) * launch_.grid[0] + id[0]) * waves_of_group_ + uint32_t(w.number);
}

bool MemoryOrder::has_device_scope(const Instruction& i, Use use) const {
  if (use == Use::atomic || use == Use::scalar_load) return use == Use::atomic;
  return has_many_l2_ ? i.with.sc1 : use == Use::store || i.with.glc;
}

void MemoryOrder::access(Wave& w, const Instruction& i, const LaneAddresses& p, uint32_t bytes, Use use) {
  const bool device = has_device_scope(i, use);
  if (device) w.end_turn();  // others come in between most often where it matters
  const uint32_t wave = number_of(w);
  const bool observes = device && (use == Use::load || (use == Use::atomic && i.with.sc0));
  for (Mask m = p.memory; m; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const uint64_t at = p.address[lane];
    check(w, i, at, bytes, lane, use, device);
    if (observes) observe(agents_[wave], at, bytes, w.vm.issued + 1);
    if (use == Use::store || use == Use::atomic) note(wave, at, bytes, use, device);
  }
}

void MemoryOrder::write_back(const Wave& w) {
  const uint32_t wave = number_of(w);
  Agent& me = agents_[wave];
  me.written_back = me.known;
  me.written_back.join(me.observed);
  me.written_back.raise(wave, me.time++);
  me.writes_back = true;
}

void MemoryOrder::wait(const Wave& w, bool for_all) {
  Agent& me = agents_[number_of(w)];
  std::erase_if(me.loads, [&](const Agent::Load& load) {
    if (load.number > w.vm.done) return false;
    me.observed.join(load.clock);
    return true;
  });
  if (!for_all || !me.writes_back) return;
  me.released.join(me.written_back);
  me.writes_back = false;
}

void MemoryOrder::invalidate(const Wave& w) {
  Agent& me = agents_[number_of(w)];
  me.known.join(me.observed);
}

void MemoryOrder::meet(const Workgroup& group) {
  const uint32_t first = number_of(*group.waves()[0]);
  Clock known, observed, released;
  for (uint32_t wave = first; wave < first + waves_of_group_; ++wave) {
    Agent& a = agents_[wave];
    known.join(a.known), observed.join(a.observed), released.join(a.released);
    known.raise(wave, a.time++);
  }
  for (uint32_t wave = first; wave < first + waves_of_group_; ++wave) {
    Agent& a = agents_[wave];
    a.known = known, a.observed = observed, a.released = released;
  }
}

// ---- bytes

bool MemoryOrder::is_ordered(const Wave& w, const Stored& s, Use use, bool device) const {
  const uint32_t wave = number_of(w);
  if (s.wave == kNone) return true;
  if (use == Use::scalar_load) return false;
  if (s.wave == wave || (device && s.device)) return true;
  if (!has_many_l2_ && s.wave / waves_of_group_ != wave / waves_of_group_) return true;
  const Agent& me = agents_[wave];
  if (me.known.of(s.wave) >= s.time) return true;
  return (device || use == Use::store) && me.observed.of(s.wave) >= s.time;
}

// f(bytes of a line, address of the first, how many) for each line that holds some.
template <class F>
void MemoryOrder::for_each_line(uint64_t at, uint32_t bytes, bool make, F f) {
  for (uint64_t end = at + bytes, next; at < end; at = next) {
    next = std::min(end, (at / kLine + 1) * kLine);
    auto found = lines_.find(at / kLine);
    if (found == lines_.end()) {
      if (!make) continue;
      found = lines_.emplace(at / kLine, std::make_unique<Line>()).first;
    }
    f(found->second->data() + at % kLine, at, uint32_t(next - at));
  }
}

void MemoryOrder::check(const Wave& w, const Instruction& i, uint64_t at, uint32_t bytes, int lane, Use use,
                        bool device) {
  for_each_line(at, bytes, false, [&](const Stored* stored, uint64_t first, uint32_t count) {
    for (uint32_t k = 0; k < count; ++k) {
      const Stored& s = stored[k];
      if ((k && s == stored[k - 1]) || is_ordered(w, s, use, device)) continue;
      w.complain(Check::memory_order, i, lane, [&] {
        char text[32];
        std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(first + k));
        const bool reads = use == Use::load || use == Use::scalar_load;
        return std::string(reads ? "reads" : "changes") + " the byte at " + text + ", which wave " +
               std::to_string(s.wave % waves_of_group_) + " of workgroup " + std::to_string(s.wave / waves_of_group_) +
               " stored: " + why(number_of(w), s, use, device);
      });
    }
  });
}

std::string MemoryOrder::why(uint32_t wave, const Stored& s, Use use, bool device) const {
  if (use == Use::scalar_load) return "the scalar cache may have what was there before";
  if (s.wave / waves_of_group_ == wave / waves_of_group_) return "no barrier of the workgroup stands between";
  if (!s.device && agents_[s.wave].released.of(s.wave) < s.time)
    return "that store has no device scope, and no buffer_wbl2 sc1 with s_waitcnt vmcnt(0) has followed it";
  const Agent& me = agents_[wave];
  bool seen = me.observed.of(s.wave) >= s.time;
  for (const Agent::Load& load : me.loads) seen |= load.clock.of(s.wave) >= s.time;
  if (seen) return "no buffer_inv sc1 stands between the load that saw it released and this access";
  if (s.device && !device) return "this access has no device scope (sc1)";
  return "nothing that this wave has read at device scope says that it is released";
}

void MemoryOrder::note(uint32_t wave, uint64_t at, uint32_t bytes, Use use, bool device) {
  const Agent& me = agents_[wave];
  for_each_line(at, bytes, true,
                [&](Stored* s, uint64_t, uint32_t count) { std::fill_n(s, count, Stored{wave, me.time, device}); });
  for (uint64_t dword = at / 4; dword <= (at + bytes - 1) / 4; ++dword) {
    if (use == Use::atomic)  // what others released by it stays released
      flags_[dword].join(me.released);
    else if (device && !me.released.empty())
      flags_[dword] = me.released;
    else if (!flags_.empty())
      flags_.erase(dword);
  }
}

void MemoryOrder::observe(Agent& me, uint64_t at, uint32_t bytes, uint32_t number) const {
  for (uint64_t dword = at / 4; dword <= (at + bytes - 1) / 4; ++dword)
    if (const auto flag = flags_.find(dword); flag != flags_.end() && !flag->second.empty()) {
      if (me.loads.empty() || me.loads.back().number != number) me.loads.push_back({number, {}});
      me.loads.back().clock.join(flag->second);
    }
}

// ---- stores

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

OrderedStore::OrderedStore(Wave& w, const Instruction& i, const LaneAddresses& p, uint32_t bytes, MemoryOrder::Use use)
    : order_(w.order), lanes_(p), bytes_(bytes) {
  if (!order_) return;
  order_->access(w, i, p, bytes, use);
  before_ = digest(lanes_, bytes_);
}

OrderedStore::~OrderedStore() {
  if (order_) order_->changes_ += digest(lanes_, bytes_) != before_;
}

}  // namespace gfx942

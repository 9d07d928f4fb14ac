// SPDX-License-Identifier: Apache-2.0
#include "wave.h"

#include <map>
#include <mutex>
#include <tuple>

#include "operations.h"
#include "workgroup.h"

namespace gfx942 {

Wave::Wave(Workgroup& g, const Code& c, int n) : v(new Vector[kVectors]()), number(n), group(g), code(c) {}

void Wave::reset() {
  v_defined.fill(0);
  s_defined.fill(0);
  scc_defined = false;
  pc = 0;
  ended = at_barrier = false;
  vm = lgkm = {};
  lds_accesses.clear();
  lds_loads.clear();
  uninitialised_lds = {};
}

namespace {

bool is_of_vectors(Unit u) {
  return u == Unit::vector || u == Unit::transcendental || u == Unit::matrix || u == Unit::lds || u == Unit::memory;
}

}  // namespace

void Wave::run() {
  if (events)
    run_on<true, false>();
  else
    run_on<false, false>();
}

void Wave::run_turn(uint32_t instructions) {
  turn_ = instructions;
  run_on<false, true>();
}

template <bool records, bool takes_turns>
void Wave::run_on() {
  const Instruction* all = code.instructions.data();
  uint64_t *executed = tally->executed.data(), *lanes = tally->lanes.data();
  const uint32_t count = uint32_t(code.instructions.size());
  while (!ended && !at_barrier) {
    if constexpr (takes_turns) {
      if (!turn_) return;
      --turn_;
    }
    if (pc >= count) fail(all[count - 1], "the kernel runs past its end");
    const Instruction& i = all[pc];
    if (mode.skips_vectors() && is_of_vectors(i.operation->unit)) [[unlikely]] {
      pc = i.next;
      continue;
    }
    ++executed[i.index];
    lanes[i.index] += uint64_t(std::popcount(exec()));
    pc = i.next;
    if constexpr (records) events->step(i.index);
    if (mode.indexes_vectors() && is_of_vectors(i.operation->unit)) [[unlikely]]
      run_indexed(i);
    else
      i.run(*this, i);
  }
}

// s_set_gpr_idx_on: M0 has the index, and in bits 12 to 15 whether sources 0 to 2 and the destination are moved by it.
void Wave::run_indexed(const Instruction& i) {
  constexpr uint32_t kUsed = 0xf0ff;
  if (~s_defined[kM0] & kUsed) complain_undefined(i, "M0, the index of registers, is undefined");
  const bool moves_lanes = i.mnemonic.find("lane") != std::string::npos || i.with.sdwa || i.with.dpp != Dpp::none;
  const Unit unit = i.operation->unit;
  if (moves_lanes || (unit != Unit::vector && unit != Unit::transcendental))
    fail(i, "an instruction of this kind while registers are indexed is not implemented");
  Instruction moved = i;
  const uint32_t by = s[kM0] & 255, which = s[kM0] >> 12 & 15;
  for (int k = 0; k < i.operands; ++k) {
    Operand& o = moved.operand[k];
    const int source = k - i.operation->results;
    if (!o.is_vector() || !(source < 0 ? which >> 3 & 1 : which >> source & 1)) continue;
    if (o.index >= kAccumulators || o.index + by + o.registers > kAccumulators)
      fail(i, "an index to a register that there is not, or of an accumulator, is not implemented");
    o.index = uint16_t(o.index + by);
  }
  moved.run(*this, moved);
}

void Wave::fail(const Instruction& i, const std::string& what, int lane) const { throw Fault(report(i, what, lane)); }

std::string Wave::report(const Instruction& i, const std::string& what, int lane) const {
  char place[32];
  std::snprintf(place, sizeof place, "%llx", (unsigned long long)(i.address - code.base));
  std::string text = code.name + ": " + what + "\n  instruction " + place + ": " + i.text + "\n  workgroup (" +
                     std::to_string(group.id[0]) + ", " + std::to_string(group.id[1]) + ", " +
                     std::to_string(group.id[2]) + "), wave " + std::to_string(number);
  if (lane >= 0) text += ", lane " + std::to_string(lane);
  if (const auto& first = uninitialised_lds; first.instruction)
    text += "\n  first uninitialised LDS read: address " + std::to_string(first.address) + ", lane " +
            std::to_string(first.lane) + ", " + first.instruction->text;
  if (const std::string source = code.object->source_of(i.address); !source.empty()) text += "\n  source " + source;
  return text;
}

void Wave::check_arrived_slowly(const Instruction& i, int reg, int count) const {
  for (int r = reg; r < reg + count; ++r) {
    const bool late_vm = vm.pending(r), late_lgkm = lgkm.pending(r);
    if (!late_vm && !late_lgkm) continue;
    const char kind = r < kScalars ? 's' : r < kScalars + kAccumulators ? 'v' : 'a';
    const int number = kind == 's' ? r : (r - kScalars) % kAccumulators;
    complain(Check::wait, i, -1, [&] {
      return kind + std::to_string(number) + " is used before the s_waitcnt for what loads it (" +
             (late_vm ? "vmcnt" : "lgkmcnt") + ")";
    });
  }
}

void Wave::leave_barrier() {
  at_barrier = false;
  // What was not waited for before the barrier happens after it, for all that the others know.
  std::erase_if(lds_accesses, [&](const LdsAccess& a) { return a.number <= lgkm.done; });
  for (const LdsAccess& a : lds_accesses)
    for (Mask m = a.lanes; m; m &= m - 1)
      group.lds.note_late(a.use, a.address.lane[std::countr_zero(m)], a.bytes, number);
  std::erase_if(lds_loads, [&](const LdsLoad& a) { return a.number <= vm.done; });
  for (const LdsLoad& a : lds_loads)
    for (Mask m = a.lanes; m; m &= m - 1)
      group.lds.note_late(Lds::Use::write, a.address + 4 * uint32_t(std::countr_zero(m)), 4, number);
}

void Wave::check_loaded(const Instruction& i, uint32_t at, uint32_t bytes, int lane) {
  std::erase_if(lds_loads, [&](const LdsLoad& a) { return a.number <= vm.done; });
  for (const LdsLoad& a : lds_loads) {
    if (at + bytes <= a.address || at >= a.address + 4 * kLanes) continue;
    const uint32_t first = at > a.address ? (at - a.address) / 4 : 0;
    const uint32_t last = std::min((at + bytes - 1 - a.address) / 4, uint32_t(kLanes - 1));
    for (uint32_t l = first; l <= last; ++l)
      if (a.lanes >> l & 1)
        return complain(Check::wait, i, lane, [&] {
          return "LDS address " + std::to_string(a.address + 4 * l) +
                 " is used before the s_waitcnt for what loads it (vmcnt)";
        });
  }
}

void Wave::remember(Lds::Use use, uint32_t bytes, Mask lanes, const Vector& address) {
  if (!lds_accesses.empty() && lds_accesses.back().number <= lgkm.done) lds_accesses.clear();
  if (lds_accesses.size() >= 64) std::erase_if(lds_accesses, [&](const LdsAccess& a) { return a.number <= lgkm.done; });
  lds_accesses.push_back({lgkm.issued, bytes, use, lanes, address});
}

// ---- scalars

namespace {

constexpr uint64_t kSharedBase = uint64_t(kSharedAperture) << 32, kPrivateBase = uint64_t(kPrivateAperture) << 32;

uint64_t special_value(const Wave& w, const Instruction& i, Operand::Special s) {
  using S = Operand::Special;
  switch (s) {
    case S::scc:
      return w.scc;
    case S::vccz:
      return w.pair(kVcc) == 0;
    case S::execz:
      return w.exec() == 0;
    case S::shared_base:
      return kSharedBase;
    case S::shared_limit:
      return kSharedBase | 0xffffffffu;
    case S::private_base:
      return kPrivateBase;
    case S::private_limit:
      return kPrivateBase | 0xffffffffu;
    default:
      w.fail(i, "a special operand that is not implemented");
  }
}

uint32_t selected(uint32_t x, Select s, bool sign_extend) {
  switch (s) {
    case Select::dword:
      return x;
    case Select::word0:
    case Select::word1: {
      const uint16_t part = uint16_t(x >> (s == Select::word1 ? 16 : 0));
      return sign_extend ? uint32_t(int16_t(part)) : part;
    }
    default: {
      const uint8_t part = uint8_t(x >> 8 * (int(s) - int(Select::byte0)));
      return sign_extend ? uint32_t(int8_t(part)) : part;
    }
  }
}

// The lane that a lane's value comes from, or -1 where there is none.
int dpp_source(const Modifiers& m, int lane) {
  const int row = lane & ~15, in_row = lane & 15, n = m.dpp_amount;
  switch (m.dpp) {
    case Dpp::quad_perm:
      return (lane & ~3) | m.quad[lane & 3];
    case Dpp::row_shl:
      return in_row + n < 16 ? lane + n : -1;
    case Dpp::row_shr:
      return in_row >= n ? lane - n : -1;
    case Dpp::row_ror:
      return row | ((in_row - n) & 15);
    case Dpp::wave_shl:
      return lane + 1 < kLanes ? lane + 1 : -1;
    case Dpp::wave_rol:
      return (lane + 1) & 63;
    case Dpp::wave_shr:
      return lane - 1;
    case Dpp::wave_ror:
      return (lane - 1) & 63;
    case Dpp::row_mirror:
      return row | (15 - in_row);
    case Dpp::row_half_mirror:
      return (lane & ~7) | (7 - (lane & 7));
    case Dpp::row_newbcast:
      return row | n;
    case Dpp::row_bcast:  // the last lane of the row (15) or of the half (31) before; the first has none
      return n == 15 ? (lane >= 16 ? row - 1 : -1) : (lane >= 32 ? 31 : -1);
    default:
      return lane;
  }
}

}  // namespace

const DppSources* dpp_sources(const Modifiers& m) {
  using Key = std::tuple<Dpp, uint8_t, std::array<uint8_t, 4>, uint8_t, uint8_t>;
  static std::mutex lock;
  static std::map<Key, DppSources> all;
  const std::lock_guard guard(lock);
  const auto [found, made] =
      all.try_emplace(Key{m.dpp, m.dpp_amount, {m.quad[0], m.quad[1], m.quad[2], m.quad[3]}, m.row_mask, m.bank_mask});
  DppSources& d = found->second;
  if (!made) return &d;
  for (int l = 0; l < kLanes; ++l) {
    const int k = dpp_source(m, l);
    d.lane[l] = uint32_t(std::max(k, 0));
    d.there |= Mask(k >= 0) << l;
    d.chosen |= Mask(m.row_mask >> (l / 16) & 1 && m.bank_mask >> (l / 4 % 4) & 1) << l;
  }
  return &d;
}

uint64_t Wave::scalar(const Instruction& i, const Operand& o, uint64_t* defined) const {
  switch (o.kind) {
    case Operand::Kind::constant:
      if (defined) *defined = ~uint64_t(0);
      return o.value;
    case Operand::Kind::special:
      if (defined) *defined = o.special == Operand::Special::scc && !scc_defined ? 0 : ~uint64_t(0);
      return special_value(*this, i, o.special);
    case Operand::Kind::scalar:
      check_arrived(i, o.index, o.registers);
      if (defined) *defined = o.registers == 1 ? s_defined[o.index] | 0xffffffff00000000u : pair_defined(o.index);
      return o.registers == 1 ? s[o.index] : pair(o.index);
    default:
      fail(i, "a scalar operand was expected");
  }
}

void Wave::set_scalar(const Instruction& i, const Operand& o, uint64_t x, uint64_t defined) {
  if (!o.is_scalar()) fail(i, "a scalar destination was expected");
  check_arrived(i, o.index, o.registers);
  if (o.index == kExec && defined != ~uint64_t(0)) {
    complain_undefined(i, "EXEC becomes undefined", std::countr_one(defined));
    defined = ~uint64_t(0);
  }
  if (o.registers == 1) {
    s[o.index] = uint32_t(x), s_defined[o.index] = uint32_t(defined);
  } else {
    set_pair(o.index, x), set_pair_defined(o.index, defined);
  }
}

uint64_t Wave::known_scalar(const Instruction& i, const Operand& o, const char* as) const {
  uint64_t defined;
  const uint64_t x = scalar(i, o, &defined);
  if (defined != ~uint64_t(0)) complain_undefined(i, std::string(as) + " is undefined");
  return x;
}

// ---- vectors

const uint32_t* Wave::source32(const Instruction& i, const Operand& o, Vector& buffer, Mask& defined) const {
  const uint32_t* x;
  if (o.is_vector()) {
    check_arrived(i, kScalars + o.index, 1);
    x = v[o.index].lane;
    defined &= v_defined[o.index];
  } else {
    uint64_t known;
    const uint32_t value = uint32_t(scalar(i, o, &known));
    std::fill_n(buffer.lane, kLanes, value);
    x = buffer.lane;
    if (uint32_t(known) != ~0u) defined = 0;
  }
  const int position = int(&o - i.operand.data()) - i.operation->results;
  if (i.with.dpp != Dpp::none && position == 0) x = moved(i, x, buffer, defined);
  if (i.with.sdwa && position >= 0 && position < 2 && (i.with.src_sel[position] != Select::dword || o.sign_extend)) {
    for (int l = 0; l < kLanes; ++l) buffer.lane[l] = selected(x[l], i.with.src_sel[position], o.sign_extend);
    x = buffer.lane;
  }
  return x;
}

// The lanes whose source is on.
Mask Wave::dpp_sources_on(const Instruction& i) const {
  const Mask on = exec();
  if (on == ~Mask(0)) return i.dpp->there;
  Mask found = 0;
  for (int l = 0; l < kLanes; ++l) found |= (on >> i.dpp->lane[l] & 1) << l;
  return found & i.dpp->there;
}

// DPP, of the first source: lanes that have no source, or one that is off, read 0 with bound_ctrl; without, they keep
// their destination, which dpp_writes() says.
const uint32_t* Wave::moved(const Instruction& i, const uint32_t* x, Vector& buffer, Mask& defined) const {
  const Vector from = *reinterpret_cast<const Vector*>(x);
  const Mask valid = dpp_sources_on(i);
  const Vector keep = expanded(valid);
  for (int l = 0; l < kLanes; ++l) buffer.lane[l] = from.lane[i.dpp->lane[l]] & keep.lane[l];
  if (defined == ~Mask(0)) return buffer.lane;
  Mask known = 0;
  for (int l = 0; l < kLanes; ++l) known |= (defined >> i.dpp->lane[l] & 1) << l;
  defined = known | ~valid;
  return buffer.lane;
}

Mask Wave::dpp_writes(const Instruction& i) const {
  return i.dpp->chosen & (i.with.bound_ctrl ? ~Mask(0) : dpp_sources_on(i));
}

void Wave::source64(const Instruction& i, const Operand& o, uint64_t (&to)[kLanes], Mask& defined) const {
  if (i.with.dpp != Dpp::none || i.with.sdwa) fail(i, "DPP or SDWA of 64 bits is not implemented");
  if (o.is_vector()) {
    check_arrived(i, kScalars + o.index, 2);
    const uint32_t *low = v[o.index].lane, *high = v[o.index + 1].lane;
    uint64_t* __restrict both = to;
    for (int l = 0; l < kLanes; ++l) both[l] = uint64_t(high[l]) << 32 | low[l];
    defined &= v_defined[o.index] & v_defined[o.index + 1];
  } else {
    uint64_t known;
    const uint64_t value = scalar(i, o, &known);
    std::fill_n(to, kLanes, value);
    if (known != ~uint64_t(0)) defined = 0;
  }
}

void Wave::result32(const Instruction& i, const Operand& o, const uint32_t* x, Mask defined, Mask lanes) {
  if (!o.is_vector()) fail(i, "a vector destination was expected");
  check_arrived(i, kScalars + o.index, 1);
  if (i.with.dpp != Dpp::none) lanes &= dpp_writes(i);
  uint32_t* to = v[o.index].lane;
  if (i.with.sdwa && i.with.dst_sel != Select::dword) {
    store_part(i, o, x, lanes);
  } else if (lanes == ~Mask(0)) {
    std::memcpy(to, x, sizeof(Vector));
  } else {
    const Vector on = expanded(lanes);
    for (int l = 0; l < kLanes; ++l) to[l] = (x[l] & on.lane[l]) | (to[l] & ~on.lane[l]);
  }
  v_defined[o.index] = (v_defined[o.index] & ~lanes) | (defined & lanes);
}

// SDWA's dst_sel: a byte or a word of the register, and what becomes of the rest.
void Wave::store_part(const Instruction& i, const Operand& o, const uint32_t* x, Mask lanes) {
  const Select s = i.with.dst_sel;
  const bool word = s == Select::word0 || s == Select::word1;
  const int shift = word ? (s == Select::word1 ? 16 : 0) : 8 * (int(s) - int(Select::byte0));
  const uint32_t field = (word ? 0xffffu : 0xffu) << shift;
  uint32_t* to = v[o.index].lane;
  for (int l = 0; l < kLanes; ++l) {
    if (!(lanes >> l & 1)) continue;
    uint32_t rest = 0;
    if (i.with.dst_unused == Unused::preserve) rest = to[l] & ~field;
    if (i.with.dst_unused == Unused::sext && (x[l] << shift & field) >> (shift + (word ? 15 : 7)))
      rest = ~field & ~((1u << shift) - 1);
    to[l] = rest | (x[l] << shift & field);
  }
}

void Wave::result64(const Instruction& i, const Operand& o, const uint64_t* x, Mask defined, Mask lanes) {
  if (!o.is_vector()) fail(i, "a vector destination was expected");
  check_arrived(i, kScalars + o.index, 2);
  Vector low, high;
  for (int l = 0; l < kLanes; ++l) low.lane[l] = uint32_t(x[l]), high.lane[l] = uint32_t(x[l] >> 32);
  Vector *to_low = &v[o.index], *to_high = &v[o.index + 1];
  if (lanes == ~Mask(0)) {
    *to_low = low, *to_high = high;
  } else {
    const Vector on = expanded(lanes);
    for (int l = 0; l < kLanes; ++l) {
      to_low->lane[l] = (low.lane[l] & on.lane[l]) | (to_low->lane[l] & ~on.lane[l]);
      to_high->lane[l] = (high.lane[l] & on.lane[l]) | (to_high->lane[l] & ~on.lane[l]);
    }
  }
  for (int r = 0; r < 2; ++r) v_defined[o.index + r] = (v_defined[o.index + r] & ~lanes) | (defined & lanes);
}

uint64_t Wave::lane_mask(const Instruction& i, const Operand& o, Mask& defined) const {
  uint64_t known;
  const uint64_t x = scalar(i, o, &known);
  defined &= known;
  return o.kind == Operand::Kind::constant && o.registers == 1 ? uint64_t(int64_t(int32_t(x))) : x;
}

void Wave::set_lane_mask(const Instruction& i, const Operand& o, Mask x, Mask defined) {
  set_scalar(i, o, x & exec(), defined | ~exec());
}

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
// LDS: reads, writes, and the instructions that use its crossbar to move values between lanes.
#include "lds_access.h"

namespace gfx942 {
namespace {

void check_not_global(const Wave& w, const Instruction& i) {
  if (i.with.gds) w.fail(i, "global data share is not implemented");
}

// ---- dwords

template <int count>
using Bits = std::conditional_t<count == 1, uint32_t, std::conditional_t<count == 2, uint64_t, Wide>>;
template <int count>
void unpack(Bits<count> x, uint32_t (&to)[count]) {
  std::memcpy(to, &x, sizeof x);
}

// `count` dwords of each lane into as many registers, and which lanes of them are defined.
template <int count>
void read_dwords(Wave& w, const Instruction& i, const Vector& at, int first_register) {
  using U = Bits<count>;
  const Lds::View lds = w.group.lds.view(w.number);
  const Mask on = w.exec();
  Vector* to = &w.v[first_register];
  U rivals = {}, defined = ~U{};
  for_lanes(on, [&](int l) {
    U x;
    rivals |= lds.read<U>(at.lane[l], x);
    defined &= lds.defined<U>(at.lane[l]);
    uint32_t parts[count];
    unpack<count>(x, parts);
    for (int r = 0; r < count; ++r) to[r].lane[l] = parts[r];
  });
  if (Lds::any(rivals)) [[unlikely]]
    find_races(w, i, Lds::Use::read, at, 4 * count);
  for (int r = 0; r < count; ++r) w.v_defined[first_register + r] |= on;
  if (!Lds::any(U(~defined))) return;
  for (Mask m = on; m; m &= m - 1) {
    const int l = std::countr_zero(m);
    for (int r = 0; r < count; ++r)
      if (lds.defined<uint32_t>(at.lane[l] + 4 * r) != ~0u) {
        w.v_defined[first_register + r] &= ~(Mask(1) << l);
        note_uninitialised(w, i, at.lane[l] + 4 * r, l);
      }
  }
}
template <int count>
void write_dwords(Wave& w, const Instruction& i, const Vector& at, int first_register) {
  using U = Bits<count>;
  const Lds::View lds = w.group.lds.view(w.number);
  const Mask on = w.exec();
  const Vector* from = &w.v[first_register];
  Mask known = on;
  for (int r = 0; r < count; ++r) known &= w.v_defined[first_register + r];
  U rivals = {};
  const auto write = [&](int l, U defined) {
    uint32_t parts[count];
    for (int r = 0; r < count; ++r) parts[r] = from[r].lane[l];
    U x;
    std::memcpy(&x, parts, sizeof x);
    rivals |= lds.write<U>(at.lane[l], x, defined);
  };
  if (known == on) {
    for_lanes(on, [&](int l) { write(l, ~U{}); });
  } else {
    for_lanes(on, [&](int l) {
      uint32_t parts[count];
      for (int r = 0; r < count; ++r) parts[r] = -uint32_t(w.v_defined[first_register + r] >> l & 1);
      U defined;
      std::memcpy(&defined, parts, sizeof defined);
      write(l, defined);
    });
  }
  if (Lds::any(rivals)) [[unlikely]]
    find_races(w, i, Lds::Use::write, at, 4 * count);
}
// 12 bytes: 8, and then 4.
template <>
void read_dwords<3>(Wave& w, const Instruction& i, const Vector& at, int first_register) {
  Vector third = at;
  for (uint32_t& a : third.lane) a += 8;
  read_dwords<2>(w, i, at, first_register);
  read_dwords<1>(w, i, third, first_register + 2);
}
template <>
void write_dwords<3>(Wave& w, const Instruction& i, const Vector& at, int first_register) {
  Vector third = at;
  for (uint32_t& a : third.lane) a += 8;
  write_dwords<2>(w, i, at, first_register);
  write_dwords<1>(w, i, third, first_register + 2);
}

template <int count>
void read(Wave& w, const Instruction& i) {
  check_not_global(w, i);
  const Operand &to = i.operand[0], &address = i.operand[1];
  const Vector at = lds_addresses(w, i, address, uint32_t(i.with.offset), 4 * count, false);
  check_overwrites(w, i, w.lgkm, to);
  read_dwords<count>(w, i, at, to.index);
  w.issue_lgkm(to);
  w.remember(Lds::Use::read, 4 * count, w.exec(), at);
  tally_lds<4 * count>(w, i, at, true);
}
template <int count>
void write(Wave& w, const Instruction& i) {
  check_not_global(w, i);
  const Operand &address = i.operand[0], &data = i.operand[1];
  const Vector at = lds_addresses(w, i, address, uint32_t(i.with.offset), 4 * count, true);
  read_registers(w, i, data);
  write_dwords<count>(w, i, at, data.index);
  w.issue_lgkm({});
  w.remember(Lds::Use::write, 4 * count, w.exec(), at);
  tally_lds<4 * count>(w, i, at, false);
}
// Four words of 16 bits from each lane's address: row l / 4 of four, and four of its sixteen columns, of each sixteen
// lanes l. Lane l gets its column's word of each row.
void read_columns(Wave& w, const Instruction& i) {
  check_not_global(w, i);
  if (w.exec() != ~Mask(0)) w.fail(i, "lanes that are off: it is not said what the others get");
  const Operand &to = i.operand[0], &address = i.operand[1];
  const Vector at = lds_addresses(w, i, address, uint32_t(i.with.offset), 8, false);
  for (int l = 0; l < kLanes; ++l)
    if (at.lane[l] % 8) w.fail(i, "an address that is no multiple of 8", l);
  check_overwrites(w, i, w.lgkm, to);
  read_dwords<2>(w, i, at, to.index);
  Vector found[2] = {};
  Mask defined[2] = {};
  for (int l = 0; l < kLanes; ++l) {
    const int dword = l / 2 % 2, shift = 16 * (l % 2);  // of the column in what its lane has read
    Mask known[2] = {1, 1};
    for (int row = 0; row < 4; ++row) {
      const int from = l / 16 * 16 + 4 * row + l % 16 / 4;
      found[row / 2].lane[l] |= (w.v[to.index + dword].lane[from] >> shift & 0xffff) << 16 * (row % 2);
      known[row / 2] &= w.v_defined[to.index + dword] >> from;
    }
    for (int r = 0; r < 2; ++r) defined[r] |= known[r] << l;
  }
  for (int r = 0; r < 2; ++r) w.v[to.index + r] = found[r], w.v_defined[to.index + r] = defined[r];
  w.issue_lgkm(to);
  w.remember(Lds::Use::read, 8, w.exec(), at);
  tally_lds<8>(w, i, at, true);
}
// Two places, each of `count` dwords; offsets are in units of those, or of 64 of them.
template <int count, int stride>
void read_two(Wave& w, const Instruction& i) {
  check_not_global(w, i);
  const Operand &to = i.operand[0], &address = i.operand[1];
  const uint32_t offset[2] = {uint32_t(i.with.offset0), uint32_t(i.with.offset1)};
  Vector at[2];
  for (int k = 0; k < 2; ++k) at[k] = lds_addresses(w, i, address, offset[k] * 4 * count * stride, 4 * count, false);
  check_overwrites(w, i, w.lgkm, to);
  w.issue_lgkm(to);
  for (int k = 0; k < 2; ++k) {
    read_dwords<count>(w, i, at[k], to.index + k * count);
    w.remember(Lds::Use::read, 4 * count, w.exec(), at[k]);
    tally_lds<4 * count>(w, i, at[k], true);
  }
}
template <int count, int stride>
void write_two(Wave& w, const Instruction& i) {
  check_not_global(w, i);
  const Operand& address = i.operand[0];
  const uint32_t offset[2] = {uint32_t(i.with.offset0), uint32_t(i.with.offset1)};
  w.issue_lgkm({});
  for (int k = 0; k < 2; ++k) {
    const Operand& data = i.operand[1 + k];
    const Vector at = lds_addresses(w, i, address, offset[k] * 4 * count * stride, 4 * count, true);
    read_registers(w, i, data);
    write_dwords<count>(w, i, at, data.index);
    w.remember(Lds::Use::write, 4 * count, w.exec(), at);
    tally_lds<4 * count>(w, i, at, false);
  }
}

// ---- bytes and words

// The other half of a register that a d16 load leaves alone does not count: definedness is of whole dwords.
template <class U, Part part, bool sign_extend = false>
void read_part(Wave& w, const Instruction& i) {
  check_not_global(w, i);
  const Operand &to = i.operand[0], &address = i.operand[1];
  const Vector at = lds_addresses(w, i, address, uint32_t(i.with.offset), sizeof(U), false);
  check_overwrites(w, i, w.lgkm, to);
  const Lds::View lds = w.group.lds.view(w.number);
  uint32_t* lanes = w.v[to.index].lane;
  const Mask on = w.exec();
  U rivals = 0, defined = U(~U(0));
  for_lanes(on, [&](int l) {
    U x;
    rivals |= lds.read<U>(at.lane[l], x);
    defined &= lds.defined<U>(at.lane[l]);
    if constexpr (part == Part::low || part == Part::high)
      lanes[l] = placed_half<U>(lanes[l], x, sign_extend, part);
    else
      lanes[l] = placed<U>(0, x, part);
  });
  if (rivals) [[unlikely]]
    find_races(w, i, Lds::Use::read, at, sizeof(U));
  w.v_defined[to.index] |= on;
  if (defined != U(~U(0)))
    for (Mask m = on; m; m &= m - 1) {
      const int l = std::countr_zero(m);
      if (lds.defined<U>(at.lane[l]) == U(~U(0))) continue;
      w.v_defined[to.index] &= ~(Mask(1) << l);
      note_uninitialised(w, i, at.lane[l], l);
    }
  w.issue_lgkm(to);
  w.remember(Lds::Use::read, sizeof(U), on, at);
  tally_lds<sizeof(U)>(w, i, at, true);
}
template <class U, int shift>
void write_part(Wave& w, const Instruction& i) {
  check_not_global(w, i);
  const Operand &address = i.operand[0], &data = i.operand[1];
  const Vector at = lds_addresses(w, i, address, uint32_t(i.with.offset), sizeof(U), true);
  const Mask known = read_registers(w, i, data);
  const Lds::View lds = w.group.lds.view(w.number);
  const uint32_t* lanes = w.v[data.index].lane;
  U rivals = 0;
  for_lanes(w.exec(), [&](int l) { rivals |= lds.write<U>(at.lane[l], U(lanes[l] >> shift), U(-U(known >> l & 1))); });
  if (rivals) [[unlikely]]
    find_races(w, i, Lds::Use::write, at, sizeof(U));
  w.issue_lgkm({});
  w.remember(Lds::Use::write, sizeof(U), w.exec(), at);
  tally_lds<sizeof(U)>(w, i, at, false);
}

// ---- between lanes

// No bank is read; a wave is counted as one access of a dword.
void finish_move(Wave& w, const Instruction& i, const Vector& x, Mask defined) {
  const Operand& to = i.operand[0];
  check_overwrites(w, i, w.lgkm, to);
  const Mask on = w.exec();
  uint32_t* lanes = w.v[to.index].lane;
  for (int l = 0; l < kLanes; ++l) lanes[l] = on >> l & 1 ? x.lane[l] : lanes[l];
  w.v_defined[to.index] = (w.v_defined[to.index] & ~on) | (defined & on);
  w.issue_lgkm(to);
  w.tally->cycles[i.index] += 2, w.tally->ideal[i.index] += 2;
}
// Lanes that are off give 0.
Vector given(const Wave& w, const Operand& data) {
  const Mask on = w.exec();
  Vector x;
  for (int l = 0; l < kLanes; ++l) x.lane[l] = on >> l & 1 ? w.v[data.index].lane[l] : 0;
  return x;
}
// Which lane each lane names: a byte address, of which bits 2 to 7 count.
Vector lanes_named(Wave& w, const Instruction& i, const Operand& address) {
  w.check_known(i, w.exec() & ~read_registers(w, i, address), "the lane");
  Vector x;
  for (int l = 0; l < kLanes; ++l) x.lane[l] = (w.v[address.index].lane[l] + uint32_t(i.with.offset)) / 4 % kLanes;
  return x;
}
void pull(Wave& w, const Instruction& i) {
  const Vector from = lanes_named(w, i, i.operand[1]);
  const Mask known = read_registers(w, i, i.operand[2]) | ~w.exec();
  const Vector x = given(w, i.operand[2]);
  Vector result;
  Mask defined = 0;
  for (int l = 0; l < kLanes; ++l) {
    result.lane[l] = x.lane[from.lane[l]];
    defined |= (known >> from.lane[l] & 1) << l;
  }
  finish_move(w, i, result, defined);
}
// Lanes that nobody sends to get 0. Of two senders with different values it is not said which one wins.
void push(Wave& w, const Instruction& i) {
  const Vector to = lanes_named(w, i, i.operand[1]);
  const Mask known = read_registers(w, i, i.operand[2]);
  const Vector x = given(w, i.operand[2]);
  Vector result = {};
  Mask defined = ~Mask(0), sent = 0;
  for (Mask m = w.exec(); m; m &= m - 1) {
    const int l = std::countr_zero(m), k = int(to.lane[l]);
    if (!(known >> l & 1) || ((sent >> k & 1) && result.lane[k] != x.lane[l])) defined &= ~(Mask(1) << k);
    result.lane[k] = x.lane[l];
    sent |= Mask(1) << k;
  }
  finish_move(w, i, result, defined);
}

// The lane that a lane's value comes from, as the ISA document has it for each kind of offset.
int swizzled_lane(uint32_t offset, int lane) {
  const int in_half = lane & 31, mask = int(offset & 31), half = lane & 32;
  if (offset >= 0xe000) {  // FFT: bits reversed
    int reversed = 0;
    for (int b = 0; b < 5; ++b) reversed |= (in_half >> b & 1) << (4 - b);
    return half | reversed >> std::popcount(uint32_t(mask)) | (in_half & mask);
  }
  if (offset >= 0xc000) {  // rotated
    const int by = int(offset >> 5 & 31), turned = in_half + (offset >> 10 & 1 ? -by : by);
    return half | (in_half & mask) | (turned & ~mask & 31);
  }
  if (offset & 0x8000) return (lane & ~3) | int(offset >> 2 * (lane & 3) & 3);
  return half | (((in_half & mask) | int(offset >> 5 & 31)) ^ int(offset >> 10 & 31));
}
void swizzle(Wave& w, const Instruction& i) {
  check_not_global(w, i);
  const Mask known = read_registers(w, i, i.operand[1]) | ~w.exec();
  const Vector x = given(w, i.operand[1]);
  Vector result;
  Mask defined = 0;
  for (int l = 0; l < kLanes; ++l) {
    const int from = swizzled_lane(uint32_t(i.with.offset) & 0xffff, l);
    result.lane[l] = x.lane[from];
    defined |= (known >> from & 1) << l;
  }
  finish_move(w, i, result, defined);
}

void nothing(Wave&, const Instruction&) {}

Operation load(Action run) { return {run, Unit::lds, 4, 1, {}}; }
Operation store(Action run) { return {run, Unit::lds, 4, 0, {}}; }

}  // namespace

void add_lds(Table& t) {
  t["ds_read_b32"] = load(&read<1>), t["ds_read_b64"] = load(&read<2>);
  t["ds_read_b96"] = load(&read<3>), t["ds_read_b128"] = load(&read<4>);
  t["ds_read_b64_tr_b16"] = load(&read_columns);
  t["ds_write_b32"] = store(&write<1>), t["ds_write_b64"] = store(&write<2>);
  t["ds_write_b96"] = store(&write<3>), t["ds_write_b128"] = store(&write<4>);
  t["ds_read2_b32"] = load(&read_two<1, 1>), t["ds_read2st64_b32"] = load(&read_two<1, 64>);
  t["ds_read2_b64"] = load(&read_two<2, 1>), t["ds_read2st64_b64"] = load(&read_two<2, 64>);
  t["ds_write2_b32"] = store(&write_two<1, 1>), t["ds_write2st64_b32"] = store(&write_two<1, 64>);
  t["ds_write2_b64"] = store(&write_two<2, 1>), t["ds_write2st64_b64"] = store(&write_two<2, 64>);

  t["ds_read_u8"] = load(&read_part<uint8_t, Part::zero_extended>);
  t["ds_read_i8"] = load(&read_part<uint8_t, Part::sign_extended>);
  t["ds_read_u16"] = load(&read_part<uint16_t, Part::zero_extended>);
  t["ds_read_i16"] = load(&read_part<uint16_t, Part::sign_extended>);
  t["ds_read_u8_d16"] = load(&read_part<uint8_t, Part::low>);
  t["ds_read_u8_d16_hi"] = load(&read_part<uint8_t, Part::high>);
  t["ds_read_i8_d16"] = load(&read_part<uint8_t, Part::low, true>);
  t["ds_read_i8_d16_hi"] = load(&read_part<uint8_t, Part::high, true>);
  t["ds_read_u16_d16"] = load(&read_part<uint16_t, Part::low>);
  t["ds_read_u16_d16_hi"] = load(&read_part<uint16_t, Part::high>);
  t["ds_write_b8"] = store(&write_part<uint8_t, 0>), t["ds_write_b8_d16_hi"] = store(&write_part<uint8_t, 16>);
  t["ds_write_b16"] = store(&write_part<uint16_t, 0>), t["ds_write_b16_d16_hi"] = store(&write_part<uint16_t, 16>);

  t["ds_bpermute_b32"] = load(&pull), t["ds_permute_b32"] = load(&push), t["ds_swizzle_b32"] = load(&swizzle);
  t["ds_nop"] = store(&nothing);
  add_lds_atomics(t);
}

}  // namespace gfx942

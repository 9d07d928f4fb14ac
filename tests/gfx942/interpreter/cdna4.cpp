// SPDX-License-Identifier: Apache-2.0
// What gfx950 has and gfx942 has not, but products of matrices: conversions in pairs, any function of three bits, the
// larger and the smaller of three floats with NaN, and lanes that change places.
#include <algorithm>

#include "operations.h"

namespace gfx942 {
namespace {

using u32 = uint32_t;

// Each half as v_cvt_f16_f32 has it.
uint32_t packed_halves(const Mode& m, float a, float b) {
  const auto half = [&](float x) {
    const Half h = narrow(x, m.round64());
    return uint32_t((flushes_outputs<Half>(m) ? flushed(h) : h).bits);
  };
  return half(a) | half(b) << 16;
}

// To nearest even; NaN becomes quiet.
uint32_t bfloat(float x) {
  const u32 u = std::bit_cast<u32>(x);
  return x != x ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
void two_to_bf16(Wave& w, const Instruction& i) {
  refuse_clamp(w, i);
  if (i.with.op_sel) w.fail(i, "op_sel of this instruction is not implemented");
  if (w.mode.round32()) w.fail(i, "another rounding than to nearest is not implemented");
  Mask defined = ~Mask(0);
  Lanes<float> buffer[2];
  const float* a = source<float>(w, i, 0, buffer[0], defined);
  const float* b = source<float>(w, i, 1, buffer[1], defined);
  Vector to;
  for (int l = 0; l < kLanes; ++l) to.lane[l] = bfloat(a[l]) | bfloat(b[l]) << 16;
  w.result32(i, i.destination(), to.lane, defined, w.exec());
}

// Bit 4 a + 2 b + c of the table is the result for the bits a, b and c.
template <class T>
void bit_function(Wave& w, const Instruction& i) {
  if (i.with.op_sel >> 3 & 1) w.fail(i, "a result in the upper half is not implemented");
  Mask defined = ~Mask(0);
  Lanes<T> buffer[3], r = {};
  const T* x[3];
  for (int j = 0; j < 3; ++j) x[j] = source<T>(w, i, j, buffer[j], defined);
  for (int k = 0; k < 8; ++k) {
    if (!(i.with.bit_table >> k & 1)) continue;
    const T flip[3] = {T(k & 4 ? 0 : ~0), T(k & 2 ? 0 : ~0), T(k & 1 ? 0 : ~0)};
    for (int l = 0; l < kLanes; ++l) r.lane[l] |= T((x[0][l] ^ flip[0]) & (x[1][l] ^ flip[1]) & (x[2][l] ^ flip[2]));
  }
  finish(w, i, r);
  store_lanes(w, i, i.destination(), r, defined, w.exec());
}

// NaN where one of them is NaN. -0 < +0.
float largest(const Mode& m, float a, float b, float c) {
  for (const float x : {a, b, c})
    if (x != x) return quiet(x);
  return larger(m, larger(m, a, b), c);
}
float smallest(const Mode& m, float a, float b, float c) {
  return negated(largest(m, negated(a), negated(b), negated(c)));
}

// `rows` lanes of the first register that lie above as many of the second change places with those.
template <int rows>
void swap_lanes(Wave& w, const Instruction& i) {
  if (i.with.dpp != Dpp::none || i.with.sdwa) w.fail(i, "DPP or SDWA of this instruction is not implemented");
  if (w.exec() != ~Mask(0)) w.fail(i, "lanes that are off are not implemented");
  const Operand &first = i.operand[0], &second = i.operand[1];
  Mask da = ~Mask(0), db = ~Mask(0);
  Vector buffer_a, buffer_b;
  Vector a = *reinterpret_cast<const Vector*>(w.source32(i, first, buffer_a, da));
  Vector b = *reinterpret_cast<const Vector*>(w.source32(i, second, buffer_b, db));
  const Mask a_known = da, b_known = db;
  for (int l = 0; l < kLanes; ++l) {
    if (!(l & rows)) continue;
    const int other = l - rows;
    std::swap(a.lane[l], b.lane[other]);
    da = (da & ~(Mask(1) << l)) | (b_known >> other & 1) << l;
    db = (db & ~(Mask(1) << other)) | (a_known >> l & 1) << other;
  }
  w.result32(i, first, a.lane, da, w.exec());
  w.result32(i, second, b.lane, db, w.exec());
}

}  // namespace

void add_cdna4(Table& t) {
  constexpr Type b32 = Type::b32, f32 = Type::f32;
  t["v_cvt_pk_f16_f32"] =
      vector_op<Nan::as_computed>([](const Mode& m, float a, float b) { return packed_halves(m, a, b); });
  t["v_cvt_pk_bf16_f32"] = {&two_to_bf16, Unit::vector, 4, 1, {b32, f32, f32}};
  t["v_bitop3_b16"] = {&bit_function<uint16_t>, Unit::vector, 4, 1, {Type::b16, Type::b16, Type::b16, Type::b16}};
  t["v_bitop3_b32"] = {&bit_function<u32>, Unit::vector, 4, 1, {b32, b32, b32, b32}};
  t["v_maximum3_f32"] =
      vector_op<Nan::as_computed>([](const Mode& m, float a, float b, float c) { return largest(m, a, b, c); });
  t["v_minimum3_f32"] =
      vector_op<Nan::as_computed>([](const Mode& m, float a, float b, float c) { return smallest(m, a, b, c); });
  t["v_prng_b32"] = vector_op([](u32 a) { return a << 1 ^ (a >> 31 ? 0xc5u : 0u); });
  t["v_permlane16_swap_b32"] = {&swap_lanes<16>, Unit::vector, 4, 2, {b32, b32}};
  t["v_permlane32_swap_b32"] = {&swap_lanes<32>, Unit::vector, 4, 2, {b32, b32}};
}

}  // namespace gfx942

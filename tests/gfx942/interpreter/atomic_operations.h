// SPDX-License-Identifier: Apache-2.0
// What atomics compute, the same in LDS and in memory: from the old bits and the data to the new bits.
#pragma once

#include "operations.h"

namespace gfx942 {

struct AtomicMode {
  bool flush = false;   // denormals, in and out
  bool unsure = false;  // set where nothing published says what the hardware gives
};

// U: the bits. `other` is what a compare-and-swap compares with, or writes.
template <class U>
using AtomicFunction = U (*)(U old, U data, U other, AtomicMode&);

namespace atomics {

template <class T, class U>
T as(U x) {
  return std::bit_cast<T>(x);
}
template <class F, class U>
U add_float(U old, U data, U, AtomicMode& mode) {
  F a = as<F>(old), b = as<F>(data);
  if (mode.flush) a = flushed(a), b = flushed(b);
  F sum = a + b;
  if (mode.flush) sum = flushed(sum);
  if (is_nan(sum)) sum = is_nan(a) ? quiet(a) : is_nan(b) ? quiet(b) : default_nan<F>();
  return as<U>(sum);
}
// Where NaN or zeros of both signs meet, documents differ.
template <class F, class U, bool largest>
U choose_float(U old, U data, U, AtomicMode& mode) {
  const F a = as<F>(old), b = as<F>(data);
  mode.unsure |= is_nan(a) || is_nan(b) || (a == 0 && b == 0 && old != data) ||
                 (mode.flush && (flushed(a) != a || flushed(b) != b));
  return (largest ? b > a : b < a) ? data : old;
}

inline Half rounded(float x) { return narrow(x); }
// A float's upper half, to nearest even.
inline uint16_t rounded_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (is_nan(x)) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// The sum of two halves is exact enough in a float that the second rounding changes nothing.
inline uint16_t add_half(uint16_t a, uint16_t b, AtomicMode& mode) {
  const uint16_t sum = rounded(widen(Half{a}) + widen(Half{b})).bits;
  for (uint16_t x : {a, b, sum}) mode.unsure |= !(x & 0x7c00) && (x & 0x3ff);
  return sum;
}
inline uint16_t add_bf16(uint16_t a, uint16_t b, AtomicMode& mode) {
  const auto wide = [](uint16_t x) { return std::bit_cast<float>(uint32_t(x) << 16); };
  const uint16_t sum = rounded_bf16(wide(a) + wide(b));
  for (uint16_t x : {a, b, sum}) mode.unsure |= !(x & 0x7f80) && (x & 0x7f);
  return sum;
}
template <uint16_t (*add)(uint16_t, uint16_t, AtomicMode&)>
uint32_t add_packed(uint32_t old, uint32_t data, uint32_t, AtomicMode& mode) {
  return add(uint16_t(old), uint16_t(data), mode) | uint32_t(add(uint16_t(old >> 16), uint16_t(data >> 16), mode))
                                                        << 16;
}

template <class U>
U add(U old, U data, U, AtomicMode&) {
  return old + data;
}
template <class U>
U subtract(U old, U data, U, AtomicMode&) {
  return old - data;
}
template <class U>
U subtract_from(U old, U data, U, AtomicMode&) {
  return data - old;
}
template <class U>
U smallest(U old, U data, U, AtomicMode&) {
  return std::min(old, data);
}
template <class U>
U largest(U old, U data, U, AtomicMode&) {
  return std::max(old, data);
}
template <class U, class S = std::make_signed_t<U>>
U signed_smallest(U old, U data, U, AtomicMode&) {
  return U(std::min(S(old), S(data)));
}
template <class U, class S = std::make_signed_t<U>>
U signed_largest(U old, U data, U, AtomicMode&) {
  return U(std::max(S(old), S(data)));
}
template <class U>
U and_(U old, U data, U, AtomicMode&) {
  return old & data;
}
template <class U>
U or_(U old, U data, U, AtomicMode&) {
  return old | data;
}
template <class U>
U xor_(U old, U data, U, AtomicMode&) {
  return old ^ data;
}
template <class U>
U masked_or(U old, U data, U other, AtomicMode&) {
  return (old & ~data) | other;
}
template <class U>
U increment(U old, U data, U, AtomicMode&) {
  return old >= data ? 0 : old + 1;
}
template <class U>
U decrement(U old, U data, U, AtomicMode&) {
  return old == 0 || old > data ? data : old - 1;
}
template <class U>
U exchange(U, U data, U, AtomicMode&) {
  return data;
}
// Memory's order of operands: the new value, then what to compare with. LDS has them the other way round.
template <class U>
U compare_exchange(U old, U data, U other, AtomicMode&) {
  return old == other ? data : old;
}
template <class U>
U exchange_if_equal(U old, U data, U other, AtomicMode&) {
  return old == data ? other : old;
}

}  // namespace atomics
}  // namespace gfx942

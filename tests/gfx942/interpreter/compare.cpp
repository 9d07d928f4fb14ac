// SPDX-License-Identifier: Apache-2.0
// Comparisons of lanes: a bit for each, 0 for those that are off. v_cmpx sets EXEC as well.
#include <string>

#include "operations.h"

namespace gfx942 {
namespace {

void give(Wave& w, const Instruction& i, Mask bits, Mask defined, bool sets_exec) {
  const Mask on = w.exec();
  w.set_lane_mask(i, i.destination(), bits, defined);
  if (!sets_exec) return;
  if (~defined & on) w.complain_undefined(i, "EXEC becomes undefined", std::countr_zero(~defined & on));
  w.set_exec(bits & on);
}

template <class T, class F, bool sets_exec>
void compare(Wave& w, const Instruction& i) {
  Mask defined = ~Mask(0), bits = 0;
  Lanes<T> buffer_a, buffer_b;
  const T* a = source<T>(w, i, 0, buffer_a, defined);
  const T* b = source<T>(w, i, 1, buffer_b, defined);
  for (int l = 0; l < kLanes; ++l) bits |= Mask(F{}(number_of(a[l]), number_of(b[l]))) << l;
  give(w, i, bits, defined, sets_exec);
}

// A bit for each class: signalling NaN, quiet NaN, -inf, -normal, -denormal, -0, +0, +denormal, +normal, +inf.
template <class T>
uint32_t class_of(T x) {
  constexpr int kFraction = sizeof(T) == 8 ? 52 : sizeof(T) == 4 ? 23 : 10;
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  const bool minus = bits >> (sizeof(T) * 8 - 1) & 1;
  const uint64_t fraction = bits & ((uint64_t(1) << kFraction) - 1);
  const uint64_t most = (uint64_t(1) << (sizeof(T) * 8 - 1 - kFraction)) - 1, exponent = bits >> kFraction & most;
  if (exponent == most && fraction) return fraction >> (kFraction - 1) ? 2 : 1;
  const int kind = exponent == most ? 3 : exponent ? 2 : fraction ? 1 : 0;  // inf, normal, denormal, zero
  return 1u << (minus ? 5 - kind : 6 + kind);
}
template <class T, bool sets_exec>
void compare_class(Wave& w, const Instruction& i) {
  Mask defined = ~Mask(0), bits = 0;
  Lanes<T> buffer;
  Lanes<uint32_t> room_classes;
  const T* x = source<T, false>(w, i, 0, buffer, defined);
  const uint32_t* classes = source<uint32_t>(w, i, 1, room_classes, defined);
  for (int l = 0; l < kLanes; ++l) bits |= Mask((class_of(x[l]) & classes[l]) != 0) << l;
  give(w, i, bits, defined, sets_exec);
}

// The table keeps views of names, and these are put together.
std::string_view kept(std::string name) {
  static std::vector<std::unique_ptr<std::string>> all;
  all.push_back(std::make_unique<std::string>(std::move(name)));
  return *all.back();
}

template <class T, class F>
void add(Table& t, const char* relation, const char* type, F) {
  const std::string tail = std::string("_") + relation + "_" + type;
  t[kept("v_cmp" + tail)] = {&compare<T, F, false>, Unit::vector, 4, 1, {Type::b64, kType<T>, kType<T>}};
  t[kept("v_cmpx" + tail)] = {&compare<T, F, true>, Unit::vector, 4, 1, {Type::b64, kType<T>, kType<T>}};
}

template <class T>
void add_common(Table& t, const char* type) {
  add<T>(t, "f", type, [](auto, auto) { return false; });
  add<T>(t, "lt", type, [](auto a, auto b) { return a < b; });
  add<T>(t, "eq", type, [](auto a, auto b) { return a == b; });
  add<T>(t, "le", type, [](auto a, auto b) { return a <= b; });
  add<T>(t, "gt", type, [](auto a, auto b) { return a > b; });
  add<T>(t, "ge", type, [](auto a, auto b) { return a >= b; });
}
template <class T>
void add_integer(Table& t, const char* type) {
  add_common<T>(t, type);
  add<T>(t, "ne", type, [](auto a, auto b) { return a != b; });
  add<T>(t, "t", type, [](auto, auto) { return true; });
}
template <class T>
void add_float(Table& t, const char* type) {
  add_common<T>(t, type);
  add<T>(t, "lg", type, [](auto a, auto b) { return a < b || a > b; });
  add<T>(t, "o", type, [](auto a, auto b) { return a == a && b == b; });
  add<T>(t, "u", type, [](auto a, auto b) { return a != a || b != b; });
  add<T>(t, "nge", type, [](auto a, auto b) { return !(a >= b); });
  add<T>(t, "nlg", type, [](auto a, auto b) { return !(a < b || a > b); });
  add<T>(t, "ngt", type, [](auto a, auto b) { return !(a > b); });
  add<T>(t, "nle", type, [](auto a, auto b) { return !(a <= b); });
  add<T>(t, "neq", type, [](auto a, auto b) { return !(a == b); });
  add<T>(t, "nlt", type, [](auto a, auto b) { return !(a < b); });
  add<T>(t, "tru", type, [](auto, auto) { return true; });
  const std::string tail = std::string("_class_") + type;
  t[kept("v_cmp" + tail)] = {&compare_class<T, false>, Unit::vector, 4, 1, {Type::b64, kType<T>, Type::b32}};
  t[kept("v_cmpx" + tail)] = {&compare_class<T, true>, Unit::vector, 4, 1, {Type::b64, kType<T>, Type::b32}};
}

}  // namespace

void add_compares(Table& t) {
  add_integer<int16_t>(t, "i16"), add_integer<uint16_t>(t, "u16");
  add_integer<int32_t>(t, "i32"), add_integer<uint32_t>(t, "u32");
  add_integer<int64_t>(t, "i64"), add_integer<uint64_t>(t, "u64");
  add_float<Half>(t, "f16"), add_float<float>(t, "f32"), add_float<double>(t, "f64");
}

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
// From a function of one lane's values to an instruction. The tables (vector_*.cpp, scalar.cpp, ...) say what each
// mnemonic does; here is how sources reach it and results leave it: modifiers, denormals, NaN, EXEC.
#pragma once

#include <cfenv>
#include <string_view>
#include <unordered_map>

#include "half.h"
#include "wave.h"

namespace gfx942 {

using Table = std::unordered_map<std::string_view, Operation>;
const Table& operations(const Chip& chip);
// Null where it is not implemented.
const Operation* find_operation(const Chip& chip, std::string_view mnemonic);

// A name that is made when a table is: it outlives all tables.
std::string_view kept(std::string name);

// The tables, by what they compute. Each file defines one. A table may have mnemonics that one chip lacks, which its
// decoder then never gives; what a mnemonic does must not differ between chips, unless add_* is told the chip.
void add_scalar(Table&);
void add_control(Table&);
void add_vector_floats(Table&);
void add_vector_integers(Table&);
void add_compares(Table&);
void add_conversions(Table&, Isa);
void add_divisions(Table&);
void add_packed(Table&);
void add_lane_moves(Table&);
void add_matrix(Table&, Isa);
void add_lds(Table&);
void add_memory(Table&);
void add_cdna2(Table&);
void add_cdna4(Table&);  // last: it replaces what differs

template <class T>
constexpr Type kType = Type::none;
template <>
constexpr Type kType<uint16_t> = Type::b16;
template <>
constexpr Type kType<int16_t> = Type::i16;
template <>
constexpr Type kType<uint32_t> = Type::b32;
template <>
constexpr Type kType<int32_t> = Type::i32;
template <>
constexpr Type kType<uint64_t> = Type::b64;
template <>
constexpr Type kType<int64_t> = Type::i64;
template <>
constexpr Type kType<Half> = Type::f16;
template <>
constexpr Type kType<float> = Type::f32;
template <>
constexpr Type kType<double> = Type::f64;

// Values of 64 lanes, on the stack.
template <class T>
struct alignas(64) Lanes {
  T lane[kLanes];
};

inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline double flushed(double x) { return std::fabs(x) < 0x1p-1022 ? std::copysign(0.0, x) : x; }
inline Half flushed(Half x) { return (x.bits & 0x7c00) ? x : Half{uint16_t(x.bits & 0x8000)}; }

template <class T>
bool flushes_inputs(const Mode& m) {
  if constexpr (std::is_same_v<T, float>) return !m.keeps_input_denormals32();
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, Half>) return !m.keeps_input_denormals64();
  return false;
}
template <class T>
bool flushes_outputs(const Mode& m) {
  if constexpr (std::is_same_v<T, float>) return !m.keeps_output_denormals32();
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, Half>) return !m.keeps_output_denormals64();
  return false;
}

inline float negated(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ 0x80000000u); }
inline double negated(double x) { return std::bit_cast<double>(std::bit_cast<uint64_t>(x) ^ 0x8000000000000000u); }
inline Half negated(Half x) { return {uint16_t(x.bits ^ 0x8000)}; }
inline float magnitude(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffffu); }
inline double magnitude(double x) { return std::bit_cast<double>(std::bit_cast<uint64_t>(x) & ~0x8000000000000000u); }
inline Half magnitude(Half x) { return {uint16_t(x.bits & 0x7fff)}; }

inline bool is_nan(float x) { return x != x; }
inline bool is_nan(double x) { return x != x; }
inline bool is_nan(Half x) { return (x.bits & 0x7fff) > 0x7c00; }
inline float quiet(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) | 0x400000u); }
inline double quiet(double x) { return std::bit_cast<double>(std::bit_cast<uint64_t>(x) | 0x8000000000000u); }
inline Half quiet(Half x) { return {uint16_t(x.bits | 0x200)}; }
template <class T>
T default_nan() {
  if constexpr (std::is_same_v<T, float>) return std::bit_cast<float>(kQuietNan);
  if constexpr (std::is_same_v<T, double>) return std::bit_cast<double>(kQuietNan64);
  if constexpr (std::is_same_v<T, Half>) return Half{kQuietNan16};
}
template <class T>
bool is_signalling(T x) {
  if constexpr (sizeof(T) == 4)
    return is_nan(x) && !(std::bit_cast<uint32_t>(x) & 0x400000u);
  else if constexpr (sizeof(T) == 8)
    return is_nan(x) && !(std::bit_cast<uint64_t>(x) & 0x8000000000000u);
  else
    return is_nan(x) && !(x.bits & 0x200);
}
template <class T>
T number_of(T x) {
  return x;
}
inline float number_of(Half x) { return widen(x); }

// The number where one is NaN; with MODE.ieee a signalling NaN comes back quiet. -0 < +0.
template <class T>
T larger(const Mode& mode, T a, T b) {
  if (mode.ieee() && is_signalling(a)) return quiet(a);
  if (mode.ieee() && is_signalling(b)) return quiet(b);
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  const auto x = number_of(a), y = number_of(b);
  if (x == y) return std::signbit(x) ? b : a;
  return x > y ? a : b;
}
template <class T>
T smaller(const Mode& mode, T a, T b) {
  return negated(larger(mode, negated(a), negated(b)));
}
// Of all lanes. Bits of floats, made whole numbers in the same order, are compared as such: -0 < +0. With NaN among
// them each lane is looked at. `to` may be a source.
inline void larger_lanes(const Mode& mode, float* to, const float* a, const float* b) {
  const auto in_order = [](float x) {
    const int32_t bits = std::bit_cast<int32_t>(x);
    return bits ^ (bits >> 31 & 0x7fffffff);
  };
  uint32_t nan = 0;
  for (int l = 0; l < kLanes; ++l) {
    nan |= (std::bit_cast<uint32_t>(a[l]) & 0x7fffffffu) > 0x7f800000u;
    nan |= (std::bit_cast<uint32_t>(b[l]) & 0x7fffffffu) > 0x7f800000u;
  }
  if (nan) {
    for (int l = 0; l < kLanes; ++l) to[l] = larger(mode, a[l], b[l]);
    return;
  }
  for (int l = 0; l < kLanes; ++l) {
    const int32_t most = std::max(in_order(a[l]), in_order(b[l]));
    to[l] = std::bit_cast<float>(most ^ (most >> 31 & 0x7fffffff));
  }
}
inline void smaller_lanes(const Mode& mode, float* to, const float* a, const float* b) {
  Vector x, y;
  for (int l = 0; l < kLanes; ++l) x.lane[l] = std::bit_cast<uint32_t>(a[l]) ^ 0x80000000u;
  for (int l = 0; l < kLanes; ++l) y.lane[l] = std::bit_cast<uint32_t>(b[l]) ^ 0x80000000u;
  larger_lanes(mode, to, reinterpret_cast<const float*>(x.lane), reinterpret_cast<const float*>(y.lane));
  for (int l = 0; l < kLanes; ++l) to[l] = negated(to[l]);
}
// Multiply-adds of all lanes, in the rounding that the host is set to (fused.cpp).
void fused_lanes(float* to, const float* a, const float* b, const float* c);
void fused_lanes(double* to, const double* a, const double* b, const double* c);
template <class T>
struct Fused {
  T operator()(T a, T b, T c) const { return std::fma(a, b, c); }
  static void lanes(const Mode&, T* to, const T* a, const T* b, const T* c) { fused_lanes(to, a, b, c); }
};

template <class T>
constexpr bool kIsFloat = std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, Half>;

// The host's rounding while an operation runs that does not round to nearest.
class Rounding {
 public:
  explicit Rounding(int mode) : changed_(mode != 0) {
    constexpr int kHost[4] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    if (changed_) std::fesetround(kHost[mode]);
  }
  ~Rounding() {
    if (changed_) std::fesetround(FE_TONEAREST);
  }

 private:
  bool changed_;
};
template <class T>
int rounding_of(const Mode& m) {
  return sizeof(T) == 4 ? m.round32() : m.round64();
}

// ---- sources

// Source `j` (counted without the results) as values of T. SDWA and DPP have been applied to 32-bit registers by
// Wave::source32; neg and abs are applied here, since they depend on the type.
template <class T, bool flushes = true>  // denormals, where MODE says so
const T* source(Wave& w, const Instruction& i, int j, Lanes<T>& buffer, Mask& defined) {
  const Operand& o = i.source(j);
  const T* values;
  if constexpr (sizeof(T) == 8) {
    w.source64(i, o, reinterpret_cast<uint64_t(&)[kLanes]>(buffer.lane), defined);
    values = buffer.lane;
  } else if constexpr (sizeof(T) == 4) {
    values = reinterpret_cast<const T*>(w.source32(i, o, reinterpret_cast<Vector&>(buffer), defined));
  } else {
    Vector whole;
    const uint32_t* x = w.source32(i, o, whole, defined);
    const int shift = i.with.op_sel >> j & 1 ? 16 : 0;
    for (int l = 0; l < kLanes; ++l) {
      const uint16_t part = uint16_t(x[l] >> shift);
      std::memcpy(&buffer.lane[l], &part, 2);
    }
    values = buffer.lane;
  }
  if constexpr (kIsFloat<T>) {
    const bool flush = flushes && flushes_inputs<T>(w.mode);
    if (o.negate || o.absolute || flush) {
      for (int l = 0; l < kLanes; ++l) {
        T x = values[l];
        if (flush) x = flushed(x);
        if (o.absolute) x = magnitude(x);
        if (o.negate) x = negated(x);
        buffer.lane[l] = x;
      }
      values = buffer.lane;
    }
  } else if (o.negate || o.absolute) {
    w.fail(i, "neg or abs of an integer is not implemented");
  }
  return values;
}

// ---- results

// omod: without denormals, and zero is +0.
template <class T>
T multiplied(T x, float by) {
  if constexpr (std::is_same_v<T, Half>) {
    const Half y = flushed(narrow(double(widen(x)) * by));
    return y.bits == 0x8000 ? Half{0} : y;
  } else {
    const T y = flushed(x * T(by));
    return y == 0 ? T(0) : y;
  }
}
template <class T>
T clamped(T x, bool nan_is_zero) {
  if constexpr (std::is_same_v<T, Half>) {
    const float y = widen(x);
    return y != y ? (nan_is_zero ? Half{0} : x) : y < 0 ? Half{0} : y > 1 ? Half{0x3c00} : x;
  } else {
    return x != x ? (nan_is_zero ? T(0) : x) : x < 0 ? T(0) : x > 1 ? T(1) : x;
  }
}

template <class T>
void store_lanes(Wave& w, const Instruction& i, const Operand& to, Lanes<T>& x, Mask defined, Mask lanes) {
  if constexpr (sizeof(T) == 8) {
    w.result64(i, to, reinterpret_cast<const uint64_t*>(x.lane), defined, lanes);
  } else if constexpr (sizeof(T) == 4) {
    w.result32(i, to, reinterpret_cast<const uint32_t*>(x.lane), defined, lanes);
  } else {  // a 16-bit result clears the other half
    Vector whole;
    for (int l = 0; l < kLanes; ++l) {
      uint16_t part;
      std::memcpy(&part, &x.lane[l], 2);
      whole.lane[l] = part;
    }
    w.result32(i, to, whole.lane, defined, lanes);
  }
}

inline void refuse_clamp(Wave& w, const Instruction& i) {
  if (i.with.clamp || i.with.multiply != 1) w.fail(i, "clamp of this instruction is not implemented");
}

// Denormals, omod and clamp of a float.
template <class T>
void finish(Wave& w, const Instruction& i, Lanes<T>& x) {
  if constexpr (kIsFloat<T>) {
    if (flushes_outputs<T>(w.mode))
      for (T& y : x.lane) y = flushed(y);
    // Ignored where MODE keeps denormals or has IEEE rules.
    if (i.with.multiply != 1 && !w.mode.ieee() && flushes_outputs<T>(w.mode))
      for (T& y : x.lane) y = multiplied(y, i.with.multiply);
    if (i.with.clamp)
      for (T& y : x.lane) y = clamped(y, w.mode.dx10_clamp());
  } else {
    refuse_clamp(w, i);
  }
}

// Of the bits as whole numbers: GCC makes no vectors of comparisons that may raise an exception.
template <class T>
bool any_nan(const T (&x)[kLanes]) {
  using U = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  constexpr int kFraction = sizeof(T) == 8 ? 52 : sizeof(T) == 4 ? 23 : 10;
  constexpr U kSize = U(~U(0)) >> 1, kInfinity = U(kSize >> kFraction << kFraction);
  U any = 0;
  for (int l = 0; l < kLanes; ++l) any |= U((std::bit_cast<U>(x[l]) & kSize) > kInfinity);
  return any != 0;
}

// The hardware gives the first NaN among the sources, made quiet, and a positive quiet NaN where the operation itself
// is invalid; the host's own choice depends on the order its compiler puts the operands in.
template <class R, class... A>
void name_nans(Lanes<R>& result, const A*... sources) {
  if constexpr (kIsFloat<R>) {
    if (!any_nan(result.lane)) return;
    for (int l = 0; l < kLanes; ++l) {
      if (!is_nan(result.lane[l])) continue;
      R named = default_nan<R>();
      bool found = false;
      const auto look = [&](const auto* s) {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(*s)>, R>) {
          if (!found && is_nan(s[l])) named = quiet(s[l]), found = true;
        }
      };
      (look(sources), ...);
      result.lane[l] = named;
    }
  }
}

// ---- one lane's function, F, as an instruction. F is a stateless lambda, which may ask for MODE first. A struct may
// give the same for all lanes at once besides, F::lanes(mode, results, sources...), where the compiler makes no vectors
// of the loop over F.

template <class F, class T>
constexpr bool kTakesMode = std::is_invocable_v<F, const Mode&, T> || std::is_invocable_v<F, const Mode&, T, T> ||
                            std::is_invocable_v<F, const Mode&, T, T, T>;
template <class F, class... A>
auto of_lane(const Mode& mode, A... x) {
  if constexpr (std::is_invocable_v<F, const Mode&, A...>)
    return F{}(mode, x...);
  else
    return F{}(x...);
}

enum class Nan : uint8_t { named, as_computed };  // as_computed: the function chooses the NaN itself

// The destination as it was: v_fmac's last source. It has no modifiers.
template <class T>
const T* old_result(Wave& w, const Instruction& i, Lanes<T>& buffer, Mask& defined) {
  static_assert(sizeof(T) >= 4);
  if constexpr (sizeof(T) == 8)
    w.source64(i, i.destination(), reinterpret_cast<uint64_t(&)[kLanes]>(buffer.lane), defined);
  else
    std::memcpy(&buffer, w.source32(i, i.destination(), reinterpret_cast<Vector&>(buffer), defined), sizeof buffer);
  if (flushes_inputs<T>(w.mode))
    for (T& x : buffer.lane) x = flushed(x);
  return buffer.lane;
}

// `accumulates`: the last argument is the destination as it was.
template <class F, Nan nan, bool accumulates, class R, class... A>
struct VectorAction {
  static void run(Wave& w, const Instruction& i) {
    [&]<size_t... J>(std::index_sequence<J...>) {
      Mask defined = ~Mask(0);
      std::tuple<Lanes<A>...> buffer;
      const std::tuple<const A*...> from = {argument<A, J>(w, i, std::get<J>(buffer), defined)...};
      Lanes<R> result;
      {
        const Rounding rounding(rounding_of<R>(w.mode));
        if constexpr (requires { F::lanes(w.mode, result.lane, std::get<J>(from)...); })
          F::lanes(w.mode, result.lane, std::get<J>(from)...);
        else
          for (int l = 0; l < kLanes; ++l) result.lane[l] = of_lane<F>(w.mode, std::get<J>(from)[l]...);
      }
      if constexpr (nan == Nan::named) name_nans(result, std::get<J>(from)...);
      finish(w, i, result);
      store_lanes(w, i, i.destination(), result, defined, w.exec());
    }(std::index_sequence_for<A...>{});
  }
  template <class T, size_t j>
  static const T* argument(Wave& w, const Instruction& i, Lanes<T>& buffer, Mask& defined) {
    if constexpr (accumulates && j + 1 == sizeof...(A))
      return old_result<T>(w, i, buffer, defined);
    else
      return source<T>(w, i, int(j), buffer, defined);
  }
};

// Deduces the types from the lambda: R(A...).
template <class F, Nan nan, class R, class... A>
Operation make_vector(R (F::*)(A...) const, uint8_t cycles) {
  return {&VectorAction<F, nan, false, R, A...>::run, Unit::vector, cycles, 1, {kType<R>, kType<A>...}};
}
template <class F, Nan nan, class R, class... A>
Operation make_vector(R (F::*)(const Mode&, A...) const, uint8_t cycles) {
  return {&VectorAction<F, nan, false, R, A...>::run, Unit::vector, cycles, 1, {kType<R>, kType<A>...}};
}
template <Nan nan = Nan::named, class F>
Operation vector_op(F, uint8_t cycles = 4) {
  return make_vector<F, nan>(&F::operator(), cycles);
}

// 64-bit results whose lower half comes of lower halves alone: sums, products, left shifts, copies. Compilers make
// 32-bit values with them and leave the upper halves undefined.
class LowerHalf {
 public:
  LowerHalf(Wave& w, const Instruction& i) : wave_(w), to_(i.destination()) {
    for (int k = i.operation->results; k < i.operands; ++k) {
      const Operand& o = i.operand[k];
      uint64_t known = ~uint64_t(0);
      if (o.is_vector())
        defined_ &= w.v_defined[o.index];
      else if (w.scalar(i, o, &known); uint32_t(known) != ~0u)
        defined_ = 0;
    }
  }
  ~LowerHalf() {
    Mask& d = wave_.v_defined[to_.index];
    d = (d & ~wave_.exec()) | (defined_ & wave_.exec());
  }

 private:
  Wave& wave_;
  const Operand& to_;
  Mask defined_ = ~Mask(0);
};
template <class F, class R, class... A>
Operation make_lower_half(R (F::*)(A...) const) {
  constexpr auto run = [](Wave& w, const Instruction& i) {
    const LowerHalf lower(w, i);
    VectorAction<F, Nan::named, false, R, A...>::run(w, i);
  };
  return {run, Unit::vector, 4, 1, {kType<R>, kType<A>...}};
}
template <class F>
Operation lower_half_op(F) {
  return make_lower_half<F>(&F::operator());
}

template <class F, class R, class... A>
Operation make_accumulate(R (F::*)(A...) const) {
  return {&VectorAction<F, Nan::named, true, R, A...>::run, Unit::vector, 4, 1, {kType<R>, kType<A>...}};
}
template <class F>
Operation accumulate_op(F) {
  return make_accumulate<F>(&F::operator());
}

inline Operation transcendental(Operation o) {
  o.unit = Unit::transcendental;
  o.cycles = 16;
  return o;
}

}  // namespace gfx942

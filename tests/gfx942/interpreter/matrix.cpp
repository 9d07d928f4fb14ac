// SPDX-License-Identifier: Apache-2.0
// v_mfma: products of matrices whose elements are spread over the lanes. EXEC does not matter to them.
//
// What is exact here and what is not: products are exact, and are added in the order of k with one rounding each, as
// fma does. The order in which the hardware adds within an instruction, and how many bits it keeps between, is not
// published; a result may differ from the hardware's by a few roundings. MODE does not matter. Denormals are kept, but
// by gfx90a's products of 16-bit floats, which take them for 0 and leave 0 for them, as AMD says of the MI200.
#include <string>

#include "float8.h"
#include "matrix_layout.h"
#include "operations.h"

namespace gfx942 {
namespace {

// ---- elements: how they lie in a lane's registers, and their value

template <class V, int bits_>
struct Element {
  using Value = V;
  static constexpr int bits = bits_;
  static constexpr bool kFlushes = false;
};
struct F16 : Element<float, 16> {
  static float value(uint32_t x) {
    const uint32_t top = (x & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;  // infinities and NaN
    return std::bit_cast<float>(std::bit_cast<uint32_t>(moved_up<5, 10, 15>(x)) | top);
  }
};
struct Bf16 : Element<float, 16> {
  static float value(uint32_t x) { return std::bit_cast<float>(x << 16); }
};
// Where denormals are 0, those of C and D too.
struct F16WithoutDenormals : F16 {
  static constexpr bool kFlushes = true;
  static float value(uint32_t x) { return F16::value(x & 0x7c00 ? x : x & 0x8000); }
};
struct Bf16WithoutDenormals : Bf16 {
  static constexpr bool kFlushes = true;
  static float value(uint32_t x) { return Bf16::value(x & 0x7f80 ? x : x & 0x8000); }
};
struct F32 : Element<float, 32> {
  static float value(uint32_t x) { return std::bit_cast<float>(x); }
};
// 10 bits of fraction. To nearest even: AMD publishes the format, not how a float is brought to it.
struct Xf32 : Element<float, 32> {
  static float value(uint32_t x) {
    const bool finite = (x & 0x7f800000u) != 0x7f800000u;
    return std::bit_cast<float>(finite ? (x + 0xfff + (x >> 13 & 1)) & ~0x1fffu : x);
  }
};
template <int exponent_bits>
struct F8 : Element<float, 8> {
  static float value(uint32_t x) { return widen8<exponent_bits>(x); }
};
using Fp8 = F8<4>;
using Bf8 = F8<5>;
template <int exponent_bits>
struct Ocp8 : Element<float, 8> {
  static float value(uint32_t x) { return widen_ocp8<exponent_bits>(x); }
};
struct I8 : Element<int32_t, 8> {
  static int32_t value(uint32_t x) { return int8_t(uint8_t(x)); }
};
struct F64 : Element<double, 64> {};

inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double multiply_add(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline int32_t multiply_add(int32_t a, int32_t b, int32_t c) {
  return int32_t(uint32_t(a) * uint32_t(b) + uint32_t(c));
}

// ---- operands

// Lanes of B that change places (BLGP): the lane that each lane's elements come from.
int moved_lane(int blgp, int lane) {
  switch (blgp) {
    case 1:
      return lane % 32;
    case 2:
      return lane % 32 + 32;
    case 3:
      return (lane + 16) % 64;
    case 4:
    case 5:
    case 6:
    case 7:
      return lane % 16 + 16 * (blgp - 4);
    default:
      return lane;
  }
}

// A or B as their lanes hold them, each element as a value, and the lanes where all of it is defined.
template <class E, MatrixShape s>
struct Input {
  using T = typename E::Value;
  static constexpr bool kDouble = std::is_same_v<T, double>;
  static constexpr int kRegisters = s.depth() * E::bits / 32;
  alignas(64) T at[s.depth()][kLanes];
  Mask known = ~Mask(0);

  void load(const Wave& w, const Instruction& i, const Operand& o, int blgp) {
    if (!o.is_vector() || o.registers != kRegisters)
      w.fail(i, "a matrix in " + std::to_string(kRegisters) + " registers was expected");
    w.check_arrived(i, kScalars + o.index, kRegisters);
    for (int r = 0; r < kRegisters; ++r) known &= w.v_defined[o.index + r];
    if (!blgp) return unpack(&w.v[o.index]);
    Vector moved[kRegisters];
    Mask moved_known = 0;
    for (int l = 0; l < kLanes; ++l) {
      const int from = moved_lane(blgp, l);
      for (int r = 0; r < kRegisters; ++r) moved[r].lane[l] = w.v[o.index + r].lane[from];
      moved_known |= (known >> from & 1) << l;
    }
    known = moved_known;
    unpack(moved);
  }
  void unpack(const Vector* v) {
    if constexpr (kDouble) {
      for (int l = 0; l < kLanes; ++l) at[0][l] = std::bit_cast<double>(uint64_t(v[1].lane[l]) << 32 | v[0].lane[l]);
    } else {
      constexpr int kPerRegister = 32 / E::bits;
      constexpr uint32_t kField = ~0u >> (32 - E::bits);
      for (int r = 0; r < kRegisters; ++r)
        for (int part = 0; part < kPerRegister; ++part) {
          T* to = at[r * kPerRegister + part];
          for (int l = 0; l < kLanes; ++l) to[l] = E::value(v[r].lane[l] >> part * E::bits & kField);
        }
    }
  }
  // A[i][0] of a block, or B[0][i].
  const T* begin(int i, int block) const { return &at[0][input_place(s, kDouble, i, 0, block).lane]; }
  // The rows of A, or columns of B, that are defined.
  uint32_t defined(int block) const {
    Mask all = ~Mask(0);
    for (int k = 0; k < s.k; ++k) all &= known >> input_place(s, kDouble, 0, k, block).lane;
    return uint32_t(all);
  }
};

// C and D as [block][i][j].
template <class T, MatrixShape s>
struct Output {
  static constexpr bool kDouble = std::is_same_v<T, double>;
  static constexpr int kElements = s.side * s.side * s.blocks / kLanes, kRegisters = kElements * int(sizeof(T)) / 4;
  alignas(64) T at[s.blocks][s.side][s.side];

  // The lanes of each element that are defined.
  void load(const Wave& w, const Instruction& i, const Operand& o, Mask (&known)[kElements]) {
    std::fill_n(known, kElements, ~Mask(0));
    if (o.kind == Operand::Kind::constant) {
      T x;
      std::memcpy(&x, &o.value, sizeof x);
      std::fill_n(&at[0][0][0], s.blocks * s.side * s.side, x);
      return;
    }
    if (!o.is_vector() || o.registers != kRegisters)
      w.fail(i, "C in " + std::to_string(kRegisters) + " registers was expected");
    w.check_arrived(i, kScalars + o.index, kRegisters);
    const Vector* v = &w.v[o.index];
    for (int e = 0; e < kElements; ++e)
      known[e] = kDouble ? w.v_defined[o.index + 2 * e] & w.v_defined[o.index + 2 * e + 1] : w.v_defined[o.index + e];
    for_each_row([&](T* row, MatrixPlace p) {
      if constexpr (kDouble) {
        const uint32_t *low = &v[2 * p.element].lane[p.lane], *high = &v[2 * p.element + 1].lane[p.lane];
        for (int j = 0; j < s.side; ++j) row[j] = std::bit_cast<double>(uint64_t(high[j]) << 32 | low[j]);
      } else {
        std::memcpy(row, &v[p.element].lane[p.lane], sizeof(T) * s.side);
      }
    });
  }
  void store(Wave& w, const Instruction& i, const Operand& o, const Mask (&known)[kElements]) {
    if (!o.is_vector() || o.registers != kRegisters)
      w.fail(i, "D in " + std::to_string(kRegisters) + " registers was expected");
    w.check_arrived(i, kScalars + o.index, kRegisters);
    Vector* v = &w.v[o.index];
    for (int e = 0; e < kElements; ++e)
      for (int r = 0; r < int(sizeof(T)) / 4; ++r) w.v_defined[o.index + e * int(sizeof(T)) / 4 + r] = known[e];
    for_each_row([&](T* row, MatrixPlace p) {
      if constexpr (kDouble) {
        uint32_t *low = &v[2 * p.element].lane[p.lane], *high = &v[2 * p.element + 1].lane[p.lane];
        for (int j = 0; j < s.side; ++j) {
          const uint64_t x = std::bit_cast<uint64_t>(row[j]);
          low[j] = uint32_t(x), high[j] = uint32_t(x >> 32);
        }
      } else {
        std::memcpy(&v[p.element].lane[p.lane], row, sizeof(T) * s.side);
      }
    });
  }
  void flush() {
    for (auto& block : at)
      for (auto& row : block)
        for (T& x : row) x = flushed(x);
  }
  // A row's lanes lie side by side.
  template <class F>
  void for_each_row(F f) {
    for (int b = 0; b < s.blocks; ++b)
      for (int i = 0; i < s.side; ++i) f(at[b][i], output_place(s, kDouble, i, 0, b));
  }
};

// ---- the instruction

// Four rows of a block: a begins at A[i][0], b at B[0][0]. Alone and in this form, of which compilers make vectors of
// j.
template <class T, MatrixShape s>
[[gnu::noinline]] void add_rows(T (*__restrict__ c)[s.side], const T* __restrict__ a, const T* __restrict__ b) {
  for (int k = 0; k < s.k; ++k) {
    const MatrixPlace p = input_place(s, std::is_same_v<T, double>, 0, k, 0);
    const T *x = a + p.element * kLanes + p.lane, *y = b + p.element * kLanes + p.lane;
    for (int j = 0; j < s.side; ++j) {
      c[0][j] = multiply_add(x[0], y[j], c[0][j]);
      c[1][j] = multiply_add(x[1], y[j], c[1][j]);
      c[2][j] = multiply_add(x[2], y[j], c[2][j]);
      c[3][j] = multiply_add(x[3], y[j], c[3][j]);
    }
  }
}

// Which modifiers are legal. Blocks of A may be broadcast (CBSZ, ABID) where there are several.
enum class Moves : uint8_t { none, lanes_of_b, both };

template <class A, class B, class T, MatrixShape s, Moves moves>
void matrix(Wave& w, const Instruction& i) {
  static_assert(covers(s, std::is_same_v<T, double>));
  constexpr bool kDouble = std::is_same_v<T, double>;
  const auto& m = i.with;
  constexpr bool kBroadcasts = moves == Moves::both;
  if (kBroadcasts ? (1 << m.cbsz) > s.blocks || m.abid >= 1 << m.cbsz : m.cbsz || m.abid)
    w.fail(i, "cbsz or abid is not legal here");
  if (moves == Moves::none && !kDouble && m.blgp) w.fail(i, "blgp is not legal here");
  if (kDouble && (w.mode.bits & 0xcc) != 0xc0) w.fail(i, "doubles in this MODE are not implemented");
  Input<A, s> a;
  Input<B, s> b;
  Output<T, s> c;
  Mask known[Output<T, s>::kElements];
  a.load(w, i, i.source(0), 0);
  b.load(w, i, i.source(1), kDouble ? 0 : m.blgp);
  c.load(w, i, i.source(2), known);
  if constexpr (kDouble) {  // where others have BLGP, doubles have a sign for each of A, B and C
    if (m.blgp & 1)
      for (T& x : a.at[0]) x = negated(x);
    if (m.blgp & 2)
      for (T& x : b.at[0]) x = negated(x);
    if (m.blgp & 4)
      for (auto& block : c.at)
        for (auto& row : block)
          for (T& x : row) x = negated(x);
  }
  if constexpr (A::kFlushes) c.flush();
  const auto a_block = [&](int block) { return kBroadcasts ? (block >> m.cbsz << m.cbsz) + m.abid : block; };
  for (int block = 0; block < s.blocks; ++block)
    for (int row = 0; row < s.side; row += 4)
      add_rows<T, s>(&c.at[block][row], a.begin(row, a_block(block)), b.begin(0, block));
  if constexpr (A::kFlushes) c.flush();
  if constexpr (std::is_floating_point_v<T>)  // the host's NaN has another sign
    for (auto& block : c.at)
      for (auto& row : block)
        for (T& x : row) x = x != x ? default_nan<T>() : x;
  if ((a.known & b.known) != ~Mask(0)) {
    constexpr Mask kSide = s.side == 32 ? 0xffffffffu : (1u << s.side) - 1;
    for (int block = 0; block < s.blocks; ++block) {
      const uint32_t rows = a.defined(a_block(block)), columns = b.defined(block);
      for (int row = 0; row < s.side; ++row) {
        const MatrixPlace p = output_place(s, kDouble, row, 0, block);
        known[p.element] &= ~((rows >> row & 1 ? ~Mask(columns) & kSide : kSide) << p.lane);
      }
    }
  }
  c.store(w, i, i.destination(), known);
}

// `cycles` are four for each of the passes that LLVM's scheduling model has for the chip.
template <class A, class B, class T, MatrixShape s, Moves moves = Moves::none>
Operation mfma(int cycles) {
  const Type in = A::bits == 64 ? Type::f64 : Type::b32;
  return {&matrix<A, B, T, s, moves>, Unit::matrix, uint8_t(cycles), 1, {kType<T>, in, in, kType<T>}};
}

// Elements of one type into sums of another, in shapes whose k is that of the operands' registers.
template <class E, class T, MatrixShape s>
void add_cdna2_shape(Table& t, const std::string& type) {
  constexpr Moves kMoves = s.blocks > 1 ? Moves::both : Moves::lanes_of_b;
  const std::string sum = std::is_same_v<T, float> ? "f32_" : "i32_", side = std::to_string(s.side) + "x";
  t[kept("v_mfma_" + sum + side + side + std::to_string(s.k) + type)] = mfma<E, E, T, s, kMoves>(s.side == 32   ? 64
                                                                                                 : s.side == 16 ? 32
                                                                                                                : 8);
}
template <class E, class T, int k>  // of one block of 32 by 32
void add_cdna2_shapes(Table& t, const std::string& type) {
  constexpr int kOfBlocks = k / 2;
  add_cdna2_shape<E, T, MatrixShape{32, k, 1}>(t, type), add_cdna2_shape<E, T, MatrixShape{16, 2 * k, 1}>(t, type);
  add_cdna2_shape<E, T, MatrixShape{32, kOfBlocks, 2}>(t, type),
      add_cdna2_shape<E, T, MatrixShape{16, kOfBlocks, 4}>(t, type);
  add_cdna2_shape<E, T, MatrixShape{4, kOfBlocks, 16}>(t, type);
}

// gfx90a: names without blocks, and B's lanes may change places in all of them.
void add_cdna2_matrices(Table& t) {
  add_cdna2_shapes<F32, float, 2>(t, "f32");
  add_cdna2_shapes<F16WithoutDenormals, float, 8>(t, "f16");
  add_cdna2_shapes<Bf16WithoutDenormals, float, 4>(t, "bf16");
  add_cdna2_shapes<Bf16WithoutDenormals, float, 8>(t, "bf16_1k");
  add_cdna2_shapes<I8, int32_t, 8>(t, "i8");
  t["v_mfma_f64_16x16x4f64"] = mfma<F64, F64, double, MatrixShape{16, 4, 1}>(32);
  t["v_mfma_f64_4x4x4f64"] = mfma<F64, F64, double, MatrixShape{4, 4, 4}>(16);
}

template <class E>
void add_halves(Table& t, const std::string& type) {
  t[kept("v_mfma_f32_16x16x16_" + type)] = mfma<E, E, float, MatrixShape{16, 16, 1}>(16);
  t[kept("v_mfma_f32_32x32x8_" + type)] = mfma<E, E, float, MatrixShape{32, 8, 1}>(32);
  t[kept("v_mfma_f32_4x4x4_16b_" + type)] = mfma<E, E, float, MatrixShape{4, 4, 16}, Moves::both>(8);
  t[kept("v_mfma_f32_16x16x4_4b_" + type)] = mfma<E, E, float, MatrixShape{16, 4, 4}, Moves::both>(32);
  t[kept("v_mfma_f32_32x32x4_2b_" + type)] = mfma<E, E, float, MatrixShape{32, 4, 2}, Moves::both>(64);
}
template <class A, class B>
void add_bytes(Table& t, const std::string& types) {
  t[kept("v_mfma_f32_16x16x32_" + types)] = mfma<A, B, float, MatrixShape{16, 32, 1}>(16);
  t[kept("v_mfma_f32_32x32x16_" + types)] = mfma<A, B, float, MatrixShape{32, 16, 1}>(32);
}

template <class Fp8, class Bf8>
void add_all_bytes(Table& t) {
  add_bytes<Fp8, Fp8>(t, "fp8_fp8"), add_bytes<Fp8, Bf8>(t, "fp8_bf8");
  add_bytes<Bf8, Fp8>(t, "bf8_fp8"), add_bytes<Bf8, Bf8>(t, "bf8_bf8");
}

// What gfx942 and gfx950 share.
void add_shared(Table& t) {
  add_halves<F16>(t, "f16");
  add_halves<Bf16>(t, "bf16");
  t["v_mfma_f32_16x16x4_f32"] = mfma<F32, F32, float, MatrixShape{16, 4, 1}, Moves::lanes_of_b>(32);
  t["v_mfma_f32_32x32x2_f32"] = mfma<F32, F32, float, MatrixShape{32, 2, 1}, Moves::lanes_of_b>(64);
  t["v_mfma_f32_4x4x1_16b_f32"] = mfma<F32, F32, float, MatrixShape{4, 1, 16}, Moves::both>(8);
  t["v_mfma_f32_16x16x1_4b_f32"] = mfma<F32, F32, float, MatrixShape{16, 1, 4}, Moves::both>(32);
  t["v_mfma_f32_32x32x1_2b_f32"] = mfma<F32, F32, float, MatrixShape{32, 1, 2}, Moves::both>(64);
  t["v_mfma_i32_16x16x32_i8"] = mfma<I8, I8, int32_t, MatrixShape{16, 32, 1}>(16);
  t["v_mfma_i32_32x32x16_i8"] = mfma<I8, I8, int32_t, MatrixShape{32, 16, 1}>(32);
  t["v_mfma_i32_4x4x4_16b_i8"] = mfma<I8, I8, int32_t, MatrixShape{4, 4, 16}, Moves::both>(8);
  t["v_mfma_i32_16x16x4_4b_i8"] = mfma<I8, I8, int32_t, MatrixShape{16, 4, 4}, Moves::both>(32);
  t["v_mfma_i32_32x32x4_2b_i8"] = mfma<I8, I8, int32_t, MatrixShape{32, 4, 2}, Moves::both>(64);
  t["v_mfma_f64_4x4x4_4b_f64"] = mfma<F64, F64, double, MatrixShape{4, 4, 4}>(16);
}

void add_cdna3_matrices(Table& t) {
  add_shared(t);
  add_all_bytes<Fp8, Bf8>(t);
  t["v_mfma_f32_16x16x8_xf32"] = mfma<Xf32, Xf32, float, MatrixShape{16, 8, 1}>(16);
  t["v_mfma_f32_32x32x4_xf32"] = mfma<Xf32, Xf32, float, MatrixShape{32, 4, 1}>(32);
  t["v_mfma_f64_16x16x4_f64"] = mfma<F64, F64, double, MatrixShape{16, 4, 1}>(32);
}

void add_cdna4_matrices(Table& t) {
  add_shared(t);
  add_all_bytes<Ocp8<4>, Ocp8<5>>(t);
  t["v_mfma_f32_16x16x32_f16"] = mfma<F16, F16, float, MatrixShape{16, 32, 1}>(16);
  t["v_mfma_f32_32x32x16_f16"] = mfma<F16, F16, float, MatrixShape{32, 16, 1}>(32);
  t["v_mfma_f32_16x16x32_bf16"] = mfma<Bf16, Bf16, float, MatrixShape{16, 32, 1}>(16);
  t["v_mfma_f32_32x32x16_bf16"] = mfma<Bf16, Bf16, float, MatrixShape{32, 16, 1}>(32);
  t["v_mfma_i32_16x16x64_i8"] = mfma<I8, I8, int32_t, MatrixShape{16, 64, 1}>(16);
  t["v_mfma_i32_32x32x32_i8"] = mfma<I8, I8, int32_t, MatrixShape{32, 32, 1}>(32);
  t["v_mfma_f64_16x16x4_f64"] = mfma<F64, F64, double, MatrixShape{16, 4, 1}>(64);
}

}  // namespace

void add_matrix(Table& t, Isa isa) {
  if (isa == Isa::cdna2) add_cdna2_matrices(t);
  if (isa == Isa::cdna3) add_cdna3_matrices(t);
  if (isa == Isa::cdna4) add_cdna4_matrices(t);
}

}  // namespace gfx942

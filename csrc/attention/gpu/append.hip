// SPDX-License-Identifier: Apache-2.0
// Appends new tokens to a KV cache, with rotary embedding, on a GPU.
//
// Who owns what: a block moves one token of one sequence with all its heads: the destination and the row of the rotary
// tables are the same for the whole block. A thread moves 16 bytes of features at a time. For a rotated feature the
// thread also reads the other feature of the pair, which lies in the same 16 bytes or half of the rotated features
// away, where another thread reads it too. Where tensors or the rotary halves do not begin at multiples of 16 bytes, a
// thread moves one feature at a time.
//
// A cache of floats of 8 bits gets the nearest ones to the features divided by its descale.
//
// Floor: each feature is read and written once; memory binds.
#include "arch/launch.h"
#include "attention/append.h"
#include "attention/gpu/kernels.h"
#include "attention/gpu/key_elements.h"
#include "attention/gpu/tensor_layout.h"
#include "tile/vectors.h"

namespace xlstm::gpu::attention {
namespace {

constexpr int kMaxAppendThreads = 256;

// Loads n features of one head from `column` on, and rotates them where they are among the first rotary_dim.
template <class E, int n>
XLSTM_DEVICE void rotate(const xlstm_attention_append& p, const E* from, int column, const E* cos, const E* sin,
                         float (&x)[n]) {
  const int half = int(p.rotary_dim / 2);
  float other[n], by_cos[n], by_sin[n];
  if (n > 1 && p.interleaved) {
    float c[(n + 1) / 2], s[(n + 1) / 2];
    load_elements(cos + column / 2, c);
    load_elements(sin + column / 2, s);
#pragma unroll
    for (int j = 0; j < n; ++j) other[j] = x[n > 1 ? j ^ 1 : 0], by_cos[j] = c[j / 2], by_sin[j] = s[j / 2];
  } else {
    const RotaryPair pair = rotary_pair(column, half, p.interleaved);
    load_elements(from + pair.other, other);
    load_elements(cos + pair.angle, by_cos);
    load_elements(sin + pair.angle, by_sin);
  }
#pragma unroll
  for (int j = 0; j < n; ++j)
    x[j] = rotated(x[j], other[j], by_cos[j], by_sin[j], rotary_pair(column + j, half, p.interleaved).first);
}

// Stores n features as elements, or as the nearest floats of 8 bits.
template <class To, int n>
XLSTM_DEVICE void store_features(To* to, float (&x)[n], [[maybe_unused]] float descale) {
  if constexpr (!kIsFloat8<To>) {
    store_elements(to, x);
  } else {
    struct alignas(n) {
      uint8_t code[n];
    } codes;
#pragma unroll
    for (int j = 0; j < n; ++j) codes.code[j] = float8_of(x[j] / descale, To::kFnuz);
    *reinterpret_cast<decltype(codes)*>(to) = codes;
  }
}

template <class Elements, int n>
__global__ __launch_bounds__(kMaxAppendThreads) void append_kernel(const xlstm_attention_append p) {
  using E = QueryOf<Elements>;
  using To = KeyOf<Elements>;
  const int64_t b = blockIdx.x / p.length, t = blockIdx.x % p.length, offset = append_offset(p, b, t);
  if (offset < 0) return;
  const E* from = static_cast<const E*>(p.from.data) + b * p.from.stride[0] + t * p.from.stride[2];
  To* to = static_cast<To*>(p.to.data) + offset;
  const int64_t angles = p.cos ? rotary_position(p, b, t) * (p.rotary_dim / 2) : 0;
  const E *cos = static_cast<const E*>(p.cos) + angles, *sin = static_cast<const E*>(p.sin) + angles;
  const int units = int(p.features) / n, all = int(p.heads) * units;
  for (int unit = int(threadIdx.x); unit < all; unit += int(blockDim.x)) {
    const int head = unit / units, column = (unit - head * units) * n;
    const E* head_from = from + head * p.from.stride[1];
    float x[n];
    load_elements(head_from + column, x);
    if (p.cos && column < p.rotary_dim) rotate<E, n>(p, head_from, column, cos, sin, x);
    store_features(to + head * p.to.stride[1] + column, x, kIsFloat8<To> ? descale_of(p.descale, b, head) : 1.0f);
  }
}

bool can_use_vec16(const xlstm_attention_append& p, int64_t n) {
  const auto aligned = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  bool is_aligned16 =
      p.features % n == 0 && aligned(p.from.data) && aligned(p.to.data) && aligned(p.cos) && aligned(p.sin);
  for (const xlstm_tensor* x : {&p.from, &p.to})
    for (int64_t stride : x->stride) is_aligned16 = is_aligned16 && stride % n == 0;
  // Rows of the tables, and so the rotary halves, must consist of 16-byte vectors too.
  return is_aligned16 && (!p.cos || p.rotary_dim / 2 % n == 0);
}

template <class Elements>
void append(const xlstm_attention_append& p, Stream stream) {
  constexpr int n = 16 / sizeof(QueryOf<Elements>);
  const bool vec16s = can_use_vec16(p, n);
  const int64_t units = p.heads * p.features / (vec16s ? n : 1), wave_threads = (units + 63) / 64 * 64;
  const Grid grid{p.batch * p.length, int(wave_threads < kMaxAppendThreads ? wave_threads : kMaxAppendThreads), 0};
  launch("attention, new tokens", vec16s ? append_kernel<Elements, n> : append_kernel<Elements, 1>, grid, stream, p);
}

}  // namespace

void attention_append(const xlstm_attention_append& p, void* stream) {
  const auto on = static_cast<Stream>(stream);
  const auto run = [&](auto e) {
    with_elements(e, p.to.dtype, [&](auto elements) { append<decltype(elements)>(p, on); });
  };
  switch (p.from.dtype) {
    case XLSTM_BFLOAT16:
      return run(BFloat16{});
    case XLSTM_FLOAT16:
      return run(Float16{});
    default:
      return append<float>(p, on);  // to floats: the check refuses others
  }
}

}  // namespace xlstm::gpu::attention

// SPDX-License-Identifier: Apache-2.0
// A decode step of a complete model by the C API, without Python, on every instruction set: every format of weights is
// tested against loops in double, with buffers between guard bytes; one to three threads give the same bits; and bad
// arguments are refused.
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "buffer.h"
#include "each_isa.h"

namespace {

using Numbers = std::vector<double>;
std::mt19937 rng(1);

double draw() { return std::normal_distribution<double>()(rng); }

float as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

struct Shape {
  int64_t batch, dim, heads, dqk, dhv, ffn, vocab, blocks;
};

struct Format {
  const char* name;
  xlstm_dtype dtype;
  int32_t bits;
  bool offsets;
  xlstm_code code = XLSTM_CODE_INTEGER;
  int64_t group_size = 32;
};
constexpr Format kFormats[] = {{"float", XLSTM_FLOAT32, 0, false},
                               {"bfloat16", XLSTM_BFLOAT16, 0, false},
                               {"int8", XLSTM_FLOAT32, 8, false},
                               {"int8, offsets", XLSTM_FLOAT32, 8, true},
                               {"nibbles", XLSTM_FLOAT32, 4, false},
                               {"nibbles, offsets", XLSTM_FLOAT32, 4, true},
                               {"int8, groups of 64", XLSTM_FLOAT32, 8, true, XLSTM_CODE_INTEGER, 64},
                               {"nibbles, groups of 128", XLSTM_FLOAT32, 4, false, XLSTM_CODE_INTEGER, 128},
                               {"e4m3fn", XLSTM_FLOAT32, 8, false, XLSTM_CODE_E4M3FN},
                               {"e4m3fnuz", XLSTM_FLOAT32, 8, false, XLSTM_CODE_E4M3FNUZ}};

bool is_nan(xlstm_code code, uint8_t q) {
  return code == XLSTM_CODE_E4M3FN ? (q & 0x7f) == 0x7f : code == XLSTM_CODE_E4M3FNUZ && q == 0x80;
}
double float8_value(xlstm_code code, uint8_t q) {
  const int exponent = q >> 3 & 15, bias = code == XLSTM_CODE_E4M3FN ? 7 : 8;
  const double value = std::ldexp((q & 7) + 8 * (exponent > 0), std::max(exponent, 1) - bias - 3);
  return q & 0x80 ? -value : value;
}

class Model {
 public:
  Model(const Shape& shape, const Format& format) : s(shape), format_(format), blocks(size_t(shape.blocks)) {
    const int64_t values = s.heads * s.dhv;
    for (xlstm_decode_block& b : blocks) {
      b = {};
      for (xlstm_decode_norm* norm : {&b.norm_mlstm, &b.norm_ffn}) norm->weight = vector(s.dim);
      b.head_norm.weight = vector(values);
      b.head_norm.bias = vector(values);
      for (auto [w, rows, columns] : linears(b)) *w = linear(rows, columns);
      b.i.bias = vector(s.heads);
      b.c = floats(s.batch * s.heads * s.dqk * s.dhv);
      b.n = floats(s.batch * s.heads * s.dqk);
      b.m = floats(s.batch * s.heads);
    }
    call = {};
    call.batch = s.batch, call.dim = s.dim, call.heads = s.heads, call.dqk = s.dqk, call.dhv = s.dhv;
    call.ffn = s.ffn, call.vocab = s.vocab, call.blocks = s.blocks;
    for (int64_t b = 0; b < s.batch; ++b) tokens.push_back(b * 5 % s.vocab), keep.push_back(b != 1);
    call.tokens = tokens.data(), call.keep = keep.data();
    call.embedding = vector(s.vocab * s.dim);
    call.block = blocks.data();
    call.out_norm.weight = vector(s.dim);
    call.head = linear(s.vocab, s.dim);
    call.normalize = 1;
    call.norm_eps = 1e-6, call.eps = 1e-6, call.gate_cap = 15, call.output_cap = 30;
    call.out = floats(s.batch * s.vocab);
  }

  struct Linear {
    xlstm_linear* w;
    int64_t rows, columns;
  };
  std::vector<Linear> linears(xlstm_decode_block& b) const {
    const int64_t keys = s.heads * s.dqk, values = s.heads * s.dhv;
    return {{&b.q, keys, s.dim},    {&b.k, keys, s.dim},    {&b.v, values, s.dim},   {&b.o, values, s.dim},
            {&b.i, s.heads, s.dim}, {&b.f, s.heads, s.dim}, {&b.out, s.dim, values}, {&b.gate, s.ffn, s.dim},
            {&b.up, s.ffn, s.dim},  {&b.down, s.dim, s.ffn}};
  }

  // The expected results of the step, from the current states.
  Numbers reference() const {
    Numbers logits;
    for (int64_t b = 0; b < s.batch; ++b) {
      Numbers x(size_t(s.dim));
      for (int64_t d = 0; d < s.dim; ++d) x[size_t(d)] = at(call.embedding, tokens[size_t(b)] * s.dim + d);
      for (const xlstm_decode_block& block : blocks) through(block, b, x);
      for (double y : times(call.head, normed(x, call.out_norm, int64_t(x.size()), false)))
        logits.push_back(30 * std::tanh(y / 30));
    }
    return logits;
  }

  std::vector<float> run(int threads) {
    Buffer workspace(xlstm_decode_workspace(&call, threads));
    xlstm_runtime runtime{};
    runtime.workspace = workspace.data(), runtime.workspace_bytes = workspace.size(), runtime.threads = threads;
    CHECK(xlstm_decode_step(&call, &runtime) == XLSTM_OK, "%s", xlstm_last_error());
    return {call.out, call.out + s.batch * s.vocab};
  }

  Shape s;
  Format format_;
  std::vector<xlstm_decode_block> blocks;
  std::vector<int64_t> tokens;
  std::vector<uint8_t> keep;
  xlstm_decode call;

 private:
  static double at(const xlstm_vector& x, int64_t j) { return x.data ? static_cast<const float*>(x.data)[j] : 0.0; }

  Numbers normed(const Numbers& x, const xlstm_decode_norm& norm, int64_t width, bool centred) const {
    Numbers y(x.size());
    for (size_t first = 0; first < x.size(); first += size_t(width)) {
      double mean = 0, squares = 0;
      for (size_t j = first; centred && j < first + size_t(width); ++j) mean += x[j] / double(width);
      for (size_t j = first; j < first + size_t(width); ++j) squares += (x[j] - mean) * (x[j] - mean) / double(width);
      for (size_t j = first; j < first + size_t(width); ++j)
        y[j] = (x[j] - mean) / std::sqrt(squares + 1e-6) * at(norm.weight, int64_t(j)) + at(norm.bias, int64_t(j));
    }
    return y;
  }
  Numbers times(const xlstm_linear& w, const Numbers& x) const {
    Numbers y;
    for (int64_t r = 0; r < w.rows; ++r) {
      double sum = at(w.bias, r);
      for (int64_t c = 0; c < w.columns; ++c) sum += weight(w, r, c) * x[size_t(c)];
      y.push_back(sum);
    }
    return y;
  }
  static double weight(const xlstm_linear& w, int64_t r, int64_t c) {
    if (w.bits == 0 && w.dtype == XLSTM_FLOAT32) return static_cast<const float*>(w.data)[r * w.columns + c];
    if (w.bits == 0) return as_float(uint32_t(static_cast<const uint16_t*>(w.data)[r * w.columns + c]) << 16);
    const int64_t groups = (w.columns + w.group_size - 1) / w.group_size, g = r * groups + c / w.group_size;
    const double scale = static_cast<const float*>(w.scales)[g];
    double q = 0;
    if (w.code != XLSTM_CODE_INTEGER) {
      q = float8_value(w.code, static_cast<const uint8_t*>(w.data)[r * groups * w.group_size + c]);
    } else if (w.bits == 8) {
      q = static_cast<const int8_t*>(w.data)[r * groups * w.group_size + c];
    } else {
      const uint8_t both = static_cast<const uint8_t*>(w.data)[r * groups * w.group_size / 2 + c / 32 * 16 + c % 16];
      q = c % 32 < 16 ? both & 15 : both >> 4;
      if (!w.offsets) q -= 8;
    }
    return scale * q + (w.offsets ? static_cast<const float*>(w.offsets)[g] : 0.0);
  }
  void through(const xlstm_decode_block& block, int64_t b, Numbers& x) const {
    const Numbers y = normed(x, block.norm_mlstm, s.dim, false);
    const Numbers q = times(block.q, y), k = times(block.k, y), v = times(block.v, y), o = times(block.o, y);
    const Numbers i = times(block.i, y), f = times(block.f, y);
    Numbers h;
    for (int64_t head = 0; head < s.heads; ++head) {
      const bool keeps_row = keep[size_t(b)];
      const double input = keeps_row ? 15 * std::tanh(i[size_t(head)] / 15) : -1e4;
      const double forget = keeps_row ? 15 * std::tanh(f[size_t(head)] / 15) : 1e4;
      const int64_t at_head = b * s.heads + head;
      const double before = block.m[at_head],
                   lf = forget > 0 ? -std::log1p(std::exp(-forget)) : forget - std::log1p(std::exp(forget));
      const double m = std::max(lf + before, input), keeps = std::exp(lf + before - m), takes = std::exp(input - m);
      double l = 0;
      Numbers num(size_t(s.dhv));
      for (int64_t d = 0; d < s.dqk; ++d) {
        const size_t feature = size_t(head * s.dqk + d);
        const double query = q[feature] / std::sqrt(double(s.dqk));
        l += query * (keeps * block.n[at_head * s.dqk + d] + takes * k[feature]);
        for (int64_t e = 0; e < s.dhv; ++e)
          num[size_t(e)] += query * (keeps * block.c[(at_head * s.dqk + d) * s.dhv + e] +
                                     takes * k[feature] * v[size_t(head * s.dhv + e)]);
      }
      for (double value : num) h.push_back(value / (std::max(std::fabs(l), std::exp(-m)) + 1e-6));
    }
    h = normed(h, block.head_norm, s.dhv, true);
    for (size_t j = 0; j < h.size(); ++j) h[j] /= 1 + std::exp(-o[j]);
    const Numbers added = times(block.out, h);
    for (size_t j = 0; j < x.size(); ++j) x[j] += added[j];
    const Numbers z = normed(x, block.norm_ffn, s.dim, false);
    Numbers up = times(block.up, z);
    const Numbers gate = times(block.gate, z);
    for (size_t j = 0; j < up.size(); ++j) up[j] *= gate[j] / (1 + std::exp(-gate[j]));
    const Numbers down = times(block.down, up);
    for (size_t j = 0; j < x.size(); ++j) x[j] += down[j];
  }

  template <class T>
  T* memory(int64_t n) {
    buffers_.push_back(std::make_unique<Buffer>(size_t(n) * sizeof(T)));
    return static_cast<T*>(buffers_.back()->data());
  }
  float* floats(int64_t n) {
    float* x = memory<float>(n);
    for (int64_t j = 0; j < n; ++j) x[j] = float(draw());
    return x;
  }
  xlstm_vector vector(int64_t n) { return {floats(n), XLSTM_FLOAT32}; }
  xlstm_linear linear(int64_t rows, int64_t columns) {
    xlstm_linear w{};
    w.rows = rows, w.columns = columns, w.bits = format_.bits, w.dtype = format_.dtype;
    w.group_size = format_.group_size, w.code = format_.code;
    const int64_t filled = (columns + w.group_size - 1) / w.group_size * w.group_size;
    const double size = 1 / std::sqrt(double(columns));
    if (w.bits == 0 && w.dtype == XLSTM_FLOAT32) {
      float* x = floats(rows * columns);
      for (int64_t j = 0; j < rows * columns; ++j) x[j] *= float(size);
      w.data = x;
    } else if (w.bits == 0) {
      uint16_t* x = memory<uint16_t>(rows * columns);
      for (int64_t j = 0; j < rows * columns; ++j) {
        const float value = float(draw() * size);
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        x[j] = uint16_t(bits >> 16);
      }
      w.data = x;
    } else {
      const int64_t bytes = rows * filled * w.bits / 8, groups = rows * filled / w.group_size;
      uint8_t* q = memory<uint8_t>(bytes);
      for (int64_t j = 0; j < bytes; ++j) {
        do q[j] = uint8_t(rng());
        while (is_nan(w.code, q[j]));
      }
      float *scales = floats(groups), *offsets = format_.offsets ? floats(groups) : nullptr;
      for (int64_t g = 0; g < groups; ++g) scales[g] *= float(size / (w.bits == 8 ? 64 : 4));
      for (int64_t g = 0; offsets && g < groups; ++g) offsets[g] *= float(size);
      w.data = q, w.scales = scales, w.offsets = offsets;
    }
    return w;
  }

  std::vector<std::unique_ptr<Buffer>> buffers_;
};

void test_step() {
  constexpr Shape shapes[] = {{1, 20, 2, 3, 5, 11, 13, 2}, {3, 40, 3, 8, 7, 33, 9, 1}, {7, 64, 2, 16, 32, 130, 70, 2}};
  for (const Shape& shape : shapes)
    for (const Format& format : kFormats) {
      Numbers want;
      std::vector<float> first;
      for (int threads = 1; threads <= 3; ++threads) {
        rng.seed(7);  // the same model with its initial states
        Model model(shape, format);
        if (threads == 1) want = model.reference();
        const std::vector<float> got = model.run(threads);
        double error = 0, size = 0;
        for (size_t j = 0; j < want.size(); ++j) {
          error += (got[j] - want[j]) * (got[j] - want[j]);
          size += want[j] * want[j];
        }
        CHECK(std::sqrt(error / size) < 1e-5, "%s, dim %d: %g", format.name, int(shape.dim), std::sqrt(error / size));
        if (threads == 1) first = got;
        CHECK(first == got, "%s, dim %d, %d threads", format.name, int(shape.dim), threads);
      }
    }
}

void test_errors() {
  const struct {
    const char* message;
    void (*spoil)(Model&);
  } bad[] = {
      {"batch: expected >= 1", [](Model& m) { m.call.batch = 0; }},
      {"tokens: expected 0 to 12, got 13", [](Model& m) { m.tokens[0] = 13; }},
      {"eps: expected a finite number", [](Model& m) { m.call.eps = -1; }},
      {"embedding: expected data", [](Model& m) { m.call.embedding.data = nullptr; }},
      {"block 1 k: expected shape (6, 20), got (7, 20)", [](Model& m) { m.blocks[1].k.rows = 7; }},
      {"block 0 down: expected bits 0, 4 or 8", [](Model& m) { m.blocks[0].down.bits = 3; }},
      {"block 0 up: expected group_size 32, 64 or 128",
       [](Model& m) { m.blocks[0].up.bits = 8, m.blocks[0].up.group_size = 16; }},
      {"block 0 up: expected scales", [](Model& m) { m.blocks[0].up.bits = 8; }},
      {"block 0 up: expected code integer, E4M3FN or E4M3FNUZ (0 to 2), got 3",
       [](Model& m) { m.blocks[0].up.code = xlstm_code(3); }},
      {"block 0 up: expected bits 8 with a code of floats, got 4",
       [](Model& m) { m.blocks[0].up.bits = 4, m.blocks[0].up.code = XLSTM_CODE_E4M3FN; }},
      {"head: expected no offsets with a code of floats",
       [](Model& m) {
         m.call.head.bits = 8, m.call.head.code = XLSTM_CODE_E4M3FNUZ;
         m.call.head.offsets = m.call.head.data;
       }},
      {"block 1 c, n, m: expected data", [](Model& m) { m.blocks[1].n = nullptr; }},
      {"head: expected float32, bfloat16 or float16", [](Model& m) { m.call.head.dtype = XLSTM_FLOAT64; }},
  };
  for (const auto& [message, spoil] : bad) {
    Model model({1, 20, 2, 3, 5, 11, 13, 2}, kFormats[0]);
    spoil(model);
    xlstm_runtime runtime{};
    CHECK(xlstm_decode_workspace(&model.call, 1) == 0);
    CHECK(xlstm_decode_step(&model.call, &runtime) == XLSTM_INVALID_ARGUMENT);
    CHECK(std::string(xlstm_last_error()).find(message) == 0, "expected '%s', got '%s'", message, xlstm_last_error());
  }
  Model model({1, 20, 2, 3, 5, 11, 13, 2}, kFormats[0]);
  xlstm_runtime runtime{};
  runtime.threads = 1;
  CHECK(xlstm_decode_step(&model.call, &runtime) == XLSTM_WORKSPACE_TOO_SMALL);
}

void tests() {
  test_step();
  test_errors();
}

}  // namespace

int main() { return run_for_each_isa(tests); }

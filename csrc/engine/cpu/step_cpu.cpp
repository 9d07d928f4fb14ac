// SPDX-License-Identifier: Apache-2.0
// One token of each row through a whole xLSTM model on a CPU. Each weight is read once, where it lies, so memory binds;
// in a small model the waits between threads bind, five to each block, by tiles nine.
//
//   part         tasks            reads                                makes
//   projections  rows of weights  x, normed by each worker             q, k, v, o, i, f
//   mLSTM        heads, tiles     q, k, v, i, f                        C in place, h
//   output       rows             h, normed and gated by each worker   x +=
//   up           rows             x, normed by each worker             silu(gate) up
//   down         rows             silu(gate) up                        x +=
//
// All of these are float, (B, features), in the workspace. Each worker norms a part's input for itself: that is one
// row, against the hundreds of rows of a weight, and saves a part and the wait after it. Where weights are multiplied
// by tiles (byte_tiles.h), such a part makes each row's digits, and its norm, once for all workers.
#include "base/arena.h"
#include "engine/cpu/crew.h"
#include "engine/cpu/gemv.h"
#include "engine/cpu/kernel_table.h"
#include "engine/cpu/norms.h"
#include "mlstm/cpu/token.h"

namespace xlstm::XLSTM_ISA::engine {
namespace {

using mlstm::Decay, mlstm::decay, mlstm::update_n, mlstm::update_c, mlstm::Tiling, mlstm::TokenGates;

constexpr int kPartsOfBlock = kHasTiles ? 9 : 5, kOtherParts = kHasTiles ? 3 : 2;
constexpr float kMaskedInputGate = -1e4f, kMaskedForgetGate = 1e4f;  // no input, nothing forgotten

template <class T>
T larger(T a, T b) {
  return a > b ? a : b;
}

struct Memory {
  int64_t dim, dhv_all, ffn;  // padded
  float *x, *q, *k, *v, *o, *i, *f, *h, *up;
  float *n, *m;           // of the heads after this token: several tasks of a head read the old ones
  float* input;           // of a part's products, where weights are multiplied by tiles
  XDigits digits;         // of it
  float* worker_scratch;  // of all workers
  int64_t inner;          // features of a worker's normed input
  int64_t worker_floats;
  PartCounter* counters;

  Memory(Arena& arena, const xlstm_decode& p, const DecodeCpuPlan& plan)
      : dim(padded_columns(p.dim)), dhv_all(padded_columns(p.heads * p.dhv)), ffn(padded_columns(p.ffn)) {
    const int64_t B = p.batch, keys = p.heads * p.dqk, values = p.heads * p.dhv;
    x = arena.take<float>(B * dim);
    q = arena.take<float>(B * keys), k = arena.take<float>(B * keys);
    v = arena.take<float>(B * values), o = arena.take<float>(B * values), h = arena.take<float>(B * values);
    i = arena.take<float>(B * p.heads), f = arena.take<float>(B * p.heads);
    up = arena.take<float>(B * ffn);
    n = arena.take<float>(B * keys), m = arena.take<float>(B * p.heads);
    inner = larger(dim, dhv_all);
    input = arena.take<float>(kHasTiles ? B * inner : 0);
    digits = XDigits(arena, B, larger(inner, ffn));
    const int64_t product_scratch = product_scratch_floats(larger(inner, ffn), B), head = 2 * (p.dqk + 16) + 16;
    worker_floats = round_up(B * inner + 2 * inner + 2 * B * plan.rows_at_once + product_scratch + head, 64);
    worker_scratch = arena.take<float>(plan.workers * worker_floats);
    counters = arena.take<PartCounter>(kPartsOfBlock * p.blocks + kOtherParts);
  }
};

// A worker on its way through the step.
struct Worker {
  const xlstm_decode& p;
  const DecodeCpuPlan& plan;
  const Memory& at;
  Crew crew;
  float* sum;  // to which products are added: rows of sum_stride
  int64_t sum_stride;
  float *input, *weight, *bias, *y, *y2, *product_scratch, *head;

  Worker(const xlstm_decode& params, const DecodeCpuPlan& cut, const Memory& memory, int32_t worker)
      : p(params), plan(cut), at(memory), crew(memory.counters, cut.workers) {
    const bool all = p.part == XLSTM_DECODE_ALL;
    sum = all ? at.x : p.out;
    sum_stride = all ? at.dim : p.dim;
    input = memory.worker_scratch + worker * memory.worker_floats;
    weight = input + p.batch * memory.inner;
    bias = weight + memory.inner;
    y = bias + memory.inner;
    y2 = y + p.batch * plan.rows_at_once;
    product_scratch = y2 + p.batch * plan.rows_at_once;
    head = product_scratch + product_scratch_floats(larger(memory.inner, memory.ffn), p.batch);
  }

  // Makes the input of a part's products, (B, width), row by row, then runs f(begin, end, input) over ranges of rows of
  // weights. prepare() comes before this worker's first row(b, to).
  template <class Prepare, class Row, class F>
  void rows_with_input(int64_t rows, bool by_tiles, int64_t width, Prepare&& prepare, Row&& row, F&& f) {
    bool is_prepared = false;
    const auto make = [&](int64_t b, float* to) {
      if (!is_prepared) prepare();
      is_prepared = true;
      row(b, to + b * width);
    };
    if (by_tiles)
      crew.part(p.batch, [&](int64_t b) {
        make(b, at.input);
        at.digits.store_row(b, at.input + b * width, width);
      });
    bool is_ready = by_tiles;
    crew.rows(rows, plan.rows_at_once, [&](int64_t begin, int64_t end) {
      for (int64_t b = 0; b < p.batch && !is_ready; ++b) make(b, input);
      is_ready = true;
      f(begin, end, by_tiles ? at.input : input);
    });
  }
  template <class F>
  void rows_with_normed_x(int64_t rows, bool by_tiles, const xlstm_decode_norm& norm, F&& f) {
    rows_with_input(
        rows, by_tiles, at.dim,
        [&] {
          widen_vector(weight, norm.weight, p.dim, at.dim, 1);
          widen_vector(bias, norm.bias, p.dim, at.dim, 0);
        },
        [&](int64_t b, float* to) { rms_norm(to, at.x + b * at.dim, weight, bias, p.dim, at.dim, p.norm_eps); }, f);
  }
  // to[b * stride + r] = W from, for rows begin to end of w.
  void product(const xlstm_linear& w, int64_t begin, int64_t end, const float* from, int64_t from_stride, float* to,
               int64_t to_stride) {
    multiply({w, begin, end, from, from_stride, p.batch, at.digits, to, to_stride, product_scratch});
  }
  // sum += W from.
  void add_product(const xlstm_linear& w, int64_t begin, int64_t end, const float* from, int64_t from_stride) {
    const int64_t rows = end - begin;
    product(w, begin, end, from, from_stride, y, rows);
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t r = 0; r < rows; ++r) sum[b * sum_stride + begin + r] += y[b * rows + r];
  }

  // x of the tokens, or of a part.
  void begin() {
    crew.part(p.batch, [&](int64_t b) {
      float* x = at.x + b * at.dim;
      if (p.part == XLSTM_DECODE_ALL)
        load_row(x, p.embedding.data, p.embedding.dtype, p.tokens[b] * p.dim, p.dim);
      else
        memcpy(x, p.x + b * p.dim, size_t(p.dim) * sizeof(float));
      for (int64_t j = p.dim; j < at.dim; ++j) x[j] = 0;
      for (int64_t j = p.ffn; j < at.ffn; ++j) at.up[b * at.ffn + j] = 0;
    });
  }

  void projections(const xlstm_decode_block& block) {
    const xlstm_linear* const weights[] = {&block.q, &block.k, &block.v, &block.o, &block.i, &block.f};
    float* const to[] = {at.q, at.k, at.v, at.o, at.i, at.f};
    constexpr int kGates = 4;  // index of the first gate
    int64_t rows = 0;
    for (const xlstm_linear* w : weights) rows += w->rows;
    const bool by_tiles = any_by_tiles(p.batch, block.q, block.k, block.v, block.o, block.i, block.f);
    rows_with_normed_x(rows, by_tiles, block.norm_mlstm, [&](int64_t begin, int64_t end, const float* x) {
      int64_t before = 0;
      for (int part = 0; part < 6; ++part) {
        const xlstm_linear& w = *weights[part];
        const int64_t first = larger<int64_t>(begin - before, 0), last = end - before < w.rows ? end - before : w.rows;
        before += w.rows;
        if (first >= last) continue;
        product(w, first, last, x, at.dim, to[part] + first, w.rows);
        if (part >= kGates)
          for (int64_t b = 0; b < p.batch; ++b)
            soft_cap(to[part] + b * w.rows + first, last - first, float(p.gate_cap));
      }
    });
  }

  void mlstm(const xlstm_decode_block& block) {
    const int64_t heads = p.batch * p.heads;
    const Tiling tiling(p.dhv, heads, plan.workers);
    const bool sigmoid_gate = p.gate == XLSTM_GATE_SIGMOID, normalize = !sigmoid_gate || p.normalize;
    const float scale = float(1 / ::sqrt(double(p.dqk)));
    crew.part(heads * tiling.count, [&](int64_t task) {
      const int64_t index = task / tiling.count, column = task % tiling.count * tiling.width;
      const int64_t width = p.dhv - column < tiling.width ? p.dhv - column : tiling.width;
      const bool keep = !p.keep || p.keep[index / p.heads];
      const double i = keep ? at.i[index] : kMaskedInputGate, f = keep ? at.f[index] : kMaskedForgetGate;
      float *q = head, *n = q + p.dqk + 16;
      for (int64_t d = 0; d < p.dqk; ++d) q[d] = at.q[index * p.dqk + d] * scale;
      for (int64_t d = 0; d < p.dqk; ++d) n[d] = block.n[index * p.dqk + d];
      const float* k = at.k + index * p.dqk;
      const TokenGates gates{log_sigmoid(f), sigmoid_gate ? log_sigmoid(i) : i};
      const Decay<float> d = decay<float>(sigmoid_gate, gates, double(block.m[index]));
      const float l = update_n(d, q, k, n, p.dqk);
      float* c = block.c + index * p.dqk * p.dhv + column;
      float* h = at.h + index * p.dhv + column;
      update_c(d, c, c, p.dhv, q, k, at.v + index * p.dhv + column, h, p.dqk, width);
      const float inverse = float(1 / normaliser(normalize, l, d.m, p.eps));
      for (int64_t j = 0; j < width; ++j) h[j] *= inverse;
      if (column != 0) return;
      for (int64_t j = 0; j < p.dqk; ++j) at.n[index * p.dqk + j] = n[j];
      at.m[index] = float(d.m);
    });
  }

  void output(const xlstm_decode_block& block) {
    const int64_t values = p.heads * p.dhv;
    const auto prepare = [&] {
      widen_vector(weight, block.head_norm.weight, values, at.dhv_all, 1);
      widen_vector(bias, block.head_norm.bias, values, at.dhv_all, 0);
    };
    const auto row = [&](int64_t b, float* to) { gated_heads(b, to); };
    rows_with_input(p.dim, is_by_tiles(block.out, p.batch), at.dhv_all, prepare, row,
                    [&](int64_t begin, int64_t end, const float* gated) {
                      if (begin == 0) {
                        memcpy(block.n, at.n, size_t(p.batch * p.heads * p.dqk) * sizeof(float));
                        memcpy(block.m, at.m, size_t(p.batch * p.heads) * sizeof(float));
                      }
                      add_product(block.out, begin, end, gated, at.dhv_all);
                    });
  }
  // to = sigmoid(o) head_norm(h) of one row.
  void gated_heads(int64_t b, float* to) {
    const int64_t values = p.heads * p.dhv;
    for (int64_t head_first = 0; head_first < values; head_first += p.dhv)
      head_norm(to + head_first, at.h + b * values + head_first, weight + head_first, bias + head_first, p.dhv,
                p.norm_eps);
    for (int64_t j = values; j < at.dhv_all; ++j) to[j] = 0;
    const float* o = at.o + b * values;
    const int64_t vector_end = values / kWide * kWide;
    for (int64_t j = 0; j < vector_end; j += kWide) store(to + j, load(to + j) * sigmoid(load(o + j)));
    for (int64_t j = vector_end; j < values; ++j) to[j] *= sigmoid(broadcast(o[j]))[0];
  }

  void up(const xlstm_decode_block& block) {
    const bool by_tiles = any_by_tiles(p.batch, block.gate, block.up);
    rows_with_normed_x(p.ffn, by_tiles, block.norm_ffn, [&](int64_t begin, int64_t end, const float* x) {
      const int64_t rows = end - begin, padded = plan.rows_at_once;
      product(block.gate, begin, end, x, at.dim, y, padded);
      product(block.up, begin, end, x, at.dim, y2, padded);
      for (int64_t b = 0; b < p.batch; ++b) {
        const float *gate = y + b * padded, *value = y2 + b * padded;
        float* to = at.up + b * at.ffn + begin;
        const int64_t vector_end = rows / kWide * kWide;
        for (int64_t j = 0; j < vector_end; j += kWide)
          store(to + j, load(gate + j) * sigmoid(load(gate + j)) * load(value + j));
        for (int64_t j = vector_end; j < rows; ++j) to[j] = gate[j] * sigmoid(broadcast(gate[j]))[0] * value[j];
      }
    });
  }

  void down(const xlstm_decode_block& block) {
    if (is_by_tiles(block.down, p.batch))
      crew.part(p.batch, [&](int64_t b) { at.digits.store_row(b, at.up + b * at.ffn, at.ffn); });
    crew.rows(p.dim, plan.rows_at_once,
              [&](int64_t begin, int64_t end) { add_product(block.down, begin, end, at.up, at.ffn); });
  }

  void logits() {
    const int64_t rows = p.head.data ? p.head.rows : p.dim;
    const auto range = [&](int64_t begin, int64_t end, const float* from) {
      if (p.head.data) product(p.head, begin, end, from, at.dim, p.out + begin, rows);
      for (int64_t b = 0; b < p.batch; ++b) {
        float* to = p.out + b * rows + begin;
        if (p.head.data)
          soft_cap(to, end - begin, float(p.output_cap));
        else
          memcpy(to, from + b * at.dim + begin, size_t(end - begin) * sizeof(float));
      }
    };
    const bool by_tiles = p.head.data && is_by_tiles(p.head, p.batch);
    if (p.out_norm.weight.data) {
      rows_with_normed_x(rows, by_tiles, p.out_norm, range);
      return;
    }
    if (by_tiles) crew.part(p.batch, [&](int64_t b) { at.digits.store_row(b, at.x + b * at.dim, at.dim); });
    crew.rows(rows, plan.rows_at_once, [&](int64_t begin, int64_t end) { range(begin, end, at.x); });
  }

  void step() {
    begin();
    const bool all = p.part == XLSTM_DECODE_ALL;
    for (int64_t number = 0; number < p.blocks; ++number) {
      const xlstm_decode_block& block = p.block[number];
      if (all || p.part == XLSTM_DECODE_MLSTM) {
        projections(block);
        mlstm(block);
        output(block);
      }
      if (all || p.part == XLSTM_DECODE_FFN) {
        up(block);
        down(block);
      }
    }
    if (all || p.part == XLSTM_DECODE_HEAD) logits();
  }
};

}  // namespace

size_t decode_workspace(const xlstm_decode& p, const DecodeCpuPlan& plan) {
  Arena counter(nullptr);
  Memory(counter, p, plan);
  return counter.used();
}

void decode_step(const xlstm_decode& p, const DecodeCpuPlan& plan, void* workspace, const Executor& executor) {
  Arena arena(workspace);
  const Memory memory(arena, p, plan);
  memset(static_cast<void*>(memory.counters), 0, size_t(kPartsOfBlock * p.blocks + kOtherParts) * sizeof(PartCounter));
  struct Shared {
    const xlstm_decode& p;
    const DecodeCpuPlan& plan;
    const Memory& memory;
  } shared{p, plan, memory};
  const auto body = [](void* arg, int32_t worker) {
    const Shared& s = *static_cast<const Shared*>(arg);
    const TileSession session;
    Worker(s.p, s.plan, s.memory, worker).step();
  };
  executor.parallel(executor.self, executor.workers, body, &shared);
}

}  // namespace xlstm::XLSTM_ISA::engine

// SPDX-License-Identifier: Apache-2.0
// Attention forward on a CPU, by online softmax, for prefill and for decode against a KV cache.
//
//   y = softcap tanh(scale q k^T / softcap) - ALiBi      m' = max(m, max_j y)
//   l = l e^(m-m') + sum_j e^(y-m')                      o = o e^(m-m') + (keep e^(y-m')) v
//   out = o / (l (1 - p))                                lse = m + log l
//
// Who owns what: the query heads of one key head are one matrix of rows, token by token, so GQA and MQA share each
// packed key. A task owns a block of rows (up to 32 panels) and goes through tiles of keys: it packs the tile's keys
// (token panels) and values (column panels) once, then takes an online softmax step for every panel that sees some of
// these keys. Scores lie keys down, rows across: the maximum and the sum are computed lane by lane, and the weights
// are, as they lie, the left operand of their product with the values. A tile and a panel stay in L1 and L2; the other
// panels of a block are streamed. Keys that no row of a panel sees are not computed. Masks are applied only where a
// tile is not fully visible to the panel, and score modifications only with softcap or ALiBi.
//
// Floor: dqk + dv multiply-adds and one exp per row and key. The fused multiply-add units bind, and at 64 features exp
// takes a tenth or more. With Op = Bf16Pairs the weights are rounded to bfloat16 once, and l sums them unrounded.
//
// On tile registers a block has its scores rows down, keys across (forward_tiles.h).
//
// Split-KV: where few rows do not fill the threads, a sequence's keys are split into parts. Each part stores its out
// and lse in the workspace, and a second pass combines them (cache_cpu.cpp has the same combination as a call).
#include <type_traits>

#include "attention/cpu/forward_rows.h"
#include "attention/cpu/forward_tiles.h"
#include "attention/cpu/kernel_table.h"
#include "tile/tasks.h"

namespace xlstm::XLSTM_ISA::attention {
namespace {

template <class Op>
struct ForwardScratch {
  using T = typename Op::Scalar;
  RowRules<T> rules;
  T *q, *k, *v;         // token panels of the block, token panels and column panels of a tile
  T *scores, *weights;  // (keys, NR); weights are elements along the keys
  T* keep;              // (keys, NR), with dropout
  T *o, *m, *l;         // per panel: column panels (NR, NR) along the features; per row
  T *factor, *row, *buffer;
  int64_t *row_offsets, *key_offsets, *value_offsets;

  ForwardScratch(Arena& arena, const xlstm_attention& in, const AttentionCpuPlan& plan)
      : rules(arena, plan.rows),
        q(arena.take<T>(plan.rows * packed<Op>(in.dqk))),
        k(arena.take<T>(padded<T>(plan.block_k) * packed<Op>(in.dqk))),
        v(arena.take<T>(packed<Op>(plan.block_k) * padded<T>(in.dv))),
        scores(arena.take<T>(padded<T>(plan.block_k) * NR<T>)),
        weights(arena.take<T>(padded<T>(plan.block_k) * NR<T>)),
        keep(arena.take<T>(in.dropout_p > 0 ? padded<T>(plan.block_k) * NR<T> : 0)),
        o(arena.take<T>(plan.rows * padded<T>(in.dv))),
        m(arena.take<T>(plan.rows)),
        l(arena.take<T>(plan.rows)),
        factor(arena.take<T>(NR<T>)),
        row(arena.take<T>(padded<T>(in.dv > plan.block_k ? in.dv : plan.block_k))),
        buffer(arena.take<T>(pack_buffer_size<T>(in.dqk > in.dv ? in.dqk : in.dv))),
        row_offsets(arena.take<int64_t>(plan.rows)),
        key_offsets(arena.take<int64_t>(plan.block_k)),
        value_offsets(arena.take<int64_t>(plan.block_k)) {}
};

template <class Op>
struct ForwardMemory {
  using T = typename Op::Scalar;
  using Scratch = std::conditional_t<Op::kTiles, TileForwardScratch<Op>, ForwardScratch<Op>>;
  T *out_parts = nullptr, *lse_parts = nullptr;  // (splits, B, HQ, length_q, DV) and without DV
  Scratch* scratch;

  ForwardMemory(Arena& arena, const xlstm_attention& in, const AttentionCpuPlan& plan) {
    if (plan.splits > 1) {
      out_parts = arena.take<T>(plan.splits * part(in) * in.dv);
      lse_parts = arena.take<T>(plan.splits * part(in));
    }
    scratch = arena.take<Scratch>(plan.workers);
    for (int64_t w = 0; w < plan.workers; ++w) {
      const Scratch one(arena, in, plan);
      if (scratch) scratch[w] = one;
    }
  }
  static int64_t part(const xlstm_attention& in) { return in.batch * in.heads_q * in.length_q; }
  static int64_t part_row(const xlstm_attention& in, int64_t b, int64_t head, int64_t i) {
    return (b * in.heads_q + head) * in.length_q + i;
  }
};

// One block of rows of one key head.
template <class Op>
struct ForwardBlock {
  using T = typename Op::Scalar;
  const xlstm_attention_forward& p;
  const AttentionSequence& sequence;
  int64_t key_head, first, live, split;
  ForwardScratch<Op>& s;
  const AttentionCpuPlan& plan;
  const xlstm_attention& in = p.in;
  const int64_t width = packed<Op>(in.dqk), panels_v = panels<T>(in.dv);
  const T scale = T(in.softmax_scale * kUnit<Op> * descale_of(in.k_descale, sequence.index, key_head));

  int64_t rows() const { return padded<T>(live); }
  T* sums(int64_t panel) const { return s.o + panel * NR<T> * panels_v * NR<T>; }

  void begin() const {
    s.rules.fill(sequence, key_head, first, live, rows());
    const Rows<T> q = sequence.rows_at<T>(in.q, key_head, in.dqk, first, live, s.row_offsets);
    pack_transposed<Op>(q, 0, live, s.q, s.buffer);
    memset(s.o, 0, size_t(rows() * panels_v * NR<T>) * sizeof(T));
    for (int64_t r = 0; r < rows(); ++r) s.m[r] = -T(__builtin_inff()), s.l[r] = 0;
  }
  int64_t head(int64_t r) const { return key_head * sequence.group() + (first + r) % sequence.group(); }

  // Computes the scores of a panel against keys [from, to) of the tile that starts at key j0 and is packed in s.k.
  template <int V>
  void scores(int64_t panel, int64_t j0, int64_t from, int64_t to, Vec<T>* row_max) const {
    const int64_t lane = panel * NR<T>, n = round_up(to - from, kRows);
    raw_scores<Op, V>(LeftPanels<Op>{s.k, NR<T> * width}, from - j0, s.q + panel * width * NR<T>, width, n, scale,
                      s.scores, row_max);
    const KeyRange all = s.rules.all(lane, NR<T>);
    const bool masked = from < all.begin || from + n > all.end;
    if (masked || in.softcap > 0 || s.rules.slopes)
      apply_rules<Op, V>(s.rules, lane, in.softcap, masked, from, n, s.scores, static_cast<T*>(nullptr), row_max);
  }
  // Takes an online softmax step of a panel with keys [from, to). n keys of the tile are packed.
  template <int V>
  void online_softmax_step(int64_t panel, int64_t j0, int64_t n, int64_t from, int64_t to) const {
    Vec<T> row_max[V], shift[V], sum[V];
    scores<V>(panel, j0, from, to, row_max);
    T *m = s.m + panel * NR<T>, *l = s.l + panel * NR<T>;
    for (int v = 0; v < V; ++v) {
      const Vec<T> m_old = load(m + v * kLanes<T>), m_new = max(m_old, row_max[v]);
      shift[v] = m_new == lowest<T>() ? Vec<T>{} : m_new;  // nothing seen yet: e^(-infinity - 0) is zero
      store(m + v * kLanes<T>, m_new);
      store(s.factor + v * kLanes<T>, weight_of<Op>(m_old - shift[v]));
      sum[v] = Vec<T>{};
    }
    const bool has_dropout = in.dropout_p > 0;
    if (has_dropout) fill_keep(s.rules, panel * NR<T>, in, from, to - from, s.keep);
    const int64_t steps = packed<Op>(to - from);
    for (int64_t k = 0; k < steps; ++k) XLSTM_UNROLL for (int v = 0; v < V; ++v) {
        Vec<T> pair[2] = {};
        for (int e = 0; e < Op::kPack; ++e) {
          const int64_t at = (k * Op::kPack + e) * NR<T> + v * kLanes<T>;
          pair[e] = weight_of<Op>(load(s.scores + at) - shift[v]);
          sum[v] += pair[e];
          if (has_dropout) pair[e] *= load(s.keep + at);
        }
        store(s.weights + k * NR<T> + v * kLanes<T>, Op::pack(pair[0], pair[1]));
      }
    for (int v = 0; v < V; ++v)
      store(l + v * kLanes<T>, load(l + v * kLanes<T>) * load(s.factor + v * kLanes<T>) + sum[v]);

    const int64_t rows = live - panel * NR<T> < V * kLanes<T> ? live - panel * NR<T> : V * kLanes<T>;
    const LeftOperand<T> weights{s.weights, NR<T>, 1};
    for (int64_t column = 0; column < in.dv; column += NR<T>) {
      const T* values = s.v + (column / NR<T> * packed<Op>(n) + (from - j0) / Op::kPack) * NR<T>;
      T* out = sums(panel) + column * NR<T>;
      for (int64_t r = 0; r < rows; r += kRows)
        with_tile<T>(rows - r < kRows ? rows - r : kRows, in.dv - column, [&](auto& tile) XLSTM_INLINED {
          tile.template product<Op>(weights.at(r, 0), values, steps);
          tile.add_scaled_rows(out + r * NR<T>, s.factor + r);
          tile.store_to(out + r * NR<T>);
        });
    }
  }

  // Packs each tile of keys [begin, end) and calls f(j0, n).
  template <class F>
  void each_tile(int64_t begin, int64_t end, bool values, F&& f) const {
    const int64_t block_k = plan.block_k;
    for (int64_t tile = begin / block_k * block_k; tile < end; tile += block_k) {
      const int64_t j0 = tile > begin ? tile : begin / kDrawsAtOnce * kDrawsAtOnce;
      const int64_t n = (tile + block_k < end ? tile + block_k : end) - j0;
      pack_transposed<Op>(sequence.keys_at<T>(in.k, key_head, in.dqk, j0, n, s.key_offsets), 0, n, s.k, s.buffer);
      if (values)
        pack_columns<Op>(sequence.keys_at<T>(in.v, key_head, in.dv, j0, n, s.value_offsets), 0, n, s.v, s.buffer);
      f(j0, n);
    }
  }
  // Calls f(panel, from, to) for each panel that sees some of keys [j0, j0 + n). from is a multiple of kDrawsAtOnce.
  template <class F>
  void each_panel(int64_t j0, int64_t n, F&& f) const {
    for (int64_t panel = 0; panel * NR<T> < live; ++panel) {
      const KeyRange any = s.rules.any(panel * NR<T>, NR<T>);
      const int64_t from = any.begin > j0 ? any.begin / kDrawsAtOnce * kDrawsAtOnce : j0;
      const int64_t to = any.end < j0 + n ? any.end : j0 + n;
      if (from < to) f(panel, from < j0 ? j0 : from, to);
    }
  }

  void run() const {
    begin();
    const KeyRange part = keys_of_part(s.rules.any(0, rows()), plan.block_k, split, plan.splits);
    each_tile(part.begin, part.end, true, [&](int64_t j0, int64_t n) {
      each_panel(j0, n, [&](int64_t panel, int64_t a, int64_t b) {
        if (live - panel * NR<T> <= kLanes<T>)
          online_softmax_step<1>(panel, j0, n, a, b);
        else
          online_softmax_step<kVectors>(panel, j0, n, a, b);
      });
    });
  }

  // Normalises row r of the sums into s.row; returns the row's lse.
  T finish_row(int64_t r) const {
    const T unit = T(dropout_scale(in.dropout_p) * descale_of(in.v_descale, sequence.index, key_head));
    const T l = s.l[r], inverse = l == 0 ? T(0) : unit / l;
    const T* o = sums(r / NR<T>) + r % NR<T> * NR<T>;
    for (int64_t column = 0; column < in.dv; column += NR<T>)
      for (int64_t e = 0; e < NR<T>; e += kLanes<T>) store(s.row + column + e, load(o + column * NR<T> + e) * inverse);
    return l == 0 ? -T(__builtin_inff()) : T(double(s.m[r]) / kUnit<Op>) + T(::log(double(l)));
  }

  // Recomputes the softmax tile by tile and stores it.
  void store_probs() const {
    const KeyRange sees = s.rules.any(0, rows());
    each_tile(sees.begin, sees.end, false, [&](int64_t j0, int64_t n) {
      each_panel(j0, n, [&](int64_t panel, int64_t from, int64_t to) {
        Vec<T> row_max[kVectors];
        scores<kVectors>(panel, j0, from, to, row_max);
        if (in.dropout_p > 0) fill_keep(s.rules, panel * NR<T>, in, from, to - from, s.keep);
        for (int64_t r = 0; r < NR<T> && panel * NR<T> + r < live; ++r) {
          const int64_t row = panel * NR<T> + r;
          store_probs_of_row(p, sequence, head(row), s.rules.query[row],
                             double(s.m[row]) / kUnit<Op> + ::log(double(s.l[row])), kUnit<Op>, from, to, s.scores + r,
                             in.dropout_p > 0 ? s.keep + r : nullptr, NR<T>, s.row);
        }
      });
    });
  }
};

template <class Op>
void forward(const xlstm_attention_forward& p, const AttentionCpuPlan& plan, void* workspace,
             const Executor& executor) {
  using T = typename Op::Scalar;
  using Block = std::conditional_t<Op::kTiles, TileForwardBlock<Op>, ForwardBlock<Op>>;
  using Session = std::conditional_t<Op::kTiles, RowTileSession, TileSession>;
  const xlstm_attention& in = p.in;
  Arena arena(workspace);
  const ForwardMemory<Op> memory(arena, in, plan);
  const int64_t heads = in.batch * in.heads_k;

  parallel_tasks<Session>(executor, heads * plan.blocks * plan.splits, [&](int64_t task, int32_t worker) {
    const int64_t b = task % heads / in.heads_k, split = task / heads % plan.splits;
    const int64_t block =
        plan.blocks - 1 - task / heads / plan.splits;  // with a causal mask the last block has the most work
    const AttentionSequence sequence(in, b);
    const int64_t first = block * plan.rows, left = sequence.rows() - first;
    if (left <= 0) return;
    auto& s = memory.scratch[worker];
    const int64_t key_head = task % heads % in.heads_k, live = left < plan.rows ? left : plan.rows;
    const Block rows{p, sequence, key_head, first, live, split, s, plan};
    rows.run();
    for (int64_t r = 0; r < rows.live; ++r) {
      const int64_t i = s.rules.query[r], head = rows.head(r);
      const T lse = rows.finish_row(r);
      if (plan.splits > 1) {
        const int64_t at = split * memory.part(in) + memory.part_row(in, b, head, i);
        memcpy(memory.out_parts + at * in.dv, s.row, size_t(in.dv) * sizeof(T));
        memory.lse_parts[at] = lse;
        continue;
      }
      store_out(p, sequence, head, i, lse, s.row);
    }
    if (p.probs.data) rows.store_probs();
  });
  if (plan.splits == 1) return;

  parallel_tasks(executor, heads * plan.blocks, [&](int64_t task, int32_t worker) {
    const AttentionSequence sequence(in, task % heads / in.heads_k);
    const int64_t first = task / heads * plan.rows, key_head = task % heads % in.heads_k;
    for (int64_t r = first; r < first + plan.rows && r < sequence.rows(); ++r) {
      const int64_t i = r / sequence.group(), head = key_head * sequence.group() + r % sequence.group();
      const int64_t at = memory.part_row(in, sequence.index, head, i), part = memory.part(in);
      T* row = memory.scratch[worker].row;
      const T lse = combine_row(memory.out_parts + at * in.dv, part * in.dv, memory.lse_parts + at, part, plan.splits,
                                in.dv, row);
      store_out(p, sequence, head, i, lse, row);
    }
  });
}

template <class Op>
size_t bytes(const xlstm_attention& in, const AttentionCpuPlan& plan) {
  Arena counter(nullptr);
  ForwardMemory<Op>(counter, in, plan);
  return counter.used();
}

}  // namespace

size_t attention_forward_workspace(const xlstm_attention_forward& p, const AttentionCpuPlan& plan) {
  return with_attention_operands(p.in, [&](auto op) { return bytes<decltype(op)>(p.in, plan); });
}
void attention_forward(const xlstm_attention_forward& p, const AttentionCpuPlan& plan, void* workspace,
                       const Executor& executor) {
  with_attention_operands(p.in, [&](auto op) { forward<decltype(op)>(p, plan, workspace, executor); });
}

}  // namespace xlstm::XLSTM_ISA::attention

// SPDX-License-Identifier: Apache-2.0
// Attention backward on a CPU. With y, lse as in forward and c = 1 / (1 - p):
//
//   D = dout . out - dlse      w = e^(y - lse)      dw = c keep (dout v^T)      ds = scale w (dw - D) dy/ds
//   dv = (c keep w)^T dout     dk = ds^T q          dq = ds k                   dsink = -sum e^(sink - lse) D
//
// Forward's output is needed for D alone; the weights are recomputed from lse.
//
// Who owns what: a task owns one key head. The head's keys and values are packed once (token panels of k and v, column
// panels of k), and dk and dv are float sums in scratch. The head's rows, of all its query heads, are taken in groups
// of up to 4 panels, with dq of a group in scratch. A panel is multiplied with kRows keys of a tile at a time, keys
// down and rows across: scores become weights and dout v^T becomes ds in the registers of the product. Both are stored
// with their elements along the rows, as left operands of dv and dk, and ds once more with its elements along the keys,
// as the left operand of dq. dk and dv of GQA are never expanded. Where key heads do not fill the threads, a head's
// groups are split among several tasks, each with its sums of dk and dv, which are added in the order of the tasks. No
// result depends on the thread that computed it: the same call gives the same bits.
//
// Floor: five products, 3 dqk + 2 dv multiply-adds, and an exp per row and key; the multiply-add units bind. An
// estimate from samples, in bfloat16 at 64 features and 1024 tokens (Zen 4): of 196 cycles per 16 weights the five
// products take 168, each of them by itself at 0.93 to 0.96 of the units' peak, and weights and ds some 14; the
// remainder is packing and rows. Groups of 256 rows, columns in the inner loop of add_product and steps of a product
// unrolled by 4 did not help.
#include "attention/cpu/kernel_table.h"
#include "attention/cpu/scores.h"
#include "tile/tasks.h"

namespace xlstm::XLSTM_ISA::attention {
namespace {

// Sums of dk and dv over rows: column panels (keys, NR) along the features.
template <class T>
struct KeySums {
  T *dk, *dv;
  int64_t keys;  // padded

  KeySums() = default;
  KeySums(Arena& arena, const xlstm_attention& in)
      : dk(arena.take<T>(padded<T>(in.length_k) * padded<T>(in.dqk))),
        dv(arena.take<T>(padded<T>(in.length_k) * padded<T>(in.dv))),
        keys(padded<T>(in.length_k)) {}
  T* at(T* sums, int64_t key, int64_t column) const { return sums + (column / NR<T> * keys + key) * NR<T>; }
};

// In bfloat16 ds does not include softmax_scale; the epilogues of dq and dk apply it, which spares a multiplication per
// weight. In float ds includes it, so that it rounds as torch's ds does.
template <class Op>
constexpr bool kScaleInEpilogue = Op::kPack > 1;
template <class Op>
typename Op::Scalar epilogue_scale(const xlstm_attention& in) {
  return kScaleInEpilogue<Op> ? typename Op::Scalar(in.softmax_scale) : 1;
}

template <class Op>
struct BackwardScratch {
  using T = typename Op::Scalar;
  T *k, *v, *k_columns;         // all keys and values of the sequence
  T *k_copy, *v_copy;           // (LeftOperand)
  LeftPanels<Op> keys, values;  // k and v as left operands
  RowRules<T> rules;            // the arrays from this one on belong to a group of rows
  T *q, *dout, *q_columns, *dout_columns;
  T *lse, *d;
  T* dq;                                      // per panel: column panels (NR, NR)
  T *weights, *cap_slope, *keep;              // of a panel: (keys, NR); cap_slope is d(capped)/d(score)
  T *weights_by_row, *ds_by_row, *ds_by_key;  // of a block of keys
  T* ds_copy;
  T *row, *buffer;
  int64_t* offsets;

  static int64_t widest(const xlstm_attention& in) { return in.dqk > in.dv ? in.dqk : in.dv; }

  BackwardScratch(Arena& arena, const xlstm_attention& in, const AttentionBackwardCpuPlan& plan)
      : k(arena.take<T>(padded<T>(in.length_k) * packed<Op>(in.dqk))),
        v(arena.take<T>(padded<T>(in.length_k) * packed<Op>(in.dv))),
        k_columns(arena.take<T>(packed<Op>(in.length_k) * padded<T>(in.dqk))),
        k_copy(arena.take<T>(left_panels_size<Op>(in.length_k, packed<Op>(in.dqk)))),
        v_copy(arena.take<T>(left_panels_size<Op>(in.length_k, packed<Op>(in.dv)))),
        rules(arena, plan.group),
        q(arena.take<T>(plan.group * packed<Op>(in.dqk))),
        dout(arena.take<T>(plan.group * packed<Op>(in.dv))),
        q_columns(arena.take<T>(packed<Op>(plan.group) * padded<T>(in.dqk))),
        dout_columns(arena.take<T>(packed<Op>(plan.group) * padded<T>(in.dv))),
        lse(arena.take<T>(plan.group)),
        d(arena.take<T>(plan.group)),
        dq(arena.take<T>(plan.group * padded<T>(in.dqk))),
        weights(arena.take<T>(padded<T>(plan.block_k) * NR<T>)),
        cap_slope(arena.take<T>(in.softcap > 0 ? padded<T>(plan.block_k) * NR<T> : 0)),
        keep(arena.take<T>(in.dropout_p > 0 ? padded<T>(plan.block_k) * NR<T> : 0)),
        weights_by_row(arena.take<T>(tile(plan))),
        ds_by_row(arena.take<T>(tile(plan))),
        ds_by_key(arena.take<T>(tile(plan))),
        ds_copy(arena.take<T>(left_copy_size<Op>(plan.group, packed<Op>(plan.block_k)))),
        row(arena.take<T>(2 * padded<T>(widest(in)))),
        buffer(arena.take<T>(pack_buffer_size<T>(widest(in)))),
        offsets(arena.take<int64_t>(plan.group)) {}

  static int64_t tile(const AttentionBackwardCpuPlan& plan) { return padded<T>(plan.block_k) * plan.group; }
};

template <class Op>
struct BackwardMemory {
  using T = typename Op::Scalar;
  BackwardScratch<Op>* scratch;  // per worker
  KeySums<T>* sums;              // per worker, or per task where several tasks share a head
  double* dsink;                 // per task and query head of the group

  BackwardMemory(Arena& arena, const xlstm_attention& in, const AttentionBackwardCpuPlan& plan) {
    const int64_t tasks = in.batch * in.heads_k * plan.parts, sum_arrays = plan.parts > 1 ? tasks : plan.workers;
    dsink = arena.take<double>(tasks * (in.heads_q / in.heads_k));
    scratch = arena.take<BackwardScratch<Op>>(plan.workers);
    sums = arena.take<KeySums<T>>(sum_arrays);
    for (int64_t w = 0; w < plan.workers; ++w) {
      const BackwardScratch<Op> one(arena, in, plan);
      if (scratch) scratch[w] = one;
    }
    for (int64_t h = 0; h < sum_arrays; ++h) {
      const KeySums<T> one(arena, in);
      if (sums) sums[h] = one;
    }
  }
};

// sums += left right, in tiles of kRows rows: left (rows, steps), right column panels `right_panel` apart. to(row,
// column) returns the address of (., NR) sums.
template <class Op, class T, class To>
void add_product(const LeftOperand<T>& left, int64_t rows, const T* right, int64_t right_panel, int64_t columns,
                 int64_t steps, To&& to) {
  for (int64_t column = 0; column < columns; column += NR<T>)
    for (int64_t r = 0; r < rows; r += kRows)
      with_tile<T>(kRows, columns - column, [&](auto& tile) XLSTM_INLINED {
        T* sums = to(r, column);
        tile.template product_part<Op>(left.at(r, 0), right + column / NR<T> * right_panel, NR<T>, steps);
        tile.add_scaled(sums, T(1));
        tile.store_to(sums);
      });
}

// The rows of one group against all keys visible to them.
template <class Op>
struct BackwardGroup {
  using T = typename Op::Scalar;
  const xlstm_attention_backward& p;
  const AttentionSequence& sequence;
  int64_t key_head, first, live, ld;  // rows [first, first + live); ld: rows of a full group
  BackwardScratch<Op>& s;
  const KeySums<T>& sums;
  double* dsink;
  const xlstm_attention& in = p.in;
  const int64_t width_q = packed<Op>(in.dqk), width_v = packed<Op>(in.dv), by_row = packed<Op>(ld);

  int64_t rows() const { return padded<T>(live); }
  T* dq_at(int64_t row, int64_t column) const {
    return s.dq + ((row / NR<T> * panels<T>(in.dqk) + column / NR<T>)*NR<T> + row % NR<T>)*NR<T>;
  }

  void begin() const {
    s.rules.fill(sequence, key_head, first, live, rows());
    const auto pack = [&](const xlstm_tensor& x, int64_t features, T* tokens, T* columns) {
      const Rows<T> from = sequence.rows_at<T>(x, key_head, features, first, live, s.offsets);
      pack_transposed<Op>(from, 0, live, tokens, s.buffer);
      memset(columns, 0, size_t(by_row * padded<T>(features)) * sizeof(T));
      pack_along_tokens<Op>(from, 0, live, padded<T>(features), s.buffer, [=, this](int64_t k, int64_t j) {
        return columns + (j / NR<T> * by_row + k) * NR<T> + j % NR<T>;
      });
    };
    pack(in.q, in.dqk, s.q, s.q_columns);
    pack(p.dout, in.dv, s.dout, s.dout_columns);
    memset(s.dq, 0, size_t(rows() * padded<T>(in.dqk)) * sizeof(T));
    T *out = s.row, *dout = s.row + padded<T>(in.dv);
    for (int64_t r = 0; r < rows(); ++r) {
      s.lse[r] = T(__builtin_inff()), s.d[r] = 0;  // weights beyond the last row are zero
      if (r >= live) continue;
      const auto value = [&](const xlstm_tensor& x) {
        return static_cast<const T*>(x.data) + sequence.row(x, key_head, first + r);
      };
      load_row(out, p.out.data, p.out.dtype, sequence.row(p.out, key_head, first + r), in.dv);
      load_row(dout, p.dout.data, p.dout.dtype, sequence.row(p.dout, key_head, first + r), in.dv);
      const double lse = double(*value(p.lse));
      s.lse[r] = T(lse * kUnit<Op>);
      const double d = dot(out, dout, in.dv) - (p.dlse.data ? double(*value(p.dlse)) : 0);
      s.d[r] = T(d);
      if (!in.sink) continue;
      const int64_t member = (first + r) % sequence.group();
      const double sink = double(static_cast<const T*>(in.sink)[key_head * sequence.group() + member]);
      dsink[member] -= ::exp(sink - lse) * d;
    }
  }

  // Computes weights and ds of a panel for keys [from, from + n), tile by tile in registers: first all weights, then
  // all ds, so that L1 holds one of q and dout at a time.
  template <int V>
  void compute_weights_and_ds(int64_t panel, int64_t from, int64_t n) const {
    const int64_t lane = panel * NR<T>;
    const KeyRange all = s.rules.all(lane, NR<T>);
    const bool has_score_mod = in.softcap > 0 || s.rules.slopes, has_dropout = in.dropout_p > 0;
    if (has_dropout) fill_keep(s.rules, lane, in, from, n, s.keep);
    const T factor = T(in.softmax_scale * kUnit<Op>), inverse = T(has_dropout ? dropout_scale(in.dropout_p) : 1);
    const T *lse = s.lse + lane, *d = s.d + lane;
    for (int64_t j = 0; j < n; j += kRows) {
      const int64_t key = from + j;
      const bool masked = key < all.begin || key + kRows > all.end;
      T* weights = s.weights + j * NR<T>;
      Tile<T, kRows, V> tile;
      tile.template product<Op>(s.keys.at(key), s.q + lane * width_q, width_q);
      tile.each(0, [&](int r, int v, int64_t) XLSTM_INLINED { tile.acc[r][v] *= factor; });
      if (masked || has_score_mod) {
        Vec<T> row_max[V];
        tile.store_to(weights);
        apply_rules<Op, V>(s.rules, lane, in.softcap, masked, key, kRows, weights, s.cap_slope + j * NR<T>, row_max);
        tile.load_from(weights);
      }
      tile.each(NR<T>, [&](int r, int v, int64_t at) XLSTM_INLINED {
        tile.acc[r][v] = weight_of<Op>(tile.acc[r][v] - load(lse + v * kLanes<T>));
        store(weights + at, tile.acc[r][v]);
      });
      if (has_dropout) drop(tile, j, inverse);
      store_along_rows(s.weights_by_row, lane, j, tile);
    }
    for (int64_t j = 0; j < n; j += kRows) {
      Tile<T, kRows, V> tile;
      tile.template product<Op>(s.values.at(from + j), s.dout + lane * width_v, width_v);
      if (has_dropout) drop(tile, j, inverse);
      tile.each(NR<T>, [&](int r, int v, int64_t at) XLSTM_INLINED {
        Vec<T> weight = load(s.weights + j * NR<T> + at);
        if constexpr (!kScaleInEpilogue<Op>) weight *= T(in.softmax_scale);
        tile.acc[r][v] = weight * (tile.acc[r][v] - load(d + v * kLanes<T>));
      });
      if (in.softcap > 0) tile.scale_by(s.cap_slope + j * NR<T>);
      store_along_rows(s.ds_by_row, lane, j, tile);
      tile.template store_packed<Op>(s.ds_by_key + j / Op::kPack * ld + lane, ld);
    }
  }
  template <int V>
  XLSTM_ALWAYS_INLINE void drop(Tile<T, kRows, V>& tile, int64_t j, T inverse) const {
    tile.each(NR<T>, [&](int r, int v, int64_t at)
                         XLSTM_INLINED { tile.acc[r][v] *= load(s.keep + j * NR<T> + at) * inverse; });
  }
  // Stores the tile of keys that starts at the j-th key of the block, as elements along the rows.
  template <int V>
  XLSTM_ALWAYS_INLINE void store_along_rows(T* to, int64_t lane, int64_t j, const Tile<T, kRows, V>& tile) const {
    T* at = to + j * by_row + packed<Op>(lane);
    XLSTM_UNROLL for (int r = 0; r < kRows; ++r, at += by_row) {
      if constexpr (Op::kPack == 1) {
        for (int v = 0; v < V; ++v) store(at + v * kLanes<T>, tile.acc[r][v]);
      } else {
        for (int v = 0; v < V; v += 2)
          store(at + v / 2 * kLanes<T>,
                Op::join(tile.acc[r][v], v + 1 < V ? tile.acc[r][v + 1 < V ? v + 1 : v] : Vec<T>{}));
      }
    }
  }

  void run(int64_t block_k) const {
    begin();
    const KeyRange sees = s.rules.any(0, rows());
    for (int64_t tile = sees.begin / block_k * block_k; tile < sees.end; tile += block_k) {
      const int64_t from = tile > sees.begin ? tile : sees.begin / kDrawsAtOnce * kDrawsAtOnce;
      const int64_t to = tile + block_k < sees.end ? tile + block_k : sees.end;
      const int64_t n = round_up(to - from, kRows);
      int64_t first_panel = -1, end_panel = 0;  // the panels that see keys of the tile are consecutive
      for (int64_t panel = 0; panel * NR<T> < live; ++panel) {
        const KeyRange any = s.rules.any(panel * NR<T>, NR<T>);
        if (any.begin >= any.end || any.begin >= to || any.end <= from) continue;
        if (first_panel < 0) first_panel = panel;
        end_panel = panel + 1;
        if (live - panel * NR<T> <= kLanes<T>)
          compute_weights_and_ds<1>(panel, from, n);
        else
          compute_weights_and_ds<kVectors>(panel, from, n);
      }
      if (first_panel < 0) continue;
      const int64_t lane = first_panel * NR<T>, last = end_panel * NR<T> < live ? end_panel * NR<T> : live;
      const int64_t at = packed<Op>(lane), steps = packed<Op>(last - lane);
      add_product<Op>(LeftOperand<T>{s.weights_by_row + at, 1, by_row}, n, s.dout_columns + at * NR<T>, by_row * NR<T>,
                      in.dv, steps, [&](int64_t r, int64_t column) { return sums.at(sums.dv, from + r, column); });
      add_product<Op>(LeftOperand<T>{s.ds_by_row + at, 1, by_row}, n, s.q_columns + at * NR<T>, by_row * NR<T>, in.dqk,
                      steps, [&](int64_t r, int64_t column) { return sums.at(sums.dk, from + r, column); });
      const int64_t key_steps = packed<Op>(sequence.keys);
      const LeftOperand<T> ds = left_operand<Op>(s.ds_by_key + lane, ld, last - lane, packed<Op>(to - from), s.ds_copy);
      add_product<Op>(ds, round_up(last - lane, kRows), s.k_columns + from / Op::kPack * NR<T>, key_steps * NR<T>,
                      in.dqk, packed<Op>(to - from),
                      [&](int64_t r, int64_t column) { return dq_at(lane + r, column); });
    }
    for (int64_t r = 0; r < live; ++r) {
      for (int64_t column = 0; column < in.dqk; column += NR<T>)
        for (int64_t e = 0; e < NR<T>; e += kLanes<T>)
          store(s.row + column + e, load(dq_at(r, column) + e) * epilogue_scale<Op>(in));
      store_row(p.dq.data, p.dq.dtype, sequence.row(p.dq, key_head, first + r), s.row, in.dqk);
    }
  }
};

// Stores tokens [from, to) of dk or dv of a sequence: the sums over the parts times factor, zero where the token is no
// key in use.
template <class T, class Get>
void store_keys(const AttentionSequence& sequence, int64_t key_head, const xlstm_tensor& x, int64_t features,
                const KeySums<T>* parts, int64_t count, int64_t from, int64_t to, T factor, T* row, Get&& get) {
  for (int64_t t = from; t < to; ++t) {
    const int64_t key = t - sequence.first_key;
    for (int64_t column = 0; column < features; column += NR<T>)
      for (int64_t e = 0; e < NR<T>; e += kLanes<T>) {
        Vec<T> sum{};
        for (int64_t c = 0; c < count && key >= 0 && key < sequence.keys; ++c)
          sum += load(parts[c].at(get(parts[c]), key, column) + e);
        store(row + column + e, sum * factor);
      }
    store_row(x.data, x.dtype, sequence.key(x, key_head, t), row, features);
  }
}

template <class Op>
void backward(const xlstm_attention_backward& p, const AttentionBackwardCpuPlan& plan, void* workspace,
              const Executor& executor) {
  using T = typename Op::Scalar;
  const xlstm_attention& in = p.in;
  Arena arena(workspace);
  const BackwardMemory<Op> memory(arena, in, plan);
  const int64_t heads = in.batch * in.heads_k, members = in.heads_q / in.heads_k;
  const auto store_dk_dv = [&](const AttentionSequence& sequence, int64_t key_head, const KeySums<T>* parts,
                               int64_t from, int64_t to, T* row) {
    store_keys(sequence, key_head, p.dk, in.dqk, parts, plan.parts, from, to, epilogue_scale<Op>(in), row,
               [](const KeySums<T>& x) { return x.dk; });
    store_keys(sequence, key_head, p.dv, in.dv, parts, plan.parts, from, to, T(1), row,
               [](const KeySums<T>& x) { return x.dv; });
  };

  parallel_tasks(executor, heads * plan.parts, [&](int64_t task, int32_t worker) {
    const int64_t head = task / plan.parts, part = task % plan.parts, key_head = head % in.heads_k;
    const AttentionSequence sequence(in, head / in.heads_k);
    BackwardScratch<Op>& s = memory.scratch[worker];
    const KeySums<T>& sums = memory.sums[plan.parts > 1 ? task : worker];
    const int64_t used = padded<T>(sequence.keys);
    for (int64_t column = 0; column < in.dqk; column += NR<T>)
      memset(sums.at(sums.dk, 0, column), 0, size_t(used * NR<T>) * sizeof(T));
    for (int64_t column = 0; column < in.dv; column += NR<T>)
      memset(sums.at(sums.dv, 0, column), 0, size_t(used * NR<T>) * sizeof(T));
    double* dsink = memory.dsink + task * members;
    for (int64_t m = 0; m < members; ++m) dsink[m] = 0;

    const Rows<T> keys = sequence.keys_at<T>(in.k, key_head, in.dqk, 0, 0, nullptr);
    pack_transposed<Op>(keys, 0, sequence.keys, s.k, s.buffer);
    pack_columns<Op>(keys, 0, sequence.keys, s.k_columns, s.buffer);
    pack_transposed<Op>(sequence.keys_at<T>(in.v, key_head, in.dv, 0, 0, nullptr), 0, sequence.keys, s.v, s.buffer);
    s.keys = left_panels<Op>(s.k, sequence.keys, packed<Op>(in.dqk), s.k_copy);
    s.values = left_panels<Op>(s.v, sequence.keys, packed<Op>(in.dv), s.v_copy);
    for (int64_t first = part * plan.group; first < sequence.rows(); first += plan.parts * plan.group) {
      const int64_t left = sequence.rows() - first;
      const BackwardGroup<Op> group{p,          sequence, key_head, first, left < plan.group ? left : plan.group,
                                    plan.group, s,        sums,     dsink};
      group.run(plan.block_k);
    }
    if (plan.parts == 1) store_dk_dv(sequence, key_head, &sums, 0, sequence.capacity, s.row);
  });
  if (plan.parts > 1) {
    const int64_t tiles = (in.length_k + plan.block_k - 1) / plan.block_k;
    parallel_tasks(executor, heads * tiles, [&](int64_t task, int32_t worker) {
      const int64_t head = task / tiles, from = task % tiles * plan.block_k;
      const AttentionSequence sequence(in, head / in.heads_k);
      const int64_t end = sequence.capacity < from + plan.block_k ? sequence.capacity : from + plan.block_k;
      store_dk_dv(sequence, head % in.heads_k, memory.sums + head * plan.parts, from, end, memory.scratch[worker].row);
    });
  }
  for (int64_t head = 0; p.dsink && head < in.heads_q; ++head) {
    double sum = 0;
    for (int64_t b = 0; b < in.batch; ++b)
      for (int64_t part = 0; part < plan.parts; ++part)
        sum += memory.dsink[((b * in.heads_k + head / members) * plan.parts + part) * members + head % members];
    static_cast<T*>(p.dsink)[head] = T(sum);
  }
}

template <class Op>
size_t bytes(const xlstm_attention& in, const AttentionBackwardCpuPlan& plan) {
  Arena counter(nullptr);
  BackwardMemory<Op>(counter, in, plan);
  return counter.used();
}

}  // namespace

size_t attention_backward_workspace(const xlstm_attention_backward& p, const AttentionBackwardCpuPlan& plan) {
  return with_attention_operands(p.in, [&](auto op) { return bytes<decltype(op)>(p.in, plan); });
}
void attention_backward(const xlstm_attention_backward& p, const AttentionBackwardCpuPlan& plan, void* workspace,
                        const Executor& executor) {
  with_attention_operands(p.in, [&](auto op) { backward<decltype(op)>(p, plan, workspace, executor); });
}

}  // namespace xlstm::XLSTM_ISA::attention

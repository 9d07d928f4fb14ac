// SPDX-License-Identifier: Apache-2.0
// Attention by the C API, without Python, on every instruction set: tested against loops in double, with tensors
// between guard bytes and a workspace that starts as NaN. Also attention's rules and plans.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "attention/cpu/plan.h"
#include "attention/rules.h"
#include "buffer.h"
#include "each_isa.h"
#include "formats.h"

namespace {

using namespace xlstm;

// ---- rules

void test_philox() {  // the test vectors of its authors
  const Philox zero = philox(0, 0, 0, 0, 0);
  CHECK(zero.word[0] == 0x6627e8d5 && zero.word[1] == 0xe169c58d && zero.word[2] == 0xbc57ac4c &&
        zero.word[3] == 0x9b00dbd8);
  const Philox ones = philox(~0u, ~0u, ~0u, ~0u, ~uint64_t(0));
  CHECK(ones.word[0] == 0x408f276d && ones.word[1] == 0x41c83b0e && ones.word[2] == 0xa20bc7c6 &&
        ones.word[3] == 0x6d5451fd);
  const Philox pi = philox(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0x299f31d0a4093822);
  CHECK(pi.word[0] == 0xd16cfe09 && pi.word[1] == 0x94fdcceb && pi.word[2] == 0x5001e420 && pi.word[3] == 0x24126ea1);
  for (double p : {1e-9, 1e-5, 0.1, 0.5, 0.999, 0.9999999}) {
    const uint32_t threshold = dropout_threshold(p);
    CHECK(threshold >= 1 && threshold <= 65535 && std::fabs(threshold / 65536.0 - p) <= 1 / 65536.0, "p %g", p);
  }
  CHECK(dropout_threshold(0) == 0 && dropout_scale(0) == 1);
}

void test_visible_keys() {
  for (int64_t queries = 0; queries <= 6; ++queries)
    for (int64_t keys = 0; keys <= 6; ++keys)
      for (int64_t left = -1; left <= 7; ++left)
        for (int64_t right = -1; right <= 7; ++right)
          for (int64_t i = 0; i < queries; ++i) {
            const KeyRange range = visible_keys(i, queries, keys, left, right);
            CHECK(0 <= range.begin && range.begin <= range.end && range.end <= keys);
            for (int64_t j = 0; j < keys; ++j) {
              const int64_t apart = j - (i + keys - queries);
              const bool sees = (left < 0 || apart >= -left) && (right < 0 || apart <= right);
              CHECK(sees == (j >= range.begin && j < range.end), "query %d of %d, key %d of %d, window %d %d", int(i),
                    int(queries), int(j), int(keys), int(left), int(right));
            }
          }
}

// ---- plans

void test_plans() {
  for (int64_t heads : {1, 3, 8})
    for (int64_t rows : {1, 31, 32, 33, 1000})
      for (int64_t keys : {1, 128, 5000})
        for (int64_t panel : {4, 24, 32})
          for (int64_t threads : {1, 2, 16, 200})
            for (int64_t splits : {0, 1, 5}) {
              const AttentionShape shape{2, heads, rows, keys, panel, false};
              const AttentionCpuPlan p = plan_attention_cpu(shape, 0, splits, threads);
              CHECK(p.rows % panel == 0 && p.rows * p.blocks >= rows && p.rows * (p.blocks - 1) < rows, "blocks");
              CHECK(splits ? p.splits == splits : p.splits >= 1 && (p.splits - 1) * 4 * p.block_k < keys, "splits");
              CHECK(p.splits == splits || p.splits == 1 || 2 * heads * p.blocks < threads, "split for nothing");
              CHECK(p.workers >= 1 && p.workers <= threads && p.workers <= 2 * heads * p.blocks * p.splits, "workers");
              const AttentionBackwardCpuPlan b = plan_attention_backward_cpu(shape, 0, 0, 0, threads);
              CHECK(b.group % panel == 0 && b.parts >= 1 && (b.parts - 1) * b.group < rows, "parts");
              CHECK(b.parts == 1 || 2 * heads < threads, "shared for nothing");
              const AttentionBackwardCpuPlan one = plan_attention_backward_cpu(shape, 256, 1, 3, threads);
              CHECK(one.block_k == 256 && one.group == panel && one.parts == 3, "what is asked for");
              CHECK(one.workers == std::min(threads, 2 * heads * 3), "workers");
              const AttentionBackwardCpuPlan largest = plan_attention_backward_cpu(shape, 0, kMaxRowPanels, 0, threads);
              CHECK(largest.group == panel * std::min((rows + panel - 1) / panel, kMaxRowPanels),
                    "no more than there is");
            }
  CHECK(plan_attention_cpu({1, 1, 8, 100000, 32, true}, 0, 0, 64).splits == 1, "whole rows");
  CHECK(plan_attention_cpu({1, 1, 8, 100000, 32, false}, 64, 0, 64).block_k == 64, "block_size");
}

// ---- a call

double get_value(const void* p, xlstm_dtype dtype, int64_t at) {
  if (dtype == XLSTM_FLOAT64) return static_cast<const double*>(p)[at];
  if (dtype == XLSTM_FLOAT32) return static_cast<const float*>(p)[at];
  return (dtype == XLSTM_BFLOAT16 ? kBfloat16 : kFloat16).decode(static_cast<const uint16_t*>(p)[at]);
}
void set_value(void* p, xlstm_dtype dtype, int64_t at, double x) {
  if (dtype == XLSTM_FLOAT64)
    static_cast<double*>(p)[at] = x;
  else if (dtype == XLSTM_FLOAT32)
    static_cast<float*>(p)[at] = float(x);
  else
    static_cast<uint16_t*>(p)[at] = (dtype == XLSTM_BFLOAT16 ? kBfloat16 : kFloat16).encode(x);
}

struct Setting {
  xlstm_dtype dtype = XLSTM_FLOAT32;
  int64_t batch = 2, queries = 37, keys = 70, heads_q = 4, heads_k = 2, dqk = 20, dv = 12;
  int64_t left = -1, right = -1;
  double softcap = 0, dropout = 0;
  bool alibi = false, sink = false;
  int64_t splits = 0, row_panels = 0, parts = 0;
  int32_t threads = 2;
};

// A tensor (B, S, H, D) with its buffer.
struct Values {
  Buffer memory;
  xlstm_tensor tensor;
  int64_t tokens, heads, features;
  Values(xlstm_dtype dtype, int64_t batch, int64_t tokens, int64_t heads, int64_t features)
      : memory(size_t(batch * tokens * heads * features) * bytes_of(dtype)),
        tensor{memory.data(), dtype, {tokens * heads * features, features, heads * features}},
        tokens(tokens),
        heads(heads),
        features(features) {}
  static size_t bytes_of(xlstm_dtype dtype) { return dtype == XLSTM_FLOAT64 ? 8 : dtype == XLSTM_FLOAT32 ? 4 : 2; }
  int64_t offset(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return b * tensor.stride[0] + t * tensor.stride[2] + h * tensor.stride[1] + d;
  }
  double get(int64_t b, int64_t t, int64_t h, int64_t d) const {
    return get_value(tensor.data, tensor.dtype, offset(b, t, h, d));
  }
  void fill(std::mt19937& random, int64_t batch) {
    std::normal_distribution<double> normal;
    for (int64_t at = 0; at < batch * tokens * heads * features; ++at)
      set_value(tensor.data, tensor.dtype, at, normal(random));
  }
};

struct Workspace {
  Buffer memory;
  xlstm_runtime runtime{};
  Workspace(size_t bytes, int32_t threads) : memory(bytes) {
    CHECK(bytes > 0, "%s", xlstm_last_error());
    runtime.workspace = memory.data();
    runtime.workspace_bytes = bytes;
    runtime.threads = threads;
  }
};

double tolerance(const Setting& s) { return s.dtype == XLSTM_FLOAT32 ? 2e-5 : s.dtype == XLSTM_FLOAT64 ? 1e-12 : 3e-2; }

void close(const char* what, const Setting& s, const std::vector<double>& got, const std::vector<double>& expected) {
  double difference = 0, size = 0;
  for (size_t j = 0; j < got.size(); ++j) {
    difference += (got[j] - expected[j]) * (got[j] - expected[j]);
    size += expected[j] * expected[j];
  }
  CHECK(std::sqrt(difference) <= tolerance(s) * std::sqrt(size), "%s: error %g of %g, dtype %d, threads %d", what,
        std::sqrt(difference), std::sqrt(size), int(s.dtype), int(s.threads));
}

void test_call(const Setting& s) {
  std::mt19937 random(1);
  Values q(s.dtype, s.batch, s.queries, s.heads_q, s.dqk), k(s.dtype, s.batch, s.keys, s.heads_k, s.dqk),
      v(s.dtype, s.batch, s.keys, s.heads_k, s.dv), out(s.dtype, s.batch, s.queries, s.heads_q, s.dv),
      dout(s.dtype, s.batch, s.queries, s.heads_q, s.dv), dq(s.dtype, s.batch, s.queries, s.heads_q, s.dqk),
      dk(s.dtype, s.batch, s.keys, s.heads_k, s.dqk), dv(s.dtype, s.batch, s.keys, s.heads_k, s.dv);
  for (Values* x : {&q, &k, &v, &dout}) x->fill(random, s.batch);
  const xlstm_dtype wide = s.dtype == XLSTM_FLOAT64 ? XLSTM_FLOAT64 : XLSTM_FLOAT32;
  Values lse(wide, s.batch, s.queries, s.heads_q, 1), sink(wide, 1, 1, s.heads_q, 1), dsink(wide, 1, 1, s.heads_q, 1);
  sink.fill(random, 1);
  std::vector<float> slopes(size_t(s.heads_q), 0.f);
  for (size_t h = 0; h < slopes.size(); ++h) slopes[h] = 0.05f * float(h + 1);
  const int64_t rng_state[2] = {-123456789012345, 7};

  xlstm_attention_forward p{};
  p.in = {};
  p.in.batch = s.batch, p.in.heads_q = s.heads_q, p.in.heads_k = s.heads_k, p.in.dqk = s.dqk, p.in.dv = s.dv;
  p.in.length_q = s.queries, p.in.length_k = s.keys;
  p.in.q = q.tensor, p.in.k = k.tensor, p.in.v = v.tensor;
  p.in.softmax_scale = 0.3, p.in.softcap = s.softcap, p.in.dropout_p = s.dropout;
  p.in.window_left = s.left, p.in.window_right = s.right;
  p.in.alibi_slopes = s.alibi ? slopes.data() : nullptr;
  p.in.sink = s.sink ? sink.tensor.data : nullptr;
  p.in.rng_state = s.dropout > 0 ? rng_state : nullptr;
  p.in.block_size = 32;
  p.out = out.tensor, p.lse = lse.tensor, p.lse_with_sink = 1, p.splits = s.splits;
  Workspace work(xlstm_attention_forward_workspace(&p, s.threads), s.threads);
  CHECK(xlstm_attention_forward_pass(&p, &work.runtime) == XLSTM_OK, "%s", xlstm_last_error());
  xlstm_attention_backward g{};
  g.in = p.in, g.out = out.tensor, g.dout = dout.tensor, g.lse = lse.tensor;
  g.row_panels = s.row_panels, g.parts = s.parts;
  g.dq = dq.tensor, g.dk = dk.tensor, g.dv = dv.tensor;
  g.dsink = s.sink ? dsink.tensor.data : nullptr;
  Workspace more(xlstm_attention_backward_workspace(&g, s.threads), s.threads);
  CHECK(xlstm_attention_backward_pass(&g, &more.runtime) == XLSTM_OK, "%s", xlstm_last_error());

  // The expected results in double, pair by pair.
  std::vector<double> gots[6], trues[6];
  std::vector<double> true_dk(size_t(s.batch * s.keys * s.heads_k * s.dqk)),
      true_dv(size_t(s.batch * s.keys * s.heads_k * s.dv));
  std::vector<double> true_dsink(size_t(s.heads_q));
  const int64_t group = s.heads_q / s.heads_k;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads_q; ++h)
      for (int64_t i = 0; i < s.queries; ++i) {
        const KeyRange sees = visible_keys(i, s.queries, s.keys, s.left, s.right);
        std::vector<double> y(size_t(s.keys), -INFINITY), through(size_t(s.keys), 1), keep(size_t(s.keys), 1);
        double row_max = s.sink ? sink.get(0, 0, h, 0) : -INFINITY, sum = 0;
        for (int64_t j = sees.begin; j < sees.end; ++j) {
          double dot = 0;
          for (int64_t d = 0; d < s.dqk; ++d) dot += q.get(b, i, h, d) * k.get(b, j, h / group, d);
          dot *= 0.3;
          if (s.softcap > 0) {
            const double bounded = std::tanh(dot / s.softcap);
            dot = s.softcap * bounded, through[size_t(j)] = 1 - bounded * bounded;
          }
          if (s.alibi) dot -= double(slopes[size_t(h)]) * double(std::llabs(i + s.keys - s.queries - j));
          if (s.dropout > 0) {
            const Philox draws = dropout_draws(j, i, b * s.heads_q + h, uint64_t(rng_state[0]), uint64_t(rng_state[1]));
            keep[size_t(j)] = draw_of(draws, int(j % 8)) < dropout_threshold(s.dropout) ? 0 : dropout_scale(s.dropout);
          }
          y[size_t(j)] = dot, row_max = std::max(row_max, dot);
        }
        for (int64_t j = sees.begin; j < sees.end; ++j) sum += std::exp(y[size_t(j)] - row_max);
        if (s.sink) sum += std::exp(sink.get(0, 0, h, 0) - row_max);
        const double true_lse = sum > 0 ? row_max + std::log(sum) : INFINITY;
        if (sum > 0) gots[1].push_back(lse.get(b, i, h, 0)), trues[1].push_back(true_lse);
        CHECK(sum > 0 || lse.get(b, i, h, 0) == INFINITY);
        double dot_out = 0;
        for (int64_t d = 0; d < s.dv; ++d) {
          double o = 0;
          for (int64_t j = sees.begin; j < sees.end; ++j)
            o += std::exp(y[size_t(j)] - true_lse) * keep[size_t(j)] * v.get(b, j, h / group, d);
          gots[0].push_back(out.get(b, i, h, d)), trues[0].push_back(o);
          dot_out += o * dout.get(b, i, h, d);
        }
        std::vector<double> row(size_t(s.dqk));
        for (int64_t j = sees.begin; j < sees.end; ++j) {
          const double w = std::exp(y[size_t(j)] - true_lse);
          double dw = 0;
          for (int64_t d = 0; d < s.dv; ++d) {
            dw += dout.get(b, i, h, d) * v.get(b, j, h / group, d);
            true_dv[size_t(v.offset(b, j, h / group, d))] += w * keep[size_t(j)] * dout.get(b, i, h, d);
          }
          const double ds = 0.3 * w * (dw * keep[size_t(j)] - dot_out) * through[size_t(j)];
          for (int64_t d = 0; d < s.dqk; ++d) {
            row[size_t(d)] += ds * k.get(b, j, h / group, d);
            true_dk[size_t(k.offset(b, j, h / group, d))] += ds * q.get(b, i, h, d);
          }
        }
        if (s.sink) true_dsink[size_t(h)] -= std::exp(sink.get(0, 0, h, 0) - true_lse) * dot_out;
        for (int64_t d = 0; d < s.dqk; ++d) gots[2].push_back(dq.get(b, i, h, d)), trues[2].push_back(row[size_t(d)]);
      }
  const auto all = [&](const Values& x, int64_t n) {
    std::vector<double> values;
    for (int64_t at = 0; at < n; ++at) values.push_back(get_value(x.tensor.data, x.tensor.dtype, at));
    return values;
  };
  close("out", s, gots[0], trues[0]);
  close("lse", s, gots[1], trues[1]);
  close("dq", s, gots[2], trues[2]);
  close("dk", s, all(dk, int64_t(true_dk.size())), true_dk);
  close("dv", s, all(dv, int64_t(true_dv.size())), true_dv);
  if (s.sink) close("dsink", s, all(dsink, s.heads_q), true_dsink);
}

void test_calls() {
  for (xlstm_dtype dtype : {XLSTM_FLOAT32, XLSTM_BFLOAT16, XLSTM_FLOAT16, XLSTM_FLOAT64})
    for (int32_t threads : {1, 5}) {
      Setting s;
      s.dtype = dtype, s.threads = threads;
      test_call(s);
      s.right = 0, s.alibi = s.sink = true, s.dropout = 0.2;
      test_call(s);
      s.left = 9, s.right = 3, s.softcap = 2, s.heads_k = 4;
      test_call(s);
      for (const auto& [row_panels, parts] :
           {std::pair{1, 3}, {8, 1}, {2, 256}}) {  // with the last, most parts have no rows
        s.row_panels = row_panels, s.parts = parts;
        test_call(s);
      }
      s = {};
      s.dtype = dtype, s.threads = threads, s.queries = 50, s.keys = 9, s.right = 0, s.batch = 1, s.heads_k = 1;
      test_call(s);  // queries that see no key; several tasks share a head
      s.queries = 1, s.keys = 300, s.heads_q = 3, s.splits = 3, s.dqk = 3, s.dv = 1;
      test_call(s);
    }
}

// ---- errors

void test_errors() {
  float data[64] = {};
  const xlstm_tensor tensor{data, XLSTM_FLOAT32, {16, 4, 4}};
  const int32_t low[2] = {-1, 0}, late[3] = {1, 2, 4}, falling[3] = {0, 3, 2}, high[2] = {9, 9};
  xlstm_attention_forward valid{};
  valid.in.batch = 2, valid.in.heads_q = 2, valid.in.heads_k = 1, valid.in.dqk = valid.in.dv = 4;
  valid.in.length_q = valid.in.length_k = 2;
  valid.in.q = valid.in.k = valid.in.v = valid.out = valid.lse = tensor;
  valid.in.softmax_scale = 1, valid.in.window_left = valid.in.window_right = -1;
  CHECK(xlstm_attention_forward_workspace(&valid, 1) > 0, "%s", xlstm_last_error());
  using P = xlstm_attention_forward;
  const std::pair<const char*, std::function<void(P&)>> wrong[] = {
      {"batch", [](P& p) { p.in.batch = 0; }},
      {"heads_q", [](P& p) { p.in.heads_k = 2, p.in.heads_q = 3; }},
      {"heads_k", [](P& p) { p.in.heads_k = 0; }},
      {"dqk", [](P& p) { p.in.dqk = 0; }},
      {"dv", [](P& p) { p.in.dv = -1; }},
      {"length_q", [](P& p) { p.in.length_q = -1; }},
      {"length_k", [](P& p) { p.in.length_k = int64_t(1) << 40; }},
      {"q", [](P& p) { p.in.q.data = nullptr; }},
      {"k", [](P& p) { p.in.k.dtype = XLSTM_FLOAT16; }},
      {"v", [](P& p) { p.in.v.data = nullptr; }},
      {"out", [](P& p) { p.out.dtype = XLSTM_FLOAT64; }},
      {"lse", [](P& p) { p.lse.dtype = XLSTM_BFLOAT16; }},
      {"probs", [&](P& p) { p.probs = tensor, p.probs.dtype = XLSTM_FLOAT16; }},
      {"softmax_scale", [](P& p) { p.in.softmax_scale = NAN; }},
      {"softcap", [](P& p) { p.in.softcap = -1; }},
      {"softcap", [](P& p) { p.in.softcap = INFINITY; }},
      {"dropout_p", [](P& p) { p.in.dropout_p = 1; }},
      {"dropout_p", [](P& p) { p.in.dropout_p = NAN; }},
      {"rng_state", [](P& p) { p.in.dropout_p = 0.5; }},
      {"block_size", [](P& p) { p.in.block_size = 48; }},
      {"splits", [](P& p) { p.splits = 257; }},
      {"cu_seqlens_q", [&](P& p) { p.in.cu_seqlens_q = late, p.in.total_q = 4; }},
      {"cu_seqlens_q", [&](P& p) { p.in.cu_seqlens_q = falling, p.in.total_q = 4, p.in.length_q = 3; }},
      {"cu_seqlens_k", [&](P& p) { p.in.cu_seqlens_k = late, p.in.total_k = 4; }},
      {"seqused_k", [&](P& p) { p.in.seqused_k = high; }},
      {"seqused_k", [&](P& p) { p.in.seqused_k = low; }},
      {"leftpad_k", [&](P& p) { p.in.leftpad_k = low; }},
      {"cache_batch_idx", [&](P& p) { p.in.cache_batch_idx = high, p.in.cache_batch = 2; }},
      {"block_table",
       [&](P& p) { p.in.block_table = low, p.in.page_size = 2, p.in.pages = 2, p.in.block_table_stride = 1; }},
      {"page_size", [&](P& p) { p.in.block_table = high; }},
  };
  for (const auto& [name, spoil] : wrong) {
    P p = valid;
    spoil(p);
    CHECK(xlstm_attention_forward_workspace(&p, 1) == 0, "%s was accepted", name);
    CHECK(std::string(xlstm_last_error()).rfind(name, 0) == 0, "%s: %s", name, xlstm_last_error());
    xlstm_runtime runtime{};
    CHECK(xlstm_attention_forward_pass(&p, &runtime) == XLSTM_INVALID_ARGUMENT, "%s", name);
  }
  using B = xlstm_attention_backward;
  B backward{};
  backward.in = valid.in;
  backward.out = backward.dout = backward.lse = backward.dq = backward.dk = backward.dv = tensor;
  CHECK(xlstm_attention_backward_workspace(&backward, 1) > 0, "%s", xlstm_last_error());
  const std::pair<const char*, std::function<void(B&)>> wrong_backward[] = {
      {"block_size", [](B& p) { p.in.block_size = 48; }},
      {"block_table", [&](B& p) { p.in.block_table = high, p.in.page_size = 100, p.in.pages = 10; }},
      {"dsink", [&](B& p) { p.dsink = data; }},
      {"row_panels", [](B& p) { p.row_panels = -1; }},
      {"row_panels", [](B& p) { p.row_panels = kMaxRowPanels + 1; }},
      {"parts", [](B& p) { p.parts = -1; }},
      {"parts", [](B& p) { p.parts = 257; }},
      {"common_schedule: expected 0 to 1, got 2", [](B& p) { p.common_schedule = 2; }},
      {"deterministic: expected 0 to 1, got 2", [](B& p) { p.deterministic = 2; }},
      {"common_schedule: expected 0 on a CPU, got 1", [](B& p) { p.common_schedule = 1; }},
  };
  for (const auto& [name, spoil] : wrong_backward) {
    B p = backward;
    spoil(p);
    CHECK(xlstm_attention_backward_workspace(&p, 1) == 0, "%s was accepted", name);
    CHECK(std::string(xlstm_last_error()).rfind(name, 0) == 0, "%s: %s", name, xlstm_last_error());
  }
  xlstm_runtime none{};
  CHECK(xlstm_attention_forward_pass(&valid, &none) == XLSTM_WORKSPACE_TOO_SMALL, "%s", xlstm_last_error());
  CHECK(xlstm_attention_forward_pass(nullptr, &none) == XLSTM_INVALID_ARGUMENT);
  CHECK(xlstm_attention_forward_pass(&valid, nullptr) == XLSTM_INVALID_ARGUMENT);
}

void tests() {
  test_calls();
  test_errors();
}

}  // namespace

int main() {
  test_philox();
  test_visible_keys();
  test_plans();
  return run_for_each_isa(tests);
}

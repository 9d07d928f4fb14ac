// SPDX-License-Identifier: Apache-2.0
// Whole calls of attention on RDNA, forward, decoding, MLA and backward, against sums in double.
//
// Bounds, with h half a step of the dtype: two operands of a term are rounded, with errors that are independent from
// term to term, and the result is: |error| <= h (4 sqrt(sum of squared terms) + 2 |result|), as in
// tests/hopper/test_attention.cpp. Floats are not rounded, but summed in float: 2^-17 of the terms' sizes.
#include <cmath>
#include <variant>

#include "attention/backward/backward_call.h"
#include "attention/dispatch/forward_call.h"
#include "chips.h"
#include "mlstm_call.h"

using namespace xlstm;
using namespace xlstm::gpu;
using namespace xlstm::gpu::attention;

namespace {

enum class Route { forward, decode, mla };

struct Case {
  const char* name;
  xlstm_dtype dtype;
  Route route;
  int heads_q, heads_k, queries, keys, dqk, dv;
  bool backward = false;
  double softcap = 0;
};

// A result beside what bounds its error.
struct Terms {
  Values sum, squares, sizes;
  explicit Terms(size_t count) : sum(count), squares(count), sizes(count) {}
  void add(size_t at, double term) { sum[at] += term, squares[at] += term * term, sizes[at] += std::fabs(term); }
};

void compare(const Case& c, const char* what, const Values& got, const Terms& want) {
  const double half = c.dtype == XLSTM_FLOAT16 ? 0x1p-12 : 0x1p-9;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = c.dtype == XLSTM_FLOAT32
                             ? 0x1p-17 * want.sizes[i]
                             : half * (4 * std::sqrt(want.squares[i]) + 2 * std::fabs(want.sum[i]));
    const double error = std::fabs(got[i] - want.sum[i]) / (bound + 1e-6);
    worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
  }
  CHECK(worst <= 1, "%s, %s: %.2f of the bound", c.name, what, worst);
  if (std::getenv("HOPPER_FIGURES")) std::printf("  %s: %.2f of the bound\n", what, worst);
}

struct AttentionProblem {
  const Case& c;
  Tensor q, k, v, out, lse, dout, dq, dk, dv;
  Values q_values, k_values, v_values, dout_values;
  xlstm_attention in{};

  explicit AttentionProblem(const Case& of)
      : c(of),
        q(c.dtype, 1, c.heads_q, c.queries, c.dqk, Layout::bshd),
        k(c.dtype, 1, c.heads_k, c.keys, c.dqk, Layout::bshd),
        v(c.dtype, 1, c.heads_k, c.keys, c.dv, Layout::bshd),
        out(c.dtype, 1, c.heads_q, c.queries, c.dv, Layout::bshd),
        lse(XLSTM_FLOAT32, 1, c.heads_q, c.queries, 1),
        dout(c.dtype, 1, c.heads_q, c.queries, c.dv, Layout::bshd),
        dq(c.dtype, 1, c.heads_q, c.queries, c.dqk, Layout::bshd),
        dk(c.dtype, 1, c.heads_k, c.keys, c.dqk, Layout::bshd),
        dv(c.dtype, 1, c.heads_k, c.keys, c.dv, Layout::bshd) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    for (auto [tensor, values, count] : {std::tuple{&q, &q_values, c.heads_q * c.queries * c.dqk},
                                         {&k, &k_values, c.heads_k * c.keys * c.dqk},
                                         {&v, &v_values, c.heads_k * c.keys * c.dv},
                                         {&dout, &dout_values, c.heads_q * c.queries * c.dv}}) {
      values->resize(size_t(count));
      for (double& x : *values) x = normal(random);
      tensor->put(*values);
      *values = tensor->values();
    }
    in.batch = 1, in.heads_q = c.heads_q, in.heads_k = c.heads_k, in.dqk = c.dqk, in.dv = c.dv;
    in.length_q = c.queries, in.length_k = c.keys;
    in.q = q.api(), in.k = k.api(), in.v = v.api();
    if (c.route == Route::mla) {  // the value is the first features of the key
      in.v = in.k;
      for (int j = 0; j < c.keys; ++j)
        for (int f = 0; f < c.dv; ++f) v_values[size_t(j * c.dv + f)] = k_values[size_t(j * c.dqk + f)];
    }
    in.softmax_scale = 1 / std::sqrt(double(c.dqk));
    in.softcap = c.softcap;
    in.window_left = -1, in.window_right = 0;
  }

  // Calls f(query head, query, key, weight) for each pair, and returns log-sum-exp by head and query.
  template <class F>
  void each_weight(F&& f) const {
    for (int h = 0; h < c.heads_q; ++h)
      for (int i = 0; i < c.queries; ++i) {
        const int visible = c.keys - c.queries + i + 1, head = h / (c.heads_q / c.heads_k);
        std::vector<double> score(static_cast<size_t>(visible));
        double sum = 0;
        for (int j = 0; j < visible; ++j) {
          double dot = 0;
          for (int d = 0; d < c.dqk; ++d)
            dot +=
                q_values[size_t((h * c.queries + i) * c.dqk + d)] * k_values[size_t((head * c.keys + j) * c.dqk + d)];
          dot *= in.softmax_scale;
          score[size_t(j)] = std::exp(c.softcap > 0 ? c.softcap * std::tanh(dot / c.softcap) : dot);
          sum += score[size_t(j)];
        }
        for (int j = 0; j < visible; ++j) f(h, i, j, score[size_t(j)] / sum);
      }
  }
};

void run_forward(AttentionProblem& p, const Chip& chip) {
  const Case& c = p.c;
  xlstm_attention_forward call{};
  call.in = p.in, call.out = p.out.api(), call.lse = p.lse.api(), call.lse_with_sink = 1;
  const ForwardCallPlan plan = plan_attention_forward_call(call, chip);
  CHECK(int(plan.index()) == int(c.route), "%s: plan %d", c.name, int(plan.index()));
  Buffer memory(attention_forward_workspace(call, plan));
  attention_forward(call, plan, memory.data(), nullptr);
  Terms truth(size_t(c.heads_q * c.queries * c.dv));
  p.each_weight([&](int h, int i, int j, double weight) {
    const int head = h / (c.heads_q / c.heads_k);
    for (int d = 0; d < c.dv; ++d)
      truth.add(size_t((h * c.queries + i) * c.dv + d), weight * p.v_values[size_t((head * c.keys + j) * c.dv + d)]);
  });
  compare(c, "out", p.out.values(), truth);
}

void run_backward(AttentionProblem& p, const Chip& chip) {
  const Case& c = p.c;
  xlstm_attention_backward call{};
  call.in = p.in, call.out = p.out.api(), call.dout = p.dout.api(), call.lse = p.lse.api();
  call.dq = p.dq.api(), call.dk = p.dk.api(), call.dv = p.dv.api();
  const AttentionBackwardPlan plan = plan_attention_backward_call(call, chip);
  Buffer memory(attention_backward_workspace(call, plan));
  attention_backward(call, plan, memory.data(), nullptr);
  const Values out = p.out.values();  // which is given, rounded
  Terms dq(p.q_values.size()), dk(p.k_values.size()), dv(p.v_values.size());
  p.each_weight([&](int h, int i, int j, double weight) {
    const int head = h / (c.heads_q / c.heads_k);
    const size_t q = size_t(h * c.queries + i), k = size_t(head * c.keys + j);
    double through = 0, delta = 0;
    for (size_t d = 0; d < size_t(c.dv); ++d) {
      const double flow = p.dout_values[q * size_t(c.dv) + d];
      through += flow * p.v_values[k * size_t(c.dv) + d], delta += flow * out[q * size_t(c.dv) + d];
      dv.add(k * size_t(c.dv) + d, weight * flow);
    }
    const double ds = weight * (through - delta) * p.in.softmax_scale;
    for (size_t d = 0; d < size_t(c.dqk); ++d) {
      dq.add(q * size_t(c.dqk) + d, ds * p.k_values[k * size_t(c.dqk) + d]);
      dk.add(k * size_t(c.dqk) + d, ds * p.q_values[q * size_t(c.dqk) + d]);
    }
  });
  compare(c, "dq", p.dq.values(), dq), compare(c, "dk", p.dk.values(), dk), compare(c, "dv", p.dv.values(), dv);
}

}  // namespace

int main() {
  const Chip chip = known_chip(XLSTM_RDNA_CHIP);
  const xlstm_dtype b = XLSTM_BFLOAT16, h = XLSTM_FLOAT16, f = XLSTM_FLOAT32;
  const bool wide_decode = chip.family == Family::rdna4;  // RDNA3's registers hold no wide heads and no floats
  const Route few = wide_decode ? Route::decode : Route::forward;
  const Case cases[] = {
      {"64 features", b, Route::forward, 2, 1, 150, 170, 64, 64, true},
      {"128 features", b, Route::forward, 1, 1, 100, 130, 128, 128, true},
      {"192 and 128 features, float16", h, Route::forward, 1, 1, 70, 90, 192, 128, true},
      {"256 features", b, Route::forward, 1, 1, 70, 90, 256, 256, true},
      {"40 features, softcap", b, Route::forward, 1, 1, 70, 90, 40, 40, false, 5},
      {"float, 64 features", f, Route::forward, 1, 1, 70, 90, 64, 64, true},
      {"float, 128 features", f, Route::forward, 1, 1, 70, 90, 128, 128, true},
      {"float, 256 features", f, Route::forward, 1, 1, 70, 90, 256, 256, true},
      {"decode", b, Route::decode, 8, 2, 1, 300, 128, 128},
      {"decode, 256 features", h, few, 8, 2, 1, 300, 256, 256},
      {"decode, float", f, few, 4, 2, 2, 300, 128, 128},
      {"MLA", b, Route::mla, 16, 1, 1, 300, 576, 512},
      {"MLA of many heads", b, Route::mla, 40, 1, 1, 300, 576, 512},
      {"MLA of 512 features, float16", h, Route::mla, 40, 1, 1, 200, 512, 512},
  };
  for (const Case& c : cases) {
    try {
      AttentionProblem p(c);
      run_forward(p, chip);
      if (c.backward) run_backward(p, chip);
    } catch (const std::exception& fault) {
      CHECK(false, "%s: %s", c.name, fault.what());
    }
    std::printf("%s: done\n", c.name);
  }
  return finish();
}

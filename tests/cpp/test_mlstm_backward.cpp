// SPDX-License-Identifier: Apache-2.0
// The backward call of the C API: gradients in double are tested against differences of the forward call, those in the
// other dtypes against double.
#include "each_isa.h"
#include "mlstm_call.h"

namespace {

double inner(const Values& a, const Values& b) {
  double total = 0;
  for (size_t e = 0; e < a.size(); ++e) total += a[e] * b[e];
  return total;
}

// The function that backward differentiates. With a constant normaliser n and m are constants too, and have no
// gradients.
double loss(const Problem& p, const Solution& s) {
  double total = inner(p.dh, s.h) + inner(p.dc, s.c);
  if (p.normalizer_grad) total += inner(p.dn, s.n) + inner(p.dm, s.m);
  return total;
}

template <class Loss>
Values differences(Problem& p, Values& x, const Loss& at) {
  constexpr double step = 3e-4;
  Values gradient;
  for (double& value : x) {
    const double middle = value;
    const auto moved = [&](double by) {
      value = middle + by;
      return at(p);
    };
    gradient.push_back((8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) / (12 * step));
    value = middle;
  }
  return gradient;
}

void expect(const char* name, const Problem& p, const Runner& r, const Values& got, const Values& expected,
            double tolerance) {
  const double error = distance(got, expected);
  CHECK(error <= tolerance, "d%s: %g; %s", name, error, described(p, r).c_str());
}

void test_differences(Problem p, const Runner& r) {
  const Gradients got = backward(p, chunkwise(p, r), r);
  Constants constants;
  solve(p, &constants);
  const auto at = [&](const Problem& moved) {
    return loss(moved, moved.normalizer_grad ? chunkwise(moved, r) : solve(moved, nullptr, &constants));
  };
  const auto check = [&](const char* name, const Values& gradient, Values& x) {
    const Values expected = differences(p, x, at);
    for (size_t e = 0; e < expected.size(); ++e)
      CHECK(std::fabs(gradient[e] - expected[e]) <= 1e-8 * (1 + std::fabs(expected[e])), "d%s[%d]: %g, not %g; %s",
            name, int(e), gradient[e], expected[e], described(p, r).c_str());
  };
  check("q", got.q, p.q);
  check("k", got.k, p.k);
  check("v", got.v, p.v);
  check("i", got.i, p.i);
  check("f", got.f, p.f);
  check("c", got.c, p.c);
  if (p.normalizer_grad) {
    check("n", got.n, p.n);
    check("m", got.m, p.m);
  } else {
    expect("n", p, r, got.n, Values(p.n.size()), 0);
    expect("m", p, r, got.m, Values(p.m.size()), 0);
  }
}

void test_shapes_by_differences() {
  const std::vector<Shape> shapes = {
      {1, 1, 1, 1, 1, 64}, {2, 1, 7, 3, 2, 3}, {1, 2, 6, 2, 9, 64}, {1, 1, 11, 4, 3, 4, {0, 1, 5, 11}}};
  unsigned seed = 0;
  for (const Shape& shape : shapes)
    for (int gate = 0; gate < 3; ++gate)
      for (bool states : {false, true})
        for (bool normalizer_grad : {true, false}) {
          Settings set;
          set.gate = gate == 0 ? XLSTM_GATE_EXP : XLSTM_GATE_SIGMOID;
          set.normalize = gate < 2;
          set.states = states;
          Problem p = random_problem(shape, set, ++seed);
          p.normalizer_grad = normalizer_grad;
          p.eps = seed % 3 ? 1e-6 : 0.2;
          test_differences(p, {1, Layout(seed % 3)});
        }
  // Two segments.
  Problem p = random_problem({1, 1, 17, 2, 3, 2}, {}, ++seed);
  test_differences(p, {4});
}

// With another dtype, chunk size, layout or number of threads the gradients equal those in double up to the dtype's
// precision.
void test_dtypes() {
  const std::vector<Shape> shapes = {
      {2, 2, 70, 24, 40, 16}, {1, 1, 300, 17, 9, 16}, {1, 1, 90, 48, 33, 64, {0, 20, 90}}};
  unsigned seed = 100;
  for (const Shape& shape : shapes)
    for (xlstm_gate gate : {XLSTM_GATE_EXP, XLSTM_GATE_SIGMOID})
      for (xlstm_dtype dtype : {XLSTM_FLOAT32, XLSTM_BFLOAT16, XLSTM_FLOAT16, XLSTM_FLOAT64}) {
        Settings set;
        set.gate = gate;
        set.dtype = dtype;
        set.wide_gates = seed % 2;
        const Runner r{seed % 3 ? 1 : 4, Layout(seed % 3)};
        const Problem p = random_problem(shape, set, ++seed);
        Problem exact = p;
        exact.dtype = exact.gate_dtype = XLSTM_FLOAT64;
        exact.shape.chunk = 1;
        const Gradients got = backward(p, chunkwise(p, r), r), expected = backward(exact, chunkwise(exact));
        const double tolerance = dtype == XLSTM_FLOAT64    ? 1e-11
                                 : dtype == XLSTM_FLOAT32  ? 1e-4
                                 : dtype == XLSTM_BFLOAT16 ? (bf16_products() ? 0.2 : 2e-2)
                                                           : 2e-3;
        const auto check = [&](const char* name, const Values& x, const Values& y) {
          expect(name, p, r, x, y, tolerance);
        };
        check("q", got.q, expected.q);
        check("k", got.k, expected.k);
        check("v", got.v, expected.v);
        check("i", got.i, expected.i);
        check("f", got.f, expected.f);
        check("c", got.c, expected.c);
        check("n", got.n, expected.n);
        check("m", got.m, expected.m);
      }
}

// Calls without gradients of the last states, and without gradients of the initial states.
void test_optional_gradients() {
  Problem p = random_problem({1, 1, 40, 6, 5, 8}, {}, 200);
  p.dc.assign(p.dc.size(), 0), p.dn.assign(p.dn.size(), 0), p.dm.assign(p.dm.size(), 0);
  const Solution forward = chunkwise(p);
  const Gradients expected = backward(p, forward);
  for (int32_t threads : {1, 2}) {
    BackwardCall call(p, forward, Layout::bhsd);
    call.api.dc_last = call.api.dn_last = call.api.dm_last = nullptr;
    call.api.dc_initial = call.api.dn_initial = call.api.dm_initial = nullptr;
    run(xlstm_mlstm_backward_workspace, xlstm_mlstm_backward_pass, call.api, {threads});
    const Gradients got = call.gradients();
    expect("q", p, {threads}, got.q, expected.q, 1e-12);
    expect("k", p, {threads}, got.k, expected.k, 1e-12);
    expect("v", p, {threads}, got.v, expected.v, 1e-12);
    expect("i", p, {threads}, got.i, expected.i, 1e-12);
    expect("f", p, {threads}, got.f, expected.f, 1e-12);
  }
}

void tests() {
  test_shapes_by_differences();
  test_dtypes();
  test_optional_gradients();
}

}  // namespace

int main() { return run_for_each_isa(tests); }

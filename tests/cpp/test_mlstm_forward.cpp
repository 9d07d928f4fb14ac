// SPDX-License-Identifier: Apache-2.0
// The two forward calls of the C API against the definition in long double.
#include "each_isa.h"
#include "mlstm_call.h"

namespace {

// The tolerances of a call, relative to the largest value. h is rounded to its dtype; l and the states are wide. Where
// l nearly cancels, its rounding error is amplified.
double h_tolerance(xlstm_dtype dtype) {
  switch (dtype) {
    case XLSTM_FLOAT64:
      return 1e-12;
    case XLSTM_FLOAT32:
      return 1e-4;
    case XLSTM_BFLOAT16:
      return bf16_products() ? 0.1 : 1.0 / 256;
    case XLSTM_FLOAT16:
      return 1.0 / 1024;
    default:
      return 0;
  }
}

double wide_tolerance(xlstm_dtype dtype) {
  return dtype == XLSTM_FLOAT64 ? 1e-12 : dtype == XLSTM_BFLOAT16 && bf16_products() ? 1.0 / 128 : 1e-5;
}

void expect(const char* call, const Problem& p, const Runner& r, const Solution& got, const Solution& expected) {
  const auto close = [&](const char* name, const Values& x, const Values& y, double tolerance) {
    const double error = distance(x, y);
    CHECK(error <= tolerance, "%s of %s: %g; %s", name, call, error, described(p, r).c_str());
  };
  close("h", got.h, expected.h, h_tolerance(p.dtype));
  close("l", got.l, expected.l, wide_tolerance(p.dtype));
  close("c", got.c, expected.c, wide_tolerance(p.dtype));
  close("n", got.n, expected.n, wide_tolerance(p.dtype));
  close("m", got.m, expected.m, wide_tolerance(p.dtype));
}

void test_both(const Problem& p, const Runner& r) {
  const Solution expected = solve(p);
  expect("chunkwise", p, r, chunkwise(p, r), expected);
  expect("recurrent", p, r, recurrent(p, r), expected);
}

const std::vector<Shape> kShapes = {
    {1, 1, 1, 1, 1, 64},
    {1, 1, 2, 1, 3, 1},
    {2, 3, 17, 5, 7, 4},
    {1, 2, 64, 8, 8, 16},
    {1, 1, 65, 24, 48, 64},
    {2, 1, 33, 33, 9, 32},
    {1, 2, 60, 16, 31, 1000},
    {1, 1, 130, 40, 70, 13},
    {1, 2, 50, 9, 11, 8, {0, 1, 2, 20, 50}},
    {1, 1, 129, 48, 96, 64, {0, 129}},
};

void test_shapes() {
  int at = 0;
  for (const Shape& shape : kShapes)
    for (xlstm_dtype dtype : {XLSTM_FLOAT32, XLSTM_BFLOAT16, XLSTM_FLOAT16, XLSTM_FLOAT64})
      for (int gate = 0; gate < 3; ++gate) {
        Settings set;
        set.dtype = dtype;
        set.gate = gate == 0 ? XLSTM_GATE_EXP : XLSTM_GATE_SIGMOID;
        set.normalize = gate < 2;
        set.states = at % 2;
        set.wide_gates = at % 5 == 0;
        const Runner runner{at % 7 == 0 ? 4 : 1, Layout(at % 3)};
        test_both(random_problem(shape, set, ++at), runner);
      }
}

// Forget gates from nearly 0 to nearly 1, and input gates over e^+-60.
void test_extreme_gates() {
  for (double spread : {20.0, 60.0})
    for (xlstm_gate gate : {XLSTM_GATE_EXP, XLSTM_GATE_SIGMOID})
      for (xlstm_dtype dtype : {XLSTM_FLOAT32, XLSTM_FLOAT64}) {
        Settings set;
        set.dtype = dtype;
        set.gate = gate;
        set.gate_spread = spread;
        test_both(random_problem({1, 3, 100, 12, 20, 32}, set, 7), {});
      }
}

// One head on four threads: segments, which pass the state from one to the next.
void test_segments() {
  for (xlstm_gate gate : {XLSTM_GATE_EXP, XLSTM_GATE_SIGMOID})
    for (bool states : {false, true}) {
      Settings set;
      set.gate = gate;
      set.states = states;
      test_both(random_problem({1, 1, 4096, 8, 12, 32}, set, 8), {4});
      test_both(random_problem({1, 1, 301, 5, 3, 16, {0, 3, 200, 301}}, set, 9), {8});
      set.dtype = XLSTM_FLOAT32;
      test_both(random_problem({1, 1, 1000, 24, 40, 64}, set, 10), {4});
    }
}

// A call for h alone, without l and last states.
void test_optional_outputs() {
  for (int32_t threads : {1, 4}) {
    const Problem p = random_problem({1, 1, 100, 6, 10, 8}, {}, 11);
    ForwardCall call(p, Layout::bhsd);
    call.api.l = call.api.c_last = call.api.n_last = call.api.m_last = nullptr;
    run(xlstm_mlstm_chunkwise_workspace, xlstm_mlstm_chunkwise, call.api, {threads});
    CHECK(distance(call.h.values(), solve(p).h) <= 1e-12);
  }
}

void test_in_place() {
  for (xlstm_dtype dtype : {XLSTM_FLOAT32, XLSTM_FLOAT64})
    for (int64_t length : {1, 9})
      for (int32_t threads : {1, 3}) {
        Settings set;
        set.dtype = dtype;
        const Problem p = random_problem({2, 1, length, 19, 200, 64}, set, 12);
        const Solution expected = recurrent(p, {threads});
        ForwardCall call(p, Layout::bhsd);
        States& states = *call.in.initial;
        call.api.c_last = states.c.data(), call.api.n_last = states.n.data(), call.api.m_last = states.m.data();
        run(xlstm_mlstm_recurrent_workspace, xlstm_mlstm_recurrent, call.api, {threads});
        CHECK(same_bits(call.h.values(), expected.h) && same_bits(states.c.values(), expected.c) &&
                  same_bits(states.n.values(), expected.n) && same_bits(states.m.values(), expected.m),
              "in place: %s", described(p, {threads}).c_str());
      }
}

// A NaN or infinity reaches exactly the tokens that the definition says, inside its chunk and outside.
void test_bad_values() {
  const auto finite = [](const Values& x) {
    std::vector<bool> is(x.size());
    for (size_t e = 0; e < x.size(); ++e) is[e] = std::isfinite(x[e]);
    return is;
  };
  for (xlstm_gate gate : {XLSTM_GATE_EXP, XLSTM_GATE_SIGMOID})
    for (double bad : {double(NAN), double(INFINITY), -double(INFINITY)})
      for (int where = 0; where < 5; ++where)
        for (int64_t token : {0, 5, 8, 39}) {
          Settings set;
          set.gate = gate;
          Problem p = random_problem({1, 1, 40, 4, 6, 8}, set, 13);
          Values* inputs[] = {&p.q, &p.k, &p.v, &p.i, &p.f};
          Values& x = *inputs[where];
          x[token * x.size() / 40] = bad;
          const Solution expected = solve(p);
          for (int32_t threads : {1, 2}) {
            const Solution a = chunkwise(p, {threads}), b = recurrent(p, {threads});
            const auto what = std::string("qkvif").substr(where, 1);
            CHECK(finite(a.h) == finite(expected.h), "chunkwise, %g in %s at %d; %s", bad, what.c_str(), int(token),
                  described(p, {threads}).c_str());
            CHECK(finite(b.h) == finite(expected.h), "recurrent, %g in %s at %d; %s", bad, what.c_str(), int(token),
                  described(p, {threads}).c_str());
            CHECK(finite(a.c) == finite(expected.c) && finite(b.c) == finite(expected.c), "c, %g in %s at %d; %s", bad,
                  what.c_str(), int(token), described(p, {threads}).c_str());
          }
        }
}

void tests() {
  test_shapes();
  test_extreme_gates();
  test_segments();
  test_optional_outputs();
  test_in_place();
  test_bad_values();
}

}  // namespace

int main() { return run_for_each_isa(tests); }

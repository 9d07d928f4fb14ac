// SPDX-License-Identifier: Apache-2.0
// The decode step of the mLSTM, with C in float32 and in bfloat16, against the CPU's: the random bits of a bfloat16 C's
// rounding are the same on both, so nearly all of its elements are.
#include <cmath>

#include "call_bounds.h"
#include "device.h"
#include "mlstm/recurrent/recurrent_call.h"

using namespace xlstm;

namespace {

struct StepCase {
  int64_t batch, heads, dqk, dhv;
  bool in_registers = true;
  int64_t columns = 0;  // asked for
  xlstm_dtype dtype = XLSTM_BFLOAT16;
  xlstm_gate gate = XLSTM_GATE_EXP;
  Layout layout = Layout::bhsd;
};

std::string described(const StepCase& c, xlstm_dtype state) {
  return "B" + std::to_string(c.batch) + " NH" + std::to_string(c.heads) + " " + std::to_string(c.dqk) + "/" +
         std::to_string(c.dhv) + ", q of dtype " + std::to_string(int(c.dtype)) + ", C of " +
         std::to_string(int(state)) + ", columns " + std::to_string(c.columns);
}

// One call, whose C has a dtype of its own.
struct StepCall {
  ForwardCall call;
  Tensor c, c_last;

  StepCall(const Problem& p, Layout layout, xlstm_dtype state, bool in_place)
      : call(p, layout),
        c(state, p.shape.batch, p.shape.heads, p.shape.dqk, p.shape.dhv),
        c_last(state, p.shape.batch, p.shape.heads, p.shape.dqk, p.shape.dhv) {
    c.put(p.c);
    xlstm_mlstm_forward& api = call.api;
    api.in.bfloat16_c = state == XLSTM_BFLOAT16;
    api.in.c_initial = c.data();
    api.c_last = in_place ? c.data() : c_last.data();
    if (!in_place) return;
    api.n_last = call.in.initial->n.data();
    api.m_last = call.in.initial->m.data();
  }
  Solution solution(bool in_place) {
    States& last = in_place ? *call.in.initial : call.last;
    return {call.h.values(), call.l.values(), (in_place ? c : c_last).values(), last.n.values(), last.m.values()};
  }
};

Solution on_cpu(const Problem& p, xlstm_dtype state) {
  StepCall step(p, Layout::bhsd, state, false);
  run(xlstm_mlstm_recurrent_workspace, xlstm_mlstm_recurrent, step.call.api, {});
  return step.solution(false);
}

Solution on_gpu(const Problem& p, const StepCase& c, xlstm_dtype state, bool in_place) {
  StepCall step(p, c.layout, state, in_place);
  step.call.api.in.step_columns = c.columns;
  const gpu::Chip chip{gpu::Family::nvidia, 132, 227 << 10, true};
  const gpu::mlstm::RecurrentPlan plan = gpu::mlstm::plan_recurrent_call(step.call.api, chip);
  CHECK(plan.in_registers == c.in_registers, "%s", described(c, state).c_str());
  Buffer memory(gpu::mlstm::recurrent_workspace(step.call.api));
  gpu::mlstm::recurrent(step.call.api, plan, memory.data(), nullptr);
  return step.solution(in_place);
}

// Elements of C that differ; one that differs by more than a unit of the last place is a failure.
size_t others(const std::string& label, const Values& got, const Values& want) {
  size_t count = 0;
  for (size_t at = 0; at < want.size(); ++at) {
    count += got[at] != want[at];
    CHECK(std::fabs(got[at] - want[at]) <= 0x1p-7 * std::fabs(want[at]) + 1e-7, "%s: C has %g, not %g", label.c_str(),
          got[at], want[at]);
  }
  return count;
}

void test(const StepCase& c, xlstm_dtype state, unsigned seed) {
  Settings set;
  set.dtype = c.dtype;
  set.gate = c.gate;
  set.wide_gates = true;
  Problem p = random_problem({c.batch, c.heads, 1, c.dqk, c.dhv, 64, {}}, set, seed);
  for (double& x : p.c) x = kBfloat16.decode(kBfloat16.encode(x));
  const std::string label = described(c, state);
  try {
    emulator::set_seed(seed);
    const Solution want = on_cpu(p, state), got = on_gpu(p, c, state, false), in_place = on_gpu(p, c, state, true);
    const double step = c.dtype == XLSTM_FLOAT32 ? 1e-5 : c.dtype == XLSTM_BFLOAT16 ? 0x1p-7 : 0x1p-10;
    CHECK(distance(got.h, want.h) <= step, "%s: h differs by %g", label.c_str(), distance(got.h, want.h));
    CHECK(distance(got.n, want.n) <= 1e-6 && distance(got.m, want.m) <= 1e-6 && distance(got.l, want.l) <= 1e-5, "%s",
          label.c_str());
    CHECK(same_bits(got.c, in_place.c) && same_bits(got.n, in_place.n) && same_bits(got.h, in_place.h), "%s, in place",
          label.c_str());
    if (state == XLSTM_FLOAT32) {
      CHECK(distance(got.c, want.c) <= 1e-6, "%s: C differs by %g", label.c_str(), distance(got.c, want.c));
      return;
    }
    CHECK(others(label, got.c, want.c) <= 1 + want.c.size() / 1000, "%s: other C", label.c_str());
    // The last bit of n changes the random bits of its row: such a bug must be found.
    Problem moved = p;
    for (double& n : moved.n) n = std::nextafter(float(n), 1e9f);
    const size_t found = others(label, got.c, on_cpu(moved, state).c);
    CHECK(found >= want.c.size() / 8, "%s: %zu elements of other random bits", label.c_str(), found);
  } catch (const std::exception& fault) {
    CHECK(false, "%s: %s", label.c_str(), fault.what());
  }
}

}  // namespace

int main() {
  const xlstm_gate sigmoid = XLSTM_GATE_SIGMOID;
  const StepCase wide[] = {
      {1, 2, 256, 512, true, 64},
      {2, 3, 64, 128, true, 32, XLSTM_FLOAT32, sigmoid},
      {1, 3, 128, 64, true, 16, XLSTM_FLOAT16},
      {3, 2, 8, 64, true, 64},                                           // fewer parts of a tile than columns
      {1, 2, 40, 72, true, 64},                                          // a last tile that is not full
      {2, 2, 64, 128, false, 0, XLSTM_BFLOAT16, sigmoid, Layout::gaps},  // any shape
      {1, 2, 33, 27, false, 0, XLSTM_FLOAT32},
      {1, 1, 1, 1, false},
  };
  unsigned seed = 0;
  for (StepCase c : wide) {
    test(c, XLSTM_BFLOAT16, ++seed);
    c.columns /= 2;  // as many bytes
    test(c, XLSTM_FLOAT32, ++seed);
  }
  return finish();
}

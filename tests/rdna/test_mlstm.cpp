// SPDX-License-Identifier: Apache-2.0
// Whole calls of the mLSTM on RDNA, every kernel from gates to gradients as the launches have them, against the CPU's
// in float64 (tests/cpp/call_bounds.h has the bounds).
#include "call_bounds.h"
#include "chips.h"
#include "mlstm/chunkwise/chunkwise_call.h"

using namespace xlstm;

namespace {

struct CallCase {
  int64_t heads, length, dqk, dhv;
  xlstm_gate gate = XLSTM_GATE_EXP;
  bool states = true;
  int64_t segments = 0;                  // asked for; 0: the plan's
  std::vector<int64_t> cu_seqlens = {};  // of a packed row that is walked as one sequence
};

void test(const CallCase& c, gpu::Chip chip) {
  const bool joined = !c.cu_seqlens.empty();
  if (joined) chip.compute_units = 1;  // so that blocks for each sequence would take longer
  Settings set;
  set.dtype = XLSTM_BFLOAT16;
  set.wide_gates = true;
  set.gate = c.gate;
  set.states = c.states;
  const Problem p = random_problem({1, c.heads, c.length, c.dqk, c.dhv, 64, c.cu_seqlens}, set, 1),
                exact = in_float64(p);
  std::mt19937_64 engine(1);
  std::vector<Problem> moved(4, exact);
  for (Problem& m : moved)
    for (Values* x : {&m.q, &m.k, &m.v, &m.dh}) move(*x, engine);
  const gpu::mlstm::MlstmShape shape{p.shape.sequences(), c.heads,   c.length, c.dqk, c.dhv, 2, true, 0,
                                     c.segments,          !c.states, joined};
  const std::string what = std::to_string(c.heads) + " heads, " + std::to_string(c.length) + " tokens, " +
                           std::to_string(c.dqk) + "/" + std::to_string(c.dhv);
  Solution truth = chunkwise(exact);
  if (joined) truth.c = truth.n = truth.m = {};
  try {
    ForwardCall forward(p, Layout::bhsd);
    const gpu::mlstm::ForwardPlan plan = gpu::mlstm::plan_forward(shape, chip);
    CHECK(plan.joined == joined, "%s: joined %d", what.c_str(), plan.joined);
    if (joined) {
      forward.api.c_last = forward.api.n_last = forward.api.m_last = nullptr;
      add_empty_sequences(forward);
    }
    run(plan, gpu::mlstm::chunkwise_workspace, gpu::mlstm::chunkwise, forward.api);
    std::vector<std::vector<Part>> around;
    for (const Problem& m : moved) around.push_back(parts(chunkwise(m)));
    compare(what + ", forward", parts(forward.solution()), parts(truth), around);
    BackwardCall call(p, truth, Layout::bhsd);
    if (joined) add_empty_sequences(call);
    run(gpu::mlstm::plan_backward(shape, chip), gpu::mlstm::backward_workspace, gpu::mlstm::backward, call.api);
    around.clear();
    for (const Problem& m : moved) {
      Solution given = truth;
      move(given.h, engine);
      around.push_back(parts(backward(m, given)));
    }
    compare(what + ", backward", parts(call.gradients()), parts(backward(exact, truth)), around);
  } catch (const std::exception& fault) {
    CHECK(false, "%s: %s", what.c_str(), fault.what());
  }
  std::printf("%s: done\n", what.c_str());
}

}  // namespace

int main() {
  const gpu::Chip chip = known_chip(XLSTM_RDNA_CHIP);
  const CallCase cases[] = {
      {2, 100, 64, 64},
      {1, 90, 128, 256},
      {1, 70, 256, 128, XLSTM_GATE_SIGMOID},
      {1, 70, 512, 64, XLSTM_GATE_EXP, false},
      {1, 130, 64, 128, XLSTM_GATE_EXP, true, 3},
      {1, 101, 64, 64, XLSTM_GATE_EXP, false, 0, tokens_around(60, 41)},
      {2, 110, 128, 64, XLSTM_GATE_EXP, false, 0, offsets_of({31, 1, 32, 33, 5, 1, 7})},
      {1, 70, 64, 256, XLSTM_GATE_SIGMOID, false, 0, offsets_of({1, 15, 16, 17, 20, 1})},
  };
  for (const CallCase& c : cases) test(c, chip);
  return finish();
}

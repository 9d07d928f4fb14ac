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
  int64_t segments = 0;  // asked for; 0: the plan's
};

void test(const CallCase& c, const gpu::Chip& chip) {
  Settings set;
  set.dtype = XLSTM_BFLOAT16;
  set.wide_gates = true;
  set.gate = c.gate;
  set.states = c.states;
  const Problem p = random_problem({1, c.heads, c.length, c.dqk, c.dhv, 64}, set, 1), exact = in_float64(p);
  std::mt19937_64 engine(1);
  std::vector<Problem> moved(4, exact);
  for (Problem& m : moved)
    for (Values* x : {&m.q, &m.k, &m.v, &m.dh}) move(*x, engine);
  const gpu::mlstm::MlstmShape shape{1, c.heads, c.length, c.dqk, c.dhv, 2, true, 0, c.segments};
  const std::string what = std::to_string(c.heads) + " heads, " + std::to_string(c.length) + " tokens, " +
                           std::to_string(c.dqk) + "/" + std::to_string(c.dhv);
  const Solution truth = chunkwise(exact);
  try {
    ForwardCall forward(p, Layout::bhsd);
    run(gpu::mlstm::plan_forward(shape, chip), gpu::mlstm::chunkwise_workspace, gpu::mlstm::chunkwise, forward.api);
    std::vector<std::vector<Part>> around;
    for (const Problem& m : moved) around.push_back(parts(chunkwise(m)));
    compare(what + ", forward", parts(forward.solution()), parts(truth), around);
    BackwardCall call(p, truth, Layout::bhsd);
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
  };
  for (const CallCase& c : cases) test(c, chip);
  return finish();
}

// SPDX-License-Identifier: Apache-2.0
// Whole calls of the Hopper schedule, every kernel from gates to gradients as the launches have them, against the CPU's
// in float64.
#include "call_bounds.h"
#include "device.h"
#include "mlstm/chunkwise/chunkwise_call.h"
#include "plants.h"

using namespace xlstm;

namespace {

// usual: as random_problem makes them. wide: from -60 to 60. wholly: a token is forgotten wholly or not at all.
enum class Gates { usual, wide, all_or_nothing };

struct CallCase {
  int64_t batch, heads, length, dqk, dhv;
  xlstm_gate gate = XLSTM_GATE_EXP;
  bool states = true, normalizer_grad = true;
  int units = 132;  // multiprocessors of the chip that is planned for: few leave sequences whole
  Layout layout = Layout::bhsd;
  int64_t segments = 0;  // asked for; 0: the plan's
  Gates gates = Gates::usual;
};

std::string described(const CallCase& c) {
  return "B" + std::to_string(c.batch) + " NH" + std::to_string(c.heads) + " S" + std::to_string(c.length) + " " +
         std::to_string(c.dqk) + "/" + std::to_string(c.dhv) + (c.gate == XLSTM_GATE_EXP ? " exp" : " sigmoid") +
         (c.states ? " states" : "") + (c.normalizer_grad ? "" : " constant normaliser") +
         (c.gates == Gates::usual  ? ""
          : c.gates == Gates::wide ? " wide gates"
                                   : " forgotten wholly");
}

// A large eps keeps the normaliser from zero, where the one token that counts decides all errors.
void set_gates(Problem& p, Gates gates, unsigned seed) {
  if (gates == Gates::usual) return;
  p.eps = 0.5;
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> anywhere(-1, 1);
  if (gates == Gates::wide)
    for (Values* x : {&p.i, &p.f})
      for (double& value : *x) value = float(60 * anywhere(engine));
  if (gates == Gates::all_or_nothing)
    for (double& value : p.f) value = anywhere(engine) > 0.5 ? -60 : 60;
}

void test(const CallCase& c, unsigned seed) {
  Settings set;
  set.dtype = XLSTM_BFLOAT16;
  set.wide_gates = true;
  set.gate = c.gate;
  set.states = c.states;
  Problem p = random_problem({c.batch, c.heads, c.length, c.dqk, c.dhv, 64}, set, seed);
  p.normalizer_grad = c.normalizer_grad;
  set_gates(p, c.gates, seed);
  const Problem exact = in_float64(p);
  std::mt19937_64 engine(seed);
  std::vector<Problem> moved(4, exact);
  for (Problem& m : moved)
    for (Values* x : {&m.q, &m.k, &m.v, &m.dh}) move(*x, engine);

  const gpu::Chip chip{gpu::Family::nvidia, c.units, 227 << 10, true};
  const gpu::mlstm::MlstmShape shape{c.batch, c.heads, c.length, c.dqk, c.dhv, false, 2, true, 0, c.segments};
  const std::string label = described(c) + ", seed " + std::to_string(seed);
  const Solution truth = chunkwise(exact);
  try {
    emulator::set_seed(1000 * seed);
    ForwardCall forward(p, c.layout);
    const gpu::mlstm::ForwardPlan plan = gpu::mlstm::plan_forward(shape, chip);
    CHECK(plan.walk.schedule == gpu::mlstm::Schedule::hopper, "%s", label.c_str());
    run(plan, gpu::mlstm::chunkwise_workspace, gpu::mlstm::chunkwise, forward.api);
    std::vector<std::vector<Part>> around;
    for (const Problem& m : moved) around.push_back(parts(chunkwise(m)));
    compare(label + ", forward, segments " + std::to_string(plan.walk.segments), parts(forward.solution()),
            parts(truth), around);
  } catch (const std::exception& fault) {
    CHECK(false, "%s, forward: %s", label.c_str(), fault.what());
  }
  try {
    emulator::set_seed(1000 * seed);
    BackwardCall call(p, truth, c.layout);
    const gpu::mlstm::BackwardPlan plan = gpu::mlstm::plan_backward(shape, chip);
    run(plan, gpu::mlstm::backward_workspace, gpu::mlstm::backward, call.api);
    std::vector<std::vector<Part>> around;
    for (const Problem& m : moved) {
      Solution moved = truth;
      move(moved.h, engine);
      around.push_back(parts(backward(m, moved)));
    }
    compare(label + ", backward, segments " + std::to_string(plan.dq.segments), parts(call.gradients()),
            parts(backward(exact, truth)), around);
  } catch (const std::exception& fault) {
    CHECK(false, "%s, backward: %s", label.c_str(), fault.what());
  }
  std::printf("%s: done\n", label.c_str());
}

// Bugs in the scores, which walks have none like: each must be found.
void test_planted(const char* name, emulator::Bug bug, bool backwards) {
  Settings set;
  set.dtype = XLSTM_BFLOAT16;
  const int dqk = backwards ? 256 : 512;  // forward's of fewer are made by the walk
  const Problem p = random_problem({1, 1, 200, dqk, 128, 64}, set);
  const gpu::Chip chip{gpu::Family::nvidia, 132, 227 << 10, true};
  const gpu::mlstm::MlstmShape shape{1, 1, 200, dqk, 128, false, 2, true};
  std::string report;
  emulator::plant(bug);
  try {
    if (backwards) {
      BackwardCall call(p, chunkwise(in_float64(p)), Layout::bhsd);
      run(gpu::mlstm::plan_backward(shape, chip), gpu::mlstm::backward_workspace, gpu::mlstm::backward, call.api);
    } else {
      ForwardCall call(p, Layout::bhsd);
      run(gpu::mlstm::plan_forward(shape, chip), gpu::mlstm::chunkwise_workspace, gpu::mlstm::chunkwise, call.api);
    }
  } catch (const std::exception& fault) {
    report = fault.what();
  }
  emulator::plant(emulator::Bug::none);
  CHECK(report.find("scores_hopper.h") != std::string::npos, "%s: %s", name,
        report.empty() ? "not found" : report.c_str());
  std::printf("%s: %s\n", name, report.c_str());
}

}  // namespace

int main(int count, char** arguments) {
  const xlstm_gate sigmoid = XLSTM_GATE_SIGMOID;
  const CallCase cases[] = {
      {1, 2, 200, 128, 256},
      {1, 1, 200, 128, 256, XLSTM_GATE_EXP, true, true, 132, Layout::bhsd, 4},  // a chunk each
      {1, 1, 200, 256, 512, XLSTM_GATE_EXP, true, true, 132, Layout::bhsd, 2},
      {2, 1, 130, 256, 128, sigmoid, true, true, 132, Layout::bshd},
      {1, 1, 150, 256, 512},
      {1, 1, 130, 512, 512, XLSTM_GATE_EXP, false},
      {1, 1, 1030, 128, 128, XLSTM_GATE_EXP, true, false},
      {1, 1, 200, 256, 256, XLSTM_GATE_EXP, true, true, 132, Layout::bhsd, 0, Gates::wide},
      {1, 2, 200, 128, 128, XLSTM_GATE_EXP, true, true, 132, Layout::bhsd, 2, Gates::all_or_nothing},
      {1, 1, 200, 128, 256, sigmoid, true, true, 132, Layout::bhsd, 0, Gates::wide},
  };
  const int seeds = count > 1 ? std::atoi(arguments[1]) : 2;
  for (int seed = 1; seed <= seeds; ++seed)
    for (const CallCase& c : cases) test(c, unsigned(seed));
  for (const bool backwards : {false, true}) {
    test_planted("scores that do not wait for copies", emulator::Bug::barrier_wait, backwards);
    test_planted("scores without a barrier of the block", emulator::Bug::block_barrier, backwards);
    test_planted("scores without a barrier of the warp", emulator::Bug::warp_barrier, backwards);
    test_planted("scores that do not wait for products", emulator::Bug::wgmma_wait, backwards);
  }
  return finish();
}

// SPDX-License-Identifier: Apache-2.0
// Whole calls of the Hopper schedule, every kernel from gates to gradients as the launches have them, against the CPU's
// in float64.
//
// What rounding operands to bfloat16 can do is measured: the truth is computed again with every q, k, v and dh moved at
// random by up to half a step of bfloat16, four times. The kernels round scores, weighted rows and the state as well,
// one after the other: a result may be three times as far from the truth as the farthest of those, by norm and by
// largest difference, and half a step of its own more.
#include <cstdlib>

#include "device.h"
#include "mlstm/chunkwise/chunkwise_call.h"
#include "mlstm_call.h"
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

// How a result is made. narrow, wide: of products, and leaves in bfloat16 or float. sums: along the sequence, of what
// the walks of dq and dk leave, whose roundings do not cancel and are every later token's as well: twice that. exact:
// in float and double alone.
enum class Made { narrow, wide, sums, exact };

struct Part {
  const char* name;
  Values values;
  Made made;
};

std::vector<Part> parts(const Solution& s) {
  return {{"h", s.h, Made::narrow},
          {"l", s.l, Made::exact},
          {"c_last", s.c, Made::wide},
          {"n_last", s.n, Made::exact},
          {"m_last", s.m, Made::exact}};
}
std::vector<Part> parts(const Gradients& g) {
  return {{"dq", g.q, Made::narrow},       {"dk", g.k, Made::narrow},      {"dv", g.v, Made::narrow},
          {"di", g.i, Made::wide},         {"df", g.f, Made::sums},        {"dc_initial", g.c, Made::wide},
          {"dn_initial", g.n, Made::wide}, {"dm_initial", g.m, Made::wide}};
}

struct Size {
  double norm = 0, largest = 0;
};
// What is smaller is nothing: the sums behind df vanish where a gate forgets wholly, the roundings of their terms do
// not.
constexpr double kLeast = 1e-20;
Size difference(const Values& x, const Values& y) {
  Size size;
  for (size_t i = 0; i < y.size(); ++i) {
    const double error = x.size() == y.size() ? std::fabs(x[i] - y[i]) : NAN;
    size.norm += error * error;
    size.largest = std::isnan(error) ? NAN : std::max(size.largest, error);
  }
  size.norm = std::sqrt(size.norm);
  return size;
}

void compare(const std::string& label, const std::vector<Part>& got, const std::vector<Part>& truth,
             const std::vector<std::vector<Part>>& moved) {
  for (size_t part = 0; part < got.size(); ++part) {
    const Values& expected = truth[part].values;
    if (expected.empty()) continue;
    const Size error = difference(got[part].values, expected), size = difference(expected, Values(expected.size()));
    const Made made = truth[part].made;
    const double step = made == Made::narrow ? 0x1p-9 : 0x1p-17;
    Size may{std::max(kLeast, step * size.norm), std::max(kLeast, 2 * step * size.largest)};
    for (const auto& each : moved) {
      if (made == Made::exact) break;
      const Size distance = difference(each[part].values, expected);
      const double by = made == Made::sums ? 6 : 3;
      may.norm = std::max(may.norm, step * size.norm + by * distance.norm);
      may.largest = std::max(may.largest, 2 * step * size.largest + by * distance.largest);
    }
    CHECK(error.norm <= may.norm && error.largest <= may.largest,
          "%s, %s: norm of the error %.2e, may be %.2e; largest %.2e, may be %.2e", label.c_str(), truth[part].name,
          error.norm, may.norm, error.largest, may.largest);
    if (std::getenv("HOPPER_FIGURES"))
      std::printf("  %-10s norm %.2f largest %.2f of what may be\n", truth[part].name, error.norm / may.norm,
                  error.largest / may.largest);
  }
}

// The problem as it is, in float64; and with what products read moved by up to half a step of bfloat16.
Problem in_float64(Problem p) {
  p.dtype = p.gate_dtype = XLSTM_FLOAT64;
  return p;
}
void move(Values& x, std::mt19937_64& engine) {
  std::uniform_real_distribution<double> by(-0x1p-9, 0x1p-9);
  for (double& value : x) value *= 1 + by(engine);
}

// On the emulator, by a plan for a chip of so many multiprocessors.
template <class Plan, class Call>
void run(const Plan& plan, size_t (&workspace)(const Call&, const Plan&),
         void (&call)(const Call&, const Plan&, void*, void*), const Call& arguments) {
  Buffer memory(workspace(arguments, plan));
  call(arguments, plan, memory.data(), nullptr);
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

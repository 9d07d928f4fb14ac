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
  std::vector<int64_t> cu_seqlens = {};
  bool joined = false;  // whether the plan must walk the packed row as one sequence
};

std::string described(const CallCase& c) {
  return "B" + std::to_string(c.batch) + " NH" + std::to_string(c.heads) + " S" + std::to_string(c.length) + " " +
         std::to_string(c.dqk) + "/" + std::to_string(c.dhv) + (c.gate == XLSTM_GATE_EXP ? " exp" : " sigmoid") +
         (c.cu_seqlens.empty() ? "" : " packed " + std::to_string(c.cu_seqlens.size() - 1)) +
         (c.joined ? " joined" : "") + (c.states ? " states" : "") + (c.normalizer_grad ? "" : " constant normaliser") +
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
  Problem p = random_problem({c.batch, c.heads, c.length, c.dqk, c.dhv, 64, c.cu_seqlens}, set, seed);
  p.normalizer_grad = c.normalizer_grad;
  set_gates(p, c.gates, seed);
  const Problem exact = in_float64(p);
  std::mt19937_64 engine(seed);
  std::vector<Problem> moved(4, exact);
  for (Problem& m : moved)
    for (Values* x : {&m.q, &m.k, &m.v, &m.dh}) move(*x, engine);

  const gpu::Chip chip{gpu::Family::nvidia, c.units, 227 << 10, true};
  const gpu::mlstm::MlstmShape shape{
      p.shape.sequences(), c.heads, c.length, c.dqk, c.dhv, 2, true, 0, c.segments, !c.states, !c.cu_seqlens.empty()};
  const std::string label = described(c) + ", seed " + std::to_string(seed);
  Solution truth = chunkwise(exact);
  if (c.joined) truth.c = truth.n = truth.m = {};
  try {
    emulator::set_seed(1000 * seed);
    ForwardCall forward(p, c.layout);
    if (c.joined) forward.api.c_last = forward.api.n_last = forward.api.m_last = nullptr;
    if (c.joined) add_empty_sequences(forward);
    const gpu::mlstm::ForwardPlan plan = gpu::mlstm::plan_forward(shape, chip);
    CHECK(plan.walk.schedule == gpu::mlstm::Schedule::hopper, "%s", label.c_str());
    CHECK(plan.joined == c.joined, "%s: joined %d", label.c_str(), plan.joined);
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
    if (c.joined) add_empty_sequences(call);
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

// Of packed sequences, one that is all NaN: the bits of the others are what they are beside numbers.
struct NanCase {
  std::vector<int64_t> cu_seqlens;
  int sequence;  // that is NaN
  bool joined;
  int64_t begin, end;  // of the tokens whose results may be NaN
};

void test_nan_stays(int64_t dqk, int64_t dhv, const NanCase& c) {
  Settings set;
  set.dtype = XLSTM_BFLOAT16;
  set.states = !c.joined;
  const int64_t length = c.cu_seqlens.back(), sequences = int64_t(c.cu_seqlens.size()) - 1;
  const Problem numbers = random_problem({1, 1, length, dqk, dhv, 64, c.cu_seqlens}, set);
  Problem with_nan = numbers;
  const auto spoil = [&](Values& x, int64_t columns) {
    std::fill(x.begin() + c.cu_seqlens[c.sequence] * columns, x.begin() + c.cu_seqlens[c.sequence + 1] * columns, NAN);
  };
  spoil(with_nan.q, dqk), spoil(with_nan.k, dqk), spoil(with_nan.v, dhv), spoil(with_nan.dh, dhv);
  const gpu::Chip chip{gpu::Family::nvidia, c.joined ? 1 : 132, 227 << 10, true};
  const gpu::mlstm::MlstmShape shape{sequences, 1, length, dqk, dhv, 2, true, 0, 0, c.joined, true};
  const auto results = [&](const Problem& p) {
    ForwardCall forward(p, Layout::bhsd);
    const gpu::mlstm::ForwardPlan plan = gpu::mlstm::plan_forward(shape, chip);
    CHECK(plan.joined == c.joined, "NaN: joined %d", plan.joined);
    if (c.joined) forward.api.c_last = forward.api.n_last = forward.api.m_last = nullptr;
    run(plan, gpu::mlstm::chunkwise_workspace, gpu::mlstm::chunkwise, forward.api);
    BackwardCall backward(p, chunkwise(in_float64(p)), Layout::bhsd);
    run(gpu::mlstm::plan_backward(shape, chip), gpu::mlstm::backward_workspace, gpu::mlstm::backward, backward.api);
    std::vector<Part> all = parts(forward.solution());
    if (c.joined) all.resize(2);  // h, l
    for (const Part& part : parts(backward.gradients()))
      if (!part.values.empty()) all.push_back(part);
    return all;
  };
  const std::vector<Part> want = results(numbers), got = results(with_nan);
  for (size_t n = 0; n < want.size(); ++n) {
    // Of a state one sequence's, of tokens those that may be.
    const auto& values = want[n].values;
    const bool of_tokens = n < 2 || (c.joined ? true : n >= 5 && n < 10);
    const int64_t count = of_tokens ? length : sequences, each = int64_t(values.size()) / count;
    const int64_t begin = (of_tokens ? c.begin : c.sequence) * each, end = (of_tokens ? c.end : c.sequence + 1) * each;
    int64_t others = 0;
    for (int64_t at = 0; at < int64_t(values.size()); ++at)
      if ((at < begin || at >= end) && !(got[n].values[at] == values[at])) ++others;
    CHECK(others == 0, "%s: %d numbers of other sequences changed", want[n].name, int(others));
  }
}

// Bugs in the scores, which walks have none like: each must be found.
void test_planted(const char* name, emulator::Bug bug, bool backwards) {
  Settings set;
  set.dtype = XLSTM_BFLOAT16;
  const int dqk = backwards ? 256 : 512;  // forward's of fewer are made by the walk
  const Problem p = random_problem({1, 1, 200, dqk, 128, 64}, set);
  const gpu::Chip chip{gpu::Family::nvidia, 132, 227 << 10, true};
  const gpu::mlstm::MlstmShape shape{1, 1, 200, dqk, 128, 2, true};
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
      // head dims that fill their panels and tiles in part
      {1, 2, 200, 96, 192, XLSTM_GATE_EXP, true, true, 132, Layout::bhsd, 2},
      {1, 2, 150, 200, 72, sigmoid, true, true, 132, Layout::bshd},
      {1, 1, 330, 72, 96, XLSTM_GATE_EXP, false, true, 132, Layout::bhsd, 0, Gates::usual, {0, 37, 101, 102, 330}},
      {1, 2, 202, 96, 192, XLSTM_GATE_EXP, false, true, 2, Layout::bhsd, 0, Gates::usual,
       offsets_of({3, 1, 60, 64, 65, 5, 1, 1, 2}), true},
      {1, 2, 200, 64, 128, XLSTM_GATE_EXP, true, true, 132, Layout::bhsd, 2},
      {1, 1, 150, 64, 64, sigmoid, true, true, 132, Layout::bshd},
      {1, 2, 202, 8, 40, XLSTM_GATE_EXP, false, true, 2, Layout::bhsd, 0, Gates::usual,
       offsets_of({3, 1, 60, 64, 65, 5, 1, 1, 2}), true},
      {1, 1, 330, 32, 48, XLSTM_GATE_EXP, false, true, 132, Layout::bhsd, 0, Gates::usual, {0, 37, 101, 102, 330}},
      // packed: sequences that end within a chunk, at its end, and of one token
      {1, 2, 200, 128, 128, XLSTM_GATE_EXP, true, true, 132, Layout::bhsd, 0, Gates::usual, {0, 37, 101, 102, 200}},
      {1, 1, 330, 256, 256, XLSTM_GATE_EXP, true, true, 132, Layout::bshd, 0, Gates::usual, {0, 329, 330}},
      {1, 1, 200, 256, 512, sigmoid, true, true, 132, Layout::bhsd, 2, Gates::usual, {0, 150, 200}},
      {1, 1, 130, 512, 512, XLSTM_GATE_EXP, false, true, 132, Layout::bhsd, 0, Gates::usual, {0, 66, 130}},
      // joined: sequences of one token, a chunk's, one more; borders at a chunk's ends, several in a chunk
      {1, 1, 200, 256, 128, XLSTM_GATE_EXP, false, true, 1, Layout::bhsd, 0, Gates::usual, tokens_around(69, 131),
       true},
      {1, 2, 202, 128, 256, XLSTM_GATE_EXP, false, true, 2, Layout::bshd, 0, Gates::usual,
       offsets_of({3, 1, 60, 64, 65, 5, 1, 1, 2}), true},
      {1, 1, 200, 512, 256, XLSTM_GATE_EXP, false, true, 1, Layout::bhsd, 0, Gates::usual,
       offsets_of({63, 1, 70, 13, 30, 23}), true},
      {1, 1, 192, 256, 512, sigmoid, false, true, 1, Layout::bhsd, 0, Gates::usual, offsets_of({64, 10, 20, 34, 63, 1}),
       true},
      {1, 1, 200, 256, 256, XLSTM_GATE_EXP, false, true, 1, Layout::bhsd, 0, Gates::wide,
       offsets_of({40, 1, 1, 1, 57, 7, 93}), true},
      {1, 1, 200, 128, 128, XLSTM_GATE_EXP, false, true, 1, Layout::bhsd, 0, Gates::all_or_nothing,
       offsets_of({40, 1, 1, 1, 57, 7, 93}), true},
      {1, 1, 1060, 128, 128, XLSTM_GATE_EXP, false, true, 60, Layout::bhsd, 0, Gates::usual, tokens_around(530, 530),
       true},
  };
  const int seeds = count > 1 ? std::atoi(arguments[1]) : 2;
  for (int seed = 1; seed <= seeds; ++seed)
    for (const CallCase& c : cases) test(c, unsigned(seed));
  for (const int64_t dqk : {256, 512}) {
    test_nan_stays(dqk, 128, {{0, 70, 150, 151, 200}, 1, false, 70, 150});
    // Of a joined row, the sequences beside it may be NaN, and the chunks in which these begin and end.
    test_nan_stays(dqk, 128, {{0, 130, 230, 320, 420, 550}, 2, true, 128, 448});
  }
  for (const bool backwards : {false, true}) {
    test_planted("scores that do not wait for copies", emulator::Bug::barrier_wait, backwards);
    test_planted("scores without a barrier of the block", emulator::Bug::block_barrier, backwards);
    test_planted("scores without a barrier of the warp", emulator::Bug::warp_barrier, backwards);
    test_planted("scores that do not wait for products", emulator::Bug::wgmma_wait, backwards);
  }
  return finish();
}

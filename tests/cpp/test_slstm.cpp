// SPDX-License-Identifier: Apache-2.0
// The recurrent cells by the C API, without Python, on every instruction set: a token that has no past, where h is
// known, bad arguments, and the plans of known GPUs.
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "chips.h"
#include "each_isa.h"
#include "slstm/gpu/plan.h"

namespace {

constexpr int64_t kBatch = 3, kHeads = 2, kUnits = 37;
constexpr int64_t kStates = kBatch * kHeads * kUnits;

struct Problem {
  std::vector<float> x, recurrent, h, gates, memory, dh, dx, c, n, m;
  xlstm_slstm_forward forward{};
  xlstm_slstm_backward backward{};

  Problem()
      : x(4 * kStates),
        h(kStates),
        gates(3 * kStates),
        memory(3 * kStates),
        dh(kStates, 1),
        dx(4 * kStates),
        c(kStates),
        n(kStates),
        m(kStates) {
    const int64_t padded = xlstm_slstm_padded(kUnits);
    CHECK(padded == 64);
    recurrent.resize(kHeads * 4 * padded * padded);
    for (size_t j = 0; j < x.size(); ++j) x[j] = float(std::sin(double(j) * 0.7) * 3);
    xlstm_slstm& in = forward.in;
    in.batch = kBatch, in.heads = kHeads, in.length = 1, in.units = kUnits;
    in.dtype = XLSTM_FLOAT32;
    in.recurrent = recurrent.data();
    forward.x = x.data();
    const int64_t strides[] = {4 * kHeads * kUnits, 4 * kHeads * kUnits, kHeads * kUnits, kUnits};
    std::memcpy(forward.x_stride, strides, sizeof strides);
    forward.h = h.data();
    forward.gates = gates.data();
    forward.memory = memory.data();
    backward.in = in;
    backward.gates = gates.data();
    backward.memory = memory.data();
    backward.dh = dh.data();
    backward.dx = dx.data();
  }
};

template <class Params>
xlstm_status run(xlstm_status (*call)(const Params*, const xlstm_runtime*), size_t (*workspace)(const Params*, int32_t),
                 const Params& p) {
  std::vector<char> memory(workspace(&p, 2) + 1);
  xlstm_runtime runtime{};
  runtime.threads = 2;
  runtime.workspace = memory.data();
  runtime.workspace_bytes = memory.size();
  return call(&p, &runtime);
}
xlstm_status run(const xlstm_slstm_forward& p) {
  return run(xlstm_slstm_forward_pass, xlstm_slstm_forward_workspace, p);
}
xlstm_status run(const xlstm_slstm_backward& p) {
  return run(xlstm_slstm_backward_pass, xlstm_slstm_backward_workspace, p);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Without a past h is sigmoid(o) tanh(z): i and f cancel, and so have no gradient.
void test_first_token() {
  Problem p;
  CHECK(run(p.forward) == XLSTM_OK && run(p.backward) == XLSTM_OK, "%s", xlstm_last_error());
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t j = 0; j < kHeads * kUnits; ++j) {
      const float* x = p.x.data() + b * 4 * kHeads * kUnits + j;
      const float* dx = p.dx.data() + b * 4 * kHeads * kUnits + j;
      const double z = std::tanh(x[2 * kHeads * kUnits]), o = sigmoid(x[3 * kHeads * kUnits]);
      CHECK(relative_error(p.h[b * kHeads * kUnits + j], o * z) < 1e-6, "h %g", p.h[b * kHeads * kUnits + j]);
      CHECK(std::fabs(dx[0]) < 1e-6 && dx[kHeads * kUnits] == 0, "di %g, df %g", dx[0], dx[kHeads * kUnits]);
      CHECK(std::fabs(dx[2 * kHeads * kUnits] - o * (1 - z * z)) < 1e-6);
      CHECK(std::fabs(dx[3 * kHeads * kUnits] - z * o * (1 - o)) < 1e-6);
    }
}

template <class Params>
void is_refused(const char* name, Params p, const std::function<void(Params&)>& spoil) {
  spoil(p);
  CHECK(run(p) == XLSTM_INVALID_ARGUMENT && std::string(xlstm_last_error()).rfind(name, 0) == 0, "%s: %s", name,
        xlstm_last_error());
}

void test_bad_arguments() {
  Problem p;
  using Forward = xlstm_slstm_forward;
  using Backward = xlstm_slstm_backward;
  const int64_t flat[] = {0, 1, 1};
  is_refused<Forward>("batch", p.forward, [](Forward& f) { f.in.batch = 0; });
  is_refused<Forward>("units", p.forward, [](Forward& f) { f.in.units = 0; });
  is_refused<Forward>("cell", p.forward, [](Forward& f) { f.in.cell = xlstm_cell(3); });
  is_refused<Forward>("dtype", p.forward, [](Forward& f) { f.in.dtype = xlstm_dtype(9); });
  is_refused<Forward>("recurrent", p.forward, [](Forward& f) { f.in.recurrent = nullptr; });
  is_refused<Forward>("x", p.forward, [](Forward& f) { f.x = nullptr; });
  is_refused<Forward>("gates, memory", p.forward, [](Forward& f) { f.memory = nullptr; });
  is_refused<Forward>("h_initial", p.forward, [&](Forward& f) { f.in.h_initial = p.h.data(); });
  is_refused<Forward>("h_last", p.forward, [&](Forward& f) { f.c_last = p.c.data(); });
  is_refused<Forward>("m", p.forward, [&](Forward& f) { f.in.cell = XLSTM_CELL_LSTM, f.m = p.m.data(); });
  is_refused<Forward>("cu_seqlens", p.forward, [&](Forward& f) { f.in.cu_seqlens = flat, f.in.sequences = 2; });
  is_refused<Backward>("dh", p.backward, [](Backward& b) { b.dh = nullptr; });
  is_refused<Backward>("c_initial, n_initial", p.backward, [&](Backward& b) { b.in.c_initial = p.c.data(); });
  is_refused<Backward>("dn, dm", p.backward, [&](Backward& b) { b.in.cell = XLSTM_CELL_LSTM, b.dn = p.n.data(); });
}

void test_gpu_plans() {
  using namespace xlstm::gpu;
  for (const auto& [name, chip] : known_chips())
    for (int64_t units = 1; units <= slstm::kMaxGpuUnits; ++units)
      for (int element_bytes : {2, 4})
        for (bool backward : {false, true})
          for (int64_t longest : {1, 1000}) {
            const slstm::CellPlan p = slstm::plan_cell(5, 3, longest, units, element_bytes, backward, chip);
            CHECK(p.rows >= 1 && p.lds_bytes <= chip.lds_bytes && p.threads >= wave_size(chip.family) &&
                      p.threads <= 1024 && p.blocks == 3 * ((5 + p.rows - 1) / p.rows),
                  "%s: %d units", name, int(units));
            CHECK((p.resident == 0) == (p.carried > 0) && (p.resident == 0 || (longest > 1 && element_bytes == 2)),
                  "%s: %d units", name, int(units));
          }
  CHECK(slstm::plan_cell(16, 6, 1024, 128, 2, false, known_chip("MI300X")).resident == 128);
}

void tests() {
  test_first_token();
  test_bad_arguments();
}

}  // namespace

int main() {
  test_gpu_plans();
  return run_for_each_isa(tests);
}

// SPDX-License-Identifier: Apache-2.0
// The C API on one page: 1000 tokens in chunks, then the same tokens one by one, and how far the two results differ.
//   cmake -S . -B build/cpp -DGPU=OFF -DXLSTM_HIP_PYTHON=OFF && cmake --build build/cpp
//   c++ -std=c++17 -I csrc/api examples/cpp/example_mlstm.cpp -L build/cpp -lxlstm_hip -pthread
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "xlstm_hip.h"

constexpr int64_t B = 1, NH = 4, S = 1000, DHQK = 64, DHHV = 128;
constexpr int32_t kThreads = 0;  // as many as the machine has

std::vector<float> random_values(int64_t size, float mean) {
  static std::mt19937 engine;
  std::normal_distribution<float> normal(mean, 1);
  std::vector<float> values(size);
  for (float& x : values) x = normal(engine);
  return values;
}

xlstm_tensor tensor(std::vector<float>& x, int64_t d) {  // (B, NH, S, d), contiguous; gates have d = 1
  return {x.data(), XLSTM_FLOAT32, {NH * S * d, S * d, d}};
}

// The library allocates nothing: ask how much workspace a call takes, bring it (or a function that allocates it).
template <class Query, class Call>
void run(Query workspace_size, Call call, const xlstm_mlstm_forward& p) {
  std::vector<char> workspace(workspace_size(&p, kThreads));
  const xlstm_runtime runtime{workspace.data(), workspace.size(), kThreads, nullptr, nullptr, nullptr};
  if (call(&p, &runtime) == XLSTM_OK) return;
  std::fprintf(stderr, "xlstm_hip: %s\n", xlstm_last_error());
  std::exit(1);
}

int main() {
  auto q = random_values(B * NH * S * DHQK, 0), k = random_values(B * NH * S * DHQK, 0);
  auto v = random_values(B * NH * S * DHHV, 0), i = random_values(B * NH * S, 0), f = random_values(B * NH * S, 3);
  std::vector<float> h(v.size()), h_recurrent(v.size());
  std::vector<float> c_last(B * NH * DHQK * DHHV), n_last(B * NH * DHQK), m_last(B * NH);

  xlstm_mlstm_forward p{};  // zero states, no packed sequences
  p.in.batch = B, p.in.heads = NH, p.in.length = S, p.in.dqk = DHQK, p.in.dhv = DHHV;
  p.in.gate = XLSTM_GATE_EXP, p.in.normalize = 1, p.in.eps = 1e-6, p.in.chunk_size = 64;
  p.in.q = tensor(q, DHQK), p.in.k = tensor(k, DHQK), p.in.v = tensor(v, DHHV);
  p.in.i = tensor(i, 1), p.in.f = tensor(f, 1), p.h = tensor(h, DHHV);
  run(xlstm_mlstm_chunkwise_workspace, xlstm_mlstm_chunkwise, p);

  p.h = tensor(h_recurrent, DHHV);
  p.c_last = c_last.data(), p.n_last = n_last.data(), p.m_last = m_last.data();
  run(xlstm_mlstm_recurrent_workspace, xlstm_mlstm_recurrent, p);

  float largest = 0;
  for (size_t e = 0; e < h.size(); ++e) largest = std::max(largest, std::fabs(h[e] - h_recurrent[e]));
  std::printf("%s: chunkwise and recurrent differ by at most %g\n", xlstm_cpu_isa(), largest);
  return largest < 1e-2f ? 0 : 1;
}

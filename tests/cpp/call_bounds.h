// SPDX-License-Identifier: Apache-2.0
// What rounding the operands of products can do to a call of the mLSTM: the truth is computed again with every q, k, v
// and dh moved at random by up to half a step of bfloat16, a few times. The kernels round scores, weighted rows and the
// state as well, one after the other: a result may be three times as far from the truth as the farthest of those, by
// norm and by largest difference, and half a step of its own more.
#pragma once

#include <cstdlib>

#include "mlstm_call.h"

// How a result is made. narrow, wide: of products, and leaves in bfloat16 or float. sums: along the sequence, of what
// the walks of dq and dk leave, whose roundings do not cancel and are every later token's as well: twice that. exact:
// in float and double alone.
enum class Made { narrow, wide, sums, exact };

struct Part {
  const char* name;
  Values values;
  Made made;
};

inline std::vector<Part> parts(const Solution& s) {
  return {{"h", s.h, Made::narrow},
          {"l", s.l, Made::exact},
          {"c_last", s.c, Made::wide},
          {"n_last", s.n, Made::exact},
          {"m_last", s.m, Made::exact}};
}
inline std::vector<Part> parts(const Gradients& g) {
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
inline Size difference(const Values& x, const Values& y) {
  Size size;
  for (size_t i = 0; i < y.size(); ++i) {
    const double error = x.size() == y.size() ? std::fabs(x[i] - y[i]) : NAN;
    size.norm += error * error;
    size.largest = std::isnan(error) ? NAN : std::max(size.largest, error);
  }
  size.norm = std::sqrt(size.norm);
  return size;
}

inline void compare(const std::string& label, const std::vector<Part>& got, const std::vector<Part>& truth,
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
inline Problem in_float64(Problem p) {
  p.dtype = p.gate_dtype = XLSTM_FLOAT64;
  return p;
}
inline void move(Values& x, std::mt19937_64& engine) {
  std::uniform_real_distribution<double> by(-0x1p-9, 0x1p-9);
  for (double& value : x) value *= 1 + by(engine);
}

// ---- packed rows without states, which a GPU may walk as one sequence

// The cu_seqlens of sequences of these lengths.
inline std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}
// Sequences of one token each, and a long one in the midst of them.
inline std::vector<int64_t> tokens_around(int64_t singles, int64_t longest) {
  std::vector<int64_t> lengths(size_t(singles) + 1, 1);
  lengths[lengths.size() / 2] = longest;
  return offsets_of(lengths);
}
// Sequences of no token besides, which only the device may find: at the row's begin, in its midst and at its end.
template <class Call>
void add_empty_sequences(Call& call) {
  std::vector<int64_t>& offsets = call.in.cu_seqlens;
  for (const size_t at : {size_t(0), offsets.size() / 2, offsets.size() - 1})
    offsets.insert(offsets.begin() + int64_t(at), offsets[at]);
  call.in.api.cu_seqlens = offsets.data(), call.in.api.sequences = int64_t(offsets.size()) - 1;
  call.api.in = call.in.api;
}

// On an emulator, by a plan for a chip.
template <class Plan, class Call>
void run(const Plan& plan, size_t (&workspace)(const Call&, const Plan&),
         void (&call)(const Call&, const Plan&, void*, void*), const Call& arguments) {
  Buffer memory(workspace(arguments, plan));
  call(arguments, plan, memory.data(), nullptr);
}

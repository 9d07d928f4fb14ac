// SPDX-License-Identifier: Apache-2.0
// Products of weights with few rows, as a model's step on NVIDIA makes them: every format, rings in LDS and registers,
// units that blocks take in turn, tails of columns and rows (csrc/engine/gemm_mma/gemm_mma.h); parts that begin and end
// within tiles (gemm_stream_k.h there); by clusters, items in rounds, gates beside weights of fewer bits
// (csrc/engine/gemm_cluster/gemm_cluster.h); against double.
//
// x's are the sum of two bfloat16, which leaves up to 2^-17 of each, of either sign: eight times what that makes of a
// sum of as many by chance may be off, and of sums in float 2^-21 of all products' sizes.
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "check.h"
#include "device.h"
#include "engine/gemm_cluster/gemm_cluster_launch.h"
#include "engine/gemm_mma/gemm_mma_launch.h"
#include "engine/gemm_mma/gemm_stream_k_launch.h"
#include "engine/gemm_mma/gemm_stream_k_shape.h"
#include "engine/gpu/weight_formats.h"
#include "fault.h"
#include "numbers.h"
#include "plants.h"
#include "weights.h"

using namespace xlstm;
using namespace xlstm::gpu;
using namespace xlstm::gpu::engine;

namespace {

constexpr double kOff = 0x1p-14, kOffOfSums = 0x1p-21;

struct Case {
  Format format;
  int batch, columns;
  std::vector<int> rows;  // of each piece
  Output output = Output::store;
  Input input = Input::plain;
  bool offsets = false;
  int group = 64, units = 2;  // features of a group of quantised weights; multiprocessors
  std::vector<int> gates{};   // rows of pieces behind the others, of bfloat16
  int lds_bytes = 227 << 10;
  bool clusters = false;
};

WeightFormat format_of(const Case& c) { return {c.format, c.columns, c.offsets, c.group}; }

std::string described(const Case& c) {
  return std::string(kNames[int(c.format)]) + ", batch " + std::to_string(c.batch) + ", " + std::to_string(c.columns) +
         " columns" +
         (c.output == Output::swiglu ? ", SwiGLU"
          : c.output == Output::add  ? ", added"
                                     : "") +
         (c.input == Input::rms ? ", norm" : "") + (c.offsets ? ", offsets" : "") + (c.gates.empty() ? "" : ", gates") +
         (c.clusters ? ", clusters" : "");
}

template <class Weights>
constexpr bool kHasClusters = std::is_same_v<Weights, Bfloat16Weights> || std::is_same_v<Weights, ByteWeights> ||
                              std::is_same_v<Weights, NibbleWeights>;
// Memory for packed x and partial sums, as the step's workspace has it: 0xff where nothing was written, zero in
// counters.
struct PackedMemory {
  std::vector<uint32_t> words[4], arrived = std::vector<uint32_t>(64);

  PackedX of(const GemmShape& shape, const GemmMmaPlan& plan, const Chip& chip) {
    const PackedBytes bytes = packed_bytes(shape, plan, chip);
    const int64_t sizes[] = {2 * bytes.x, bytes.step_sums, bytes.rms_factors, bytes.partials};
    for (int n = 0; n < 4; ++n) words[n].assign(size_t(sizes[n] / 4 + 4), 0xffffffffu);
    char* const x = reinterpret_cast<char*>(words[0].data());
    const auto floats = [&](int n) { return reinterpret_cast<float*>(words[n].data()); };
    return {{x, x + bytes.x}, floats(1), floats(2), floats(3), arrived.data()};
  }
};

template <class Weights>
void launch_packed(const GemmShape& shape, const GemmMmaPlan& plan, GemmParams p, const Chip& chip) {
  PackedMemory memory;
  p.packed = memory.of(shape, plan, chip);
  launch_pack(p, shape.bits, plan, chip, nullptr);
  launch_gemm_stream_k<Weights>("products", plan, p, nullptr);
  if (has_gates(p, shape.bits)) {
    p.packed.x[0] = p.packed.x[1];
    launch_gemm_stream_k<Bfloat16Weights>("gates", plan_gates(plan, chip), p, nullptr);
  }
  for (const uint32_t n : memory.arrived) CHECK(n == 0, "counters that are zero again, not %u", n);
}

template <class Weights>
void launch_by(const Case& c, const GemmShape& shape, const GemmParams& p) {
  const Chip chip{Family::nvidia, c.units, c.lds_bytes, true};
  if constexpr (kHasClusters<Weights>) {
    const ClusterPlan plan = plan_cluster(shape, suits_clusters(p), chip);
    if (c.clusters && plan.batch) return launch_gemm_cluster<Weights>("products", plan, p, nullptr);
  }
  CHECK(!c.clusters, "%s: not for clusters", described(c).c_str());
  const GemmMmaPlan plan = plan_gemm_mma(shape, chip);
  if (plan.packed) return launch_packed<Weights>(shape, plan, p, chip);
  launch_gemm_mma<Weights>("products", plan, p, nullptr);
}

void launch(const Case& c, const GemmShape& shape, const GemmParams& p) {
  switch (c.format) {
    case Format::bfloat16:
      return launch_by<Bfloat16Weights>(c, shape, p);
    case Format::float16:
      return launch_by<Float16Weights>(c, shape, p);
    case Format::int8:
      return launch_by<ByteWeights>(c, shape, p);
    case Format::e4m3fn:
      return launch_by<E4m3fnWeights>(c, shape, p);
    case Format::e4m3fnuz:
      return launch_by<E4m3fnuzWeights>(c, shape, p);
    case Format::int4:
      return launch_by<NibbleWeights>(c, shape, p);
  }
}

// Returns the first piece's products of the first row of the batch.
std::vector<float> run(const Case& c) {
  Numbers number;
  std::vector<Weights> weights;
  weights.reserve(c.rows.size());
  for (const int rows : c.rows) weights.emplace_back(format_of(c), rows, number);
  Case gates = c;
  gates.format = Format::bfloat16, gates.offsets = false;
  for (const int rows : c.gates) weights.emplace_back(format_of(gates), rows, number);
  std::vector<float> x(size_t(c.batch) * size_t(c.columns)), norm(size_t(c.columns));
  for (float& v : x) v = float(number());
  for (float& v : norm) v = float(1 + 0.2 * number());
  std::vector<std::vector<float>> y;
  for (const Weights& w : weights) y.emplace_back(size_t(c.batch * w.linear.rows), 0.5f);

  GemmParams p{};
  p.batch = c.batch, p.columns = c.columns, p.linear_count = int(weights.size());
  p.input = c.input, p.output = c.output;
  p.x = x.data();
  if (c.input == Input::rms) p.weight = {norm.data(), XLSTM_FLOAT32};
  p.norm_eps = 1e-6f;
  int64_t rows[kMaxLinears];
  for (int j = 0; j < p.linear_count; ++j) {
    p.linear[j] = weights[size_t(j)].linear;
    p.to[j] = y[size_t(j)].data();
    rows[j] = weights[size_t(j)].linear.rows;
  }
  launch(c,
         {c.batch, c.columns, c.output == Output::swiglu, weight_bits(c.format), c.format != Format::bfloat16,
          p.linear_count, rows},
         p);

  double worst = 0;
  for (int b = 0; b < c.batch; ++b) {
    double squares = 0;
    for (int k = 0; k < c.columns; ++k) squares += double(x[size_t(b * c.columns + k)]) * x[size_t(b * c.columns + k)];
    const double inverse = c.input == Input::rms ? 1 / std::sqrt(squares / c.columns + 1e-6) : 1;
    const auto product = [&](size_t j, int r, double& off) {
      double sum = 0, size = 0, square = 0;
      for (int k = 0; k < c.columns; ++k) {
        const double by = c.input == Input::rms ? norm[size_t(k)] : 1.0;
        const double one = x[size_t(b * c.columns + k)] * inverse * by * weights[j].value[size_t(r * c.columns + k)];
        sum += one, size += std::abs(one), square += one * one;
      }
      off = kOff * std::sqrt(square) + kOffOfSums * size;
      return sum;
    };
    for (size_t j = 0; j < (c.output == Output::swiglu ? 1 : weights.size()); ++j)
      for (int r = 0, rows_of = weights[j].linear.rows; r < rows_of; ++r) {
        double off, off_up = 0, want = product(j, r, off);
        if (c.output == Output::swiglu) {
          const double up = product(1, r, off_up), gate = want, half = 1 / (1 + std::exp(-gate));
          want = gate * half * up;
          off = 1.1 * off * std::abs(up) + off_up * std::abs(gate * half) + 1e-6 * std::abs(want);
        }
        if (c.output == Output::add) want += 0.5;
        const double got = y[j][size_t(b * rows_of + r)], error = std::abs(got - want);
        worst = std::max(worst, error / off);
        if (!(error <= off)) {
          CHECK(false, "%s: piece %d, row %d of %d, batch %d: %g, expected %g (off by %.2g of what may be)",
                described(c).c_str(), int(j), r, rows_of, b, got, want, error / off);
          return {};
        }
      }
  }
  if (std::getenv("HOPPER_FIGURES")) std::printf("%s: %.2f of what may be off\n", described(c).c_str(), worst);
  return {y[0].begin(), y[0].begin() + c.rows[0]};
}

// A row has the same products in each of these batches, to the last bit. (Weights are drawn before x's.)
void check_company(Case c, const std::vector<int>& batches) {
  c.batch = batches[0];
  const std::vector<float> first = run(c);
  for (const int batch : batches) {
    c.batch = batch;
    CHECK(run(c) == first, "%s: not what the row has in a batch of %d", described(c).c_str(), batches[0]);
  }
}

// A ring of each depth that is passed more than once, and one that is longer than a unit; registers; scales of two
// units in turn; a unit that not all rows of exist for; columns that end within a step's tile.
const std::vector<Case> kCases = {
    {Format::bfloat16, 1, 2624, {40}},
    {Format::bfloat16, 1, 576, {100, 24, 7, 16}, Output::store, Input::rms},
    {Format::bfloat16, 1, 1536, {72, 72}, Output::swiglu, Input::rms},
    {Format::bfloat16, 1, 64, {17}, Output::add},
    {Format::bfloat16, 3, 2112, {48}, Output::add},
    {Format::bfloat16, 8, 5632, {40}, Output::store, Input::rms},      // x's in stages
    {Format::bfloat16, 8, 576, {72, 72}, Output::swiglu, Input::rms},  // both sides in a strip
    {Format::float16, 1, 1088, {40}},
    {Format::float16, 8, 576, {20, 20}, Output::swiglu},
    {Format::int8, 1, 4672, {50}},
    {Format::int8, 1, 576, {70, 40}, Output::store, Input::rms, true},
    {Format::int8, 8, 1088, {40}, Output::add, Input::plain, true, 128},
    {Format::e4m3fn, 1, 576, {70, 40}, Output::store, Input::rms},
    {Format::e4m3fn, 8, 1088, {40}, Output::add, Input::plain, false, 128},
    {Format::e4m3fnuz, 1, 1088, {40, 40}, Output::swiglu, Input::rms},
    {Format::e4m3fnuz, 5, 640, {40}},
    {Format::int4, 1, 1088, {40, 40}, Output::swiglu, Input::rms, true},
    {Format::int4, 1, 7232, {40}, Output::add},
    {Format::int4, 5, 2112, {72}, Output::store, Input::plain, true},
};

// Parts of several tiles and several of a tile; parts with nothing to do; both sides of SwiGLU; tails of columns and
// rows; a word that two groups' scales share; passes; the smallest LDS.
const std::vector<Case> kStreamK = {
    {Format::bfloat16, 9, 1088, {33}},
    {Format::bfloat16, 18, 640, {40}, Output::store, Input::rms},
    {Format::bfloat16, 64, 584, {300, 20, 7}, Output::store, Input::rms, false, 64, 3},
    {Format::bfloat16, 33, 520, {100, 100}, Output::swiglu, Input::rms, false, 64, 4},
    {Format::bfloat16, 70, 1088, {140}, Output::add, Input::plain, false, 64, 5, {}, 99 << 10},
    {Format::bfloat16, 130, 640, {130}, Output::add, Input::plain, false, 64, 2},
    {Format::float16, 20, 576, {72, 72}, Output::swiglu},
    {Format::e4m3fn, 12, 640, {40}},
    {Format::e4m3fnuz, 40, 640, {140}, Output::store, Input::rms, false, 64, 3},
    {Format::int8, 19, 1088, {140, 41}, Output::store, Input::rms, true, 64, 5, {8, 8}},
    {Format::int8, 64, 2112, {140}, Output::add, Input::plain, false, 128, 3},
    {Format::int4, 12, 640, {40}, Output::store, Input::plain, true},
    {Format::int4, 16, 1088, {140, 140}, Output::swiglu, Input::rms, false, 128, 7},
    {Format::int4, 100, 1216, {140}, Output::store, Input::plain, true, 64, 2, {16}, 99 << 10},
};

// Parts of one step and of many; slots that a part does not fill; a part without features; rounds; warps without items;
// scales whose rows begin anywhere, and two steps of which share one; passes.
const std::vector<Case> kClusters = {
    {Format::int8, 1, 64, {24}, Output::add},
    {Format::int8, 1, 4672, {56}, Output::store, Input::rms, true},
    {Format::int8, 1, 576, {72, 40}, Output::store, Input::rms, true, 64, 8, {8, 8}},
    {Format::int8, 1, 576, {104, 24, 8, 16}, Output::store, Input::rms, false, 64, 20},
    {Format::int8, 8, 576, {400}, Output::store, Input::rms, false, 64, 4, {}, 170 << 10},  // rounds
    {Format::int8, 8, 1088, {40}, Output::add, Input::plain, true, 128},
    {Format::int8, 13, 1088, {40}},
    {Format::int4, 1, 1088, {40, 40}, Output::swiglu, Input::rms, true},
    {Format::int4, 1, 7232, {200}, Output::add},
    {Format::int4, 1, 2176, {40}, Output::add, Input::plain, false, 128},
    {Format::int4, 3, 1536, {72, 72}, Output::swiglu, Input::rms},
    {Format::int4, 5, 2112, {72, 8}, Output::store, Input::rms, false, 64, 2, {8, 8}},
    {Format::int4, 12, 640, {40}, Output::store, Input::plain, true},
    {Format::int4, 19, 1088, {40}},
    {Format::bfloat16, 2, 64, {24}, Output::add},
    {Format::bfloat16, 3, 4672, {56, 7}, Output::store, Input::rms},
    {Format::bfloat16, 5, 1536, {72, 72}, Output::swiglu, Input::rms},
    {Format::bfloat16, 8, 576, {400}, Output::store, Input::rms, false, 64, 4, {}, 170 << 10},  // rounds
    {Format::bfloat16, 8, 1088, {104, 24, 8, 16}, Output::store, Input::rms, false, 64, 20},
};

// reported: any of these.
void check_planted(const Case& c, emulator::Bug bug, const char* name, const std::vector<std::string>& reported) {
  emulator::plant(bug);
  std::string found;
  try {
    run(c);
  } catch (const emulator::Fault& fault) {
    found = fault.what();
  }
  emulator::plant(emulator::Bug::none);
  CHECK(std::any_of(reported.begin(), reported.end(),
                    [&](const std::string& text) { return found.find(text) != std::string::npos; }),
        "%s, %s: expected \"%s\", got \"%s\"", described(c).c_str(), name, reported[0].c_str(), found.c_str());
}

}  // namespace

int main(int count, char** arguments) {
  const int seeds = count > 1 ? std::atoi(arguments[1]) : 1;
  std::vector<Case> all = kCases;
  all.insert(all.end(), kStreamK.begin(), kStreamK.end());
  for (Case c : kClusters) c.clusters = true, all.push_back(c);
  for (int seed = 0; seed < seeds; ++seed)
    for (const Case& c : all) {
      emulator::set_seed(uint32_t(seed));
      try {
        run(c);
      } catch (const std::exception& fault) {
        CHECK(false, "%s: %s", described(c).c_str(), fault.what());
      }
    }
  for (const Format format : {Format::bfloat16, Format::float16, Format::int8, Format::int4})
    for (const bool offsets : {false, true})
      if (!offsets || format == Format::int8 || format == Format::int4)
        for (const bool clusters : {false, true})
          if (!clusters || format == Format::int8 || format == Format::int4)
            check_company({format, 1, 1088, {40}, Output::store, Input::plain, offsets, 64, 2, {}, 227 << 10, clusters},
                          !clusters                ? std::vector{1, 5, 8}
                          : format == Format::int8 ? std::vector{1, 5, 12}
                                                   : std::vector{1, 5, 12, 20});
  for (const Format format : {Format::bfloat16, Format::int4})
    check_company({format, 9, 1088, {200}, Output::store, Input::plain, false, 64, 3}, {9, 31, 33, 100, 130});
  Case pairs{Format::bfloat16, 2, 1088, {40}};
  pairs.clusters = true;
  check_company(pairs, {2, 5, 8});
  for (const Case& c : {kCases[0], kCases[5], kCases[10], kCases[12]}) {
    check_planted(c, emulator::Bug::cp_async_wait_all, "copies that are not waited for", {"without a barrier since"});
    check_planted(c, emulator::Bug::copies_late, "a step that may be late", {"without a barrier since"});
    check_planted(c, emulator::Bug::block_barrier, "no barriers", {"shared memory"});
  }
  for (const Case& c : {kStreamK[2], kStreamK[9]}) {
    check_planted(c, emulator::Bug::cp_async_wait_all, "copies that are not waited for", {"without a barrier since"});
    check_planted(c, emulator::Bug::copies_late, "a step that may be late", {"without a barrier since"});
    check_planted(c, emulator::Bug::block_barrier, "no barriers", {"shared memory"});
  }
  for (Case c : {kClusters[1], kClusters[4], kClusters[7], kClusters[10], kClusters[14]}) {
    c.clusters = true;
    check_planted(c, emulator::Bug::cp_async_wait_all, "copies that are not waited for", {"without a barrier since"});
    check_planted(c, emulator::Bug::copies_late, "a step that may be late", {"without a barrier since"});
    check_planted(c, emulator::Bug::barrier_wait, "sums that are not waited for",
                  {"without a barrier since", "nobody wrote"});
    check_planted(c, emulator::Bug::cluster_barrier, "no barrier of the cluster",
                  {"initialised", "gone", "without a barrier", "nobody wrote"});
    check_planted(c, emulator::Bug::fewer_bytes, "fewer bytes than come", {"mbarrier"});
    check_planted(c, emulator::Bug::more_bytes, "more bytes than come", {"mbarrier"});
  }
  return finish();
}

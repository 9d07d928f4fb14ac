// SPDX-License-Identifier: Apache-2.0
// Quantised linear layers of few rows (csrc/engine/linear/linear_hopper.h): every format, batches that fill a launch
// and that do not, passes, parts that begin and end within tiles, tails of columns and rows; against double.
//
// x is bfloat16 and weights are exact, so y may be off by its rounding to bfloat16, 2^-8 of it at the most, and by the
// float sums, 2^-21 of all products' sizes.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "check.h"
#include "device.h"
#include "engine/kernels.h"
#include "engine/linear/linear_shape.h"
#include "fault.h"
#include "plants.h"
#include "weights.h"

using namespace xlstm;
using namespace xlstm::gpu;
using namespace xlstm::gpu::engine;

namespace {

// Of y's rounding and of float sums; and, where weights are scaled in bfloat16, of their rounding: so many times the
// root of the sum of the squares of all products, seven standard deviations of roundings by up to 2^-9. With an offset
// a weight is rounded twice.
constexpr double kOffOfRounding = 0x1p-8, kOffOfSums = 0x1p-21, kOffOfWeights = 7 * 0x1p-9 / 1.7320508;

struct Case {
  Format format;
  int rows, columns, features;
  bool offsets = false, bias = false;
  int group = 64, units = 2;  // features of a group; multiprocessors
  int lds_bytes = 227 << 10;
};

std::string described(const Case& c) {
  return std::string(kNames[int(c.format)]) + ", " + std::to_string(c.rows) + " rows, " + std::to_string(c.features) +
         " x " + std::to_string(c.columns) + ", " + std::to_string(c.units) + " multiprocessors" +
         (c.offsets ? ", offsets" : "") + (c.bias ? ", bias" : "");
}

uint16_t bfloat16_of(float x) { return uint16_t(__builtin_bit_cast(uint32_t, x) >> 16); }
float float_of(uint16_t bits) { return __builtin_bit_cast(float, uint32_t(bits) << 16); }

void run(const Case& c) {
  Numbers number;
  const Weights w({c.format, c.columns, c.offsets, c.group}, c.features, number);
  const int stride = c.columns + 8;
  std::vector<uint16_t> x(size_t(c.rows * stride), 0x7fff);  // NaN between rows
  for (int b = 0; b < c.rows; ++b)
    for (int k = 0; k < c.columns; ++k) x[size_t(b * stride + k)] = bfloat16_of(float(number()));
  std::vector<float> bias(size_t(c.features));
  for (float& v : bias) v = float(number());
  std::vector<uint16_t> y(size_t(c.rows * c.features), 0x7fff);

  xlstm_linear_forward p{};
  p.rows = c.rows;
  p.weight = {c.features,       c.columns,
              w.linear.bits,    XLSTM_CODE_INTEGER,
              c.group,          XLSTM_FLOAT16,
              w.linear.data,    w.linear.scales,
              w.linear.offsets, {c.bias ? bias.data() : nullptr, XLSTM_FLOAT32}};
  if (c.format == Format::e4m3fn) p.weight.code = XLSTM_CODE_E4M3FN;
  if (c.format == Format::e4m3fnuz) p.weight.code = XLSTM_CODE_E4M3FNUZ;
  p.x = {x.data(), XLSTM_BFLOAT16, stride};
  p.y = {y.data(), XLSTM_BFLOAT16, c.features};
  const Chip chip{Family::nvidia, c.units, c.lds_bytes, true};
  const LinearPlan plan = plan_linear_call(p, chip);
  CHECK(plan.batch > 0, "%s: no kernel", described(c).c_str());
  std::vector<uint64_t> workspace(linear_workspace(p, plan) / 8 + 32, ~uint64_t(0));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(workspace.data()) + 255) / 256 * 256;
  linear(p, plan, reinterpret_cast<void*>(begin), nullptr);

  double worst = 0;
  for (int b = 0; b < c.rows; ++b)
    for (int r = 0; r < c.features; ++r) {
      double want = c.bias ? double(bias[size_t(r)]) : 0.0, size = std::abs(want), squares = 0;
      for (int k = 0; k < c.columns; ++k) {
        const double one = double(float_of(x[size_t(b * stride + k)])) * w.value[size_t(r * c.columns + k)];
        want += one, size += std::abs(one), squares += one * one;
      }
      const double got = float_of(y[size_t(b * c.features + r)]), error = std::abs(got - want);
      const double of_weights =
          linear_scales_weights(plan.batch) ? kOffOfWeights * std::sqrt(squares * (c.offsets ? 2 : 1)) : 0;
      const double off = kOffOfRounding * std::abs(want) + kOffOfSums * size + of_weights;
      worst = std::max(worst, error / off);
      if (!(error <= off)) {
        CHECK(false, "%s: row %d, feature %d: %g, expected %g (off by %.2g of what may be)", described(c).c_str(), b, r,
              got, want, error / off);
        return;
      }
    }
  if (std::getenv("HOPPER_FIGURES"))
    std::printf("%s: %d parts, %.2f of what may be off\n", described(c).c_str(), 1 << plan.part_bits, worst);
}

// Each batch of a launch, full and not; passes; one, two and four parts, some of one step; steps that do not fill a
// stage, and columns that do not fill a step; rings that are passed more than once; odd numbers of features.
const std::vector<Case> kCases = {
    {Format::int8, 9, 1088, 300, false, false, 64, 12},   {Format::int8, 16, 640, 40, true, true, 64, 40},
    {Format::int8, 33, 200, 513, false, true, 64, 10},    {Format::int8, 64, 2112, 256, false, false, 128, 40},
    {Format::int8, 100, 1088, 140, true, false, 64, 8},   {Format::int8, 250, 712, 130, false, false, 64, 4},
    {Format::int4, 2, 1216, 270, true, false, 64, 12},    {Format::int4, 17, 1092, 300, false, true, 64, 40},
    {Format::int4, 64, 1088, 513, true, true, 128, 16},   {Format::int4, 40, 64, 16, false},
    {Format::int8, 20, 4224, 130, true, false, 64, 1},    {Format::int4, 65, 6200, 140, true, false, 128, 1},
    {Format::int4, 128, 1344, 260, true, false, 64, 10},  {Format::int4, 131, 576, 70, false, false, 64, 2, 200 << 10},
    {Format::e4m3fn, 12, 1088, 300, false, false, 64, 5}, {Format::e4m3fnuz, 64, 640, 270, false, true, 128, 12},
};

// Planted, a bug must be found in one of a few schedules. reported: any of these.
void check_planted(const Case& c, emulator::Bug bug, const char* name, const std::vector<std::string>& reported,
                   int which = -1) {
  emulator::plant(bug, which);
  std::string found;
  for (uint32_t seed = 1; found.empty() && seed <= 4; ++seed) {
    emulator::set_seed(seed);
    try {
      run(c);
    } catch (const emulator::Fault& fault) {
      found = fault.what();
    }
  }
  emulator::plant(emulator::Bug::none);
  CHECK(std::any_of(reported.begin(), reported.end(),
                    [&](const std::string& text) { return found.find(text) != std::string::npos; }),
        "%s, %s: expected \"%s\", got \"%s\"", described(c).c_str(), name, reported[0].c_str(), found.c_str());
}

// What no kernel takes, each for one reason.
void check_refused() {
  alignas(16) static char memory[64];
  xlstm_linear_forward good{};
  good.rows = 16;
  good.weight = {256, 256, 8, XLSTM_CODE_INTEGER, 64, XLSTM_FLOAT16, memory, memory, nullptr, {}};
  good.x = good.y = {memory, XLSTM_BFLOAT16, 256};
  const Chip hopper{Family::nvidia, 132, 227 << 10, true};
  const auto taken = [&](auto&& change) {
    xlstm_linear_forward p = good;
    Chip chip = hopper;
    change(p, chip);
    return plan_linear_call(p, chip).batch > 0;
  };
  CHECK(taken([](auto&, auto&) {}), "a call that is taken");
  CHECK(!taken([](auto& p, auto&) { p.rows = kMostLinearRows + 1; }), "too many rows");
  CHECK(!taken([](auto&, auto& chip) { chip.hopper = false; }), "another chip");
  CHECK(!taken([](auto& p, auto&) { p.weight.group_size = 32; }), "groups of 32");
  CHECK(!taken([](auto& p, auto&) { p.weight.dtype = XLSTM_FLOAT32; }), "float32 scales");
  CHECK(!taken([](auto& p, auto&) { p.weight.data = memory + 8; }), "weights that are not aligned");
  CHECK(!taken([](auto& p, auto&) { p.x.stride = 258; }), "rows of x that are not aligned");
  CHECK(!taken([](auto& p, auto&) { p.weight.columns = 254; }), "columns that are no multiple of four");
}

}  // namespace

int main(int count, char** arguments) {
  const int seeds = count > 1 ? std::atoi(arguments[1]) : 1;
  for (int seed = 0; seed < seeds; ++seed)
    for (const Case& c : kCases) {
      emulator::set_seed(uint32_t(seed));
      try {
        run(c);
      } catch (const std::exception& fault) {
        CHECK(false, "%s: %s", described(c).c_str(), fault.what());
      }
    }
  check_refused();
  for (const Case& c : {kCases[3], kCases[12]}) {
    check_planted(c, emulator::Bug::cp_async_wait_all, "copies that are not waited for", {"without a barrier since"});
    check_planted(c, emulator::Bug::copies_late, "a stage that may be late", {"without a barrier since"});
    check_planted(c, emulator::Bug::named_barrier, "no barrier of the consumers", {"without a barrier"}, 1);
    check_planted(c, emulator::Bug::barrier_wait, "stages that are not waited for",
                  {"without a barrier since", "nobody wrote", "may still be reading", "once more than"});
    check_planted(c, emulator::Bug::cluster_barrier, "sums that come too soon",
                  {"initialised", "gone", "without a barrier", "may still be reading", "nobody wrote"});
    check_planted(c, emulator::Bug::fewer_bytes, "fewer bytes than come", {"mbarrier", "deadlock"});
    check_planted(c, emulator::Bug::more_bytes, "more bytes than come", {"mbarrier", "deadlock"});
    check_planted(c, emulator::Bug::products_fence, "no fence before products", {"without a fence before the group"});
    check_planted(c, emulator::Bug::wgmma_wait, "products that are not waited for",
                  {"may still be reading", "without waiting"});
    check_planted(c, emulator::Bug::far_operand, "an operand outside", {"where the block has"});
  }
  return finish();
}

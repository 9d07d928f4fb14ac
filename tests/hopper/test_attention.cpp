// SPDX-License-Identifier: Apache-2.0
// Attention and its gradients by Hopper's kernels (csrc/attention/forward/forward_hopper.h, backward_hopper.h): masks,
// windows, packed sequences, sinks, key heads that query heads share, tails beside memory that is NaN; against double.
//
// Weights and ds are rounded to the inputs' dtype before they are multiplied, results to it in the end: of the former
// eight times what half a step of each term makes by chance may be off, of the latter a step.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attention/backward/backward_params.h"
#include "attention/forward/forward_params.h"
#include "attention/gpu/hopper_smem.h"
#include "check.h"
#include "device.h"
#include "fault.h"
#include "plants.h"

using namespace xlstm;
using namespace xlstm::gpu;
using namespace xlstm::gpu::attention;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Case {
  const char* name;
  int features, heads_q, heads_k;
  std::vector<int> queries, keys;  // of each sequence
  int left = -1, right = -1;       // the window; right 0 is causal
  bool packed = false, float16 = false;
  std::vector<int> used{}, pads{};  // seqused_k, leftpad_k
  std::vector<float> sink{};        // of forward
  bool backward_only = false;
  int values = 0;           // features of v, where they are not those of q
  bool block_each = false;  // the forward has a block for each item, as for sequences of unlike lengths

  int dv() const { return values ? values : features; }
};

uint16_t bits_of(const Case& c, double x) {
  if (c.float16) return __builtin_bit_cast(uint16_t, _Float16(x));
  const uint32_t bits = __builtin_bit_cast(uint32_t, float(x));
  return std::isnan(x) ? 0x7fff : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
double value_of(const Case& c, uint16_t bits) {
  return c.float16 ? double(__builtin_bit_cast(_Float16, bits))
                   : double(__builtin_bit_cast(float, uint32_t(bits) << 16));
}

// Tokens of all sequences by heads by features; rows of equal lengths where they are not packed.
struct Tokens {
  int heads, features;
  std::vector<int> first;  // of each sequence
  int rows;                // in all
  std::vector<double> value;
  std::vector<uint16_t> memory;
  xlstm_tensor tensor{};

  Tokens(const Case& c, const std::vector<int>& lengths, int head_count, int feature_count, double fill)
      : heads(head_count), features(feature_count), rows(0) {
    int longest = 0;
    for (const int n : lengths) longest = std::max(longest, n);
    for (const int n : lengths) first.push_back(rows), rows += c.packed ? n : longest;
    value.assign(size_t(rows) * size_t(heads * features), fill);
    memory.resize(value.size() + 8);
    const int64_t row = int64_t(heads) * features;
    tensor = {data(), c.float16 ? XLSTM_FLOAT16 : XLSTM_BFLOAT16, {c.packed ? 0 : longest * row, features, row}};
  }
  uint16_t* data() {  // at a multiple of 16 bytes
    return reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
  }
  double& at(int sequence, int token, int head, int feature) {
    return value[size_t(((first[size_t(sequence)] + token) * heads + head) * features + feature)];
  }
  void to_memory(const Case& c) {
    for (size_t i = 0; i < value.size(); ++i) data()[i] = bits_of(c, value[i]), value[i] = value_of(c, data()[i]);
  }
};

std::string run(const Case& c) {
  std::mt19937 random(11);
  std::normal_distribution<double> normal;
  const int sequences = int(c.queries.size()), group = c.heads_q / c.heads_k;
  Tokens q(c, c.queries, c.heads_q, c.features, kNan), dq(q), out(c, c.queries, c.heads_q, c.dv(), kNan), dout(out);
  Tokens k(c, c.keys, c.heads_k, c.features, kNan), dk(k), v(c, c.keys, c.heads_k, c.dv(), kNan), dv(v);
  for (Tokens* t : {&out, &dout, &dq, &v, &dk, &dv}) t->tensor.data = t->data();
  const auto used = [&](int b) { return c.used.empty() ? c.keys[size_t(b)] : c.used[size_t(b)]; };
  const auto pad = [&](int b) { return c.pads.empty() ? 0 : c.pads[size_t(b)]; };
  for (int b = 0; b < sequences; ++b) {
    for (int i = 0; i < c.queries[size_t(b)]; ++i)
      for (Tokens* t : {&q, &dout})
        for (int j = 0; j < c.heads_q * t->features; ++j) t->at(b, i, 0, j) = normal(random);
    for (int i = pad(b); i < used(b); ++i)
      for (Tokens* t : {&k, &v})
        for (int j = 0; j < c.heads_k * t->features; ++j) t->at(b, i, 0, j) = normal(random);
  }
  for (Tokens* t : {&q, &out, &dout, &k, &v, &dq, &dk, &dv}) t->to_memory(c);

  BackwardParams p{};
  xlstm_attention& in = p.call.in;
  in.batch = sequences, in.heads_q = c.heads_q, in.heads_k = c.heads_k, in.dqk = c.features, in.dv = c.dv();
  for (const int n : c.queries) in.length_q = std::max<int64_t>(in.length_q, n);
  for (const int n : c.keys) in.length_k = std::max<int64_t>(in.length_k, n);
  std::vector<int32_t> starts_q(q.first.begin(), q.first.end()), starts_k(k.first.begin(), k.first.end());
  starts_q.push_back(q.rows), starts_k.push_back(k.rows);
  if (c.packed) {
    in.cu_seqlens_q = starts_q.data(), in.cu_seqlens_k = starts_k.data();
    in.total_q = q.rows, in.total_k = k.rows;
  }
  const std::vector<int32_t> seqused(c.used.begin(), c.used.end()), leftpad(c.pads.begin(), c.pads.end());
  if (!c.used.empty()) in.seqused_k = seqused.data();
  if (!c.pads.empty()) in.leftpad_k = leftpad.data();
  in.q = q.tensor, in.k = k.tensor, in.v = v.tensor;
  in.softmax_scale = 1 / std::sqrt(double(c.features));
  in.window_left = c.left, in.window_right = c.right;
  p.call.dout = dout.tensor, p.call.dq = dq.tensor, p.call.dk = dk.tensor, p.call.dv = dv.tensor;

  AttentionBackwardCall call{in.batch, in.heads_q, in.heads_k, in.length_q, in.length_k, in.total_q,
                             in.dqk,   in.dv,      c.packed,   2,           false,       true};
  const AttentionBackwardPlan plan = plan_attention_backward(call, {Family::nvidia, 1, 227 << 10, true});
  if (!plan.hopper) return "not planned";
  p.slots = plan.slots;
  const size_t all_slots = size_t((c.packed ? 1 : in.batch) * in.heads_q * plan.slots);
  std::vector<float> facts(2 * all_slots + 4, NAN);
  p.row_stats = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(facts.data()) + 15) / 16 * 16);

  // The truth, and what may be off: squares of the terms that are rounded.
  std::vector<double> truth[4] = {std::vector<double>(q.value.size()), std::vector<double>(k.value.size()),
                                  std::vector<double>(v.value.size()), std::vector<double>(out.value.size())};
  std::vector<double> squares[4] = {truth[0], truth[1], truth[2], truth[3]};
  std::vector<double> lse_truth(q.value.size() / size_t(c.features));
  const double scale = in.softmax_scale;
  for (int b = 0; b < sequences; ++b)
    for (int h = 0; h < c.heads_q; ++h) {
      const AttentionLayout at(in, b);
      float* of_head = row_stats_of(p, at, h);
      const int queries = int(at.queries), keys = int(at.keys), first = int(at.first_key), kh = h / group;
      for (int i = 0; i < (queries + kStatsPad - 1) / kStatsPad * kStatsPad; ++i)
        of_head[row_stats_index(i)] = INFINITY, of_head[row_stats_index(i) + kStatsGroup] = 0;
      for (int i = 0; i < queries; ++i) {
        std::vector<double> weight(static_cast<size_t>(keys), -INFINITY), flow(weight.size());
        double sum = 0, delta = 0;
        for (int j = 0; j < keys; ++j) {
          const int apart = j - i - (keys - queries);
          if ((c.left >= 0 && apart < -c.left) || (c.right >= 0 && apart > c.right)) continue;
          double dot = 0, through = 0;
          for (int f = 0; f < c.features; ++f) dot += q.at(b, i, h, f) * k.at(b, first + j, kh, f);
          for (int f = 0; f < c.dv(); ++f) through += dout.at(b, i, h, f) * v.at(b, first + j, kh, f);
          weight[size_t(j)] = dot * scale, flow[size_t(j)] = through;
          sum += std::exp(dot * scale);
        }
        const double lse = std::log(sum);
        for (int j = 0; j < keys; ++j) {
          weight[size_t(j)] = sum > 0 ? std::exp(weight[size_t(j)] - lse) : 0;
          delta += weight[size_t(j)] * flow[size_t(j)];
        }
        const double sunk = c.sink.empty() ? sum : sum + std::exp(double(c.sink[size_t(h)]));
        lse_truth[size_t(&q.at(b, i, h, 0) - q.value.data()) / size_t(c.features)] =
            sunk > 0 ? std::log(sunk) : INFINITY;
        of_head[row_stats_index(i)] = sum > 0 ? float(lse * 1.4426950408889634) : INFINITY;
        of_head[row_stats_index(i) + kStatsGroup] = float(delta);
        for (int j = 0; j < keys; ++j) {
          const double w = weight[size_t(j)], ds = w * (flow[size_t(j)] - delta) * scale;
          const auto add = [&](int which, Tokens& of, int token, int head, int f, double term) {
            const size_t index = size_t(&of.at(b, token, head, f) - of.value.data());
            truth[which][index] += term, squares[which][index] += term * term;
          };
          for (int f = 0; f < c.features; ++f) {
            add(0, q, i, h, f, ds * k.at(b, first + j, kh, f));
            add(1, k, first + j, kh, f, ds * q.at(b, i, h, f));
          }
          for (int f = 0; f < c.dv(); ++f) {
            add(2, v, first + j, kh, f, w * dout.at(b, i, h, f));
            if (sunk > 0) add(3, out, i, h, f, w * (sum / sunk) * v.at(b, first + j, kh, f));
          }
        }
      }
    }

  ForwardParams forward{};
  forward.call.in = in, forward.call.out = out.tensor, forward.call.lse_with_sink = 1;
  if (!c.sink.empty()) forward.call.in.sink = c.sink.data();
  std::vector<float> lse(lse_truth.size(), NAN);
  const int64_t one_head = in.heads_q;
  forward.call.lse = {lse.data(), XLSTM_FLOAT32, {q.tensor.stride[0] / c.features, 1, one_head}};
  const AttentionForwardPlan cut = plan_attention_forward(
      {in.batch, in.heads_q, in.heads_k, in.length_q, in.length_k, in.dqk, in.dv, 2, false, true, false, c.block_each},
      0, 1, {Family::nvidia, 2, 227 << 10, true});  // two multiprocessors: most cases have more items
  if (!cut.hopper) return "forward is not planned";
  try {
    if (c.float16) {
      if (!c.backward_only) launch_forward_hopper<Float16>(cut, forward, nullptr);
      launch_backward_hopper<Float16>(p, nullptr);
    } else {
      if (!c.backward_only) launch_forward_hopper<BFloat16>(cut, forward, nullptr);
      launch_backward_hopper<BFloat16>(p, nullptr);
    }
  } catch (const std::exception& fault) {
    return fault.what();
  }
  const double half_step = c.float16 ? 0x1p-12 : 0x1p-9;
  double worst = 0;
  Tokens* made[] = {&dq, &dk, &dv, &out};
  const char* names[] = {"dq", "dk", "dv", "out"};
  for (int b = 0; b < sequences; ++b)
    for (int t = 0; t < c.queries[size_t(b)] && !c.backward_only; ++t)
      for (int h = 0; h < c.heads_q; ++h) {
        const size_t index = size_t(&q.at(b, t, h, 0) - q.value.data()) / size_t(c.features);
        const double got = double(lse[index]), want = lse_truth[index];
        if (got != want && !(std::abs(got - want) <= 1e-5))
          return "lse of sequence " + std::to_string(b) + ", token " + std::to_string(t) + ", head " +
                 std::to_string(h) + ": " + std::to_string(got) + ", expected " + std::to_string(want) +
                 ", off by more than may be";
      }
  for (int which = 0; which < (c.backward_only ? 3 : 4); ++which)
    for (int b = 0; b < sequences; ++b)
      for (int t = 0; t < (which % 3 ? c.keys : c.queries)[size_t(b)]; ++t)
        for (int j = 0; j < made[which]->heads * made[which]->features; ++j) {
          const size_t index = size_t(&made[which]->at(b, t, 0, j) - made[which]->value.data());
          const double got = value_of(c, made[which]->data()[index]), want = truth[which][index];
          const double off = half_step * (4 * std::sqrt(squares[which][index]) + 2 * std::abs(want)) + 1e-6;
          worst = std::max(worst, std::abs(got - want) / off);
          if (!(std::abs(got - want) <= off))
            return std::string(names[which]) + " of sequence " + std::to_string(b) + ", token " + std::to_string(t) +
                   ", head " + std::to_string(j / made[which]->features) + ", feature " +
                   std::to_string(j % made[which]->features) + ": " + std::to_string(got) + ", expected " +
                   std::to_string(want) + ", off by more than may be";
        }
  if (std::getenv("HOPPER_FIGURES")) std::printf("%s: %.2f of what may be off\n", c.name, worst);
  return "";
}

const std::vector<Case> kCases = {
    {"whole tiles", 128, 1, 1, {256}, {128}},
    {"causal, tails, two heads of a key head", 128, 2, 1, {200}, {330}, -1, 0},
    {"causal, 64 features, more queries than keys", 64, 2, 2, {300}, {150}, -1, 0},
    {"a window", 64, 1, 1, {330}, {290}, 40, 20},
    {"a window, 128 features", 128, 1, 1, {290}, {330}, 100, 0},
    {"packed, one empty", 128, 2, 1, {70, 0, 140}, {100, 50, 90}, -1, 0, true},
    {"packed, 64 features", 64, 2, 1, {20, 200}, {300, 7}, -1, -1, true},
    {"40 features", 40, 1, 1, {70, 70}, {130, 130}, -1, 0},
    {"96 features, float16", 96, 1, 1, {130}, {70}, -1, -1, false, true},
    {"64 features, float16", 64, 1, 1, {130}, {70}, -1, 0, false, true},
    {"places that are not used", 128, 1, 1, {90, 90}, {200, 200}, -1, 0, false, false, {150, 64}, {3, 64}},
    {"packed, unlike lengths, many items", 64, 2, 1, {300, 0, 20, 150}, {10, 80, 0, 400}, -1, 0, true},
    {"packed, a block each", 128, 2, 1, {70, 0, 140}, {90, 50, 200}, -1, 0, true, false, {}, {}, {}, false, 0, true},
    {"sinks", 64, 2, 1, {140}, {300}, -1, 0, false, false, {}, {}, {0.5f, 6.0f}},
    {"256 features, causal, tails, two heads of a key head", 256, 2, 1, {200}, {330}, -1, 0},
    {"256 features, more queries than keys, float16", 256, 1, 1, {300}, {170}, -1, 0, false, true},
    {"192 features, causal, whole tiles", 192, 1, 1, {256}, {448}, -1, 0},
    {"192 features, values of 128", 192, 2, 1, {150}, {300}, -1, 0, false, false, {}, {}, {}, false, 128},
    {"104 features, values of 200, float16", 104, 1, 1, {70}, {130}, -1, -1, false, true, {}, {}, {}, false, 200},
    {"192 features, a window", 192, 1, 1, {290}, {330}, 100, 20},
    {"136 features, packed, one empty", 136, 2, 1, {70, 0, 140}, {100, 50, 90}, -1, 0, true},
    {"256 features, unused places", 256, 1, 1, {90, 90}, {200, 200}, -1, 0, false, false, {150, 64}, {3, 64}},
    {"256 features, sinks", 256, 2, 1, {140}, {320}, -1, -1, false, false, {}, {}, {0.5f, 6.0f}},
};

// Planted, the bug must be found in one of a few schedules; its report has one of these words.
void expect(const char* name, emulator::Bug bug, int which, const Case& c, const std::vector<std::string>& words) {
  emulator::plant(bug, which);
  std::string report;
  for (uint32_t seed = 1; report.empty() && seed <= 3; ++seed) emulator::set_seed(seed), report = run(c);
  emulator::plant(emulator::Bug::none);
  bool said = false;
  for (const std::string& word : words) said = said || report.find(word) != std::string::npos;
  CHECK(said, "%s in %s: %s", name, c.name, report.empty() ? "not found" : report.c_str());
}

template <class Smem>
void leave_out_barriers(const Case& many) {
  using Index = typename Smem::BarrierIndex;
  for (const Index index : {Smem::kOwnedFirst, Smem::kOwnedSecond, Smem::kTail, Smem::kFirstFull, Smem::kSecondFull,
                            Smem::kFirstEmpty, Smem::kSecondEmpty, Smem::kWeightsFull, Smem::kWeightsEmpty}) {
    if (index == Smem::kOwnedSecond && Smem::kShape.owned < 2 && !Smem::kShape.persistent) continue;
    if (index >= Smem::kWeightsFull && !Smem::kShape.shared_rows) continue;
    if (index == Smem::kSecondEmpty && !Smem::kShape.released_apart) continue;  // kFirstEmpty's
    // With many tiles, the next item's owned tokens are ordered by the wait for room for this item's last tiles.
    Case c = many;
    if (Smem::kShape.persistent && index == Smem::kOwnedEmpty) c.keys = {64};
    const int at = Smem::kBarriers + 8 * index;
    const std::string wait = "no wait for barrier " + std::to_string(index),
                      arrival = "no arrival at barrier " + std::to_string(index);
    expect(wait.c_str(), emulator::Bug::barrier_wait, at, c,
           {"without a barrier since", "may still be reading", "nobody wrote", "once more than", "off by more"});
    expect(arrival.c_str(), emulator::Bug::barrier_arrival, at, c, {"phase of mbarrier"});
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int seeds = count > 1 ? std::atoi(arguments[1]) : 1;
  for (int seed = 0; seed < seeds; ++seed)
    for (const Case& c : kCases) {
      emulator::set_seed(uint32_t(seed));
      const std::string report = run(c);
      CHECK(report.empty(), "%s: %s", c.name, report.c_str());
    }
  const auto grid_of = [](bool packed) {  // four heads of four blocks of queries
    return plan_attention_forward({1, 4, 4, 512, 512, 128, 128, 2, false, true, false, packed}, 0, 1,
                                  {Family::nvidia, 3, 227 << 10, true})
        .grid;
  };
  CHECK(grid_of(false) == 3 && grid_of(true) == 16, "persistent blocks, or a block for each item");
  using emulator::Bug;
  const Case plain{"planted", 64, 3, 1, {150}, {64}}, wide{"planted, 128 features", 128, 5, 1, {70}, {64}};
  // More tiles than there is room for; four items of the forward for two blocks.
  const Case long_of_64{"planted, 64 features, many keys", 64, 4, 1, {40}, {600}},
      long_of_128{"planted, 128 features, many keys", 128, 4, 1, {40}, {500}},
      long_of_256{"planted, 256 features, many keys", 256, 4, 1, {40}, {330}},
      many_of_256{"planted, 256 features, many queries", 256, 3, 1, {130}, {40}};
  leave_out_barriers<HopperSmem<ForwardParams, forward_hopper_shape(64)>>(long_of_64);
  leave_out_barriers<HopperSmem<ForwardParams, forward_hopper_shape(128)>>(long_of_128);
  leave_out_barriers<HopperSmem<ForwardParams, forward_hopper_shape(256)>>(long_of_256);
  const auto backward_only = [](Case c) {
    c.backward_only = true;
    return c;
  };
  leave_out_barriers<HopperSmem<BackwardParams, backward_hopper_shape(64, true)>>(backward_only(plain));
  leave_out_barriers<HopperSmem<BackwardParams, backward_hopper_shape(128, true)>>(backward_only(wide));
  leave_out_barriers<HopperSmem<BackwardParams, backward_hopper_shape(64, false)>>(backward_only(long_of_64));
  leave_out_barriers<HopperSmem<BackwardParams, backward_hopper_shape(128, false)>>(backward_only(long_of_128));
  leave_out_barriers<HopperSmem<BackwardParams, backward_hopper_shape(256, true)>>(backward_only(many_of_256));
  leave_out_barriers<HopperSmem<BackwardParams, backward_hopper_shape(256, false)>>(backward_only(long_of_256));
  for (const Case& c : {plain, wide, backward_only(plain), backward_only(wide), backward_only(many_of_256)}) {
    expect("no proxy fence", Bug::proxy_fence, -1, c, {"without a proxy fence"});
    expect("no barrier of a warp", Bug::warp_barrier, -1, c, {"may still be reading", "without a barrier"});
    expect("no fence before products", Bug::products_fence, -1, c, {"without a fence before the group"});
    expect("no wait for products", Bug::wgmma_wait, -1, c, {"may still be reading", "without waiting"});
    expect("fewer bytes announced", Bug::fewer_bytes, -1, c, {"all the bytes that were announced", "deadlock"});
    expect("more bytes announced", Bug::more_bytes, -1, c, {"deadlock"});
    expect("a copy to 8 bytes further on", Bug::moved_copy, -1, c, {"no multiple of 16"});
    expect("an operand 32 bytes further on", Bug::slipped_operand, -1, c,
           {"without a barrier since", "nobody wrote", "off by more"});
    expect("more registers than there are", Bug::more_registers, -1, c, {"registers a thread"});
  }
  return finish();
}

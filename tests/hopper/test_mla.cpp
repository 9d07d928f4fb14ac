// SPDX-License-Identifier: Apache-2.0
// MLA by Hopper's kernel (csrc/attention/mla/mla_hopper.h): flat and paged caches, masks, parts, sinks, tails of rows
// and keys, against double; then bugs planted in it. What no key of a call is, is NaN.
//
// Bounds, of A = sum p |v| / sum p: weights are rounded to the element, e of each (2^-8 or 2^-11), out once more. What
// scores are off, d, is off in a weight and in the sum: sums of `features` products are rounded to float for every 16,
// and scaled; 2^-22 is the exponential's. Sums over n keys are off by n 2^-23. So |error| <= (e + 2 d + n 2^-23) A + e
// |out|, and of lse d + n 2^-23. Weights below float16's normal numbers are off by 2^-25, where the sum is 1 or more.
#include <cmath>
#include <optional>

#include "attention/combine.h"
#include "attention/mla/mla_hopper_smem.h"
#include "attention/mla/mla_plan.h"
#include "check.h"
#include "device.h"
#include "plants.h"
#include "walk_problem.h"

using namespace xlstm;
using namespace xlstm::gpu;
using namespace xlstm::gpu::attention;
using namespace xlstm::gpu::mlstm;
using emulator::Bug;

namespace {

struct Case {
  const char* name;
  bool float16;
  int features, batch, heads, key_heads, queries, keys;  // keys that a sequence of the cache has room for
  int page = 0;                                          // 0: flat
  int left = -1, right = -1;                             // windows
  int splits = 1;
  std::vector<int> used{}, padded{};  // of each sequence; none: all, none
  bool sink = false, aligned_out = true, other_rows = false;
  double scale = 0.09;
};

struct Value {
  double out, size;  // size: of p |v| / sum p
};

class Problem {
 public:
  explicit Problem(const Case& of, unsigned seed)
      : c_(of), engine_(seed), group_(c_.heads / c_.key_heads), cache_rows_(c_.batch + (c_.other_rows ? 2 : 0)) {
    if (c_.page && c_.used.empty()) c_.used.assign(size_t(c_.batch), c_.keys);  // pages have room for more
    const int d = c_.features, pages_each = c_.page ? (c_.keys + c_.page - 1) / c_.page : 0;
    const int slots = c_.page ? (c_.batch * pages_each + 2) * c_.page : cache_rows_ * c_.keys;
    q_.emplace(int64_t(c_.batch) * c_.queries * c_.heads * d);
    cache_.emplace(int64_t(slots) * c_.key_heads * d);
    out_stride_ = kMlaValues + (c_.aligned_out ? 0 : 1);
    out_.emplace(int64_t(c_.batch) * c_.queries * c_.heads * out_stride_);
    lse_.emplace(int64_t(c_.batch) * c_.heads * c_.queries);
    parts_.emplace(int64_t(c_.splits) * rows() * (kMlaValues + 1));
    for (int h = 0; h < c_.heads; ++h) sinks_.push_back(float(2 * normal_(engine_)));
    for (int64_t i = 0; i < q_->size(); ++i) (*q_)[i] = bits(normal_(engine_));
    lay_out(pages_each);
    for (int b = 0; b < c_.batch; ++b)
      for (int j = 0; j < keys(b); ++j)
        for (int h = 0; h < c_.key_heads; ++h)
          for (int e = 0; e < d; ++e)  // scores become larger along the keys: maxima grow
            (*cache_)[at(b, h, j) + e] = bits((0.3 + 1.2 * j / c_.keys) * normal_(engine_));
    for (int b = 0; b < c_.batch; ++b)  // the unused end of a page table points anywhere
      for (int n = (first(b) + keys(b) + c_.page - 1) / std::max(1, c_.page); n < pages_each; ++n)
        table_[size_t(b * pages_each + n)] = n % 2 ? 1 << 30 : -7;
    fill_call(pages_each);
  }

  void run() {
    const AttentionCall call{c_.batch, c_.heads, c_.key_heads, c_.queries, c_.keys, c_.features, kMlaValues, 2, false};
    const MlaPlan plan = plan_mla(call, c_.splits, {Family::nvidia, 132, 227 << 10, true});
    CHECK(plan.hopper, "%s: not planned for Hopper", c_.name);
    const FewRowsParams params{p_, plan.blocks, plan.splits, c_.aligned_out,
                               ForwardParts::in_workspace(p_.in, plan.splits, parts_->data())};
    if (c_.float16)
      launch_mla_hopper<Float16>(plan, params, nullptr);
    else
      launch_mla_hopper<BFloat16>(plan, params, nullptr);
  }

  // What is beyond its bound, empty where nothing is.
  std::string compare() {
    for (int b = 0; b < c_.batch; ++b)
      for (int h = 0; h < c_.heads; ++h)
        for (int i = 0; i < c_.queries; ++i) {
          const std::string wrong = compare_row(b, h, i);
          if (!wrong.empty())
            return "sequence " + std::to_string(b) + ", head " + std::to_string(h) + ", query " + std::to_string(i) +
                   wrong;
        }
    return {};
  }
  double worst() const { return worst_; }

 private:
  int64_t rows() const { return int64_t(c_.batch) * c_.heads * c_.queries; }
  int first(int b) const { return c_.padded.empty() ? 0 : c_.padded[size_t(b)]; }
  int keys(int b) const { return std::max(0, (c_.used.empty() ? c_.keys : c_.used[size_t(b)]) - first(b)); }
  int64_t at(int b, int head, int j) const {  // of key j
    const int t = first(b) + j;
    int64_t slot = c_.page ? int64_t(table_[size_t(b * p_.in.block_table_stride + t / c_.page)]) * c_.page + t % c_.page
                           : int64_t(cache_row(b)) * c_.keys + t;
    return (slot * c_.key_heads + head) * c_.features;
  }
  int cache_row(int b) const { return c_.other_rows ? cache_rows_ - 1 - b : b; }
  uint16_t bits(double x) const {
    return c_.float16 ? from_float<Float16>(float(x)).bits : from_float<BFloat16>(float(x)).bits;
  }
  double number(uint16_t x) const { return c_.float16 ? to_float(Float16{x}) : to_float(BFloat16{x}); }

  void lay_out(int pages_each) {
    for (int n = 0; n < c_.batch * pages_each; ++n) table_.push_back(n + 1);
    std::shuffle(table_.begin(), table_.end(), engine_);
    p_.in.block_table_stride = pages_each;
    for (int b = 0; b < c_.batch; ++b) cache_index_.push_back(cache_row(b));
  }
  void fill_call(int pages_each) {
    xlstm_attention& in = p_.in;
    const int64_t d = c_.features;
    const xlstm_dtype dtype = c_.float16 ? XLSTM_FLOAT16 : XLSTM_BFLOAT16;
    in.batch = c_.batch, in.heads_q = c_.heads, in.heads_k = c_.key_heads, in.dqk = d, in.dv = kMlaValues;
    in.length_q = c_.queries, in.length_k = c_.page ? pages_each * c_.page : c_.keys;
    const auto set = [&](xlstm_tensor& x, void* data, xlstm_dtype of, int64_t sequence, int64_t head, int64_t token) {
      x.data = data, x.dtype = of;
      x.stride[0] = sequence, x.stride[1] = head, x.stride[2] = token;
    };
    set(in.q, q_->data(), dtype, c_.queries * c_.heads * d, d, c_.heads * d);
    const int64_t token = c_.key_heads * d;
    set(in.k, cache_->data(), dtype, (c_.page ? c_.page : c_.keys) * token, d, token);
    in.v = in.k;
    set(p_.out, out_->data(), dtype, c_.queries * c_.heads * out_stride_, out_stride_, c_.heads * out_stride_);
    set(p_.lse, lse_->data(), XLSTM_FLOAT32, c_.heads * c_.queries, c_.queries, 1);
    if (c_.page) in.block_table = table_.data(), in.page_size = c_.page, in.pages = c_.batch * pages_each + 2;
    if (!c_.used.empty()) in.seqused_k = c_.used.data();
    if (!c_.padded.empty()) in.leftpad_k = c_.padded.data();
    if (c_.other_rows) in.cache_batch_idx = cache_index_.data(), in.cache_batch = cache_rows_;
    in.softmax_scale = c_.scale;
    in.window_left = c_.left, in.window_right = c_.right;
    if (c_.sink) in.sink = sinks_.data(), p_.lse_with_sink = 1;
    p_.splits = c_.splits;
  }

  std::string compare_row(int b, int h, int i) {
    const int key_head = h / group_;
    const KeyRange sees = visible_keys(i, c_.queries, keys(b), c_.left, c_.right);
    std::vector<double> s;
    double most = -INFINITY, off = 0;
    for (int64_t j = sees.begin; j < sees.end; ++j) {
      double sum = 0, size = 0;
      for (int e = 0; e < c_.features; ++e) {
        const double one = number((*q_)[((int64_t(b) * c_.queries + i) * c_.heads + h) * c_.features + e]) *
                           number((*cache_)[at(b, key_head, int(j)) + e]);
        sum += one, size += std::abs(one);
      }
      s.push_back(sum * c_.scale);
      off = std::max(off, 0x1p-24 * std::abs(c_.scale) * ((c_.features / 16 + 4) * size) + 0x1p-22);
      most = std::max(most, s.back());
    }
    double total = 0;
    for (double& x : s) total += x = std::exp(x - most);
    const double element = c_.float16 ? 0x1p-11 : 0x1p-8, n = double(s.size());
    const double lse = total > 0 ? most + std::log(total) : -INFINITY;
    const bool sunk = c_.sink && c_.splits == 1;
    const WithSink<double> sink = sunk ? with_sink<double>(lse, sinks_[size_t(h)], true) : without_sink(lse);
    const double lse_off = off + n * 0x1p-23 + 0x1p-22 * (1 + std::abs(s.empty() ? 0 : lse) + (sunk ? 8 : 0));
    const double got_lse =
        c_.splits > 1 ? combined_lse(b, h, i) : (*lse_)[(int64_t(b) * c_.heads + h) * c_.queries + i];
    if (!(got_lse == sink.lse || see(std::abs(got_lse - sink.lse), lse_off)))
      return ": lse " + std::to_string(got_lse) + ", expected " + std::to_string(sink.lse) + ", beyond the bound";
    for (int e = 0; e < kMlaValues; ++e) {
      double out = 0, size = 0, largest = 0;
      for (int64_t j = sees.begin; j < sees.end; ++j) {
        const double v = number((*cache_)[at(b, key_head, int(j)) + e]), p = s[size_t(j - sees.begin)] / total;
        out += p * v, size += p * std::abs(v), largest = std::max(largest, std::abs(v));
      }
      out *= sink.factor, size *= sink.factor;
      const double bound = (element + 2 * off + n * 0x1p-23 + (sunk ? lse_off : 0)) * size + element * std::abs(out) +
                           (c_.float16 ? n * 0x1p-25 * largest + 0x1p-25 : 0);
      const double got = c_.splits > 1
                             ? combined_out(b, h, i, e)
                             : number((*out_)[((int64_t(b) * c_.queries + i) * c_.heads + h) * out_stride_ + e]);
      if (!(got == out || see(std::abs(got - out), bound)))
        return ", feature " + std::to_string(e) + ": " + std::to_string(got) + ", expected " + std::to_string(out) +
               ", beyond the bound";
    }
    return {};
  }
  bool see(double error, double bound) {
    worst_ = std::max(worst_, error / bound);
    return error <= bound;
  }
  // Of the parts that have keys.
  template <class F>
  void each_part(int b, int h, int i, F&& f) {
    const ForwardParts parts = ForwardParts::in_workspace(p_.in, c_.splits, parts_->data());
    for (int part = 0; part < c_.splits; ++part) {
      const int64_t row = part * rows() + ForwardParts::row(p_.in, b, h, i);
      if (has_keys(parts.lse[row])) f(double(parts.lse[row]), parts.out + row * kMlaValues);
    }
  }
  double combined_lse(int b, int h, int i) {
    double most = -INFINITY, sum = 0;
    each_part(b, h, i, [&](double lse, const float*) { most = std::max(most, lse); });
    each_part(b, h, i, [&](double lse, const float*) { sum += std::exp(lse - most); });
    return seen_lse(sum > 0 ? most + std::log(sum) : -INFINITY);
  }
  double combined_out(int b, int h, int i, int feature) {
    const double combined = combined_lse(b, h, i);
    double sum = 0;
    each_part(b, h, i, [&](double lse, const float* out) { sum += std::exp(lse - combined) * out[feature]; });
    return sum;
  }

  Case c_;
  std::mt19937 engine_;
  std::normal_distribution<double> normal_;
  int group_, cache_rows_, out_stride_ = 0;
  std::optional<DeviceArray<uint16_t>> q_, cache_, out_;
  std::optional<DeviceArray<float>> lse_, parts_;
  std::vector<int32_t> table_, cache_index_;
  std::vector<float> sinks_;
  xlstm_attention_forward p_{};
  double worst_ = 0;
};

std::string run(const Case& c, unsigned seed, double* worst = nullptr) {
  emulator::set_seed(1000 * seed);
  try {
    Problem problem(c, seed);
    problem.run();
    const std::string wrong = problem.compare();
    if (worst) *worst = problem.worst();
    return wrong;
  } catch (const std::exception& fault) {
    return fault.what();
  }
}

// Tails of rows, tiles that all, some or no rows see, parts without tiles, rows without keys.
const Case kCases[] = {
    {"two blocks of rows", false, 576, 1, 128, 1, 1, 230},
    {"pages of 64", false, 512, 2, 64, 1, 1, 200, 64, -1, -1, 1, {200, 70}},
    {"pages of one", true, 576, 2, 40, 1, 1, 150, 1, -1, -1, 1, {149, 64}, {3, 0}},
    {"pages of 24, padded", false, 576, 2, 20, 1, 2, 190, 24, -1, 0, 1, {190, 100}, {0, 70}},
    {"causal", false, 576, 1, 32, 1, 5, 300, 0, -1, 0},
    {"windows", true, 512, 1, 24, 1, 3, 290, 0, 70, 0},
    {"windows to the right", false, 512, 1, 24, 1, 6, 130, 0, 40, 30},
    {"parts", false, 576, 1, 64, 1, 1, 400, 64, -1, -1, 3},
    {"more parts than tiles", true, 576, 2, 33, 1, 2, 150, 1, -1, 0, 5, {150, 30}},
    {"sink", true, 576, 1, 48, 1, 1, 65, 0, -1, -1, 1, {}, {}, true},
    {"no keys, one, a tile", false, 576, 3, 24, 1, 1, 64, 16, -1, -1, 1, {0, 1, 64}, {}, true},
    {"other rows of the cache", false, 512, 2, 64, 2, 1, 129, 0, -1, -1, 1, {}, {}, false, true, true},
    {"more queries than keys", false, 576, 1, 10, 1, 4, 2, 0, -1, 0},
    {"rows of out at odd places", true, 576, 1, 64, 1, 1, 70, 0, -1, -1, 1, {}, {}, false, false},
    {"a negative scale", false, 576, 1, 64, 1, 1, 100, 0, -1, -1, 1, {}, {}, false, true, false, -0.05},
};

// Enough tiles for every barrier to come round.
const Case kPlanted{"planted", false, 576, 1, 64, 1, 1, 300, 64};

void expect(const std::string& name, Bug bug, int which, const std::vector<std::string>& words) {
  emulator::plant(bug, which);
  std::string report;
  for (unsigned seed = 1; report.empty() && seed <= 3; ++seed) report = run(kPlanted, seed);
  emulator::plant(Bug::none);
  bool said = false;
  for (const std::string& word : words) said = said || report.find(word) != std::string::npos;
  CHECK(said, "%s: %s", name.c_str(), report.empty() ? "not found" : report.c_str());
  std::printf("%s: %s\n", name.c_str(), report.substr(0, report.find('\n')).c_str());
}

void leave_out_barriers() {
  using Smem = MlaHopperSmem<BFloat16, 576>;
  const std::pair<const char*, int> barriers[] = {
      {"a tile's first part", Smem::kFull},
      {"a tile's second part", Smem::kFull + Smem::kBuffers},
      {"the other tile's first part", Smem::kFull + 1},
      {"room for a tile's first part", Smem::kEmpty},
      {"room for a tile's second part", Smem::kEmpty + Smem::kBuffers},
      {"room for the other tile's second part", Smem::kEmpty + Smem::kBuffers + 1},
      {"weights", Smem::kWeightsFull},
      {"room for weights", Smem::kWeightsEmpty},
      {"Q", Smem::kQueriesFull}};
  for (const auto& [name, index] : barriers) {
    const int at = Smem::kOffset.barriers + 8 * index;
    expect("no wait for " + std::string(name), Bug::barrier_wait, at,
           {"without a barrier since", "may still be reading", "which nobody wrote", "phase of mbarrier"});
    expect("no arrival at " + std::string(name), Bug::barrier_arrival, at, {"phase of mbarrier"});
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int seeds = count > 1 ? std::atoi(arguments[1]) : 1;
  for (int seed = 1; seed <= seeds; ++seed)
    for (const Case& c : kCases) {
      double worst = 0;
      const std::string wrong = run(c, unsigned(seed), &worst);
      CHECK(wrong.empty(), "%s, seed %d: %s", c.name, seed, wrong.c_str());
      std::printf("%s: %s (%.2f of what may be off)\n", c.name, wrong.empty() ? "ok" : "FAILED", worst);
    }
  CHECK(run(kPlanted, 1).empty(), "with no bug: %s", run(kPlanted, 1).c_str());
  leave_out_barriers();
  expect("no proxy fence", Bug::proxy_fence, -1, {"without a proxy fence"});
  expect("no wait for copies", Bug::cp_async_wait_all, -1, {"without a barrier since", "without a proxy fence"});
  expect("copies that may be late", Bug::copies_late, -1, {"without a barrier since", "without a proxy fence"});
  expect("no fence before products", Bug::products_fence, -1, {"without a fence before the group"});
  expect("no wait for products", Bug::wgmma_wait, -1, {"may still be reading", "without waiting"});
  expect("no barriers of warps", Bug::warp_barrier, -1, {"without a barrier since", "may still be reading"});
  expect("no barrier of the block", Bug::block_barrier, -1, {"initialised"});
  expect("an operand outside", Bug::far_operand, -1, {"where the block has"});
  expect("an operand 32 bytes further on", Bug::slipped_operand, -1,
         {"without a barrier since", "nobody wrote", "beyond the bound", "bytes apart"});
  expect("more registers than there are", Bug::more_registers, -1, {"registers a thread"});
  return finish();
}

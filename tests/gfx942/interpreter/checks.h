// SPDX-License-Identifier: Apache-2.0
// What the interpreter finds wrong although it could go on. Each check has a name, under which it ends the run or is a
// warning: GFX942_CHECKS=lds-race=warn,wait=warn, or all=warn. By default all are errors. What cannot be gone on from
// (memory outside every allocation, an instruction that is not implemented) is a Fault without a name.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

namespace gfx942 {

enum class Check : uint8_t {
  undefined,
  wait,
  lds_race,
  lds_wait,
  lds_same_bytes,
  divergent_barrier,
  ended_barrier,
  buffer_offset,
  buffer_stride,
  ieee_mode,
  argument_block,
  deadlock,
  memory_order
};
constexpr int kChecks = int(Check::memory_order) + 1;

struct KnownCheck {
  const char *name, *finds, *otherwise;  // otherwise: how the run goes on where it is a warning
};
const KnownCheck& known(Check c);
// " (check wait)", which ends what a check says.
std::string named(Check c);

struct Warning {
  Check check;
  std::string text;  // of the first time
  uint64_t times = 0;
};

class Checks {
 public:
  Checks();  // as GFX942_CHECKS says
  bool warns(Check c) const { return warns_[int(c)].load(std::memory_order_relaxed); }
  // A name or "all"; "error" or "warn". Throws Fault for other words.
  void set(std::string_view name, std::string_view mode);

  // Counts a warning at a place of a kernel; the first time there, words() is printed and kept.
  template <class Words>
  void warn(Check c, const std::string& kernel, uint64_t place, Words words) {
    const std::lock_guard guard(lock_);
    Warning& w = warnings_[{c, kernel, place}];
    if (w.times++ == 0) print(w = {c, words(), 1});
  }
  // f(warning) for each since the last forget().
  template <class F>
  void for_each_warning(F f) {
    const std::lock_guard guard(lock_);
    for (const auto& [place, w] : warnings_) f(w);
  }
  void forget();

 private:
  static void print(const Warning& w);

  std::array<std::atomic<bool>, kChecks> warns_ = {};
  std::mutex lock_;
  std::map<std::tuple<Check, std::string, uint64_t>, Warning> warnings_;
};
Checks& checks();

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
#include "checks.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "fault.h"

namespace gfx942 {
namespace {

constexpr KnownCheck kKnown[kChecks] = {
    {"undefined", "an address, a branch, EXEC, a descriptor or a store depends on what was never written",
     "the bits are used as they are"},
    {"wait", "a register, or LDS that a load fills, is used before the s_waitcnt for it", "the load has happened"},
    {"lds-race", "two waves access the same bytes of LDS between two barriers, and one of them changes them",
     "waves run one after the other, from barrier to barrier"},
    {"lds-wait", "the same, where one access came before a barrier but no s_waitcnt stood between", "as for lds-race"},
    {"lds-same-bytes", "two waves access the same bytes of LDS, and one writes what is already there", "it writes"},
    {"divergent-barrier", "waves wait at different barriers", "they have met"},
    {"ended-barrier", "a wave waits at a barrier when another one has ended", "the ended one counts as arrived"},
    {"buffer-offset", "an element is beyond a raw buffer because of the scalar offset alone", "it is outside"},
    {"buffer-stride", "a descriptor has a stride, but the address no index, or an offset beyond the stride",
     "without an index the buffer is a raw one; the offset is added"},
    {"ieee-mode", "a kernel begins without MODE.ieee", "signalling NaN stay as they are, and omod counts"},
    {"argument-block", "a launch gives fewer bytes of arguments than the kernel's metadata lists",
     "the bytes that are missing are 0xff"},
    {"deadlock", "no wave can go on until a workgroup begins, and none can begin until another one ends",
     "workgroups begin that the chip would not hold at once"},
    {"memory-order", "waves of one launch access the same byte, one stores to it, and nothing orders the two",
     "memory is as the turns that were taken leave it"},
};

}  // namespace

const KnownCheck& known(Check c) { return kKnown[int(c)]; }
std::string named(Check c) { return std::string(" (check ") + known(c).name + ")"; }

Checks::Checks() {
  const char* given = std::getenv("GFX942_CHECKS");
  std::string_view rest = given ? given : "";
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    const size_t equals = one.find('=');
    if (equals == one.npos)
      throw Fault("GFX942_CHECKS: expected name=warn or name=error, got \"" + std::string(one) + "\"");
    set(one.substr(0, equals), one.substr(equals + 1));
  }
}

void Checks::set(std::string_view name, std::string_view mode) {
  if (mode != "warn" && mode != "error")
    throw Fault("check " + std::string(name) + ": expected warn or error, got \"" + std::string(mode) + "\"");
  bool found = false;
  std::string names = "all";
  for (int c = 0; c < kChecks; ++c) {
    names.append(", ").append(kKnown[c].name);
    if (name != "all" && name != kKnown[c].name) continue;
    warns_[c] = mode == "warn";
    found = true;
  }
  if (!found) throw Fault("there is no check \"" + std::string(name) + "\"; expected one of " + names);
}

void Checks::forget() {
  const std::lock_guard guard(lock_);
  warnings_.clear();
}

void Checks::print(const Warning& w) { std::fprintf(stderr, "gfx942: warning: %s\n", w.text.c_str()); }

Checks& checks() {
  static Checks all;
  return all;
}

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
// Bugs planted in the walks as they run: each must be found, and reported as what it is. Every wait for an mbarrier and
// every arrival at one is left out in turn.
#include <map>

#include "arch/hopper/hopper.h"
#include "check.h"
#include "device.h"
#include "mlstm/chunkwise/hopper/chunk_walk_hopper_smem.h"
#include "plants.h"
#include "walk_problem.h"

using namespace xlstm::gpu;
using namespace xlstm::gpu::mlstm;
using emulator::Bug;

namespace {

// What a run of this walk says, empty where all is well.
std::string run(const WalkCase& c, unsigned seed) {
  emulator::set_seed(seed);
  WalkProblem problem(c);
  try {
    problem.run();
    return problem.compare();
  } catch (const std::exception& fault) {
    return fault.what();
  }
}

// Planted, the bug must be found in one of a few schedules; its report has one of these words.
void expect(const char* name, Bug bug, int which, const WalkCase& c, const std::vector<std::string>& words) {
  emulator::plant(bug, which);
  std::string report;
  for (unsigned seed = 1; report.empty() && seed <= 3; ++seed) report = run(c, seed);
  emulator::plant(Bug::none);
  bool said = false;
  for (const std::string& word : words) said = said || report.find(word) != std::string::npos;
  CHECK(said, "%s in the %s: %s", name, described(c).c_str(), report.empty() ? "not found" : report.c_str());
  std::printf("%s, %s: %s\n", name, described(c).c_str(), report.substr(0, report.find('\n')).c_str());
}

const WalkCase kFlowing{Kind::flowing, 128, 330, 128, 128}, kScored{Kind::scored, 256, 330, 192, 128},
    kPlain{Kind::plain, 256, 330, 192, 128, true}, kPair{Kind::gained, 512, 330, 264, 64};

template <class Smem>
void leave_out_barriers(const WalkCase& c) {
  using Index = typename Smem::BarrierIndex;
  const bool scored = c.kind == Kind::scored;
  std::map<const char*, Index> barriers = {{"a_full", Smem::kAFull}, {"y_full", Smem::kYFull},
                                           {"x_full", Smem::kXFull}, {"a_free", Smem::kAFree},
                                           {"y_free", Smem::kYFree}, {"x_free", Smem::kXFree}};
  if (scored) barriers["inverse_n_full"] = Smem::kInverseNFull, barriers["scores_full"] = Smem::kScoresFull;
  if (Smem::kHasEpilogueWarps) barriers["sums_full"] = Smem::kSumsFull, barriers["sums_free"] = Smem::kSumsFree;
  if (Smem::kShape.pair) {
    barriers["incoming_full"] = Smem::kIncomingFull, barriers["peer_sums_free"] = Smem::kPeerSumsFree;
  }
  for (const auto& [name, index] : barriers) {
    const int at = Smem::kBarriersOffset + 8 * index;
    const std::string wait = std::string("no wait for ") + name, arrival = std::string("no arrival at ") + name;
    expect(wait.c_str(), Bug::barrier_wait, at, c,
           {"without a barrier since", "may still be reading", "which nobody wrote", "once more than", "of the bound"});
    expect(arrival.c_str(), Bug::barrier_arrival, at, c, {"phase of mbarrier"});
  }
}

}  // namespace

int main() {
  for (const WalkCase& c : {kFlowing, kScored, kPlain, kPair}) {
    const std::string report = run(c, 1);
    CHECK(report.empty(), "%s with no bug: %s", described(c).c_str(), report.c_str());
  }
  leave_out_barriers<HopperWalkSmem<128, 2, false, output::dq, false>>(kFlowing);
  leave_out_barriers<HopperWalkSmem<256, 2, false, output::dv, false>>(kPlain);
  leave_out_barriers<HopperWalkSmem<256, 2, false, output::h, false>>(kScored);
  leave_out_barriers<HopperWalkSmem<256, 2, true, output::h, false>>(kPair);

  expect("no proxy fence", Bug::proxy_fence, -1, kScored, {"without a proxy fence"});
  expect("no proxy fence", Bug::proxy_fence, -1, kPair, {"without a proxy fence"});
  expect("no barrier of a warpgroup", Bug::named_barrier, 3, kScored, {"without a barrier", "may still be reading"});
  expect("no barrier of a warp", Bug::warp_barrier, -1, kFlowing, {"may still be reading"});
  expect("no fence before products", Bug::products_fence, -1, kScored, {"without a fence before the group"});
  expect("no wait for products", Bug::wgmma_wait, -1, kScored, {"may still be reading", "without waiting"});
  expect("no wait for bulk stores", Bug::stores_wait, -1, kScored, {"may still be reading"});
  expect("no barrier of the cluster", Bug::cluster_barrier, -1, kPair, {"gone", "initialised", "without a barrier"});
  expect("fewer bytes announced", Bug::fewer_bytes, -1, kScored, {"all the bytes that were announced", "deadlock"});
  expect("more bytes announced", Bug::more_bytes, -1, kScored, {"deadlock"});
  expect("a copy to 8 bytes further on", Bug::moved_copy, -1, kScored, {"no multiple of 16"});
  expect("an operand outside", Bug::far_operand, -1, kScored, {"where the block has"});
  expect("an operand 32 bytes further on", Bug::slipped_operand, -1, kScored,
         {"without a barrier since", "nobody wrote"});
  expect("more registers than there are", Bug::more_registers, -1, kScored, {"registers a thread"});
  expect("matrices not turned", Bug::turned_matrices, -1, kScored, {"of the bound"});
  return finish();
}

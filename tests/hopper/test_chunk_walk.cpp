// SPDX-License-Identifier: Apache-2.0
// Every walk of the Hopper schedule that a plan can choose, by its own launches, against double, under several
// schedules of its threads and copies.
#include <cstdlib>

#include "check.h"
#include "device.h"
#include "walk_problem.h"

using namespace xlstm::gpu;
using namespace xlstm::gpu::mlstm;

int main(int count, char** arguments) {
  const std::vector<float> few{1e-9f, 1e-30f, 0.7f};
  const WalkCase cases[] = {
      // 128 rows: 128 columns and fewer in a block, or 256
      {Kind::scored, 128, 330, 128, 120},
      {Kind::scored, 128, 130, 104, 200, false, false},
      {Kind::scored, 128, 330, 128, 256, false, true, 2},
      {Kind::plain, 128, 330, 128, 120, true},
      {Kind::plain, 128, 330, 128, 328, true, true, 2},
      {Kind::flowing, 128, 130, 128, 128},
      {Kind::flowing, 128, 330, 128, 328, true},
      // 256 rows
      {Kind::scored, 256, 130, 256, 128, false, true, 1, few},
      {Kind::scored, 256, 330, 192, 200, false, false, 2},
      {Kind::scored, 256, 450, 256, 128, false, false},
      {Kind::scored, 256, 1, 136, 72},
      {Kind::plain, 256, 330, 192, 200, true},
      {Kind::plain, 256, 450, 256, 128, true, true, 3},
      {Kind::flowing, 256, 130, 256, 128},
      {Kind::flowing, 256, 330, 192, 200, true},
      {Kind::flowing, 256, 330, 200, 256, false, true, 2},
      // 512 rows: a cluster of two
      {Kind::gained, 512, 330, 512, 128},
      {Kind::gained, 512, 130, 264, 72, false, false, 1, few},
      {Kind::plain, 512, 330, 512, 128, true, true, 2},
      {Kind::flowing, 512, 130, 512, 128},
      {Kind::flowing, 512, 330, 328, 192, true, true, 2},
  };
  const int seeds = count > 1 ? std::atoi(arguments[1]) : 2;
  for (int seed = 1; seed <= seeds; ++seed)
    for (const WalkCase& c : cases) {
      emulator::set_seed(unsigned(1000 * seed));
      WalkProblem problem(c, unsigned(seed));
      std::string error;
      try {
        problem.run();
        error = problem.compare();
      } catch (const std::exception& fault) {
        error = fault.what();
      }
      CHECK(error.empty(), "%s, seed %d: %s", described(c).c_str(), seed, error.c_str());
      std::printf("%s: %s\n", described(c).c_str(), error.empty() ? "ok" : "FAILED");
    }
  return finish();
}

// SPDX-License-Identifier: Apache-2.0
// The grids of the layers' kernels on known GPUs: groups hold their rows, fill the chip where there are enough rows,
// and have equally many rows; how many threads share a row follows from the row's length alone.
#include "check.h"
#include "chips.h"
#include "layer/gpu/plan.h"

using namespace xlstm::gpu;
using namespace xlstm::gpu::layer;

namespace {

int64_t rounds(const PersistentPlan& plan, int64_t rows) { return (rows + plan.slices - 1) / plan.slices; }

void check_persistent(const char* name, const PersistentPlan& plan, int64_t rows, int64_t heads,
                      int64_t resident_groups) {
  const int64_t groups = plan.slices * heads, groups_per_block = plan.threads / plan.lanes;
  CHECK(plan.threads % plan.lanes == 0 && plan.threads <= kMaxGroup, "%s: %d threads", name, plan.threads);
  CHECK(plan.blocks * groups_per_block >= groups && (plan.blocks - 1) * groups_per_block < groups, "%s: %d blocks",
        name, int(plan.blocks));
  CHECK(plan.slices >= 1 && plan.slices <= rows, "%s: %d slices", name, int(plan.slices));
  CHECK(groups <= resident_groups || plan.slices == 1, "%s: %d groups", name, int(groups));
  // One slice less would need more rounds.
  if (plan.slices > 1)
    CHECK((rows + plan.slices - 2) / (plan.slices - 1) > rounds(plan, rows), "%s: %d slices", name, int(plan.slices));
}

void check_lanes(const char* name, int lanes, int64_t features, int chunks) {
  CHECK(lanes == kMaxGroup || int64_t(lanes) * chunks * 8 >= features, "%s: %d lanes", name, lanes);
  CHECK(lanes >= kLineLanes || lanes * 8 >= features, "%s: %d lanes of less than a line", name, lanes);
}

void test_norms() {
  CHECK(norm_lanes(1, 4) == 1 && norm_lanes(16, 4) == 2 && norm_lanes(17, 4) == 4, "a chunk a thread");
  CHECK(norm_lanes(64, 4) == 8 && norm_lanes(256, 4) == 8 && norm_lanes(257, 4) == 16, "a line, then four chunks");
  CHECK(norm_lanes(4096, 2) == 256 && norm_lanes(1 << 20, 4) == 512, "no more than %d", kMaxGroup);
  for (const auto& [name, chip] : known_chips())
    for (int chunks : {kRegisterChunks, kTwoByteChunks})
      for (int64_t rows : {1, 7, 8, 300, 8192, 100000})
        for (int64_t heads : {1, 3, 8, 1000, 500000})
          for (int64_t features : {1, 24, 512, 4096, 20000}) {
            const Groups forward = plan_norm(chip, rows, heads, features, chunks);
            const int64_t groups_per_block = forward.threads / forward.lanes;
            check_lanes(name, forward.lanes, features, chunks);
            CHECK(forward.blocks * groups_per_block >= rows * heads &&
                      (forward.blocks - 1) * groups_per_block < rows * heads,
                  "%s: %d blocks", name, int(forward.blocks));
            CHECK(forward.lanes <= wave_size(chip.family) || groups_per_block == 1, "%s: groups meet each other", name);
            const PersistentPlan backward = plan_norm_backward(chip, rows, heads, features);
            const int64_t blocks = int64_t(chip.compute_units) * (kBackwardResidentThreads / backward.threads);
            check_lanes(name, backward.lanes, features, kRegisterChunks);
            check_persistent(name, backward, rows, heads, blocks * (backward.threads / backward.lanes));
            CHECK(backward.slices == 1 || rows / backward.slices >= 8, "%s: %d slices", name, int(backward.slices));
          }
  CHECK(plan_norm(known_chip("MI300X"), 0, 8, 64, 4).blocks == 0, "no rows");
  const Groups h200 = plan_norm(known_chip("H200"), 8192, 1, 4096, 4);
  CHECK(h200.lanes == 128 && h200.threads == 128 && h200.blocks == 8192, "a block for each row");
  const Groups heads = plan_norm(known_chip("H200"), 8192, 8, 512, 4);
  CHECK(heads.lanes == 16 && heads.threads == 256 && heads.blocks == 4096, "16 heads a block");
  const PersistentPlan backward = plan_norm_backward(known_chip("H200"), 8192, 1, 4096);
  CHECK(backward.slices == 256 && backward.blocks == 256, "32 rows for each of 256 blocks");
}

void test_classes() {
  for (const auto& [name, chip] : known_chips()) {
    const int wave = wave_size(chip.family);
    CHECK(class_lanes(chip, 7) == 1 && class_lanes(chip, 256) == 8, "%s: few classes", name);
    CHECK(class_lanes(chip, 1024) == 32 && class_lanes(chip, 4096) == wave, "%s: a wave", name);
    CHECK(class_lanes(chip, 50304) == 128 && class_lanes(chip, 1 << 20) == 512, "%s: many classes", name);
    for (int64_t rows : {1, 5, 8192, 1000000})
      for (int64_t classes : {1, 256, 4096, 50304}) {
        const PersistentPlan plan = plan_cross_entropy(chip, rows, classes);
        const int64_t blocks = int64_t(chip.compute_units) * (kResidentThreads / plan.threads);
        check_persistent(name, plan, rows, 1, blocks * (plan.threads / plan.lanes));
      }
  }
}

}  // namespace

int main() {
  test_norms();
  test_classes();
  return finish();
}

// SPDX-License-Identifier: Apache-2.0
// How the layers lie on known GPUs: groups hold their rows, fill the chip where there are rows for it, and have as many
// rows each; who shares a row follows from the row alone.
#include "check.h"
#include "chips.h"
#include "layer/gpu/plan.h"

using namespace xlstm::gpu;
using namespace xlstm::gpu::layer;

namespace {

int64_t turns(const Walk& walk, int64_t rows) { return (rows + walk.slices - 1) / walk.slices; }

void check_walk(const char* name, const Walk& walk, int64_t rows, int64_t heads, int64_t groups_at_once) {
  const int64_t groups = walk.slices * heads, together = walk.threads / walk.lanes;
  CHECK(walk.threads % walk.lanes == 0 && walk.threads <= kMostGroup, "%s: %d threads", name, walk.threads);
  CHECK(walk.blocks * together >= groups && (walk.blocks - 1) * together < groups, "%s: %d blocks", name,
        int(walk.blocks));
  CHECK(walk.slices >= 1 && walk.slices <= rows, "%s: %d slices", name, int(walk.slices));
  CHECK(groups <= groups_at_once || walk.slices == 1, "%s: %d groups", name, int(groups));
  // No fewer slices would do in as many turns.
  if (walk.slices > 1)
    CHECK((rows + walk.slices - 2) / (walk.slices - 1) > turns(walk, rows), "%s: %d slices", name, int(walk.slices));
}

void check_lanes(const char* name, int lanes, int64_t features, int chunks) {
  CHECK(lanes == kMostGroup || int64_t(lanes) * chunks * 8 >= features, "%s: %d lanes", name, lanes);
  CHECK(lanes >= kLineLanes || lanes * 8 >= features, "%s: %d lanes of less than a line", name, lanes);
}

void test_norms() {
  CHECK(norm_lanes(1, 4) == 1 && norm_lanes(16, 4) == 2 && norm_lanes(17, 4) == 4, "a chunk a thread");
  CHECK(norm_lanes(64, 4) == 8 && norm_lanes(256, 4) == 8 && norm_lanes(257, 4) == 16, "a line, then four chunks");
  CHECK(norm_lanes(4096, 2) == 256 && norm_lanes(1 << 20, 4) == 512, "no more than %d", kMostGroup);
  for (const auto& [name, chip] : known_chips())
    for (int chunks : {kKeptChunks, kSmallChunks})
      for (int64_t rows : {1, 7, 8, 300, 8192, 100000})
        for (int64_t heads : {1, 3, 8, 1000, 500000})
          for (int64_t features : {1, 24, 512, 4096, 20000}) {
            const Groups forward = plan_norm(chip, rows, heads, features, chunks);
            const int64_t together = forward.threads / forward.lanes;
            check_lanes(name, forward.lanes, features, chunks);
            CHECK(forward.blocks * together >= rows * heads && (forward.blocks - 1) * together < rows * heads,
                  "%s: %d blocks", name, int(forward.blocks));
            CHECK(forward.lanes <= wave_size(chip.family) || together == 1, "%s: groups meet each other", name);
            const Walk backward = plan_norm_backward(chip, rows, heads, features);
            const int64_t blocks = int64_t(chip.compute_units) * (kBackwardThreadsAtOnce / backward.threads);
            check_lanes(name, backward.lanes, features, kKeptChunks);
            check_walk(name, backward, rows, heads, blocks * (backward.threads / backward.lanes));
            CHECK(backward.slices == 1 || rows / backward.slices >= 8, "%s: %d slices", name, int(backward.slices));
          }
  CHECK(plan_norm(known_chip("MI300X"), 0, 8, 64, 4).blocks == 0, "no rows");
  const Groups h200 = plan_norm(known_chip("H200"), 8192, 1, 4096, 4);
  CHECK(h200.lanes == 128 && h200.threads == 128 && h200.blocks == 8192, "a block for each row");
  const Groups heads = plan_norm(known_chip("H200"), 8192, 8, 512, 4);
  CHECK(heads.lanes == 16 && heads.threads == 256 && heads.blocks == 4096, "16 heads a block");
  const Walk backward = plan_norm_backward(known_chip("H200"), 8192, 1, 4096);
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
        const Walk walk = plan_cross_entropy(chip, rows, classes);
        const int64_t blocks = int64_t(chip.compute_units) * (kThreadsAtOnce / walk.threads);
        check_walk(name, walk, rows, 1, blocks * (walk.threads / walk.lanes));
      }
  }
}

}  // namespace

int main() {
  test_norms();
  test_classes();
  return finish();
}

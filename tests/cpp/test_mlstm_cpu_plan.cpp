// SPDX-License-Identifier: Apache-2.0
// mlstm/cpu/plan.h: properties of every plan, and plans that were worked out by hand.
#include "check.h"
#include "mlstm/cpu/plan.h"

using namespace xlstm;

namespace {

void test_properties(int64_t sequences, int64_t heads, int64_t longest, int64_t chunk_size, int64_t threads) {
  const MlstmCpuPlan p = plan_mlstm_cpu(sequences, heads, longest, chunk_size, threads);
  const auto holds = [&](bool condition, const char* what) {
    CHECK(condition, "%s: %d sequences, %d heads, %d tokens, chunk %d, %d threads", what, int(sequences), int(heads),
          int(longest), int(chunk_size), int(threads));
  };
  holds(p.chunk >= 1 && p.chunk <= longest && p.chunk <= chunk_size, "chunk in its bounds");
  holds(p.chunk == chunk_size || p.chunk == longest, "chunk as asked for");
  holds(p.segments >= 1 && p.segments * p.segment_length >= longest, "segments cover the sequence");
  holds((p.segments - 1) * p.segment_length < longest, "no segment is empty");
  holds(p.segments == 1 || p.segment_length % p.chunk == 0, "segments are complete chunks");
  holds(p.segments == 1 || p.segment_length >= 4 * p.chunk, "a cut segment has four chunks");
  holds(p.segments == 1 || sequences * heads < threads, "nothing is cut when the heads fill the threads");
  holds(p.workers >= 1 && p.workers <= threads && p.workers <= sequences * heads * p.segments,
        "a task for every worker");
}

void test_known(int64_t sequences, int64_t heads, int64_t longest, int64_t chunk_size, int64_t threads,
                const MlstmCpuPlan& expected) {
  const MlstmCpuPlan p = plan_mlstm_cpu(sequences, heads, longest, chunk_size, threads);
  CHECK(p.chunk == expected.chunk && p.segment_length == expected.segment_length && p.segments == expected.segments &&
            p.workers == expected.workers,
        "%d sequences, %d heads, %d tokens, chunk %d, %d threads: chunk %d, segments %d of %d, workers %d",
        int(sequences), int(heads), int(longest), int(chunk_size), int(threads), int(p.chunk), int(p.segments),
        int(p.segment_length), int(p.workers));
}

}  // namespace

int main() {
  for (int64_t threads = 1; threads <= 128; ++threads)
    for (int64_t sequences : {1, 2, 5})
      for (int64_t heads : {1, 3, 8})
        for (int64_t longest : {1, 2, 63, 64, 65, 511, 512, 513, 2049, 100000})
          for (int64_t chunk_size : {1, 7, 64, 1000}) test_properties(sequences, heads, longest, chunk_size, threads);

  // {chunk, segment_length, segments, workers}
  test_known(1, 8, 2048, 64, 1, {64, 2048, 1, 1});
  // A requested number of segments is used, up to one for each chunk.
  const MlstmCpuPlan three = plan_mlstm_cpu(1, 8, 2048, 64, 2, 3), most = plan_mlstm_cpu(1, 1, 200, 64, 9, 77);
  CHECK(three.segments == 3 && three.segment_length == 704, "%d segments of %d", int(three.segments),
        int(three.segment_length));
  CHECK(most.segments == 4 && most.segment_length == 64 && most.workers == 4, "%d segments, %d workers",
        int(most.segments), int(most.workers));
  test_known(1, 8, 2048, 64, 2, {64, 2048, 1, 2});
  test_known(1, 8, 2048, 64, 8, {64, 2048, 1, 8});
  test_known(1, 8, 2048, 64, 16, {64, 1024, 2, 16});
  test_known(1, 1, 2048, 64, 4, {64, 512, 4, 4});
  test_known(1, 1, 2048, 64, 128, {64, 256, 8, 8});  // 32 chunks: eight segments of four
  test_known(1, 1, 448, 64, 4, {64, 448, 1, 1});     // seven chunks: too few for two segments
  test_known(1, 1, 512, 64, 4, {64, 256, 2, 2});
  test_known(4, 8, 1, 64, 128, {1, 1, 1, 32});
  return finish();
}

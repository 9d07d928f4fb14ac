// SPDX-License-Identifier: Apache-2.0
#include "mlstm/chunkwise/chunkwise_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/numbers.h"
#include "mlstm/chunkwise/parallel_params.h"

namespace xlstm::gpu::mlstm {

namespace {

// The time of a walk of `chunks` that is split into `segments`, in chunks of one block. A split walk first computes the
// states of all segments but the last, at half the cost of a walk.
struct WalkTime {
  int64_t blocks, chunks;
  int64_t units;  // blocks that run at a time
  Family family;

  // How long that many blocks take, each alone for one unit of time.
  double rounds(int64_t count, int blocks_of_unit) const {
    const double alone = double(ceil_div(count, units));
    // CDNA: by predicted times, two blocks that share a compute unit take 1.4 times as long as one.
    return blocks_of_unit > 1 ? std::min(alone, 1.4 * double(ceil_div(count, 2 * units))) : alone;
  }
  double of(int64_t segments, int blocks_of_unit) const {
    const bool cdna = family == Family::cdna;
    const double overhead = cdna ? 3 : 0;  // of a block, in chunks: the state, a prologue and an epilogue
    const double each = cdna ? double(ceil_div(chunks, segments)) : double(chunks) / double(segments);
    const double walk = rounds(blocks * segments, blocks_of_unit) * (overhead + each);
    if (segments == 1) return walk;
    return walk + rounds(blocks * (segments - 1), blocks_of_unit) * (overhead + 0.5 * each);
  }
};
// The fewest chunks of a segment. Where eight hide a block's prologue and epilogue, its time does not count them.
int64_t least_chunks_of_segment(Family f) { return f == Family::cdna ? 2 : 8; }

// Whether the Hopper walk supports these tensors, and they fill its tiles.
bool suits_hopper(const MlstmShape& s, const Chip& chip) {
  const auto fits = [](int64_t dimension) { return dimension >= 128 && dimension <= kMaxWalkRows; };
  return chip.hopper && s.chunk == 0 && s.panels && fits(s.dqk) && fits(s.dhv) && s.length >= 2 * kHopperChunk;
}

// The longest chunk for which every walk with a state of these dimensions has a kernel that fits this chip.
int chunk_for(const MlstmShape& s, const Chip& chip, std::initializer_list<int64_t> dimensions) {
  if (suits_hopper(s, chip)) return kHopperChunk;
  const auto fits = [&](int chunk) {
    return std::all_of(dimensions.begin(), dimensions.end(), [&](int64_t dimension) {
      const int rows = walk_rows(dimension);
      return has_walk(chip.family, s.element_bytes, rows, chunk) &&
             (dimension <= kMaxWalkRows || has_wide_walk(chip.family, s.element_bytes, chunk)) &&
             walk_shape(chip.family, s.element_bytes, rows, chunk).lds_bytes <= chip.lds_bytes;
    });
  };
  for (const int chunk : kChunks)
    if ((s.chunk == 0 || s.chunk == chunk) && fits(chunk)) return chunk;
  if (s.chunk != 0)
    throw std::invalid_argument("walk_chunk: no kernel for chunks of " + std::to_string(s.chunk) +
                                " tokens of these head dims and this dtype on this GPU");
  throw std::invalid_argument("DHQK, DHHV: no kernel for these fits the " + std::to_string(chip.lds_bytes) +
                              " bytes of LDS of this GPU");
}

// rows, columns: of the state.
WalkPlan plan_walk(const MlstmShape& s, const Chip& chip, int64_t rows, int64_t columns, int chunk) {
  WalkPlan p{};
  p.chunk = chunk;
  p.rows = walk_rows(rows);
  p.slices = rows > kMaxWalkRows ? int(ceil_div(rows, p.rows)) : 1;
  int64_t at_once = chip.compute_units;
  int blocks_of_unit = 1;  // that may share a compute unit of CDNA
  if (chunk == kHopperChunk) {
    p.schedule = Schedule::hopper;
    p.rows = std::max(p.rows, 128);
    const HopperShape shape = hopper_shape(p.rows, columns);
    p.y_tile = shape.y_tile();
    p.tiles = int(ceil_div(columns, p.y_tile));
    if (shape.pair) p.tiles = int(ceil_div(p.tiles, 2)) * 2;
  } else {
    p.narrow = p.rows == class_rows(kNarrowClass) && columns <= kNarrowColumns &&
               has_walk(chip.family, s.element_bytes, kNarrowClass, chunk);
    const WalkShape shape = walk_shape(chip.family, s.element_bytes, p.narrow ? kNarrowClass : p.rows, chunk);
    at_once *= shape.blocks_at_once;
    if (chip.family == Family::cdna) blocks_of_unit = shape.blocks;
    p.y_tile = shape.y_tile;
    p.tiles = int(ceil_div(columns, p.y_tile));
  }
  const int64_t blocks = s.sequences * s.heads * p.tiles;
  const int64_t chunks = ceil_div(s.length, chunk);
  const int64_t least_chunks = least_chunks_of_segment(chip.family);
  const int64_t max_segments =
      p.slices > 1 ? 1 : std::max<int64_t>(1, std::min<int64_t>(chunks / least_chunks, kMaxSegments));
  const int64_t allowed = p.slices > 1 ? 1 : kMaxSegments;
  if (s.segments > allowed)
    throw std::invalid_argument("segments: expected at most " + std::to_string(allowed) +
                                " of these head dims on a GPU, got " + std::to_string(s.segments));
  const WalkTime time{blocks, chunks, at_once, chip.family};
  const auto time_of = [&](int64_t n) { return time.of(n, blocks_of_unit); };
  int64_t best = s.segments ? std::min(s.segments, chunks) : 1;
  for (int64_t n = 2; s.segments == 0 && n <= max_segments; ++n)
    if (time_of(n) < 0.95 * time_of(best)) best = n;
  p.segment_chunks = int(ceil_div(chunks, best));
  p.segments = int(ceil_div(chunks, p.segment_chunks));
  p.blocks = int(s.sequences * s.heads * p.tiles * p.segments);
  return p;
}

// Whether the pairs of all tokens take less time than states between chunks, in microseconds of an MI300X, as predicted
// for forward and backward: what a pair of chunks takes for each feature, and a chunk for each element of a state,
// against the launches of states.
bool suits_parallel(const MlstmShape& s, const Chip& chip) {
  if (chip.family != Family::cdna || !s.panels || !s.stateless || s.chunk != 0 || s.segments != 0 ||
      s.length > kParallelChunk * kMaxParallelChunks)
    return false;
  constexpr double kPerPairFeature = 2.85e-5, kPerStateElement = 2.6e-6, kStateLaunches = 110, kUnits = 304;
  const double chunks = double(ceil_div(s.length, kParallelChunk)), of_heads = double(s.sequences * s.heads) * chunks;
  const double pairs = kPerPairFeature * of_heads * chunks * double(s.dqk + s.dhv);
  const double states = kPerStateElement * of_heads * double(s.dqk) * double(s.dhv);
  return (pairs - states) * kUnits / chip.compute_units < kStateLaunches;
}

// The launch of the products whose results have so many columns.
WalkPlan plan_parallel(const MlstmShape& s, int64_t columns) {
  WalkPlan p{};
  p.schedule = Schedule::parallel;
  p.rows = kProductTokens;
  p.chunk = kParallelChunk;
  p.slices = p.segments = 1;
  p.segment_chunks = int(ceil_div(s.length, kParallelChunk));
  p.y_tile = kProductColumns;
  p.tiles = int(ceil_div(columns, kProductColumns));
  p.blocks = int(s.sequences * s.heads * p.tiles * ceil_div(p.segment_chunks, 2));
  return p;
}

}  // namespace

int64_t segment_state_floats(const WalkPlan& p, int64_t states) {
  return states * (p.slices > 1 ? p.slices : p.segments - 1) * p.tiles * p.rows * p.y_tile;
}

ForwardPlan plan_forward(const MlstmShape& s, const Chip& chip) {
  if (suits_parallel(s, chip)) return {chip, plan_parallel(s, s.dhv)};
  ForwardPlan p{chip, plan_walk(s, chip, s.dqk, s.dhv, chunk_for(s, chip, {s.dqk}))};
  p.walk.makes_scores = p.walk.schedule == Schedule::hopper && hopper_shape(p.walk.rows, s.dhv).makes_scores();
  return p;
}

BackwardPlan plan_backward(const MlstmShape& s, const Chip& chip) {
  if (suits_parallel(s, chip)) {
    const WalkPlan dq = plan_parallel(s, s.dqk);
    return {chip, dq, dq, plan_parallel(s, s.dhv)};
  }
  const int chunk = chunk_for(s, chip, {s.dqk, s.dhv});
  const WalkPlan dk = plan_walk(s, chip, s.dhv, s.dqk, chunk);
  BackwardPlan p{chip, dk, dk, plan_walk(s, chip, s.dqk, s.dhv, chunk)};
  if (chip.family == Family::cdna && dk.segments > 1 && p.dv.slices == 1) {
    MlstmShape as_dk = s;
    as_dk.segments = dk.segments;
    p.dv = plan_walk(as_dk, chip, s.dqk, s.dhv, chunk);
    p.dv.reads_transposed = true;
  }
  return p;
}

}  // namespace xlstm::gpu::mlstm

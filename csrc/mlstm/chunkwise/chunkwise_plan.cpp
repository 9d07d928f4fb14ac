// SPDX-License-Identifier: Apache-2.0
#include "mlstm/chunkwise/chunkwise_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/numbers.h"
#include "mlstm/chunkwise/parallel_params.h"

namespace xlstm::gpu::mlstm {

namespace {

// What a block takes besides its chunks, in chunks: the state, a prologue and an epilogue. CDNA's as predicted, the
// other as measured on an H200.
constexpr double kCdnaBlock = 2.2, kNvidiaBlock = 1.2;

// The time of walks of `chunks` that are split into `segments`, in chunks of one block. Split walks first compute the
// states of all segments but the last, at half the cost of a walk.
struct WalkTime {
  int64_t blocks, state_blocks;  // of a segment: of the walks, and of the states before them
  int64_t chunks;
  int64_t units;       // blocks that run at a time
  int blocks_of_unit;  // that may share a compute unit of CDNA
  Family family;

  // How long that many blocks take, each alone for one unit of time.
  double rounds(int64_t count) const {
    const double alone = double(ceil_div(count, units));
    // CDNA: by predicted times, two blocks that share a compute unit take 1.4 times as long as one.
    return blocks_of_unit > 1 ? std::min(alone, 1.4 * double(ceil_div(count, 2 * units))) : alone;
  }
  double of(int64_t segments) const {
    const bool cdna = family == Family::cdna;
    const double overhead = cdna ? kCdnaBlock : 0;
    const double each = cdna ? double(ceil_div(chunks, segments)) : double(chunks) / double(segments);
    const double walk = rounds(blocks * segments) * (overhead + each);
    if (segments == 1) return walk;
    return walk + rounds(state_blocks * (segments - 1)) * (overhead + 0.5 * each);
  }
};
// The fewest chunks of a segment. Where eight hide a block's prologue and epilogue, its time does not count them.
int64_t least_chunks_of_segment(Family f) { return f == Family::cdna ? 2 : 8; }

// Whether the Hopper walk supports these tensors. For head dims up to 64 it has 128 rows, the common walk 64, and takes
// 0.46 to 0.89 of its time all the same (4 to 16 heads of 64/64 and 64/128).
bool suits_hopper(const MlstmShape& s, const Chip& chip) {
  const auto fits = [](int64_t dimension) { return dimension <= kMaxWalkRows; };
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

// The kernel and the tiles of a walk. rows, columns: of the state.
WalkPlan plan_tiles(const MlstmShape& s, const Chip& chip, int64_t rows, int64_t columns, int chunk) {
  WalkPlan p{};
  p.chunk = chunk;
  p.rows = walk_rows(rows);
  p.slices = rows > kMaxWalkRows ? int(ceil_div(rows, p.rows)) : 1;
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
    p.y_tile = walk_shape(chip.family, s.element_bytes, walk_class(p), chunk).y_tile;
    p.tiles = int(ceil_div(columns, p.y_tile));
  }
  return p;
}

// How long walks take of which this is one. tiles: of all of them, state_tiles of those that have states of their own.
WalkTime walk_time(const MlstmShape& s, const Chip& chip, const WalkPlan& p, int tiles, int state_tiles) {
  WalkTime time{s.sequences * s.heads * tiles,
                s.sequences * s.heads * state_tiles,
                ceil_div(s.length, p.chunk),
                chip.compute_units,
                1,
                chip.family};
  if (p.schedule == Schedule::common) {
    const WalkShape shape = walk_shape(chip.family, s.element_bytes, walk_class(p), p.chunk);
    time.units *= shape.blocks_at_once;
    if (chip.family == Family::cdna) time.blocks_of_unit = shape.blocks;
  }
  return time;
}

// How many segments are requested, or take the least time.
int64_t best_segments(const MlstmShape& s, const WalkPlan& p, const WalkTime& time) {
  const int64_t allowed = p.slices > 1 ? 1 : kMaxSegments;
  if (s.segments > allowed)
    throw std::invalid_argument("segments: expected at most " + std::to_string(allowed) +
                                " of these head dims on a GPU, got " + std::to_string(s.segments));
  if (s.segments) return s.segments;
  const double gain = time.family == Family::cdna ? 1 : 0.95;  // by which more segments must be faster
  int64_t best = 1;
  for (int64_t n = 2; n <= std::min(time.chunks / least_chunks_of_segment(time.family), allowed); ++n)
    if (time.of(n) < gain * time.of(best)) best = n;
  return best;
}

void set_segments(WalkPlan& p, const MlstmShape& s, int64_t segments) {
  const int64_t chunks = ceil_div(s.length, p.chunk);
  p.segment_chunks = int(ceil_div(chunks, std::min(segments, chunks)));
  p.segments = int(ceil_div(chunks, p.segment_chunks));
  p.blocks = int(s.sequences * s.heads * p.tiles * p.segments);
}

WalkPlan plan_walk(const MlstmShape& s, const Chip& chip, int64_t rows, int64_t columns, int chunk) {
  WalkPlan p = plan_tiles(s, chip, rows, columns, chunk);
  set_segments(p, s, best_segments(s, p, walk_time(s, chip, p, p.tiles, p.tiles)));
  return p;
}

// Whether CDNA has a kernel for backward's walks together: the same threads, and states of at most 128 rows.
bool walk_together(const MlstmShape& s, const Chip& chip, const WalkPlan& dk, const WalkPlan& dv) {
  const auto suits = [](const WalkPlan& p) { return p.slices == 1 && p.rows <= 128; };
  return chip.family == Family::cdna && s.element_bytes == 2 && suits(dk) && suits(dv);
}

// Whether the pairs of all tokens take less time than states between chunks, in microseconds of an MI300X, as predicted
// for forward and backward: what a pair of chunks takes for each feature, and a chunk for each element of a state,
// against the launches of states.
bool suits_parallel(const MlstmShape& s, const Chip& chip) {
  if (chip.family != Family::cdna || !s.panels || !s.stateless || s.packed || s.chunk != 0 || s.segments != 0 ||
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

// A packed row as one sequence. It is not walked by the parallel schedule, whose pairs know no sequences.
MlstmShape joined_row(MlstmShape s) {
  s.sequences = 1;
  s.packed = s.stateless = false;
  return s;
}

// Whether the walk of a packed row as one sequence takes less time than a walk of each sequence, which costs each of
// its blocks a prologue and an epilogue. The host does not know the sequences' lengths: this counts on equal ones.
bool joins_row(const MlstmShape& s, const Chip& chip) {
  if (!s.packed || !s.stateless || s.sequences == 1 || s.chunk != 0 || s.segments != 0) return false;
  const int chunk = chunk_for(s, chip, {s.dqk});
  const WalkPlan p = plan_tiles(s, chip, s.dqk, s.dhv, chunk);
  const WalkTime each = walk_time(s, chip, p, p.tiles, p.tiles);
  const double chunks = double(ceil_div(ceil_div(s.length, s.sequences), chunk));
  const MlstmShape row = joined_row(s);
  const WalkTime joined = walk_time(row, chip, p, p.tiles, p.tiles);
  const bool cdna = chip.family == Family::cdna;
  const double joined_time = (cdna ? 0 : kNvidiaBlock) + joined.of(best_segments(row, p, joined));
  return joined_time < each.rounds(each.blocks) * ((cdna ? kCdnaBlock : kNvidiaBlock) + chunks);
}

}  // namespace

int64_t segment_state_floats(const WalkPlan& p, int64_t states) {
  return states * (p.slices > 1 ? p.slices : p.segments - 1) * p.tiles * p.rows * p.y_tile;
}

ForwardPlan plan_forward(const MlstmShape& s, const Chip& chip) {
  if (suits_parallel(s, chip)) return {chip, plan_parallel(s, s.dhv)};
  if (joins_row(s, chip)) {
    ForwardPlan p = plan_forward(joined_row(s), chip);
    p.joined = true;
    return p;
  }
  ForwardPlan p{chip, plan_walk(s, chip, s.dqk, s.dhv, chunk_for(s, chip, {s.dqk}))};
  p.walk.makes_scores = p.walk.schedule == Schedule::hopper && hopper_shape(p.walk.rows, s.dhv).makes_scores();
  return p;
}

BackwardPlan plan_backward(const MlstmShape& s, const Chip& chip) {
  if (suits_parallel(s, chip)) {
    const WalkPlan dq = plan_parallel(s, s.dqk);
    return {chip, dq, dq, plan_parallel(s, s.dhv)};
  }
  if (joins_row(s, chip)) {
    BackwardPlan p = plan_backward(joined_row(s), chip);
    p.joined = true;
    return p;
  }
  const int chunk = chunk_for(s, chip, {s.dqk, s.dhv});
  WalkPlan dk = plan_tiles(s, chip, s.dhv, s.dqk, chunk), dv = plan_tiles(s, chip, s.dqk, s.dhv, chunk);
  const bool together = walk_together(s, chip, dk, dv);
  const int tiles = together ? 2 * dk.tiles + dv.tiles : dk.tiles, state_tiles = together ? 2 * dk.tiles : dk.tiles;
  set_segments(dk, s, best_segments(s, dk, walk_time(s, chip, dk, tiles, state_tiles)));
  if (together || (chip.family == Family::cdna && dk.segments > 1 && dv.slices == 1)) {
    set_segments(dv, s, dk.segments);
    dv.reads_transposed = dk.segments > 1;
  } else {
    set_segments(dv, s, best_segments(s, dv, walk_time(s, chip, dv, dv.tiles, dv.tiles)));
  }
  return {chip, dk, dk, dv, together};
}

}  // namespace xlstm::gpu::mlstm

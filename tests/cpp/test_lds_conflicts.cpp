// SPDX-License-Identifier: Apache-2.0
// Counts the bank conflicts of every access of the GPU kernels to an LDS tile, for every tile of walk_shape(), the
// score kernel, forward_shape() and attention's backward pass. The lanes' addresses are those of csrc/tile/lds_tile.h
// (fetch, store), csrc/arch/amd/{cdna,rdna}.h and csrc/arch/nvidia/mma.h (operands). is_known() lists the accesses that
// have conflicts.
#include <functional>
#include <set>
#include <string>

#include "attention/backward/backward_shape.h"
#include "attention/forward/forward_shape.h"
#include "check.h"
#include "lds.h"
#include "mlstm/chunkwise/chunk_walk_shape.h"

using namespace xlstm::gpu;
using namespace xlstm::gpu::attention;
using namespace xlstm::gpu::mlstm;

namespace {

using lds::Access;

struct Pattern {
  std::string name;
  lds::Tile tile;
  Access access;
  int bytes;                                          // a lane
  int threads;                                        // of the block; each wave is checked
  int rounds;                                         // accesses of a thread
  std::function<int(int thread, int round)> address;  // -1: none
};

int conflict(const Pattern& p, lds::Lds lds) {
  const int wave = wave_size(p.tile.family);
  int worst = 1;
  for (int round = 0; round < p.rounds; ++round)
    for (int first = 0; first < p.threads; first += wave) {
      std::vector<int> address(wave);
      for (int lane = 0; lane < wave; ++lane) address[lane] = p.address(first + lane, round);
      worst = std::max(worst, lds::conflict(p.tile.family, lds, p.access, p.bytes, address));
    }
  return worst;
}

using Patterns = std::vector<Pattern>;

// Stage::store, or cp_async, of tokens by features, not transposed.
void add_along_rows(Patterns& all, const std::string& name, const lds::Tile& t, int threads) {
  const int n = 16 / t.element_bytes, units = t.rows * t.columns / n;
  all.push_back({name + " stored along rows", t, Access::write, 16, threads, (units + threads - 1) / threads,
                 [=](int thread, int round) {
                   const int unit = thread + round * threads;
                   return unit < units ? t.at(unit / (t.columns / n), unit % (t.columns / n) * n) : -1;
                 }});
}

// Stage::store_transposed: the tile is features by tokens.
void add_transposed(Patterns& all, const std::string& name, const lds::Tile& t, int threads) {
  const int n = 16 / t.element_bytes, tokens = t.columns, units = tokens * t.rows / n / 4;
  const int rounds = (units + threads - 1) / threads;
  all.push_back({name + " stored transposed", t, Access::write, 4 * t.element_bytes, threads, rounds * n,
                 [=](int thread, int round) {
                   const int unit = thread + round / n * threads;
                   if (unit >= units) return -1;
                   return t.at(unit / (tokens / 4) * n + round % n, unit % (tokens / 4) * 4);
                 }});
}

// load_stream or load_chain of a step, at every position in the tile. `along`: the tile is [side][k]; otherwise NVIDIA
// reads it transposed.
void add_operand(Patterns& all, const std::string& name, const lds::Tile& t, bool along, bool stream) {
  const Family f = t.family;
  const int step = strip_step(f, t.element_bytes), side_step = stream ? step : kStripColumns;
  const int n = 16 / t.element_bytes;
  const int sides = (along ? t.rows : t.columns) / side_step, depths = (along ? t.columns : t.rows) / step;
  const std::string what = name + (stream ? " as stream" : " as chain") + (along ? "" : ", transposed");
  const auto add = [&](Access access, int bytes, int reads,
                       std::function<int(int lane, int read, int side, int k)> at) {
    all.push_back({what, t, access, bytes, wave_size(f), sides * depths * reads, [=](int lane, int round) {
                     const int slot = round / reads;
                     return at(lane, round % reads, slot % sides * side_step, slot / sides * step);
                   }});
  };
  if (f == Family::cdna) {
    const int accumulators = stream && t.element_bytes == 2 ? 2 : 1;
    add(Access::read, 16, accumulators, [=](int lane, int j, int side, int k) {
      const int i = lane % 16, row = accumulators == 2 ? interleaved_row(i, j) : i;
      return t.at(side + row, k + lane / 16 * n);
    });
  } else if (f == Family::rdna) {
    add(Access::read, 16, 16 / n,
        [=](int lane, int vec16, int side, int k) { return t.at(side + lane % 16, k + vec16 * n); });
  } else if (f == Family::rdna4) {
    add(Access::read, 16, 8 / n,
        [=](int lane, int vec16, int side, int k) { return t.at(side + lane % 16, k + lane / 16 * 8 + vec16 * n); });
  } else if (t.element_bytes == 2) {
    add(Access::ldmatrix, 16, 1, [=](int lane, int, int side, int k) {
      const int m = lane / 8, i = lane % 8;
      const int s = stream ? 8 * (m / 2) : 8 * (m % 2), d = stream ? 8 * (m % 2) : 8 * (m / 2);
      return along ? t.at(side + s + i, k + d) : t.at(k + d + i, side + s);
    });
  } else {  // one float at a time
    constexpr int e_reads = 2;
    add(Access::read, 4, 4 * e_reads, [=](int lane, int read, int side, int k) {
      const int w = read / e_reads, e = read % e_reads;
      const int s = side + 8 * (stream ? w / 2 : w % 2) + lane / 4;
      const int d = k + 8 * (stream ? w % 2 : w / 2) + 2 * (lane % 4) + e;
      return along ? t.at(s, d) : t.at(d, s);
    });
  }
}

// The accesses to a matrix of tokens by features that a kernel reads as an operand whose k is the features, or the
// tokens.
void add_along_features(Patterns& all, const std::string& name, lds::Tile t, int threads, bool stream) {
  add_along_rows(all, name, t, threads);
  add_operand(all, name, t, true, stream);
}
void add_along_tokens(Patterns& all, const std::string& name, lds::Tile t, int threads, bool stream) {
  if (t.family == Family::nvidia) {
    add_along_rows(all, name, t, threads);
    add_operand(all, name, t, false, stream);
  } else {
    std::swap(t.rows, t.columns);
    add_transposed(all, name, t, threads);
    add_operand(all, name, t, true, stream);
  }
}

// TransposedSubtile::store: rows are features.
void add_subtile(Patterns& all, const std::string& name, const lds::Tile& t, int threads) {
  const int in_word = 4 / t.element_bytes, quads = t.columns / 4, units = quads * t.rows / in_word;
  all.push_back({name, t, Access::write, 4 * t.element_bytes, threads, in_word, [=](int thread, int half) {
                   if (thread >= units) return -1;
                   const int word = transposed_word(t.element_bytes, t.columns, thread / quads);
                   return t.at(word * in_word + half, thread % quads * 4);
                 }});
}

constexpr int kWalkClasses[] = {64, 128, kNarrowClass, 256, 512};

Patterns patterns(Family f, const lds::Swizzle& swizzle) {
  Patterns all;
  for (int bytes : {2, 4})
    for (int chunk : kChunks) {
      bool any = false;
      for (int rows : kWalkClasses) {
        if (!has_walk(f, bytes, rows, chunk)) continue;
        any = true;
        const WalkShape s = walk_shape(f, bytes, rows, chunk);
        const std::string walk =
            "walk<" + std::to_string(bytes) + " bytes, " + std::to_string(rows) + ", " + std::to_string(chunk) + "> ";
        const lds::Tile tokens{f, bytes, chunk, class_rows(rows), swizzle}, scores{f, bytes, chunk, chunk, swizzle};
        add_along_features(all, walk + "a", tokens, s.threads, true);
        add_along_tokens(all, walk + "x", tokens, s.threads, true);
        add_along_tokens(all, walk + "y", {f, bytes, chunk, s.y_tile, swizzle}, s.threads, false);
        add_along_features(all, walk + "scores", scores, s.threads, true);
        if (f == Family::nvidia) {
          add_along_tokens(all, walk + "scores of a reverse walk", scores, s.threads, true);
        } else {
          add_subtile(all, walk + "scores of a reverse walk", scores, s.threads);
          add_operand(all, walk + "scores of a reverse walk", scores, true, true);
        }
      }
      if (!any) continue;
      const std::string scores = "scores<" + std::to_string(bytes) + " bytes, " + std::to_string(chunk) + "> ";
      const lds::Tile slice{f, bytes, chunk, kSliceColumns, swizzle};
      add_along_features(all, scores + "left", slice, scores_threads(f), true);
      add_along_features(all, scores + "right", slice, scores_threads(f), false);
    }
  for (int bytes : {2, 4})
    for (const HeadClass& head : kHeadClasses)
      for (const bool has_score_mod : {false, true}) {
        if (bytes == 4 && !has_score_mod) continue;  // there is no such kernel
        const ForwardShape s = forward_shape(f, bytes, head, has_score_mod);
        const std::string attend = "attend<" + std::to_string(bytes) + " bytes, " + std::to_string(head.dqk) + ", " +
                                   std::to_string(head.dv) + (has_score_mod ? ", modified> " : "> ");
        add_along_features(all, attend + "k", {f, bytes, s.keys, kKeyPart, swizzle}, s.threads, true);
        add_along_tokens(all, attend + "v", {f, bytes, s.keys, head.dv, swizzle}, s.threads, true);
        if (s.q_bytes > 0)
          add_along_features(all, attend + "q", {f, bytes, s.rows, kKeyPart, swizzle}, s.threads, false);
      }
  return all;
}

// PairStage of tile/paired_tiles.h: the stores of a wave's subtile of tokens by features, along the rows and
// transposed, or NVIDIA's copies.
void add_subtile_of_pair(Patterns& all, const std::string& name, const lds::Tile& t, int threads) {
  const int wave = wave_size(t.family), n = 16 / t.element_bytes, subtile = wave / (t.rows / 4) * n;
  if (t.family == Family::nvidia) {
    const int rows_at_a_time = threads / 8, rounds = (t.rows + rows_at_a_time - 1) / rows_at_a_time,
              lines = t.vec16s() / 8;
    all.push_back({name + " copied", t, Access::write, 16, threads, rounds * lines, [=](int thread, int round) {
                     const int token = thread / 8 + round / lines * rows_at_a_time;
                     return token < t.rows ? t.at(token, (thread % 8 + round % lines * 8) * n) : -1;
                   }});
    return;
  }
  const int subtiles = t.columns / subtile;
  lds::Tile transposed = t;
  std::swap(transposed.rows, transposed.columns);
  all.push_back({name + " stored along", t, Access::write, 16, wave, 4 * subtiles, [=](int lane, int round) {
                   const SubtileCoord at = subtile_coord(t.rows, lane);
                   return t.at(4 * at.quad + round % 4, round / 4 * subtile + at.vec16 * n);
                 }});
  all.push_back({name + " stored transposed", transposed, Access::write, 4 * t.element_bytes, wave, n * subtiles,
                 [=](int lane, int round) {
                   const SubtileCoord at = subtile_coord(t.rows, lane);
                   return transposed.at(round / n * subtile + at.vec16 * n + round % n, 4 * at.quad);
                 }});
}

// Attention backward: the tiles of q and dout, or of k and v, which are read along their rows and transposed, and the
// block's owned operands in LDS.
void add_backward(Patterns& all, Family f, const lds::Swizzle& swizzle) {
  const int dims[][2] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}};
  for (int bytes : {2, 4})
    for (const auto& [dqk, dv] : dims)
      for (bool of_keys : {true, false}) {
        const BackwardShape s =
            of_keys ? key_gradients_shape(f, bytes, dqk, dv) : query_gradients_shape(f, bytes, dqk, dv);
        const std::string name = std::string(of_keys ? "dk, dv<" : "dq<") + std::to_string(bytes) + " bytes, " +
                                 std::to_string(dqk) + ", " + std::to_string(dv) + "> ";
        for (const int features : {dqk, dv}) {
          const lds::Tile tile{f, bytes, s.tile, features, swizzle};
          lds::Tile transposed = tile;
          if (f != Family::nvidia) std::swap(transposed.rows, transposed.columns);
          add_subtile_of_pair(all, name + "tile", tile, s.threads);
          add_operand(all, name + "tile", tile, true, true);
          add_operand(all, name + "transposed", transposed, f != Family::nvidia, true);
          if (s.chain_in_lds) add_operand(all, name + "owned", {f, bytes, s.owned, features, swizzle}, true, false);
        }
      }
}

// The known conflicts: NVIDIA reads floats one by one, and each read takes twice as long as without conflicts. On
// gfx950 a read may take as long as on gfx942, which has half of its banks: the swizzle does not choose between its two
// lines.
bool is_known(const Pattern& p, lds::Lds lds, int times) {
  if (lds == lds::Lds::of_gfx950) return banks_of(lds, p.access, p.bytes) == 64 && times == 2;
  return p.tile.family == Family::nvidia && p.tile.element_bytes == 4 && p.access == Access::read;
}

bool every_element_has_a_slot(const lds::Tile& t) {
  std::set<int> slots;
  for (int row = 0; row < t.rows; ++row)
    for (int column = 0; column < t.columns; ++column) slots.insert(t.at(row, column));
  return int(slots.size()) == t.rows * t.columns && *slots.begin() == 0 &&
         *slots.rbegin() == (t.rows * t.columns - 1) * t.element_bytes;
}

// How many times as long Walk::write takes as without conflicts, to write accumulators as floats into LDS and to read
// vectors of a token's row.
struct OutputsConflict {
  int write, read;
};

// A lane has a vector of eight 2-byte elements, which are eight floats in LDS: it reads four, then the other four. So
// eight lanes that are served together read every second 16 bytes of 256, from half of the banks. On CDNA the exclusive
// or in out_offset() moves neighbours to the other half, and on RDNA4 the upper four lanes. The other families keep the
// conflict, because outputs are few compared with operands.
OutputsConflict known_conflict_of_outputs(Family f, int bytes) {
  return {1, (f == Family::nvidia || f == Family::rdna) && bytes == 2 ? 2 : 1};
}

OutputsConflict outputs_conflict(Family f, lds::Lds lds, int bytes, int rows, int chunk) {
  const WalkShape s = walk_shape(f, bytes, rows, chunk);
  const int lanes = wave_size(f), step = strip_step(f, bytes), n = 16 / bytes;
  OutputsConflict worst{1, 1};
  std::vector<int> address(lanes);
  for (int wave = 0; wave < s.threads / lanes; ++wave)
    for (int t0 = 0; t0 < chunk; t0 += step)
      for (int ys = 0; ys < kColumnsPerWave / kStripColumns; ++ys)
        for (int j = 0; j < strip_registers(f, bytes); ++j) {
          const int token = wave % s.waves_x * chunk, column = wave / s.waves_x * kColumnsPerWave;
          for (int lane = 0; lane < lanes; ++lane) {
            const StripPosition at = strip_position(f, bytes, lane, j), first = strip_position(f, bytes, lane, 0),
                                lane0 = strip_position(f, bytes, 0, j);
            const int slot =
                out_offset(f, bytes, s.y_tile, token + t0 + at.row, column + ys * kStripColumns + at.column);
            const int base = out_offset(f, bytes, s.y_tile, token + first.row, column + first.column);
            CHECK(slot == out_offset_from(base, f, bytes, s.y_tile, t0 + lane0.row, ys * kStripColumns + lane0.column),
                  "%d bytes, %d rows: token %d, column %d", bytes, rows, token + t0 + at.row, column + at.column);
            address[lane] = 4 * slot;
          }
          worst.write = std::max(worst.write, lds::conflict(f, lds, Access::write, 4, address));
        }
  for (int first = 0; first < chunk * s.y_tile / n; first += lanes)
    for (int part = 0; part < n; part += 4) {
      for (int lane = 0; lane < lanes; ++lane) {
        const int unit = first + lane;
        address[lane] = 4 * out_offset(f, bytes, s.y_tile, unit / (s.y_tile / n), unit % (s.y_tile / n) * n + part);
      }
      worst.read = std::max(worst.read, lds::conflict(f, lds, Access::read, 16, address));
    }
  std::set<int> slots;
  for (int token = 0; token < s.waves_x * chunk; ++token)
    for (int column = 0; column < s.y_tile; ++column) slots.insert(out_offset(f, bytes, s.y_tile, token, column));
  CHECK(int(slots.size()) == s.waves_x * chunk * s.y_tile && *slots.begin() == 0 &&
            *slots.rbegin() < s.waves_x * chunk * out_stride(f, s.y_tile),
        "%d bytes, %d rows: outputs share slots", bytes, rows);
  return worst;
}

constexpr Family kFamilies[] = {Family::nvidia, Family::cdna, Family::rdna, Family::rdna4};
const char* name(Family f) {
  constexpr const char* kNames[] = {"nvidia", "cdna", "rdna", "rdna4"};
  return kNames[int(f)];
}

void test_family(Family f, lds::Lds lds) {
  const char* chip = lds == lds::Lds::of_gfx950 ? "gfx950" : name(f);
  Patterns library = patterns(f, lds::library_swizzle());
  add_backward(library, f, lds::library_swizzle());
  int known = 0;
  for (const Pattern& pattern : library) {
    const int times = conflict(pattern, lds);
    known += times > 1;
    CHECK(times == 1 || is_known(pattern, lds, times), "%s: %s takes %d times as long", chip, pattern.name.c_str(),
          times);
    CHECK(every_element_has_a_slot(pattern.tile), "%s: %s", chip, pattern.name.c_str());
  }
  for (int bytes : {2, 4})
    for (int chunk : kChunks)
      for (int rows : kWalkClasses) {
        if (!has_walk(f, bytes, rows, chunk)) continue;
        const OutputsConflict times = outputs_conflict(f, lds, bytes, rows, chunk);
        const OutputsConflict known_times = known_conflict_of_outputs(f, bytes);
        CHECK(times.write == known_times.write && times.read == known_times.read,
              "%s: outputs of %d bytes, %d rows, chunks of %d take %d and %d times as long, written and read, "
              "expected %d and %d",
              chip, bytes, rows, chunk, times.write, times.read, known_times.write, known_times.read);
      }
  std::printf("%s: %d ways to touch a tile, %d of them with known conflicts\n", chip, int(library.size()), known);
}

}  // namespace

int main() {
  for (Family f : kFamilies) test_family(f, lds::Lds::of_family);
  test_family(Family::cdna, lds::Lds::of_gfx950);
  return finish();
}

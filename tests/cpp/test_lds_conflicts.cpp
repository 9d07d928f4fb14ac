// SPDX-License-Identifier: Apache-2.0
// Every way in which the GPU kernels touch an LDS tile, for every tile that walk_shape() and the score kernel have, and
// how often lanes that are served together meet in a bank. Lane formulas are those of csrc/tile/gpu.h (fetch, store)
// and csrc/arch/{cdna,rdna,nvidia}.h (operands).
//
// Patterns that conflict with the swizzle of arch/family.h are listed in is_known(), and a swizzle that frees them all
// stands beside it: once family.h has it, both can go.
#include <functional>
#include <set>
#include <string>

#include "check.h"
#include "lds.h"
#include "mlstm/walk_shape.h"

using namespace xlstm::gpu;

namespace {

using lds::Access;

struct Pattern {
  std::string name;
  lds::Tile tile;
  Access access;
  int bytes;                                          // a lane
  int threads;                                        // of the block; each wave is looked at
  int rounds;                                         // accesses of a thread
  std::function<int(int thread, int round)> address;  // -1: none
};

int conflict(const Pattern& p) {
  const int wave = wave_size(p.tile.family);
  int worst = 1;
  for (int round = 0; round < p.rounds; ++round)
    for (int first = 0; first < p.threads; first += wave) {
      std::vector<int> address(wave);
      for (int lane = 0; lane < wave; ++lane) address[lane] = p.address(first + lane, round);
      worst = std::max(worst, lds::conflict(p.tile.family, p.access, p.bytes, address));
    }
  return worst;
}

using Patterns = std::vector<Pattern>;

// Stage::store, or copy_async, of `tokens` by `features`, straight.
void add_straight(Patterns& all, const std::string& name, const lds::Tile& t, int threads) {
  const int n = 16 / t.element_bytes, units = t.rows * t.columns / n;
  all.push_back({name + " stored straight", t, Access::write, 16, threads, (units + threads - 1) / threads,
                 [=](int thread, int round) {
                   const int unit = thread + round * threads;
                   return unit < units ? t.at(unit / (t.columns / n), unit % (t.columns / n) * n) : -1;
                 }});
}

// Stage::store_turned: the tile is features by tokens.
void add_turned(Patterns& all, const std::string& name, const lds::Tile& t, int threads) {
  const int n = 16 / t.element_bytes, tokens = t.columns, units = tokens * t.rows / n / 4;
  const int rounds = (units + threads - 1) / threads;
  all.push_back(
      {name + " stored turned", t, Access::write, 4 * t.element_bytes, threads, rounds * n, [=](int thread, int round) {
         const int unit = thread + round / n * threads;
         if (unit >= units) return -1;
         return t.at(unit / (tokens / 4) * n + round % n, unit % (tokens / 4) * 4);
       }});
}

// load_stream and load_chain of one step at (side 0, k 0), at every place in the tile. `along`: the tile lies
// [side][k], else NVIDIA reads it transposed. `pairs`: it reads two floats at a time where it can.
void add_operand(Patterns& all, const std::string& name, const lds::Tile& t, bool along, bool stream, bool pairs) {
  const Family f = t.family;
  const int step = strip_step(f, t.element_bytes), side_step = stream ? step : kStripColumns;
  const int n = 16 / t.element_bytes;
  const int sides = (along ? t.rows : t.columns) / side_step, depths = (along ? t.columns : t.rows) / step;
  const std::string what = name + (stream ? " as stream" : " as chain") + (along ? "" : ", transposed");
  const auto add = [&](Access access, int bytes, int reads,
                       std::function<int(int lane, int read, int side, int k)> at) {
    all.push_back({what, t, access, bytes, wave_size(f), sides * depths * reads, [=](int lane, int round) {
                     const int place = round / reads;
                     return at(lane, round % reads, place % sides * side_step, place / sides * step);
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
        [=](int lane, int piece, int side, int k) { return t.at(side + lane % 16, k + piece * n); });
  } else if (t.element_bytes == 2) {
    add(Access::ldmatrix, 16, 1, [=](int lane, int, int side, int k) {
      const int m = lane / 8, i = lane % 8;
      const int s = stream ? 8 * (m / 2) : 8 * (m % 2), d = stream ? 8 * (m % 2) : 8 * (m / 2);
      return along ? t.at(side + s + i, k + d) : t.at(k + d + i, side + s);
    });
  } else {  // a pair of neighbours in k at a time, or one element where they are not neighbours in memory
    const int together = along && pairs ? 2 : 1, e_reads = 2 / together;
    add(Access::read, 4 * together, 4 * e_reads, [=](int lane, int read, int side, int k) {
      const int w = read / e_reads, e = read % e_reads;
      const int s = side + 8 * (stream ? w / 2 : w % 2) + lane / 4;
      const int d = k + 8 * (stream ? w % 2 : w / 2) + 2 * (lane % 4) + e;
      return along ? t.at(s, d) : t.at(d, s);
    });
  }
}

// A matrix of tokens by features that a kernel reads as an operand whose k is the features, or the tokens.
void add_along_features(Patterns& all, const std::string& name, lds::Tile t, int threads, bool stream, bool pairs) {
  add_straight(all, name, t, threads);
  add_operand(all, name, t, true, stream, pairs);
}
void add_along_tokens(Patterns& all, const std::string& name, lds::Tile t, int threads, bool stream, bool pairs) {
  if (t.family == Family::nvidia) {
    add_straight(all, name, t, threads);
    add_operand(all, name, t, false, stream, pairs);
  } else {
    std::swap(t.rows, t.columns);
    add_turned(all, name, t, threads);
    add_operand(all, name, t, true, stream, pairs);
  }
}

Patterns patterns(Family f, const lds::Swizzle& swizzle, bool pairs) {
  Patterns all;
  for (int bytes : {2, 4})
    for (int chunk : kChunks) {
      bool any = false;
      for (int rows : kWalkRows) {
        if (!has_walk(f, bytes, rows, chunk)) continue;
        any = true;
        const WalkShape s = walk_shape(f, bytes, rows, chunk);
        const std::string walk =
            "walk<" + std::to_string(bytes) + " bytes, " + std::to_string(rows) + ", " + std::to_string(chunk) + "> ";
        const lds::Tile tokens{f, bytes, chunk, rows, swizzle}, scores{f, bytes, chunk, chunk, swizzle};
        add_along_features(all, walk + "a", tokens, s.threads, true, pairs);
        add_along_tokens(all, walk + "x", tokens, s.threads, true, pairs);
        add_along_tokens(all, walk + "y", {f, bytes, chunk, s.y_tile, swizzle}, s.threads, false, pairs);
        add_along_features(all, walk + "scores", scores, s.threads, true, pairs);
        add_along_tokens(all, walk + "scores of a reverse walk", scores, s.threads, true, pairs);
      }
      if (!any) continue;
      const std::string scores = "scores<" + std::to_string(bytes) + " bytes, " + std::to_string(chunk) + "> ";
      const lds::Tile slice{f, bytes, chunk, kSliceColumns, swizzle};
      add_along_features(all, scores + "left", slice, scores_threads(f), true, pairs);
      add_along_features(all, scores + "right", slice, scores_threads(f), false, pairs);
    }
  return all;
}

// ---- what conflicts today, each twice as long as it need be (four times for RDNA's rows of 32 bytes)

bool is_known(const Pattern& p) {
  const Family f = p.tile.family;
  const auto is = [&](const char* what) { return p.name.find(what) != std::string::npos; };
  if (f == Family::cdna) return p.tile.element_bytes == 4 ? p.access == Access::read || is("turned") : is("as chain");
  return f == Family::rdna ? is("turned") : p.tile.element_bytes == 4 && p.access == Access::read;
}

// Frees them. CDNA: the two quads of lanes that ds_read_b128 serves together have rows r..r+3 at one piece and, at the
// next, r+8..r+11 (interleaved streams) or r+4..r+7 (everything else): both differ in row / 4 + row / 8. Short rows
// share a line of 128 bytes; a transposing store puts lanes 4 or 8 rows apart (8 to 24 where a row has 32 bytes), which
// a change of place in the line separates. NVIDIA's floats must also be read in pairs: then four rows at two pieces are
// served together, or, transposed, every other row; every eighth row is permuted alike, as Tile::Cursor wants it.
int freeing_piece(Family f, int pieces, int row, int piece) {
  const int eighth = (row / 4 + row / 8) % 2;
  if (f == Family::cdna) {
    if (pieces >= 8) return piece ^ (row % 4 + 4 * eighth);
    return pieces == 4 ? piece ^ ((row / 2) % 2 + 2 * eighth) : piece;
  }
  if (pieces >= 8) return piece ^ (4 * ((row / 2) % 2) + 2 * ((row + row / 4) % 2) + (row / 4) % 2);
  if (pieces == 4) return piece ^ (2 * ((row / 2) % 2) + (row / 4) % 2);
  return pieces == 2 ? piece ^ ((row / 4) % 2) : piece;
}
int freeing_row(Family f, int pieces, int row) {
  if (pieces == 4) return row ^ ((row / 4 + (f == Family::nvidia ? 0 : row / 8)) % 2);
  return pieces == 2 && f == Family::rdna ? row ^ ((row / 8) % 4) : row;
}

bool every_element_has_a_place(const lds::Tile& t) {
  std::set<int> places;
  for (int row = 0; row < t.rows; ++row)
    for (int column = 0; column < t.columns; ++column) places.insert(t.at(row, column));
  return int(places.size()) == t.rows * t.columns && *places.begin() == 0 &&
         *places.rbegin() == (t.rows * t.columns - 1) * t.element_bytes;
}

const char* name(Family f) { return f == Family::nvidia ? "nvidia" : f == Family::cdna ? "cdna" : "rdna"; }

}  // namespace

int main() {
  for (Family f : {Family::cdna, Family::rdna, Family::nvidia}) {
    const Patterns own = patterns(f, lds::own_swizzle(), false),
                   freed = patterns(f, {freeing_piece, freeing_row}, true);
    int known = 0;
    for (size_t i = 0; i < own.size(); ++i) {
      const int now = conflict(own[i]), then = conflict(freed[i]);
      known += now > 1;
      CHECK(now == 1 || is_known(own[i]), "%s: %s takes %d times as long", name(f), own[i].name.c_str(), now);
      CHECK(then == 1, "%s, freed: %s takes %d times as long", name(f), freed[i].name.c_str(), then);
      CHECK(every_element_has_a_place(freed[i].tile), "%s, freed: %s", name(f), freed[i].name.c_str());
    }
    std::printf("%s: %d ways to touch a tile, %d of them with known conflicts\n", name(f), int(own.size()), known);
  }
  return finish();
}

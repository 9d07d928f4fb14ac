// SPDX-License-Identifier: Apache-2.0
// LDS on the CPU: the addresses that Tile::at (csrc/tile/lds_tile.h) computes, and the bank conflicts of lanes that are
// served together.
#pragma once

#include <algorithm>
#include <set>
#include <vector>

#include "arch/layouts.h"

namespace lds {

using xlstm::gpu::Family;

// A tile's swizzle: that of arch/layouts.h, or another one as an experiment.
struct Swizzle {
  int (*vec16)(Family, int vec16s, int row, int vec16);
  int (*row)(Family, int vec16s, int row);
};
inline Swizzle library_swizzle() {
  return {[](Family f, int vec16s, int row, int vec16) { return xlstm::gpu::swizzled_vec16(f, vec16s, row, vec16); },
          [](Family f, int vec16s, int row) { return xlstm::gpu::swizzled_row(f, vec16s, row); }};
}

struct Tile {
  Family family;
  int element_bytes, rows, columns;
  Swizzle swizzle = library_swizzle();

  int vec16s() const { return columns * element_bytes / 16; }
  int at(int row, int column) const {  // in bytes
    const int n = 16 / element_bytes;
    const int slot = swizzle.row(family, vec16s(), row) * vec16s() + swizzle.vec16(family, vec16s(), row, column / n);
    return 16 * slot + column % n * element_bytes;
  }
};

enum class Access { read, write, ldmatrix };
// gfx950 differs from the family's other chips: HipKittens measured (analysis/paper_experiments/phases) 64 banks for
// its reads of 8 and of 16 bytes, and 32 for its writes.
enum class Lds { of_family, of_gfx950 };
inline int banks_of(Lds lds, Access access, int bytes) {
  return lds == Lds::of_gfx950 && access == Access::read && bytes >= 8 ? 64 : 32;
}

// The groups of lanes in a wave that are served together, for accesses of `bytes` bytes a lane.
inline std::vector<std::vector<int>> served_together(Family f, Lds lds, Access access, int bytes) {
  std::vector<std::vector<int>> groups;
  if (f == Family::cdna && access == Access::read && bytes == 16) {
    std::vector<std::vector<int>> first = {{0, 20}, {4, 16}, {8, 28}, {12, 24}};
    if (lds == Lds::of_gfx950) first = {{0, 20, 12, 24}, {4, 16, 8, 28}};
    for (int half = 0; half < 64; half += 32)
      for (const auto& starts : first) {
        std::vector<int> group;
        for (int start : starts)
          for (int lane = 0; lane < 4; ++lane) group.push_back(half + start + lane);
        groups.push_back(group);
      }
    return groups;
  }
  const int size = access == Access::ldmatrix ? 8 : std::min(32, banks_of(lds, access, bytes) * 4 / bytes);
  for (int first = 0; first < xlstm::gpu::wave_size(f); first += size) {
    std::vector<int> group;
    for (int lane = first; lane < first + size; ++lane) group.push_back(lane);
    groups.push_back(group);
  }
  return groups;
}

// How many times as long the worst group of lanes takes as it would without conflicts. A lane with address -1 does not
// take part.
inline int conflict(Family f, Lds lds, Access access, int bytes, const std::vector<int>& address) {
  const int banks = banks_of(lds, access, bytes);
  int worst = 1;
  for (const auto& group : served_together(f, lds, access, bytes)) {
    std::vector<std::set<int>> words(banks);
    for (int lane : group)
      if (address[lane] >= 0)
        for (int at = address[lane] / 4; at < (address[lane] + bytes + 3) / 4; ++at) words[at % banks].insert(at);
    for (const auto& bank : words) worst = std::max(worst, int(bank.size()));
  }
  return worst;
}

}  // namespace lds

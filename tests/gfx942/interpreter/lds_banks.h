// SPDX-License-Identifier: Apache-2.0
// How long LDS takes for an access of a wave: 32 banks of 4 bytes, 128 bytes a clock; for CDNA4's reads of 8 and of 16
// bytes 64 banks, 256 bytes. Lanes are served in groups; in a group each bank gives one dword a clock, to all lanes
// that want it.
#pragma once

#include <array>
#include <cstdint>

#include "wave.h"

namespace gfx942 {

struct BankCycles {
  uint32_t cycles = 0, ideal = 0;  // as it is; had no two lanes met in a bank
};

namespace banks {

// The banks of an access. HipKittens measured 64 for CDNA4's reads (analysis/paper_experiments/phases), and 32 for its
// writes; where nothing was measured, CDNA3's.
constexpr int banks_of(bool cdna4, int bytes, bool read) {
  return cdna4 && read && (bytes == 8 || bytes == 16) ? 64 : 32;
}

// Lanes in the order that they are served in. AMD publishes a rule of its own for 16-byte reads: groups of
// 0-3 with 20-23, 4-7 with 16-19, 8-11 with 28-31, 12-15 with 24-27, and the same 32 lanes on. Of 64 banks the first
// and the last of these are one group, and the other two.
constexpr std::array<uint8_t, kLanes> kInOrder = [] {
  std::array<uint8_t, kLanes> order{};
  for (int l = 0; l < kLanes; ++l) order[l] = uint8_t(l);
  return order;
}();
constexpr std::array<uint8_t, kLanes> kWideReads = [] {
  constexpr int kFirst[8] = {0, 20, 12, 24, 4, 16, 8, 28};
  std::array<uint8_t, kLanes> order{};
  for (int l = 0; l < kLanes; ++l) order[l] = uint8_t(l / 32 * 32 + kFirst[l % 32 / 4] + l % 4);
  return order;
}();
constexpr int group_size(int banks, int bytes) { return banks / (bytes <= 4 ? 1 : bytes == 8 ? 2 : 4); }

// The most different units that one set of banks has to give to a group. A unit is a dword, or as much as a lane takes
// where all of that is aligned.
template <int kBanks, uint32_t unit>
uint32_t deepest(const uint32_t* address, const uint8_t* lane, int lanes, uint32_t bytes, Mask on) {
  constexpr int kMost = 5 * 32;  // dwords of 32 lanes at most, wherever they begin
  uint32_t units[kBanks][kMost], count[kBanks] = {}, most = 1, before = ~0u;
  for (int k = 0; k < lanes; ++k) {
    if (!(on >> lane[k] & 1)) continue;
    const uint32_t at = address[lane[k]];
    if (at == before) continue;  // lanes that read one address
    before = at;
    for (uint32_t u = at / unit; u <= (at + bytes - 1) / unit; ++u) {
      const uint32_t set = u % (kBanks * 4 / unit);
      uint32_t j = count[set];
      while (j > 0 && units[set][j - 1] != u) --j;  // the last one is the likeliest
      if (j > 0) continue;
      units[set][count[set]++] = u;
      most = std::max(most, count[set]);
    }
  }
  return most;
}

}  // namespace banks

// Lanes that are off have address 0 here.
template <int kBanks, int bytes>
BankCycles bank_cycles(const Vector& address, Mask on, bool read) {
  constexpr int kSize = banks::group_size(kBanks, bytes);  // a group's lanes, each with a unit of banks
  constexpr int kUnit = 4 * kBanks / kSize;
  const auto& order = read && bytes >= 12 ? banks::kWideReads : banks::kInOrder;
  // Aligned accesses meet in all their banks or in none. Mostly each lane of a group has a unit of its own.
  Vector unit;
  uint32_t across = bytes == 12;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t at = address.lane[l];
    across |= uint32_t(at % kUnit + bytes > kUnit);
    unit.lane[l] = 1u << (at / kUnit % kSize);
  }
  if (on != ~Mask(0))
    for (int l = 0; l < kLanes; ++l) unit.lane[l] &= -uint32_t(on >> l & 1);
  uint32_t four[kLanes / 4];  // lanes that are always in one group
  for (int q = 0; q < kLanes / 4; ++q) {
    const uint32_t* u = &unit.lane[4 * q];
    four[q] = u[0] | u[1] | u[2] | u[3];
  }
  BankCycles sum;
  for (int first = 0; first < kLanes; first += kSize) {
    uint32_t units = 0;
    int lanes = 0;
    for (int k = first; k < first + kSize; k += 4) {
      units |= four[order[k] / 4];
      lanes += std::popcount(on >> order[k] & 15);
    }
    if (!lanes) continue;
    ++sum.ideal;
    const uint8_t* group = &order[first];
    if (across)
      sum.cycles += banks::deepest<kBanks, 4>(address.lane, group, kSize, bytes, on);
    else
      sum.cycles +=
          std::popcount(units) == lanes ? 1 : banks::deepest<kBanks, kUnit>(address.lane, group, kSize, bytes, on);
  }
  return sum;
}

}  // namespace gfx942

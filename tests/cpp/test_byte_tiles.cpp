// SPDX-License-Identifier: Apache-2.0
// engine/cpu/byte_tiles.h of the portable instruction set: copies of weights as bytes, before tiles multiply them. The
// products are tested where there are tile registers, or an emulator of them (tests/amx).
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "engine/cpu/byte_tiles.h"

using namespace xlstm::portable;
using namespace xlstm::portable::engine;

namespace {

// Feature e of a row: a byte, or of each 32 features 16 low nibbles and then 16 high ones, from -8 on.
template <int Bits>
int value_of(const char* row, int64_t e) {
  if constexpr (Bits == 8) return row[e];
  const uint8_t pair = uint8_t(row[e / 32 * 16 + e % 16]);
  return (e % 32 < 16 ? pair & 15 : pair >> 4) - 8;
}

template <int Bits>
void test_copies(int64_t rows, int64_t first, int64_t count) {
  const int64_t row_bytes = 20 * kStep * Bits / 8;
  std::mt19937 engine(1);
  std::vector<char> weights(size_t(kByteTileRows * row_bytes));
  for (char& byte : weights) byte = char(engine());
  const auto copy = std::make_unique<ByteRows>();
  copy_bytes<Bits>(weights.data(), row_bytes, rows, first, count, 0, *copy);
  for (int64_t s = 0; s < count; ++s)
    for (int64_t r = 0; r < kByteTileRows; ++r)
      for (int64_t e = 0; e < kStep; ++e) {
        const int expected = r < rows ? value_of<Bits>(&weights[size_t(r * row_bytes)], (first + s) * kStep + e) : 0;
        const int actual = copy->data[s * copy->step + r * copy->row + e];
        CHECK(actual == expected, "%d bits, step %d, row %d, feature %d: %d, not %d", Bits, int(s), int(r), int(e),
              actual, expected);
      }
}

}  // namespace

int main() {
  for (const int64_t rows : {1, 13, 16}) {
    test_copies<8>(rows, 3, 16);
    test_copies<4>(rows, 3, 16);
    test_copies<4>(rows, 4, 1);
  }
  return finish();
}

// SPDX-License-Identifier: Apache-2.0
#include "lds_memory.h"

#include <algorithm>
#include <bit>

namespace gfx942 {

Lds::Lds(uint32_t bytes, int waves) : size_(bytes), planes_(waves > 8 ? 2 : 1), bytes_(bytes), defined_(bytes) {
  for (int p = 0; p < planes_; ++p) writer_[p].resize(bytes), reader_[p].resize(bytes), atomic_[p].resize(bytes);
  reset();
}

void Lds::reset() {
  std::ranges::fill(bytes_, 0xff);  // a NaN in every format, so that no result comes right by luck
  std::ranges::fill(defined_, 0);
  atomics_ = true;
  next_epoch();
}

void Lds::next_epoch() {
  for (int p = 0; p < planes_; ++p) {
    std::ranges::fill(writer_[p], 0);
    std::ranges::fill(reader_[p], 0);
    if (atomics_) std::ranges::fill(atomic_[p], 0);
  }
  atomics_ = false;
  more_ = planes_ > 1;
}

Lds::View Lds::view(int wave) {
  View v;
  v.lds_ = this;
  v.plane_ = wave / 8;
  v.bit_ = uint8_t(1 << wave % 8);
  v.bytes_ = bytes_.data(), v.defined_ = defined_.data();
  v.writer_ = writer_[v.plane_].data(), v.reader_ = reader_[v.plane_].data();
  return v;
}

uint32_t Lds::rivals(Use use, uint32_t byte, int wave) const {
  uint32_t all = waves(writer_, byte);
  if (use != Use::read) all |= waves(reader_, byte);
  if (use != Use::atomic) all |= waves(atomic_, byte);
  return all & ~(1u << wave);
}

bool Lds::note(Use use, uint32_t at, uint32_t bytes, int wave) {
  auto& planes = use == Use::read ? reader_ : use == Use::write ? writer_ : atomic_;
  uint32_t found = 0;
  for (uint32_t b = at; b < at + bytes; ++b) {
    found |= rivals(use, b, wave);
    planes[wave / 8][b] |= uint8_t(1 << wave % 8);
  }
  if (use == Use::atomic) atomics_ = more_ = true;
  return found == 0;
}

std::string Lds::race(Use use, uint32_t at, uint32_t bytes, int wave) const {
  constexpr const char* kDoes[] = {"reads", "writes", "updates"};
  for (uint32_t b = at; b < at + bytes; ++b)
    if (const uint32_t all = rivals(use, b, wave)) {
      const int other = std::countr_zero(all);
      const char* did = waves(writer_, b) >> other & 1 ? "wrote" : waves(reader_, b) >> other & 1 ? "read" : "updated";
      return "LDS race with wave " + std::to_string(other) + " at LDS address " + std::to_string(b) +
             ": this instruction " + kDoes[int(use)] + " what wave " + std::to_string(other) + " " + did +
             ", with no barrier between";
    }
  return "LDS race";
}

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
#include "lds_memory.h"

#include <algorithm>
#include <bit>

namespace gfx942 {

Lds::Lds(uint32_t bytes, int waves) : size_(bytes), planes_(waves > 8 ? 2 : 1), bytes_(bytes), defined_(bytes) {
  for (int p = 0; p < planes_; ++p) writer_[p].resize(bytes), reader_[p].resize(bytes), atomic_[p].resize(bytes);
  for (int p = 0; p < planes_; ++p) late_[p].resize(bytes);
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
    if (any_late_) std::ranges::fill(late_[p], 0);
  }
  atomics_ = any_late_ = false;
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

void Lds::note_late(Use use, uint32_t at, uint32_t bytes, int wave) {
  note(use, at, bytes, wave);
  for (uint32_t b = at; b < at + bytes; ++b) late_[wave / 8][b] |= uint8_t(1 << wave % 8);
  any_late_ = true;
}

Lds::Race Lds::race(Use use, uint32_t at, uint32_t bytes, int wave) const {
  uint32_t b = at;
  while (b + 1 < at + bytes && !rivals(use, b, wave)) ++b;
  const int other = std::countr_zero(rivals(use, b, wave));
  const auto is_in = [&](const std::vector<uint8_t>(&planes)[2]) { return bool(waves(planes, b) >> other & 1); };
  return {other, b, is_in(writer_) ? Use::write : is_in(reader_) ? Use::read : Use::atomic, is_in(late_)};
}

std::string Lds::text_of(const Race& r, Use use) {
  constexpr const char *kDoes[] = {"reads", "writes", "updates"}, *kDid[] = {"read", "wrote", "updated"};
  const std::string other = "wave " + std::to_string(r.other);
  return "LDS race with " + other + " at LDS address " + std::to_string(r.byte) + ": this instruction " +
         kDoes[int(use)] + " what " + other + " " + kDid[int(r.did)] +
         (r.late ? " before the last barrier without a wait" : ", with no barrier between");
}

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
// The LDS of a workgroup, byte by byte: its contents, whether they were ever written, and who touched them since the
// last barrier. Addresses are from 0.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace gfx942 {

// 16 bytes, for which C++ has no integer.
using Wide = uint64_t __attribute__((vector_size(16)));

class Lds {
 public:
  // Atomics of several waves on one word are in some order, and so do not race with each other.
  enum class Use : uint8_t { read, write, atomic };
  static constexpr int kMostWaves = 16;

  Lds(uint32_t bytes, int waves);
  void reset();       // of a new workgroup: nothing is defined, nobody was here
  void next_epoch();  // all waves have met at a barrier
  uint32_t size() const { return size_; }
  // Without a note.
  template <class U>
  U value(uint32_t at) const {
    return get<U>(&bytes_[at]);
  }
  template <class U>
  bool defined(uint32_t at) const {
    return get<U>(&defined_[at]) == U(~U(0));
  }
  template <class U>
  void set_value(uint32_t at, U x, bool defined) {
    put<U>(&bytes_[at], x);
    put<U>(&defined_[at], U(defined ? ~U(0) : U(0)));
  }

  // What a wave may do with sizeof(U) bytes at an address. The access is noted, and the bits are returned of the other
  // waves' accesses that it races with: race() has them in words.
  class View {
   public:
    template <class U>
    U read(uint32_t at, U& x) const {
      const U mine = spread<U>(bit_);
      U rivals = get<U>(writer_ + at) & ~mine;
      if (lds_->more_) [[unlikely]]
        rivals |= lds_->more_rivals<U>(Use::read, at, *this);
      put<U>(reader_ + at, get<U>(reader_ + at) | mine);
      x = get<U>(bytes_ + at);
      return rivals;
    }
    template <class U>
    U write(uint32_t at, U x, U defined) const {
      const U mine = spread<U>(bit_);
      U rivals = (get<U>(writer_ + at) | get<U>(reader_ + at)) & ~mine;
      if (lds_->more_) [[unlikely]]
        rivals |= lds_->more_rivals<U>(Use::write, at, *this);
      if (any(rivals)) [[unlikely]]
        lds_->changed_ |= any(U(get<U>(bytes_ + at) ^ x));
      put<U>(writer_ + at, mine | get<U>(writer_ + at));
      put<U>(bytes_ + at, x);
      put<U>(defined_ + at, defined);
      return rivals;
    }
    // All bits are set where it is.
    template <class U>
    U defined(uint32_t at) const {
      return get<U>(defined_ + at);
    }

   private:
    friend Lds;
    Lds* lds_;
    uint8_t *bytes_, *defined_, *writer_, *reader_;  // the plane of the wave
    int plane_;
    uint8_t bit_;
  };
  View view(int wave);

  // The same for an access of any size, without its data. False where it races.
  bool note(Use use, uint32_t at, uint32_t bytes, int wave);
  // Of an access before the last barrier that no wait had passed there.
  void note_late(Use use, uint32_t at, uint32_t bytes, int wave);
  struct Race {
    int other;      // wave
    uint32_t byte;  // the first one
    Use did;
    bool late;  // the other access was noted as such
  };
  Race race(Use use, uint32_t at, uint32_t bytes, int wave) const;
  static std::string text_of(const Race& r, Use use);
  // Whether writes that raced changed anything, since this was last asked.
  bool take_changed() { return std::exchange(changed_, false); }

  template <class U>
  static U spread(uint8_t x) {
    if constexpr (sizeof(U) == 16)
      return U{} + spread<uint64_t>(x);
    else
      return U(U(x) * U(U(~U(0)) / 255));
  }
  template <class U>
  static bool any(U x) {
    if constexpr (sizeof(U) == 16)
      return (x[0] | x[1]) != 0;
    else
      return x != 0;
  }

 private:
  template <class U>
  static U get(const uint8_t* from) {
    U x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  template <class U>
  static void put(uint8_t* to, U x) {
    std::memcpy(to, &x, sizeof x);
  }
  template <class U>
  U more_rivals(Use use, uint32_t at, const View& me) const {
    U rivals = get<U>(&atomic_[me.plane_][at]) & ~spread<U>(me.bit_);
    if (planes_ > 1) {
      const int other = 1 - me.plane_;
      rivals |= get<U>(&writer_[other][at]) | get<U>(&atomic_[other][at]);
      if (use == Use::write) rivals |= get<U>(&reader_[other][at]);
    }
    return rivals;
  }
  // The waves, a bit for each, that such an access races with at a byte.
  uint32_t rivals(Use use, uint32_t byte, int wave) const;
  uint32_t waves(const std::vector<uint8_t> (&planes)[2], uint32_t byte) const {
    return planes[0][byte] | (planes_ > 1 ? planes[1][byte] << 8 : 0);
  }

  uint32_t size_;
  int planes_;                   // of eight waves each
  bool atomics_ = false, more_;  // any since the last barrier; that, or a second plane
  bool changed_ = false;
  bool any_late_ = false;
  std::vector<uint8_t> bytes_, defined_;
  std::vector<uint8_t> writer_[2], reader_[2], atomic_[2], late_[2];  // a bit for each wave of a plane
};

}  // namespace gfx942

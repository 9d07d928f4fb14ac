// SPDX-License-Identifier: Apache-2.0
// What a wave did, in order, for whoever asks how long it takes: which instructions, and what each asked of LDS and
// memory. Nothing of it depends on time, so it is recorded first and timed afterwards (tests/gfx942/clock).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

namespace gfx942 {

struct Code;

// A word says what its two highest bits say:
//   run      bits 0-19 the index of an instruction, 20-29 how many more follow it in the code
//   lds      cycles of LDS that the last instruction of the run before takes
//   memory   bits 0-7 the number of lines of 128 bytes that it touches, 8-15 of 64 bytes, 16-22 of lanes; then follow
//            the lines, each the lowest 32 bits of address / 128
// An instruction may have several words of LDS or memory.
class Events {
 public:
  enum class Kind : uint32_t { run, lds, memory };
  static constexpr uint32_t kMostInstructions = 1 << 20, kMostMore = 1023;
  static constexpr uint32_t word(Kind kind, uint32_t rest) { return uint32_t(kind) << 30 | rest; }
  static constexpr Kind kind(uint32_t word) { return Kind(word >> 30); }

  void step(uint32_t index) {
    if (open_ && index == next_) {
      words.back() += 1 << 20;
      open_ = words.back() >> 20 < kMostMore;
    } else {
      words.push_back(word(Kind::run, index));
      open_ = true;
    }
    next_ = index + 1;
  }
  void lds(uint32_t cycles) { add(word(Kind::lds, cycles)); }
  void memory(uint32_t lines, uint32_t halves, uint32_t lanes) {
    add(word(Kind::memory, lanes << 16 | halves << 8 | lines));
  }
  void line(uint64_t address) { words.push_back(uint32_t(address / 128)); }
  void clear() {
    words.clear();
    open_ = false;
  }

  std::vector<uint32_t> words;

 private:
  void add(uint32_t word) {
    words.push_back(word);
    open_ = false;
  }
  bool open_ = false;  // whether the last word is a run that may go on
  uint32_t next_ = 0;
};

// The workgroups of a launch that ran, by their number in the grid; of each, its waves' words.
struct RecordedLaunch {
  const Code* code = nullptr;
  std::array<uint32_t, 3> grid = {1, 1, 1}, block = {1, 1, 1};
  uint32_t dynamic_lds = 0;
  std::map<uint64_t, std::vector<std::vector<uint32_t>>> groups;
  // Others that ran only as far as it takes to see which lines they have in common: all of one XCD, several that it
  // has at about the same time, and those again elsewhere in the grid.
  std::map<uint64_t, std::vector<std::vector<uint32_t>>> begun;
};

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
// LLVM's disassembler for a chip. The LLVM is the one that the interpreter was configured with, or the library that
// GFX942_LLVM names: older ones do not know gfx950.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "chip.h"

namespace gfx942 {

class Decoder {
 public:
  explicit Decoder(const Chip& chip);  // throws Fault where LLVM does not know the chip
  ~Decoder();
  Decoder(const Decoder&) = delete;

  // How many bytes the instruction at `at` has, and its text; 0 where the chip has none.
  size_t read(const uint8_t* at, const uint8_t* end, std::string& text) const;

 private:
  void* handle_;
};

// What the bytes at `at` are on another chip, for a report; empty where none has such an instruction.
std::string known_to_another(const Chip& chip, const uint8_t* at, const uint8_t* end);

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
#include "chip.h"

#include <string>

namespace gfx942 {
namespace {

// Published figures: AMD's data sheets of the cards; machines as LLVM's AMDGPUUsage lists them.
constexpr Chip kChips[] = {
    {"gfx90a", Isa::cdna2, 0x3f, "AMD Instinct MI250X", 9, 0, 110, 64 << 10, 64, 1700, 1600, 4096, 8},
    {"gfx942", Isa::cdna3, 0x4c, "AMD Instinct MI300X", 9, 4, 304, 64 << 10, 192, 2100, 1300, 8192, 4},
    {"gfx950", Isa::cdna4, 0x4f, "AMD Instinct MI355X", 9, 5, 256, 160 << 10, 288, 2400, 2000, 8192, 4},
};

template <class Fits>
const Chip* find(Fits fits) {
  for (const Chip& chip : kChips)
    if (fits(chip)) return &chip;
  return nullptr;
}

}  // namespace

std::span<const Chip> chips() { return kChips; }

const Chip* chip_named(std::string_view name) {
  return find([&](const Chip& c) { return name == c.name; });
}

const Chip* chip_of_machine(uint32_t machine) {
  return find([&](const Chip& c) { return machine == c.machine; });
}

const char* chip_names() {
  static const std::string all = [] {
    std::string text;
    for (const Chip& c : kChips)
      text.append(&c == kChips ? "" : &c + 1 == std::end(kChips) ? " or " : ", ").append(c.name);
    return text;
  }();
  return all.c_str();
}

}  // namespace gfx942

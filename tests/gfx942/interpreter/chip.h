// SPDX-License-Identifier: Apache-2.0
// The chips whose code the interpreter executes, each as the card that stands for it describes itself.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace gfx942 {

enum class Isa : uint8_t { cdna2, cdna3, cdna4 };

struct Chip {
  const char* name;  // LLVM's
  Isa isa;
  uint32_t machine;   // EF_AMDGPU_MACH of its code objects
  const char* card;   // of which HIP sees one device: a MI250X is two
  int major, minor;   // as HIP numbers the architecture
  int compute_units;  // of the device
  uint32_t lds_bytes;
  uint64_t memory_gib;
  int megahertz, memory_megahertz, memory_bits, l2_mib;
};

std::span<const Chip> chips();
// Null where it is none of these.
const Chip* chip_named(std::string_view name);
const Chip* chip_of_machine(uint32_t machine);
// gfx90a, gfx942 or gfx950
const char* chip_names();

}  // namespace gfx942

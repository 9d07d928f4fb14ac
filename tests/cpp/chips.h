// SPDX-License-Identifier: Apache-2.0
// The known GPUs as plans see them.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "arch/chip.h"
#include "arch/devices.h"

struct NamedChip {
  const char* name;
  xlstm::gpu::Chip chip;
};

inline std::vector<NamedChip> known_chips() {
  std::vector<NamedChip> chips;
  for (const xlstm::DeviceFacts& facts : xlstm::kKnownDevices)
    chips.push_back({facts.name, xlstm::gpu::chip_of(facts)});
  return chips;
}

inline xlstm::gpu::Chip known_chip(const std::string& name) {
  for (const auto& [own, chip] : known_chips())
    if (name == own) return chip;
  std::abort();
}

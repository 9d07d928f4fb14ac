// SPDX-License-Identifier: Apache-2.0
// The known GPUs as the Chips that plans take.
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
  for (const xlstm::DeviceFacts& device : xlstm::kKnownDevices)
    chips.push_back({device.name, xlstm::gpu::chip_of(device)});
  return chips;
}

inline xlstm::gpu::Chip known_chip(const std::string& name) {
  for (const auto& [known_name, chip] : known_chips())
    if (name == known_name) return chip;
  std::abort();
}

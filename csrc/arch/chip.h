// SPDX-License-Identifier: Apache-2.0
// What a plan must know of a GPU. Filled from the device at hand, or from kKnownDevices for plans without one.
#pragma once

#include <string>

#include "arch/devices.h"
#include "arch/layouts.h"

namespace xlstm::gpu {

struct Chip {
  Family family;
  int compute_units;  // as in DeviceFacts
  int lds_bytes;      // that a block may have
  bool hopper;        // has what arch/hopper/hopper.h is about, and the library code for it
};

// By what HIP and CUDA call the device: "gfx942:sramecc+", "sm_90". Chips of AMD's gfx9 have waves of 64.
inline Family family_of(const std::string& arch) {
  if (arch.rfind("sm_", 0) == 0) return Family::nvidia;
  return arch.rfind("gfx9", 0) == 0 ? Family::cdna : Family::rdna;
}

inline Chip chip_of(const DeviceFacts& facts) {
  return {family_of(facts.arch), facts.compute_units, facts.lds_bytes, std::string(facts.arch) == "sm_90"};
}

// The current device. Throws std::runtime_error, with its arch and those that the library holds code for, when the
// library has none for it.
Chip current_chip();

}  // namespace xlstm::gpu

// SPDX-License-Identifier: Apache-2.0
// What a plan must know of a GPU. Filled from the device at hand, or from kKnownDevices for plans without one.
#pragma once

#include "arch/devices.h"
#include "arch/family.h"

namespace xlstm::gpu {

struct Chip {
  Family family;
  int compute_units;  // as in DeviceFacts
  int lds_bytes;      // that a block may have
  bool hopper;        // has what arch/hopper.h is about, and the library code for it
};

Chip chip_of(const DeviceFacts& facts);

// The current device. Throws std::runtime_error, with its arch and those that the library holds code for, when the
// library has none for it.
Chip current_chip();

}  // namespace xlstm::gpu

// SPDX-License-Identifier: Apache-2.0
// The properties of a GPU that plans depend on. They come from the current device, or from kKnownDevices for plans
// without a device.
#pragma once

#include <string>

#include "arch/devices.h"
#include "arch/layouts.h"

namespace xlstm::gpu {

// Whether kernels here multiply floats of 8 bits as they lie, of e4m3fnuz. gfx950 has products of e4m3fn, too, which
// nothing here can execute: what is not executed is not used.
inline bool multiplies_float8(const std::string& arch) { return arch.rfind("gfx942", 0) == 0; }

struct Chip {
  Family family;
  int compute_units;  // as in DeviceFacts
  int lds_bytes;      // that a block may have
  bool hopper;        // has the features of arch/hopper/hopper.h, and the library has code for it
  bool multiplies_float8 = false;
};

// The family, from HIP's or CUDA's name of the arch: "gfx942:sramecc+", "sm_90". Chips of AMD's gfx9 have waves of 64.
inline Family family_of(const std::string& arch) {
  if (arch.rfind("sm_", 0) == 0) return Family::nvidia;
  if (arch.rfind("gfx9", 0) == 0) return Family::cdna;
  return arch.rfind("gfx12", 0) == 0 ? Family::rdna4 : Family::rdna;
}

inline Chip chip_of(const DeviceFacts& device) {
  return {family_of(device.arch), device.compute_units, device.lds_bytes, std::string(device.arch) == "sm_90",
          multiplies_float8(device.arch)};
}

// The current device. When the library has no code for the device it throws std::runtime_error, which names the
// device's arch and the archs of the library.
Chip current_chip();

}  // namespace xlstm::gpu

// SPDX-License-Identifier: Apache-2.0
// The properties of a GPU that plans depend on. They come from the current device, or from kKnownDevices for plans
// without a device.
#pragma once

#include <optional>
#include <string>

#include "arch/devices.h"
#include "arch/layouts.h"
#include "xlstm_hip.h"

namespace xlstm::gpu {

// The floats of 8 bits that a chip's kernels multiply as they lie, if any: those of kMultiplies in arch/formats.h.
inline std::optional<xlstm_dtype> float8_products_of(const std::string& arch) {
  if (arch.rfind("gfx942", 0) == 0) return XLSTM_FLOAT8_E4M3FNUZ;
  if (arch.rfind("gfx950", 0) == 0) return XLSTM_FLOAT8_E4M3FN;
  return std::nullopt;
}

struct Chip {
  Family family;
  int compute_units;  // as in DeviceFacts
  int lds_bytes;      // that a block may have
  bool hopper;        // has the features of arch/hopper/hopper.h, and the library has code for it
  std::optional<xlstm_dtype> float8_products = std::nullopt;
};

// The family, from HIP's or CUDA's name of the arch: "gfx942:sramecc+", "sm_90". Chips of AMD's gfx9 have waves of 64.
inline Family family_of(const std::string& arch) {
  if (arch.rfind("sm_", 0) == 0) return Family::nvidia;
  if (arch.rfind("gfx9", 0) == 0) return Family::cdna;
  return arch.rfind("gfx12", 0) == 0 ? Family::rdna4 : Family::rdna;
}

inline Chip chip_of(const DeviceFacts& device) {
  return {family_of(device.arch), device.compute_units, device.lds_bytes, std::string(device.arch) == "sm_90",
          float8_products_of(device.arch)};
}

// The current device. When the library has no code for the device it throws std::runtime_error, which names the
// device's arch and the archs of the library.
Chip current_chip();

}  // namespace xlstm::gpu

// SPDX-License-Identifier: Apache-2.0
// The layout of the recurrent cells' tensors, for every kernel and check.
#pragma once

#include <stdint.h>

#include "base/host_device.h"

namespace xlstm::slstm {

constexpr int kGates = 4;          // i, f, z, o
constexpr int kKept = 3;           // values of a unit in `gates` (z, o, slope) and in `memory` (decay, c, n)
constexpr int64_t kUnitStep = 32;  // what a head's units are padded to: k of two matrix instructions on most GPUs
constexpr int64_t kMaxGpuUnits = 512;

XLSTM_RULE int64_t padded_units(int64_t units) { return (units + kUnitStep - 1) / kUnitStep * kUnitStep; }

}  // namespace xlstm::slstm

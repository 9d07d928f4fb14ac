// SPDX-License-Identifier: Apache-2.0
// The known GPUs, with published figures, for plans without a device. Plans for the current device use what the device
// itself reports.
#pragma once

#include <cstdint>

namespace xlstm {

struct DeviceFacts {
  const char* name;
  const char* arch;
  int32_t compute_units;  // the units that run a block, as HIP and CUDA count: CUs, SMs; on RDNA pairs of CUs (WGPs)
  int32_t wave_size;
  int32_t lds_bytes;  // shared memory a block may have
  int64_t memory_bytes;
  double peak_bandwidth;  // bytes/s
  double peak_bf16;       // flop/s, dense matrix units
};

constexpr int64_t kGiB = int64_t(1) << 30;
inline constexpr DeviceFacts kKnownDevices[] = {
    {"MI300X", "gfx942", 304, 64, 64 << 10, 192 * kGiB, 5.3e12, 1307e12},
    {"MI355X", "gfx950", 256, 64, 160 << 10, 288 * kGiB, 8.0e12, 2500e12},
    {"MI250X", "gfx90a", 110, 64, 64 << 10, 64 * kGiB, 1.6e12, 191e12},  // one of its two dies
    {"RX 7900 XTX", "gfx1100", 48, 32, 64 << 10, 24 * kGiB, 0.96e12, 123e12},
    {"RX 9070 XT", "gfx1201", 32, 32, 64 << 10, 16 * kGiB, 0.64e12, 195e12},
    {"H200", "sm_90", 132, 32, 227 << 10, 141 * kGiB, 4.8e12, 989e12},
    {"A100", "sm_80", 108, 32, 163 << 10, 80 * kGiB, 2.0e12, 312e12},
};

}  // namespace xlstm

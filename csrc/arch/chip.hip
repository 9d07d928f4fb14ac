// SPDX-License-Identifier: Apache-2.0
// The current device as a Chip.
#include <array>
#include <mutex>
#include <stdexcept>
#include <string>

#include "arch/chip.h"
#include "arch/fragments.h"
#include "arch/schedule.h"
#include "build_info.h"

namespace xlstm::gpu {
namespace {

template <int>
__global__ void nothing() {}  // a kernel to ask the runtime whether the library has code for the device

void check(Status status) {
  if (status != kSuccess) throw std::runtime_error(std::string("the current GPU: ") + status_text(status));
}

Chip query_chip(int device) {
#if defined(__CUDACC__)
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device));
  const std::string arch = "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
  const int lds = int(properties.sharedMemPerBlockOptin);
  const bool hopper = arch == "sm_90" && std::string(build_info::gpu_archs).find("90a") != std::string::npos;
#else
  hipDeviceProp_t properties;
  check(hipGetDeviceProperties(&properties, device));
  const std::string arch = properties.gcnArchName;
  const int lds = int(properties.sharedMemPerBlock);
  const bool hopper = false;
#endif
  if (!has_code(nothing<0>))
    throw std::runtime_error("the library has no GPU code for " + arch + ", only for " + build_info::gpu_archs +
                             ": build it with this arch in its list (docs/install.md)");
  return {family_of(arch), properties.multiProcessorCount, lds, hopper, float8_products_of(arch)};
}

}  // namespace

Chip current_chip() {
  constexpr int kMaxDevices = 64;
  static std::array<Chip, kMaxDevices> known;
  static std::array<std::once_flag, kMaxDevices> asked;
  int device = 0;
  check(current_device(device));
  if (device < kMaxDevices)
    std::call_once(asked[device],
                   [&] { known[device] = query_chip(device); });  // a query that throws is repeated by the next call
  Chip chip = device < kMaxDevices ? known[device] : query_chip(device);
  chip.hopper = chip.hopper && asked_schedule() != Schedule::common;
  return chip;
}

}  // namespace xlstm::gpu

// SPDX-License-Identifier: Apache-2.0
// The device at hand.
#include <array>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>

#include "arch/chip.h"
#include "arch/fragments.h"
#include "build_info.h"

namespace xlstm::gpu {
namespace {

template <int>
__global__ void nothing() {}  // there to be asked whether the library has code for the device

void check(Status status) {
  if (status != kSuccess) throw std::runtime_error(std::string("the current GPU: ") + status_text(status));
}

// XLSTM_HIP_GPU_SCHEDULE=common: the schedule that every chip has, to compare with. Read at each call, so that one
// process can time both.
bool common_schedule() {
  const char* asked = std::getenv("XLSTM_HIP_GPU_SCHEDULE");
  const std::string schedule = asked ? asked : "";
  if (schedule != "" && schedule != "auto" && schedule != "common")
    throw std::runtime_error("XLSTM_HIP_GPU_SCHEDULE: expected auto or common, got " + schedule);
  return schedule == "common";
}

Chip ask(int device) {
#if defined(__CUDACC__)
  cudaDeviceProp facts;
  check(cudaGetDeviceProperties(&facts, device));
  const std::string arch = "sm_" + std::to_string(facts.major) + std::to_string(facts.minor);
  const int lds = int(facts.sharedMemPerBlockOptin);
  const bool hopper = arch == "sm_90" && std::string(build_info::gpu_archs).find("90a") != std::string::npos;
#else
  hipDeviceProp_t facts;
  check(hipGetDeviceProperties(&facts, device));
  const std::string arch = facts.gcnArchName;
  const int lds = int(facts.sharedMemPerBlock);
  const bool hopper = false;
#endif
  if (!has_code(nothing<0>))
    throw std::runtime_error("the library has no GPU code for " + arch + ", only for " + build_info::gpu_archs +
                             ": build it with this arch in its list (docs/install.md)");
  return {family_of(arch), facts.multiProcessorCount, lds, hopper};
}

}  // namespace

Chip current_chip() {
  constexpr int kMost = 64;
  static std::array<Chip, kMost> known;
  static std::array<std::once_flag, kMost> asked;
  int device = 0;
  check(current_device(device));
  if (device < kMost)
    std::call_once(asked[device], [&] { known[device] = ask(device); });  // one that throws is asked again
  Chip chip = device < kMost ? known[device] : ask(device);
  chip.hopper = chip.hopper && !common_schedule();
  return chip;
}

}  // namespace xlstm::gpu

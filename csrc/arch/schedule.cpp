// SPDX-License-Identifier: Apache-2.0
#include "arch/schedule.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace xlstm::gpu {

Schedule asked_schedule() {
  const char* asked = std::getenv("XLSTM_HIP_GPU_SCHEDULE");
  const std::string schedule = asked ? asked : "";
  if (schedule == "" || schedule == "auto") return Schedule::automatic;
  if (schedule == "common") return Schedule::common;
  if (schedule == "persistent") return Schedule::persistent;
  if (schedule == "launches") return Schedule::launches;
  throw std::runtime_error("XLSTM_HIP_GPU_SCHEDULE: expected auto, common, persistent or launches, got " + schedule);
}

}  // namespace xlstm::gpu

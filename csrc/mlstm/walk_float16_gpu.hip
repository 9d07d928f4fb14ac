// SPDX-License-Identifier: Apache-2.0
#include "mlstm/walk_launch.h"

template void xlstm::gpu::launch_walk<xlstm::gpu::Float16>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*, Stream);

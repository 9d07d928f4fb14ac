// SPDX-License-Identifier: Apache-2.0
#include "attention/backward_launch.h"

template void xlstm::gpu::launch_backward<xlstm::gpu::Float16>(const AttentionBackwardPlan&, const BackwardParams&,
                                                               Stream);

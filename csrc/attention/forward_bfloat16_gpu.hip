// SPDX-License-Identifier: Apache-2.0
#include "attention/forward_launch.h"

template void xlstm::gpu::launch_forward<xlstm::gpu::BFloat16>(const AttentionForwardPlan&, const ForwardParams&,
                                                               Stream);

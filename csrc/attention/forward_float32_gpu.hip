// SPDX-License-Identifier: Apache-2.0
#include "attention/forward_launch.h"

template void xlstm::gpu::launch_forward<float>(const AttentionForwardPlan&, const ForwardParams&, Stream);

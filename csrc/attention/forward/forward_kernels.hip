// SPDX-License-Identifier: Apache-2.0
// The forward kernels for keys and values of q's dtype.
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16 float

#include "attention/forward/forward_launch.h"

namespace xlstm::gpu::attention {

template void launch_forward<XLSTM_ELEMENT>(const AttentionForwardPlan&, const ForwardParams&, Stream);

}  // namespace xlstm::gpu::attention

// SPDX-License-Identifier: Apache-2.0
// The forward kernels for keys and values in floats of 8 bits.
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16

#include "attention/forward/forward_launch.h"

namespace xlstm::gpu::attention {

template void launch_forward<E4m3fnKeys<XLSTM_ELEMENT>>(const AttentionForwardPlan&, const ForwardParams&, Stream);
template void launch_forward<E4m3fnuzKeys<XLSTM_ELEMENT>>(const AttentionForwardPlan&, const ForwardParams&, Stream);

}  // namespace xlstm::gpu::attention

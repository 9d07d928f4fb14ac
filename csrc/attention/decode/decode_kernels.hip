// SPDX-License-Identifier: Apache-2.0
// The decode kernels for keys and values of q's dtype.
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16 float

#include "attention/decode/decode_launch.h"

namespace xlstm::gpu::attention {

template void launch_decode<XLSTM_ELEMENT>(const DecodePlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu::attention

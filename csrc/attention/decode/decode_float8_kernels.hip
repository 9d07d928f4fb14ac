// SPDX-License-Identifier: Apache-2.0
// The decode kernels for keys and values in floats of 8 bits.
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16

#include "attention/decode/decode_launch.h"

namespace xlstm::gpu::attention {

template void launch_decode<E4m3fnKeys<XLSTM_ELEMENT>>(const DecodePlan&, const FewRowsParams&, Stream);
template void launch_decode<E4m3fnuzKeys<XLSTM_ELEMENT>>(const DecodePlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu::attention

// SPDX-License-Identifier: Apache-2.0
// The MLA kernels for keys in floats of 8 bits.
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16

#include "attention/mla/mla_launch.h"

namespace xlstm::gpu::attention {

template void launch_mla<E4m3fnKeys<XLSTM_ELEMENT>>(const MlaPlan&, const FewRowsParams&, Stream);
template void launch_mla<E4m3fnuzKeys<XLSTM_ELEMENT>>(const MlaPlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu::attention

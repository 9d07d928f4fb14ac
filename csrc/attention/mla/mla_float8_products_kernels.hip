// SPDX-License-Identifier: Apache-2.0
// The MLA kernels for queries and keys in floats of 8 bits, which are multiplied as they are: on CDNA, in the format of
// the chip. out has elements of 16 bits.
// Compiled once for each XLSTM_ELEMENT of: BFloat16

#include "attention/mla/mla_launch.h"

namespace xlstm::gpu::attention {

template void launch_mla<E4m3fnProducts<XLSTM_ELEMENT>>(const MlaPlan&, const FewRowsParams&, Stream);
template void launch_mla<E4m3fnuzProducts<XLSTM_ELEMENT>>(const MlaPlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu::attention

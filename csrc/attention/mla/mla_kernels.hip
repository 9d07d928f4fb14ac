// SPDX-License-Identifier: Apache-2.0
// The MLA kernels for keys of q's dtype.
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16

#include "attention/mla/mla_launch.h"

namespace xlstm::gpu::attention {

template void launch_mla<XLSTM_ELEMENT>(const MlaPlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu::attention

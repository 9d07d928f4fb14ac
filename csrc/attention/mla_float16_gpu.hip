// SPDX-License-Identifier: Apache-2.0
#include "attention/mla_launch.h"

namespace xlstm::gpu {
template void launch_mla<Float16>(const MlaPlan&, const FewRowsParams&, Stream);
}

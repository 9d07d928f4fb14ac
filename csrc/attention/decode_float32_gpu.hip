// SPDX-License-Identifier: Apache-2.0
#include "attention/decode_launch.h"

namespace xlstm::gpu {
template void launch_decode<float>(const DecodePlan&, const FewRowsParams&, Stream);
}

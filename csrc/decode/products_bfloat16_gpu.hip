// SPDX-License-Identifier: Apache-2.0
#include "decode/matrix_launch.h"

namespace xlstm::gpu {
template void launch_matrix<Bfloat16Weights>(const char*, const MatrixPlan&, const ProductParams&, Stream);
}

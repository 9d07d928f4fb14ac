// SPDX-License-Identifier: Apache-2.0
#include "api/cpu_kernels.h"

#include "arch/cpu/isa.h"

namespace xlstm {

// Each family's kernel_table_cpu.cpp defines its table for each instruction set.
#define XLSTM_DECLARE_TABLES(isa)                     \
  namespace isa::mlstm {                              \
  extern const MlstmCpuKernels mlstm_kernels;         \
  }                                                   \
  namespace isa::attention {                          \
  extern const AttentionCpuKernels attention_kernels; \
  }                                                   \
  namespace isa::layer {                              \
  extern const LayerCpuKernels layer_kernels;         \
  }                                                   \
  namespace isa::engine {                             \
  extern const DecodeCpuKernels decode_kernels;       \
  }                                                   \
  namespace isa::slstm {                              \
  extern const SlstmCpuKernels slstm_kernels;         \
  }
XLSTM_FOR_EACH_ISA(XLSTM_DECLARE_TABLES)
#undef XLSTM_DECLARE_TABLES

const CpuKernels& cpu_kernels() {
#define XLSTM_TABLES(isa)                                                                   \
  {isa::mlstm::mlstm_kernels, isa::attention::attention_kernels, isa::layer::layer_kernels, \
   isa::engine::decode_kernels, isa::slstm::slstm_kernels},
  static const CpuKernels tables[] = {XLSTM_FOR_EACH_ISA(XLSTM_TABLES)};
#undef XLSTM_TABLES
  return tables[int(cpu_isa())];
}

}  // namespace xlstm

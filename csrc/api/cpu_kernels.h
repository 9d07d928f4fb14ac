// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of every family for the instruction set that runs here (arch/cpu/isa.h).
#pragma once

namespace xlstm {

struct MlstmCpuKernels;
struct AttentionCpuKernels;
struct LayerCpuKernels;
struct DecodeCpuKernels;
struct SlstmCpuKernels;

struct CpuKernels {
  const MlstmCpuKernels& mlstm;
  const AttentionCpuKernels& attention;
  const LayerCpuKernels& layer;
  const DecodeCpuKernels& engine;
  const SlstmCpuKernels& slstm;
};

const CpuKernels& cpu_kernels();

}  // namespace xlstm

// SPDX-License-Identifier: Apache-2.0
// The CPU instruction sets that kernels are compiled for, best first, and which of them this machine runs.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#define XLSTM_FOR_EACH_ISA(X) X(avx512bf16) X(avx512) X(avx2) X(portable)
#else
#define XLSTM_FOR_EACH_ISA(X) X(portable)
#endif

namespace xlstm {

enum class Isa {
#define XLSTM_ISA_NAME(name) name,
  XLSTM_FOR_EACH_ISA(XLSTM_ISA_NAME)
#undef XLSTM_ISA_NAME
};

const char* isa_name(Isa isa);
bool isa_is_supported(Isa isa);

// The best one that runs here; XLSTM_HIP_CPU_ISA=name takes that one. Decided once. A name
// that is unknown or does not run here ends in an exception that says which do.
Isa cpu_isa();

}  // namespace xlstm

// SPDX-License-Identifier: Apache-2.0
// The CPU instruction sets that kernels are compiled for, best first, and whether this machine supports each.
#pragma once

#ifndef XLSTM_FOR_EACH_ISA  // a build may be for some of them: CMake's XLSTM_HIP_CPU_ISAS
#if defined(__x86_64__) || defined(_M_X64)
#define XLSTM_FOR_EACH_ISA(X) X(amx) X(avx512bf16) X(avx512) X(avx2) X(portable)
#else
#define XLSTM_FOR_EACH_ISA(X) X(portable)
#endif
#endif

namespace xlstm {

enum class Isa {
#define XLSTM_ISA_NAME(name) name,
  XLSTM_FOR_EACH_ISA(XLSTM_ISA_NAME)
#undef XLSTM_ISA_NAME
};

const char* isa_name(Isa isa);
bool isa_is_supported(Isa isa);

// The best instruction set of this machine, or the one that XLSTM_HIP_CPU_ISA names. Decided once. A name that is
// unknown or not supported throws an exception that lists the supported ones.
Isa cpu_isa();

}  // namespace xlstm

// SPDX-License-Identifier: Apache-2.0
#include "arch/cpu/isa.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace xlstm {
namespace {

// Whether this machine has all instructions of a set. A build may be for some of the sets.
namespace cpu_has {

[[maybe_unused]] bool portable() { return true; }
#if defined(__x86_64__)
[[maybe_unused]] bool avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c");
}
[[maybe_unused]] bool avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && avx2();
}
[[maybe_unused]] bool avx512bf16() { return __builtin_cpu_supports("avx512bf16") && avx512(); }

// Linux gives a process tile registers on request (arch_prctl). A kernel that has them says so for a CPU that has AMX,
// and each such CPU has products of bfloat16 and int8.
[[maybe_unused]] bool amx() {
  constexpr int kSupportedFeatures = 0x1021, kRequestPermission = 0x1023, kTileData = 18;
  uint64_t features = 0;
  return avx512bf16() && syscall(SYS_arch_prctl, kSupportedFeatures, &features) == 0 && (features >> kTileData & 1) &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace cpu_has

constexpr Isa kIsas[] = {
#define XLSTM_ISA_VALUE(name) Isa::name,
    XLSTM_FOR_EACH_ISA(XLSTM_ISA_VALUE)
#undef XLSTM_ISA_VALUE
};

Isa choose() {
  const char* wanted = std::getenv("XLSTM_HIP_CPU_ISA");
  std::string runnable;
  for (Isa isa : kIsas) {
    if (!isa_is_supported(isa)) continue;
    if (!wanted || !*wanted || std::string(wanted) == isa_name(isa)) return isa;
    runnable += std::string(runnable.empty() ? "" : ", ") + isa_name(isa);
  }
  throw std::runtime_error("XLSTM_HIP_CPU_ISA: expected one of " + runnable + " on this machine, got '" + wanted + "'");
}

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
#define XLSTM_ISA_CASE(name) \
  case Isa::name:            \
    return #name;
    XLSTM_FOR_EACH_ISA(XLSTM_ISA_CASE)
#undef XLSTM_ISA_CASE
  }
  return "";
}

bool isa_is_supported(Isa isa) {
  switch (isa) {
#define XLSTM_ISA_CASE(name) \
  case Isa::name:            \
    return cpu_has::name();
    XLSTM_FOR_EACH_ISA(XLSTM_ISA_CASE)
#undef XLSTM_ISA_CASE
  }
  return false;
}

Isa cpu_isa() {
  static const Isa isa = choose();
  return isa;
}

}  // namespace xlstm

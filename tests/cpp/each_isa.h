// SPDX-License-Identifier: Apache-2.0
// Runs tests once for each instruction set of this machine, each in a process, because the library chooses its
// instruction set once per process.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "arch/cpu/isa.h"
#include "check.h"
#include "xlstm_hip.h"

inline int run_for_each_isa(void (*tests)()) {
  constexpr xlstm::Isa all[] = {
#define XLSTM_TEST_ISA(name) xlstm::Isa::name,
      XLSTM_FOR_EACH_ISA(XLSTM_TEST_ISA)
#undef XLSTM_TEST_ISA
  };
  for (xlstm::Isa isa : all) {
    const char* name = xlstm::isa_name(isa);
    if (!xlstm::isa_is_supported(isa)) {
      std::printf("%s: not on this machine\n", name);
      continue;
    }
    std::printf("%s\n", name);
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      failures = 0;  // the child counts only its failures
      setenv("XLSTM_HIP_CPU_ISA", name, 1);
      CHECK(xlstm_cpu_isa() == std::string(name));
      tests();
      std::exit(finish());
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "%s failed: wait status %d", name, status);
  }
  return finish();
}

// Whether chunkwise products take bfloat16 operands from bfloat16 tensors, and so round scores and states on the way.
inline bool bf16_products() {
  const std::string isa = xlstm_cpu_isa();
  return isa == "amx" || isa == "avx512bf16";
}

# SPDX-License-Identifier: Apache-2.0
# CPU kernels: each *_cpu.cpp below csrc/ is compiled once per instruction set, which XLSTM_ISA names, and the library
# chooses at run time. csrc/arch/cpu/isa.h lists the sets; this file has their compiler flags.

set(isa_portable_flags "")
set(isa_avx2_flags -mavx2 -mfma -mf16c -mbmi2)
set(isa_avx512_flags ${isa_avx2_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
set(isa_avx512bf16_flags ${isa_avx512_flags} -mavx512bf16)
set(isa_amx_flags ${isa_avx512bf16_flags} -mamx-tile -mamx-bf16 -mamx-int8)

# isa.h has two lists: first that of x86-64, then that of other machines.
file(STRINGS csrc/arch/cpu/isa.h isa_lists REGEX "#define XLSTM_FOR_EACH_ISA")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS csrc/arch/cpu/isa.h)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(GET isa_lists 0 isa_list)
else()
  list(GET isa_lists 1 isa_list)
endif()
string(REGEX REPLACE ".*FOR_EACH_ISA\\(X\\)" "" isa_list "${isa_list}")
string(REGEX MATCHALL "[a-z0-9]+" isas "${isa_list}")

set(XLSTM_HIP_CPU_ISAS "" CACHE STRING "CPU instruction sets to build for, best first; by default all of csrc/arch/cpu/isa.h")
if(XLSTM_HIP_CPU_ISAS)
  foreach(isa IN LISTS XLSTM_HIP_CPU_ISAS)
    if(NOT isa IN_LIST isas)
      message(FATAL_ERROR "XLSTM_HIP_CPU_ISAS: expected some of ${isas}, got ${isa}")
    endif()
  endforeach()
  set(isas ${XLSTM_HIP_CPU_ISAS})
  list(TRANSFORM isas REPLACE "(.+)" "X(\\1)" OUTPUT_VARIABLE entries)
  list(JOIN entries " " entries)
  add_compile_options("-DXLSTM_FOR_EACH_ISA(X)=${entries}")
endif()
set(XLSTM_HIP_CPU_ISAS ${isas})
foreach(isa IN LISTS XLSTM_HIP_CPU_ISAS)
  if(NOT DEFINED isa_${isa}_flags)
    message(FATAL_ERROR "csrc/arch/cpu/isa.h names the instruction set ${isa}, whose flags cmake/cpu_kernels.cmake lacks")
  endif()
endforeach()

# ISO mode turns off fused multiply-adds in gcc, which kernels need. None of these flags changes NaN or infinity.
set(isa_common_flags ${XLSTM_HIP_OPTIMIZE} -ffp-contract=fast -fno-math-errno -fno-trapping-math)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # gcc's intrinsics headers trigger these warnings, because they leave a register undefined on purpose.
  list(APPEND isa_common_flags -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

# xlstm_hip_cpu_kernels(<out> <source>...) adds one object library per instruction set and returns their names in <out>.
function(xlstm_hip_cpu_kernels out)
  set(names "")
  if(ARGN)
    foreach(isa IN LISTS XLSTM_HIP_CPU_ISAS)
      xlstm_hip_objects(xlstm_hip_cpu_${isa} ${ARGN})
      target_compile_options(xlstm_hip_cpu_${isa} PRIVATE ${isa_common_flags} ${isa_${isa}_flags})
      target_compile_definitions(xlstm_hip_cpu_${isa} PRIVATE XLSTM_ISA=${isa})
      list(APPEND names xlstm_hip_cpu_${isa})
    endforeach()
  endif()
  set(${out} ${names} PARENT_SCOPE)
endfunction()

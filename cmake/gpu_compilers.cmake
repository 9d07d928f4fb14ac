# SPDX-License-Identifier: Apache-2.0
# Finds the compilers of the two GPU languages and the files that they need.
# find_hip(<reason>) and find_cuda(<reason>) set HIPCXX or CUDACXX, where CMake looks for the compiler, or return what
# is missing. A compiler that the user names is used; if it does not exist, it is missing.

# Returns the compiler that the user named for `language`, in CMake's variable or the environment.
function(named_compiler language out)
  set(name "${CMAKE_${language}_COMPILER}")
  if(NOT name)
    separate_arguments(words NATIVE_COMMAND "$ENV{${language}CXX}")
    list(POP_FRONT words name)
  endif()
  if(name)
    set(${out} "${name}" PARENT_SCOPE)
  else()
    unset(${out} PARENT_SCOPE)  # find_program() searches for undefined variables
  endif()
endfunction()

function(find_cuda out)
  set(${out} "" PARENT_SCOPE)
  named_compiler(CUDA nvcc)
  if(NOT nvcc)
    find_program(nvcc nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin PATHS /usr/local/cuda/bin NO_CACHE)
  endif()
  if(NOT nvcc OR NOT EXISTS "${nvcc}")
    set(${out} "no nvcc was found (CMAKE_CUDA_COMPILER, CUDACXX, CUDA_HOME, PATH, /usr/local/cuda): install the CUDA \
toolkit, 12.4 or newer" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE text ERROR_QUIET)
  if(text MATCHES "release ([0-9]+\\.[0-9]+)" AND CMAKE_MATCH_1 VERSION_LESS 12.4)
    set(${out} "nvcc is ${CMAKE_MATCH_1}; the kernels need the CUDA toolkit, 12.4 or newer" PARENT_SCOPE)
    return()
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)
    set(ENV{CUDACXX} "${nvcc}")
  endif()
endfunction()

# Returns what to install for HIP: beside AMD's wheels of torch a package of theirs, else ROCm.
function(hip_remedy out)
  set(${out} "install the ROCm that torch was built with (ROCM_PATH names its folder)" PARENT_SCOPE)
  if(NOT torch_gpu STREQUAL "HIP")
    set(${out} "install ROCm, or on Debian clang-19, clang-tools-19, lld-19, rocm-device-libs, libamdhip64-dev, hipcc"
      PARENT_SCOPE)
    return()
  endif()
  file(GLOB packed ${TORCH_DIR}/../rocm_sdk_devel/_devel.tar*)
  file(GLOB core ${TORCH_DIR}/../_rocm_sdk_core*)
  if(packed)
    set(${out} "run `rocm-sdk init`, which unpacks pip's rocm-sdk-devel" PARENT_SCOPE)
  elseif(core)
    set(${out} "pip install \"rocm[devel]\" from the index of this torch and in the version of its rocm-sdk-core, then \
run `rocm-sdk init`" PARENT_SCOPE)
  endif()
endfunction()

# A PATH may begin with a compiler cache's folder of links to itself. The linker is beside the compiler, not there, and
# the cache is used all the same (cmake/common.cmake).
function(is_compiler_itself result candidate)
  file(REAL_PATH ${candidate} real)
  cmake_path(GET real FILENAME name)
  if(name MATCHES "^s?ccache")
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

function(find_hip out)
  set(${out} "" PARENT_SCOPE)
  # ROCm roots: from the environment, next to torch (pip's rocm-sdk packages), /opt/rocm; later the distribution's.
  set(roots $ENV{ROCM_PATH} $ENV{HIP_PATH})
  if(TORCH_DIR)
    list(APPEND roots ${TORCH_DIR}/../_rocm_sdk_devel ${TORCH_DIR}/../_rocm_sdk_core)
  endif()
  list(APPEND roots /opt/rocm)
  named_compiler(HIP clang)
  if(NOT clang)
    list(TRANSFORM roots APPEND /lib/llvm/bin OUTPUT_VARIABLE folders)
    list(TRANSFORM roots APPEND /llvm/bin OUTPUT_VARIABLE old_folders)
    find_program(clang NAMES amdclang++ clang++ PATHS ${folders} ${old_folders} NO_DEFAULT_PATH NO_CACHE)
  endif()
  if(NOT clang)
    # A distribution's clang supports HIP from 17 on; the newest is tried first.
    find_program(clang NAMES amdclang++ clang++-22 clang++-21 clang++-20 clang++-19 clang++-18 clang++-17 NO_CACHE
      VALIDATOR is_compiler_itself)
  endif()
  hip_remedy(remedy)
  if(NOT clang OR NOT EXISTS "${clang}")
    set(${out} "no clang++ for HIP was found (CMAKE_HIP_COMPILER, HIPCXX, ROCM_PATH, /opt/rocm, PATH): ${remedy}"
      PARENT_SCOPE)
    return()
  endif()

  file(REAL_PATH ${clang} real_clang)
  cmake_path(GET real_clang PARENT_PATH bin)
  foreach(tool IN ITEMS lld clang-offload-bundler)
    if(NOT EXISTS ${bin}/${tool})
      set(${out} "${clang} has no ${tool} in its folder: on Debian install the lld and clang-tools packages of its version"
        PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(root "${CMAKE_HIP_COMPILER_ROCM_ROOT}")
  foreach(candidate IN ITEMS ${bin}/../.. ${bin}/../../.. ${roots} /usr)
    # pip's rocm-sdk-core has the headers, but not the CMake files of HIP, which are in rocm-sdk-devel.
    file(GLOB hip_lang ${candidate}/lib*/cmake/hip-lang ${candidate}/lib/*/cmake/hip-lang)
    if(NOT root AND hip_lang AND EXISTS ${candidate}/include/hip/hip_runtime.h)
      file(REAL_PATH ${candidate} root)
    endif()
  endforeach()
  if(NOT root)
    set(${out} "${clang} is there, but not HIP's include/hip/hip_runtime.h and lib/cmake/hip-lang (under ROCM_PATH, \
/opt/rocm or /usr): ${remedy}" PARENT_SCOPE)
    return()
  endif()

  if(NOT CMAKE_HIP_COMPILER)
    unset(CMAKE_HIP_COMPILER CACHE)
    set(ENV{HIPCXX} "${clang}")
  endif()
  set(CMAKE_HIP_PLATFORM amd CACHE STRING "HIP platform")
  set(CMAKE_HIP_COMPILER_ROCM_ROOT ${root} CACHE PATH "The ROCm root")
  distribution_device_libraries(${root})
endfunction()

# A distribution installs the device libraries in a folder where clang does not look, and they may be older than clang:
# then the files oclc_isa_version_<chip>.bc of the newest chips are missing, though they hold nothing but the chip's
# number. This makes a folder of links, in which the newest file of the same generation replaces a missing one, and
# points clang at it.
function(distribution_device_libraries root)
  file(GLOB folder ${root}/lib/*/amdgcn/bitcode)
  if(NOT folder OR EXISTS ${root}/amdgcn/bitcode)
    return()
  endif()
  set(links ${CMAKE_CURRENT_BINARY_DIR}/device_libraries)
  file(MAKE_DIRECTORY ${links})
  file(GLOB files ${folder}/*.bc)
  foreach(file IN LISTS files)
    cmake_path(GET file FILENAME name)
    file(CREATE_LINK ${file} ${links}/${name} SYMBOLIC)
  endforeach()
  foreach(chip IN ITEMS 941 942 950 1100 1101 1102 1103 1150 1151 1152 1153 1200 1201)
    string(SUBSTRING ${chip} 0 1 generation)
    file(GLOB known ${folder}/oclc_isa_version_${generation}*.bc)
    list(SORT known COMPARE NATURAL ORDER DESCENDING)
    if(known AND NOT EXISTS ${links}/oclc_isa_version_${chip}.bc)
      list(GET known 0 newest)
      file(CREATE_LINK ${newest} ${links}/oclc_isa_version_${chip}.bc SYMBOLIC)
    endif()
  endforeach()
  if(NOT "$ENV{HIPFLAGS}" MATCHES "hip-device-lib-path")
    set(ENV{HIPFLAGS} "$ENV{HIPFLAGS} --hip-device-lib-path=${links}")
  endif()
endfunction()

# Returns the entries of a library's dynamic section with a tag: NEEDED or SONAME.
function(dynamic_entries tag file out)
  execute_process(COMMAND ${CMAKE_READELF} -d ${file} OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCHALL "\\(${tag}\\)[^\n]*" lines "${text}")
  list(TRANSFORM lines REPLACE "^.*\\[|\\].*$" "")
  set(${out} ${lines} PARENT_SCOPE)
endfunction()

# Finds XLSTM_HIP_AMDHIP64, the HIP runtime that the final libraries link, or returns what is wrong. It is the file that
# torch loads, because a second runtime in one process has other devices and streams. A loader takes a library that is
# loaded by the name that it gives itself (SONAME), wherever it was found: what is linked to torch's file takes torch's.
#   <torch>/lib               wheels of pytorch.org bundle the runtime
#   _rocm_sdk_core*/lib       AMD's wheels load it from pip's package rocm-sdk-core, which has no libamdhip64.so, only the
#                             name with the number
#   the ROCm root             a torch that has neither uses the system's, and so does a build without torch
function(find_hip_runtime out)
  set(${out} "" PARENT_SCOPE)
  hip_remedy(remedy)
  set(of_torch "")
  if(torch_gpu STREQUAL "HIP")
    file(GLOB of_torch ${TORCH_DIR}/lib/libamdhip64.so*)
    if(NOT of_torch)
      file(GLOB of_torch ${TORCH_DIR}/../_rocm_sdk_core*/lib/libamdhip64.so*)
    endif()
  endif()
  if(of_torch)
    list(GET of_torch 0 runtime)
    cmake_path(NORMAL_PATH runtime)
  else()
    find_library(runtime amdhip64 HINTS ${CMAKE_HIP_COMPILER_ROCM_ROOT} PATH_SUFFIXES lib lib64 NO_CACHE)
  endif()
  if(NOT runtime)
    set(${out} "there is no libamdhip64.so under ${CMAKE_HIP_COMPILER_ROCM_ROOT}: ${remedy}" PARENT_SCOPE)
    return()
  endif()
  dynamic_entries(SONAME ${runtime} name)
  file(STRINGS ${CMAKE_HIP_COMPILER_ROCM_ROOT}/include/hip/hip_version.h version REGEX "define HIP_VERSION_MAJOR ")
  string(REGEX REPLACE ".* " "" version "${version}")
  if(name MATCHES "\\.so\\.([0-9]+)" AND version AND NOT CMAKE_MATCH_1 EQUAL version)
    set(${out} "HIP's headers in ${CMAKE_HIP_COMPILER_ROCM_ROOT} are of version ${version}, and the runtime ${runtime} is \
${name}: ${remedy}" PARENT_SCOPE)
    return()
  endif()
  if(torch_gpu STREQUAL "HIP" AND NOT of_torch)
    dynamic_entries(NEEDED ${TORCH_DIR}/lib/libc10_hip.so needed)
    list(FILTER needed INCLUDE REGEX "^libamdhip64\\.so")
    if(needed AND NOT needed STREQUAL name)
      set(${out} "torch loads ${needed}, and ${runtime} is ${name}, which would be a second HIP runtime: ${remedy}"
        PARENT_SCOPE)
      return()
    endif()
  endif()
  set(XLSTM_HIP_AMDHIP64 ${runtime} CACHE INTERNAL "The HIP runtime")
endfunction()

function(gpu_compile_settings language target)
  if(language STREQUAL "CUDA")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  else()
    # No implicit runtime library: gpu_runtime() returns the runtime to link.
    set_target_properties(${target} PROPERTIES HIP_RUNTIME_LIBRARY NONE)
    set(warnings ${XLSTM_HIP_WARNINGS})
    list(REMOVE_ITEM warnings -Werror)  # a new clang may have more warnings
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:HIP>:${warnings};-fno-gpu-rdc>")
  endif()
endfunction()

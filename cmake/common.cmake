# SPDX-License-Identifier: Apache-2.0
# Settings of every target: the language level, hidden symbols, warnings, ccache, sanitizers.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(XLSTM_HIP_CCACHE NAMES ccache sccache DOC "Compiler cache; used when present")
if(XLSTM_HIP_CCACHE)
  foreach(language IN ITEMS CXX HIP CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${XLSTM_HIP_CCACHE})
    endif()
  endforeach()
endif()

set(XLSTM_HIP_GENERATED_DIR ${CMAKE_CURRENT_BINARY_DIR}/generated)
set(XLSTM_HIP_WARNINGS -Wall -Wextra)
if(XLSTM_HIP_WERROR)
  list(APPEND XLSTM_HIP_WARNINGS -Werror)
endif()

# The libraries contain no path of the building machine: __FILE__ is relative.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/=>")

set(XLSTM_HIP_OPTIMIZE -O3)
if(XLSTM_HIP_SANITIZE)
  # The checks multiply the code that is optimised: at -O3 a kernel file takes eight minutes, at -O1 half a minute.
  set(XLSTM_HIP_OPTIMIZE -O1)
  set(sanitize -fsanitize=${XLSTM_HIP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O1)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${sanitize}>")
  add_link_options(${sanitize})
endif()

# An object library of framework-free sources. Without sources it is an empty target, so that callers need no condition.
function(xlstm_hip_objects name)
  if(NOT ARGN)
    file(CONFIGURE OUTPUT ${XLSTM_HIP_GENERATED_DIR}/empty.cpp CONTENT "// this build has no such sources\n")
    set(ARGN ${XLSTM_HIP_GENERATED_DIR}/empty.cpp)
  endif()
  add_library(${name} OBJECT ${ARGN})
  target_include_directories(${name} PRIVATE
    ${CMAKE_CURRENT_SOURCE_DIR}/csrc ${CMAKE_CURRENT_SOURCE_DIR}/csrc/include ${XLSTM_HIP_GENERATED_DIR})
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${XLSTM_HIP_WARNINGS}>")
endfunction()

# A program from one source file that links the static library. It is named <prefix>_<file>, or <file> if that already
# has the prefix; `program` returns the name.
function(xlstm_hip_program prefix source)
  get_filename_component(name ${source} NAME_WE)
  if(NOT name MATCHES "^${prefix}_")
    set(name ${prefix}_${name})
  endif()
  add_executable(${name} ${source})
  target_compile_options(${name} PRIVATE ${XLSTM_HIP_WARNINGS} -UNDEBUG)  # an assert in a test is a test
  target_link_libraries(${name} PRIVATE xlstm_hip)
  set(program ${name} PARENT_SCOPE)
endfunction()

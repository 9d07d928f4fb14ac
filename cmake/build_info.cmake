# SPDX-License-Identifier: Apache-2.0
# Writes build_info.h, the facts of this build. Include it after gpu.cmake and cpu_kernels.cmake, whose results it
# records.

set(XLSTM_HIP_TORCH_TARGET 0x020a000000000000)  # the oldest torch that the op library loads in: 2.10
set(XLSTM_HIP_TORCH_TARGET_TEXT 2.10)

set(XLSTM_HIP_GIT_SHA "")
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/.git)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --short=12 HEAD
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    OUTPUT_VARIABLE XLSTM_HIP_GIT_SHA OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE git_failed ERROR_QUIET)
  if(git_failed)
    set(XLSTM_HIP_GIT_SHA "")
  else()  # a new commit reconfigures an existing build folder
    execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --git-path logs/HEAD
      WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE git_log OUTPUT_STRIP_TRAILING_WHITESPACE)
    get_filename_component(git_log ${git_log} ABSOLUTE)
    if(EXISTS ${git_log})
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${git_log})
    endif()
  endif()
endif()

configure_file(cmake/build_info.h.in ${XLSTM_HIP_GENERATED_DIR}/build_info.h @ONLY)

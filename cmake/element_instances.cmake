# SPDX-License-Identifier: Apache-2.0
# Kernels that are compiled once per element type, so that the types compile in parallel. Such a source has a line:
#   // Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16 float

# xlstm_hip_element_instances(<out> <source>...) returns the sources; one generated file per element type replaces each
# source that has this line.
function(xlstm_hip_element_instances out)
  set(instances "")
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} line REGEX "^// Compiled once for each XLSTM_ELEMENT" LIMIT_COUNT 1)
    if(NOT line)
      list(APPEND instances ${source})
      continue()
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    string(REGEX REPLACE ".*: " "" elements "${line}")
    separate_arguments(elements)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/csrc OUTPUT_VARIABLE included)
    cmake_path(GET source STEM stem)
    cmake_path(GET source EXTENSION LAST_ONLY extension)
    foreach(element IN LISTS elements)
      set(instance ${XLSTM_HIP_GENERATED_DIR}/instances/${stem}_${element}${extension})
      file(CONFIGURE OUTPUT ${instance} CONTENT "#define XLSTM_ELEMENT ${element}\n#include \"${included}\"\n" @ONLY)
      list(APPEND instances ${instance})
    endforeach()
  endforeach()
  set(${out} ${instances} PARENT_SCOPE)
endfunction()

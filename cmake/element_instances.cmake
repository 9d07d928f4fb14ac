# SPDX-License-Identifier: Apache-2.0
# Kernels that are compiled once per element type, so that the types compile in parallel. Such a source has a line:
#   // Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16 float
# or more than one, where the types do not fit into a line.

# xlstm_hip_element_instances(<out> <source>...) returns the sources; one generated file per element type replaces each
# source that has this line.
function(xlstm_hip_element_instances out)
  set(instances "")
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} lines REGEX "^// Compiled once for each XLSTM_ELEMENT")
    if(NOT lines)
      list(APPEND instances ${source})
      continue()
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    list(TRANSFORM lines REPLACE ".*: " "")
    list(JOIN lines " " elements)
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

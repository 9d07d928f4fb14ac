# SPDX-License-Identifier: Apache-2.0
# The two Python-facing libraries, installed into the package folder: the torch ops and _native.

# The torch ops use the LibTorch stable ABI and link only libtorch.so, which loads the other libraries of its torch.
add_library(xlstm_hip_ops MODULE ${torch_sources})
target_compile_definitions(xlstm_hip_ops PRIVATE TORCH_TARGET_VERSION=${XLSTM_HIP_TORCH_TARGET})
target_include_directories(xlstm_hip_ops SYSTEM PRIVATE ${TORCH_DIR}/include)
# Only these files get this flag, so that a compiler cache recognises all other files in builds without Python.
target_compile_options(xlstm_hip_ops PRIVATE "-ffile-prefix-map=${TORCH_DIR}/=torch/")
target_link_options(xlstm_hip_ops PRIVATE LINKER:--no-as-needed)
target_link_libraries(xlstm_hip_ops PRIVATE xlstm_hip ${TORCH_DIR}/lib/libtorch.so)
set_target_properties(xlstm_hip_ops PROPERTIES PREFIX "" OUTPUT_NAME _xlstm_hip_ops
  BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../torch/lib")

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(pybind11 CONFIG REQUIRED)
pybind11_add_module(_native MODULE NO_EXTRAS ${native_sources})

foreach(module IN ITEMS xlstm_hip_ops _native)
  target_include_directories(${module} PRIVATE csrc ${XLSTM_HIP_GENERATED_DIR})
  target_compile_options(${module} PRIVATE ${XLSTM_HIP_WARNINGS})
  set_target_properties(${module} PROPERTIES LINKER_LANGUAGE CXX)
  # One process loads two libraries with a copy of the C API each; both hide it.
  target_link_options(${module} PRIVATE LINKER:--exclude-libs,ALL)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${module} PRIVATE -fno-gnu-unique)
  endif()
endforeach()
target_link_libraries(_native PRIVATE xlstm_hip)

if(SKBUILD_STATE STREQUAL "editable")
  # An editable install runs from the source tree, so the libraries go there: `cmake --build` alone updates them.
  set_target_properties(xlstm_hip_ops _native PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/python/xlstm_hip)
else()
  install(TARGETS xlstm_hip_ops _native LIBRARY DESTINATION xlstm_hip COMPONENT python)
endif()

// SPDX-License-Identifier: Apache-2.0
// Registers ops in a namespace that follows from the library's file name: xlstm_hip for the package's
// _xlstm_hip_ops.so, else the file's name up to its first dot, as Hugging Face's kernels require, so that several
// versions can be loaded in one process. torch's macros would fix the namespace at compile time.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/stable/library.h>

#include <string>

namespace xlstm::torch_ops {

using Library = torch::stable::detail::StableLibrary;

inline const char* ops_namespace() {
  static const std::string name = [] {
    Dl_info info{};
    STD_TORCH_CHECK(dladdr(reinterpret_cast<const void*>(&ops_namespace), &info) && info.dli_fname,
                    "xlstm_hip: the op library does not know its file");
    const std::string path = info.dli_fname;
    const std::string file = path.substr(path.rfind('/') + 1);
    const std::string stem = file.substr(0, file.find('.'));
    return stem == "_xlstm_hip_ops" ? std::string("xlstm_hip") : stem;
  }();
  return name.c_str();
}

}  // namespace xlstm::torch_ops

// XLSTM_OPS_DEF(m) { m.def(...); } and XLSTM_OPS_IMPL(CPU, m) { m.impl(...); }. XLSTM_OPS_IMPL_ON_DEVICES calls a
// function of m for every device that the library has kernels for. ROCm's devices are torch's "cuda" as well.
#define XLSTM_OPS_DEF(m) XLSTM_OPS_INIT(DEF, , m)
#define XLSTM_OPS_IMPL(key, m) XLSTM_OPS_INIT(IMPL, key, m)
#define XLSTM_OPS_INIT(kind, key, m)                                                                              \
  static void register_##kind##key(xlstm::torch_ops::Library&);                                                   \
  static const torch::stable::detail::StableTorchLibraryInit registered_##kind##key(                              \
      torch::stable::detail::StableLibrary::Kind::kind, &register_##kind##key, xlstm::torch_ops::ops_namespace(), \
      #key, __FILE__, __LINE__);                                                                                  \
  static void register_##kind##key(xlstm::torch_ops::Library& m)

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#define XLSTM_OPS_IMPL_ON_DEVICES(implement) \
  XLSTM_OPS_IMPL(CPU, m) { implement(m); }   \
  XLSTM_OPS_IMPL(CUDA, m) { implement(m); }
#else
#define XLSTM_OPS_IMPL_ON_DEVICES(implement) \
  XLSTM_OPS_IMPL(CPU, m) { implement(m); }
#endif

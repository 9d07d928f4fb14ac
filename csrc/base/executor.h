// SPDX-License-Identifier: Apache-2.0
// Runs a CPU kernel's tasks on threads: parallel(self, n, body, arg) calls body(arg, worker) for each worker < n.
#pragma once

#include <cstdint>

namespace xlstm {

struct Executor {
  int32_t workers;
  void (*parallel)(void* self, int32_t workers, void (*body)(void*, int32_t), void* arg);
  void* self;
};

}  // namespace xlstm

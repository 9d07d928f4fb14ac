// SPDX-License-Identifier: Apache-2.0
// Where a CPU kernel's tasks run: parallel(self, n, body, arg) calls body(arg, worker) for workers < n.
#pragma once

#include <cstdint>

namespace xlstm {

struct Executor {
  int32_t workers;
  void (*parallel)(void* self, int32_t workers, void (*body)(void*, int32_t), void* arg);
  void* self;
};

}  // namespace xlstm

// SPDX-License-Identifier: Apache-2.0
// The tasks of a CPU kernel, distributed over workers.
#pragma once

#include "arch/cpu/amx.h"
#include "arch/cpu/vector.h"
#include "base/executor.h"

namespace xlstm::XLSTM_ISA {

// Calls f(task, worker) for every task. A worker takes the next task when it is free, which balances long and short
// sequences. No result may depend on the worker that computed it. Session: the shapes of its tile registers.
template <class Session = TileSession, class F>
inline void parallel_tasks(const Executor& executor, int64_t tasks, F&& f) {
  struct Shared {
    F& f;
    int64_t tasks, next;
  } shared{f, tasks, 0};
  const auto body = [](void* arg, int32_t worker) {
    Shared& s = *static_cast<Shared*>(arg);
    [[maybe_unused]] const Session session;
    for (int64_t task; (task = __atomic_fetch_add(&s.next, 1, __ATOMIC_RELAXED)) < s.tasks;) s.f(task, worker);
  };
  const int32_t workers = int32_t(tasks < executor.workers ? tasks : executor.workers);
  executor.parallel(executor.self, workers, body, &shared);
}

}  // namespace xlstm::XLSTM_ISA

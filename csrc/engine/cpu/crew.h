// SPDX-License-Identifier: Apache-2.0
// A crew of workers that goes through the parts of a step together, in one parallel region: entering a region costs as
// much as a part of a small model takes.
//
// Workers take tasks from a part's counter, then wait until all of its tasks are done. They wait for tasks, not for
// workers: if a worker comes late, or never, as in a nested region, the rest do its tasks.
#pragma once

#include "arch/cpu/vector.h"
#include "base/threads.h"

namespace xlstm::XLSTM_ISA::engine {

struct alignas(128) PartCounter {
  int64_t next, done;
};

class Crew {
 public:
  Crew(PartCounter* counters, int64_t workers) : counter_(counters), workers_(workers) {}

  // Runs f(task) for every task of the next part. Every worker calls this with the same `tasks`.
  template <class F>
  void part(int64_t tasks, F&& f) {
    PartCounter& c = *counter_++;
    int64_t finished = 0;
    for (int64_t task; (task = __atomic_fetch_add(&c.next, 1, __ATOMIC_RELAXED)) < tasks; ++finished) f(task);
    if (finished) __atomic_fetch_add(&c.done, finished, __ATOMIC_RELEASE);
    for (int64_t tries = 0; __atomic_load_n(&c.done, __ATOMIC_ACQUIRE) < tasks; ++tries) spin_or_yield(tries);
  }
  // Runs f(begin, end) over [0, rows) in ranges of at most `most` rows, a multiple of 16, several to each worker.
  template <class F>
  void rows(int64_t rows, int64_t most, F&& f) {
    constexpr int64_t kEach = 4;
    int64_t size = workers_ == 1 ? most : (rows + workers_ * kEach - 1) / (workers_ * kEach);
    size = (size + 15) / 16 * 16;
    if (size > most) size = most;
    part((rows + size - 1) / size, [&](int64_t task) {
      const int64_t begin = task * size, end = begin + size < rows ? begin + size : rows;
      f(begin, end);
    });
  }

 private:
  PartCounter* counter_;
  int64_t workers_;
};

}  // namespace xlstm::XLSTM_ISA::engine

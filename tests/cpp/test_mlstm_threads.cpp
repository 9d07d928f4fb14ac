// SPDX-License-Identifier: Apache-2.0
// The threads of a call: the library's threads and any executor of the caller give the same bits.
#include <atomic>
#include <thread>

#include "each_isa.h"
#include "mlstm_call.h"

namespace {

// A record of the calls of a caller's executor.
struct Seen {
  std::atomic<int> calls{0};
  std::atomic<int32_t> most{0};
};

void note(void* self, int32_t workers) {
  Seen& seen = *static_cast<Seen*>(self);
  ++seen.calls;
  if (workers > seen.most) seen.most = workers;
  CHECK(workers >= 1);
}

void last_worker_first(void* self, int32_t workers, void (*body)(void*, int32_t), void* arg) {
  note(self, workers);
  for (int32_t w = workers - 1; w >= 0; --w) body(arg, w);
}

void with_threads(void* self, int32_t workers, void (*body)(void*, int32_t), void* arg) {
  note(self, workers);
  std::vector<std::thread> threads;
  for (int32_t w = 0; w < workers; ++w) threads.emplace_back(body, arg, w);
  for (std::thread& t : threads) t.join();
}

bool same(const Solution& a, const Solution& b) {
  return same_bits(a.h, b.h) && same_bits(a.l, b.l) && same_bits(a.c, b.c) && same_bits(a.n, b.n) &&
         same_bits(a.m, b.m);
}

bool same(const Gradients& a, const Gradients& b) {
  return same_bits(a.q, b.q) && same_bits(a.k, b.k) && same_bits(a.v, b.v) && same_bits(a.i, b.i) &&
         same_bits(a.f, b.f) && same_bits(a.c, b.c) && same_bits(a.n, b.n) && same_bits(a.m, b.m);
}

void test_executors(const Problem& p, int32_t threads) {
  const Runner runner{threads};
  const Solution expected = chunkwise(p, runner), expected_recurrent = recurrent(p, runner);
  const Gradients expected_gradients = backward(p, expected, runner);
  for (auto parallel : {last_worker_first, with_threads}) {
    Seen seen;
    const Runner callers{threads, Layout::bhsd, parallel, &seen};
    CHECK(same(chunkwise(p, callers), expected), "chunkwise, %s", described(p, callers).c_str());
    CHECK(same(recurrent(p, callers), expected_recurrent), "recurrent, %s", described(p, callers).c_str());
    CHECK(same(backward(p, expected, callers), expected_gradients), "backward, %s", described(p, callers).c_str());
    CHECK(seen.calls > 0 && seen.most <= threads, "%d calls, %d workers at most; %s", int(seen.calls), int(seen.most),
          described(p, callers).c_str());
    if (p.shape.walks() >= threads)
      CHECK(seen.most == threads, "%d workers; %s", int(seen.most), described(p, callers).c_str());
  }
  for (int again = 0; again < 3; ++again) {
    CHECK(same(chunkwise(p, runner), expected), "chunkwise again, %s", described(p, runner).c_str());
    CHECK(same(backward(p, expected, runner), expected_gradients), "backward again, %s", described(p, runner).c_str());
  }
}

// Backward's workspace at 256 x 512, in bytes.
size_t backward_workspace(xlstm_dtype dtype, int64_t heads, int64_t length, int32_t threads) {
  Settings set;
  set.dtype = dtype;
  const Problem p = random_problem({1, 1, 2, 4, 4, 64}, set, 6);
  BackwardCall call(p, chunkwise(p), Layout::bhsd);
  call.api.in.heads = heads, call.api.in.length = length, call.api.in.dqk = 256, call.api.in.dhv = 512;
  return xlstm_mlstm_backward_workspace(&call.api, threads);
}

// The workspace has at most one state per head where heads fill the threads. Otherwise it also has one state between
// each two segments, and each worker's buffers.
void test_memory() {
  const double state = 4.0 * 256 * (512 + 1), per_token = 64, chunk = 4.0 * 64 * (256 + 512);
  for (xlstm_dtype dtype : {XLSTM_FLOAT32, XLSTM_BFLOAT16})
    for (int64_t length : {512, 2048, 16384}) {
      const double many = double(backward_workspace(dtype, 8, length, 2)),
                   one = double(backward_workspace(dtype, 1, length, 4));
      const double segments = length / 64 / 4 < 4 ? double(length) / 256 : 4;
      CHECK(many > 0 && many <= 8 * state + 8 * per_token * double(length), "%d tokens: %g MB", int(length),
            many / 1e6);
      CHECK(one > 0 && one <= (segments - 1) * state + segments * (2 * state + 5 * chunk) + per_token * double(length),
            "%d tokens in %g segments: %g MB", int(length), segments, one / 1e6);
    }
}

// threads <= 0 uses all threads of the machine.
void test_all_threads() {
  const Problem p = random_problem({1, 4, 20, 5, 6, 8}, {}, 1);
  const int32_t machine = int32_t(std::max(1u, std::thread::hardware_concurrency()));
  for (int32_t threads : {0, -1}) {
    CHECK(same(chunkwise(p, {threads}), chunkwise(p, {machine})));
    CHECK(same(recurrent(p, {threads}), recurrent(p, {machine})));
  }
}

void tests() {
  for (xlstm_dtype dtype : {XLSTM_FLOAT32, XLSTM_BFLOAT16, XLSTM_FLOAT64}) {
    Settings set;
    set.dtype = dtype;
    test_executors(random_problem({2, 3, 50, 9, 20, 16}, set, 2), 4);    // more heads than threads
    test_executors(random_problem({1, 1, 700, 8, 150, 32}, set, 3), 4);  // one head: segments, tiles of values
    test_executors(random_problem({1, 2, 300, 8, 10, 16, {0, 10, 290, 300}}, set, 4),
                   9);                                                // sequences of unequal length
    test_executors(random_problem({1, 1, 3, 4, 5, 64}, set, 5), 16);  // more threads than tasks
  }
  test_all_threads();
  test_memory();
}

}  // namespace

int main() { return run_for_each_isa(tests); }

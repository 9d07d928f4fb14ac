// SPDX-License-Identifier: Apache-2.0
// Every invalid argument of the C API gives an error status, no workspace size, and a message that begins with the
// argument's name.
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <limits>
#include <string>
#include <thread>

#include "mlstm_call.h"

namespace {

const std::vector<int64_t> kRising{0, 2, 6}, kLate{1, 2, 6}, kFlat{0, 3, 3, 6}, kFalling{0, 4, 2, 6}, kShort{0, 2, 5},
    kLong{0, 2, 7};
double some_double = 0;  // the target of pointers that are not read

Problem valid_problem() {
  Settings set;
  set.dtype = XLSTM_FLOAT32;
  return random_problem({1, 2, 6, 3, 4, 4}, set);
}

template <class Parameters>
struct Bad {
  const char* name;  // the message begins with it
  std::function<void(Parameters&)> spoil;
};

// Clears those of a group's three members whose bits are not set.
template <class P>
void keep(int bits, P& a, P& b, P& c) {
  if (!(bits & 1)) a = nullptr;
  if (!(bits & 2)) b = nullptr;
  if (!(bits & 4)) c = nullptr;
}

// The errors that any tensor of a call can have: no data, an unknown dtype, another tensor's dtype.
template <class P>
void add_tensor(std::vector<Bad<P>>& bad, const char* name, xlstm_tensor& (*tensor)(P&),
                std::vector<int> wrong_dtypes) {
  bad.push_back({name, [tensor](P& p) { tensor(p).data = nullptr; }});
  wrong_dtypes.insert(wrong_dtypes.end(), {4, 99, -1});
  for (int dtype : wrong_dtypes)
    bad.push_back({name, [tensor, dtype](P& p) { std::memcpy(&tensor(p).dtype, &dtype, sizeof dtype); }});
}
const std::vector<int> kNotFloat{XLSTM_BFLOAT16, XLSTM_FLOAT16, XLSTM_FLOAT64};  // where q is float

// The errors in the arguments that all calls share.
template <class P>
std::vector<Bad<P>> bad_inputs() {
  std::vector<Bad<P>> bad;
  for (int64_t value : {int64_t(0), int64_t(-1), std::numeric_limits<int64_t>::min()}) {
    bad.push_back({"batch", [=](P& p) { p.in.batch = value; }});
    bad.push_back({"heads", [=](P& p) { p.in.heads = value; }});
    bad.push_back({"length", [=](P& p) { p.in.length = value; }});
    bad.push_back({"dqk", [=](P& p) { p.in.dqk = value; }});
    bad.push_back({"dhv", [=](P& p) { p.in.dhv = value; }});
    bad.push_back({"chunk_size", [=](P& p) { p.in.chunk_size = value; }});
    bad.push_back({"sequences", [=](P& p) { p.in.cu_seqlens = kRising.data(), p.in.sequences = value; }});
  }
  bad.push_back({"segments", [](P& p) { p.in.segments = -1; }});
  bad.push_back({"walk_chunk", [](P& p) { p.in.walk_chunk = 16; }});  // for GPUs alone, like the next
  bad.push_back({"step_columns", [](P& p) { p.in.step_columns = 8; }});
  bad.push_back({"bfloat16_c", [](P& p) { p.in.bfloat16_c = 1; }});  // for one token alone, and not of float64
  for (double eps : {-1e-9, -HUGE_VAL, HUGE_VAL, std::nan("")}) bad.push_back({"eps", [=](P& p) { p.in.eps = eps; }});
  for (double cap : {-1.0, HUGE_VAL, std::nan("")})
    bad.push_back({"gate_soft_cap", [=](P& p) { p.in.gate_soft_cap = cap; }});
  for (int gate : {2, -1, 99}) bad.push_back({"gate", [=](P& p) { std::memcpy(&p.in.gate, &gate, sizeof gate); }});
  bad.push_back({"normalize", [](P& p) { p.in.normalize = 0; }});  // with the exp gate

  add_tensor<P>(bad, "q", [](P& p) -> xlstm_tensor& { return p.in.q; }, {});
  add_tensor<P>(bad, "k", [](P& p) -> xlstm_tensor& { return p.in.k; }, kNotFloat);
  add_tensor<P>(bad, "v", [](P& p) -> xlstm_tensor& { return p.in.v; }, kNotFloat);
  add_tensor<P>(bad, "i", [](P& p) -> xlstm_tensor& { return p.in.i; }, kNotFloat);
  add_tensor<P>(bad, "f", [](P& p) -> xlstm_tensor& { return p.in.f; }, kNotFloat);
  for (int bits = 1; bits < 7; ++bits)
    bad.push_back(
        {"c_initial, n_initial, m_initial", [=](P& p) { keep(bits, p.in.c_initial, p.in.n_initial, p.in.m_initial); }});

  const auto offsets = [&](const std::vector<int64_t>& values) {
    bad.push_back({"cu_seqlens",
                   [&values](P& p) { p.in.cu_seqlens = values.data(), p.in.sequences = int64_t(values.size()) - 1; }});
  };
  offsets(kLate), offsets(kFlat), offsets(kFalling), offsets(kShort), offsets(kLong);
  bad.push_back({"cu_seqlens", [](P& p) { p.in.cu_seqlens = kRising.data(), p.in.sequences = p.in.batch = 2; }});
  return bad;
}

std::vector<Bad<xlstm_mlstm_forward>> bad_forward(bool needs_states) {
  using P = xlstm_mlstm_forward;
  auto bad = bad_inputs<P>();
  add_tensor<P>(bad, "h", [](P& p) -> xlstm_tensor& { return p.h; }, kNotFloat);
  for (int bits = needs_states ? 0 : 1; bits < 7; ++bits)
    bad.push_back({"c_last, n_last, m_last", [=](P& p) { keep(bits, p.c_last, p.n_last, p.m_last); }});
  return bad;
}

std::vector<Bad<xlstm_mlstm_backward>> bad_backward() {
  using P = xlstm_mlstm_backward;
  auto bad = bad_inputs<P>();
  add_tensor<P>(bad, "h", [](P& p) -> xlstm_tensor& { return p.h; }, kNotFloat);
  add_tensor<P>(bad, "dh", [](P& p) -> xlstm_tensor& { return p.dh; }, kNotFloat);
  add_tensor<P>(bad, "dq", [](P& p) -> xlstm_tensor& { return p.dq; }, kNotFloat);
  add_tensor<P>(bad, "dk", [](P& p) -> xlstm_tensor& { return p.dk; }, kNotFloat);
  add_tensor<P>(bad, "dv", [](P& p) -> xlstm_tensor& { return p.dv; }, kNotFloat);
  add_tensor<P>(bad, "di", [](P& p) -> xlstm_tensor& { return p.di; }, kNotFloat);
  add_tensor<P>(bad, "df", [](P& p) -> xlstm_tensor& { return p.df; }, kNotFloat);
  bad.push_back({"l", [](P& p) { p.l = nullptr; }});
  for (int bits = 1; bits < 7; ++bits) {
    bad.push_back({"dc_last, dn_last, dm_last", [=](P& p) { keep(bits, p.dc_last, p.dn_last, p.dm_last); }});
    bad.push_back(
        {"dc_initial, dn_initial, dm_initial", [=](P& p) { keep(bits, p.dc_initial, p.dn_initial, p.dm_initial); }});
  }
  bad.push_back({"dc_initial", [](P& p) { p.in.c_initial = p.in.n_initial = p.in.m_initial = nullptr; }});
  return bad;
}

bool message_begins(const char* name) { return std::string(xlstm_last_error()).rfind(std::string(name) + ":", 0) == 0; }

template <class P, class Query, class Call>
void test_call(const char* call_name, const P& valid, const std::vector<Bad<P>>& bad, Query query, Call call) {
  const size_t bytes = query(&valid, 1);
  CHECK(bytes > 0, "%s: %s", call_name, xlstm_last_error());
  Buffer workspace(bytes);
  const xlstm_runtime runtime{workspace.data(), bytes, 1, nullptr, nullptr, nullptr};
  for (const Bad<P>& one : bad) {
    P p = valid;
    one.spoil(p);
    CHECK(query(&p, 1) == 0, "%s: %s", call_name, one.name);
    CHECK(message_begins(one.name), "%s: %s: \"%s\"", call_name, one.name, xlstm_last_error());
    const xlstm_status status = call(&p, &runtime);
    CHECK(status == XLSTM_INVALID_ARGUMENT, "%s: %s: status %d", call_name, one.name, int(status));
    CHECK(message_begins(one.name), "%s: %s: \"%s\"", call_name, one.name, xlstm_last_error());
  }

  // One byte too few, no workspace, and too few bytes for the number of threads.
  const auto too_small = [&](void* data, size_t size, int32_t threads) {
    const xlstm_runtime less{data, size, threads, nullptr, nullptr, nullptr};
    CHECK(call(&valid, &less) == XLSTM_WORKSPACE_TOO_SMALL, "%s: %zu bytes", call_name, size);
    CHECK(message_begins("workspace"), "%s: \"%s\"", call_name, xlstm_last_error());
  };
  too_small(workspace.data(), bytes - 1, 1);
  too_small(workspace.data(), 0, 1);
  too_small(nullptr, 0, 1);
  too_small(nullptr, bytes, 1);
  if (query(&valid, 2) > bytes) too_small(workspace.data(), bytes, 2);

  CHECK(call(&valid, &runtime) == XLSTM_OK, "%s: %s", call_name, xlstm_last_error());
}

// The cap of gates exists in the recurrent call alone.
void test_gate_soft_cap(xlstm_mlstm_forward forward, xlstm_mlstm_backward backward) {
  forward.in.gate_soft_cap = backward.in.gate_soft_cap = 15;
  CHECK(xlstm_mlstm_recurrent_workspace(&forward, 1) > 0, "%s", xlstm_last_error());
  CHECK(xlstm_mlstm_chunkwise_workspace(&forward, 1) == 0 && message_begins("gate_soft_cap"), "%s", xlstm_last_error());
  CHECK(xlstm_mlstm_backward_workspace(&backward, 1) == 0 && message_begins("gate_soft_cap"), "%s", xlstm_last_error());
}

// A gate whose dtype is neither q's nor the wide one.
void test_gate_dtypes() {
  for (xlstm_dtype q : {XLSTM_FLOAT32, XLSTM_BFLOAT16, XLSTM_FLOAT16, XLSTM_FLOAT64})
    for (xlstm_dtype gate : {XLSTM_FLOAT32, XLSTM_BFLOAT16, XLSTM_FLOAT16, XLSTM_FLOAT64}) {
      Settings set;
      set.dtype = q;
      Problem p = random_problem({1, 1, 3, 2, 2, 4}, set);
      p.gate_dtype = gate;
      ForwardCall call(p, Layout::bhsd);
      const bool right = gate == q || gate == wide(q);
      CHECK((xlstm_mlstm_chunkwise_workspace(&call.api, 1) > 0) == right, "q %d, gates %d", int(q), int(gate));
      CHECK(right || message_begins("i"), "%s", xlstm_last_error());
    }
}

void test_messages_are_per_thread(const xlstm_mlstm_forward& valid) {
  xlstm_mlstm_forward p = valid;
  p.in.eps = -1;
  CHECK(xlstm_mlstm_chunkwise_workspace(&p, 1) == 0);
  const std::string message = xlstm_last_error();
  std::thread([p]() mutable {
    CHECK(std::string(xlstm_last_error()).empty(), "%s", xlstm_last_error());
    p.in.eps = 0, p.in.heads = 0;
    CHECK(xlstm_mlstm_chunkwise_workspace(&p, 1) == 0 && message_begins("heads"), "%s", xlstm_last_error());
  }).join();
  CHECK(message == xlstm_last_error(), "%s", xlstm_last_error());
}

// With an unknown instruction set no call works, and each names the reason. The test runs in a new process, which has
// not chosen its instruction set yet.
void test_unknown_isa(const xlstm_mlstm_forward& valid) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    failures = 0;
    setenv("XLSTM_HIP_CPU_ISA", "abacus", 1);
    for (int times = 0; times < 2; ++times) {
      CHECK(xlstm_mlstm_chunkwise_workspace(&valid, 1) == 0);
      CHECK(message_begins("XLSTM_HIP_CPU_ISA"), "%s", xlstm_last_error());
      const xlstm_runtime runtime{&some_double, sizeof some_double, 1, nullptr, nullptr, nullptr};
      CHECK(xlstm_mlstm_chunkwise(&valid, &runtime) == XLSTM_UNSUPPORTED);
      CHECK(message_begins("XLSTM_HIP_CPU_ISA"), "%s", xlstm_last_error());
      CHECK(xlstm_cpu_isa()[0] == 0, "%s", xlstm_cpu_isa());
      CHECK(message_begins("XLSTM_HIP_CPU_ISA"), "%s", xlstm_last_error());
    }
    std::exit(finish());
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "wait status %d", status);
}

}  // namespace

int main() {
  const Problem p = valid_problem();
  ForwardCall forward(p, Layout::bhsd);
  test_unknown_isa(forward.api);
  test_call("chunkwise", forward.api, bad_forward(false), xlstm_mlstm_chunkwise_workspace, xlstm_mlstm_chunkwise);
  test_call("recurrent", forward.api, bad_forward(true), xlstm_mlstm_recurrent_workspace, xlstm_mlstm_recurrent);
  BackwardCall backward(p, forward.solution(), Layout::bhsd);
  test_call("backward", backward.api, bad_backward(), xlstm_mlstm_backward_workspace, xlstm_mlstm_backward_pass);
  test_gate_soft_cap(forward.api, backward.api);
  test_gate_dtypes();
  test_messages_are_per_thread(forward.api);
  return finish();
}

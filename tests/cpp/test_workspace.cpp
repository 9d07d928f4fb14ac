// SPDX-License-Identifier: Apache-2.0
// The workspace of a call is the caller's block, or one that the call allocates once, with as many bytes as the query
// says.
#include <string>
#include <vector>

#include "mlstm_call.h"

namespace {

struct Allocator {
  std::vector<char> block;
  std::vector<size_t> asked;
  bool empty = false;

  static void* allocate(void* self, size_t bytes) {
    auto& a = *static_cast<Allocator*>(self);
    a.asked.push_back(bytes);
    if (a.empty) return nullptr;
    a.block.assign(bytes, char(0xff));
    return a.block.data();
  }
};

Problem some_problem() {
  Settings set;
  set.dtype = XLSTM_FLOAT32;
  return random_problem({1, 2, 70, 3, 4, 16}, set);
}

void an_allocated_block_gives_the_same_result() {
  const Problem p = some_problem();
  const Solution expected = chunkwise(p);
  ForwardCall call(p, Layout::bhsd);
  Allocator allocator;
  const xlstm_runtime runtime{nullptr, 0, 1, nullptr, &allocator, Allocator::allocate};
  CHECK(xlstm_mlstm_chunkwise(&call.api, &runtime) == XLSTM_OK, "%s", xlstm_last_error());
  CHECK(allocator.asked == std::vector<size_t>{xlstm_mlstm_chunkwise_workspace(&call.api, 1)}, "asked once");
  CHECK(same_bits(call.solution().h, expected.h), "other results than in the caller's block");
}

void the_callers_block_is_taken_first() {
  const Problem p = some_problem();
  ForwardCall call(p, Layout::bhsd);
  const size_t bytes = xlstm_mlstm_chunkwise_workspace(&call.api, 1);
  std::vector<char> block(bytes);
  Allocator allocator;
  const xlstm_runtime runtime{block.data(), bytes, 1, nullptr, &allocator, Allocator::allocate};
  CHECK(xlstm_mlstm_chunkwise(&call.api, &runtime) == XLSTM_OK, "%s", xlstm_last_error());
  CHECK(allocator.asked.empty(), "allocated although the caller has a block");
}

void no_block_is_an_error() {
  const Problem p = some_problem();
  ForwardCall call(p, Layout::bhsd);
  const xlstm_runtime none{nullptr, 0, 1, nullptr, nullptr, nullptr};
  CHECK(xlstm_mlstm_chunkwise(&call.api, &none) == XLSTM_WORKSPACE_TOO_SMALL, "neither block nor allocate");
  CHECK(std::string(xlstm_last_error()).rfind("workspace: ", 0) == 0, "%s", xlstm_last_error());

  Allocator allocator;
  allocator.empty = true;
  const xlstm_runtime failing{nullptr, 0, 1, nullptr, &allocator, Allocator::allocate};
  CHECK(xlstm_mlstm_chunkwise(&call.api, &failing) == XLSTM_UNSUPPORTED, "allocate gave nothing");
  CHECK(std::string(xlstm_last_error()).rfind("allocate: ", 0) == 0, "%s", xlstm_last_error());
}

void a_bad_argument_allocates_nothing() {
  const Problem p = some_problem();
  ForwardCall call(p, Layout::bhsd);
  call.api.in.heads = 0;
  Allocator allocator;
  const xlstm_runtime runtime{nullptr, 0, 1, nullptr, &allocator, Allocator::allocate};
  CHECK(xlstm_mlstm_chunkwise(&call.api, &runtime) == XLSTM_INVALID_ARGUMENT, "heads 0");
  CHECK(allocator.asked.empty(), "allocated before the check");
}

}  // namespace

int main() {
  an_allocated_block_gives_the_same_result();
  the_callers_block_is_taken_first();
  no_block_is_an_error();
  a_bad_argument_allocates_nothing();
}

// SPDX-License-Identifier: Apache-2.0
#include "fibers.h"

#include <cstdint>
#include <vector>

namespace emulator {
namespace {
// Of fibers that are gone: a block has hundreds.
std::vector<std::unique_ptr<char[]>> spare_stacks;
}  // namespace

Fiber::Fiber() {
  if (spare_stacks.empty()) {
    stack_.reset(new char[kStackBytes]);
    return;
  }
  stack_ = std::move(spare_stacks.back());
  spare_stacks.pop_back();
}
Fiber::~Fiber() { spare_stacks.push_back(std::move(stack_)); }

}  // namespace emulator

#if defined(__x86_64__)

// What a call keeps goes to the stack that is left. swapcontext() does the same with two system calls.
extern "C" void emulator_switch_stack(void** from, void* to);
asm(R"(
.text
.globl emulator_switch_stack
.type emulator_switch_stack, @function
emulator_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch_stack, .-emulator_switch_stack
)");

namespace emulator {

void Fiber::begin(void (*entry)()) {
  auto* top = reinterpret_cast<uint64_t*>(reinterpret_cast<uintptr_t>(stack_.get() + kStackBytes) / 16 * 16);
  *--top = 0;  // where entry() would return to, which keeps the stack aligned as after a call
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  fiber_ = top;
}
void Fiber::enter() { emulator_switch_stack(&scheduler_, fiber_); }
void Fiber::leave() { emulator_switch_stack(&fiber_, scheduler_); }

}  // namespace emulator

#else

namespace emulator {

void Fiber::begin(void (*entry)()) {
  getcontext(&fiber_);
  fiber_.uc_stack.ss_sp = stack_.get();
  fiber_.uc_stack.ss_size = kStackBytes;
  fiber_.uc_link = nullptr;
  makecontext(&fiber_, entry, 0);
}
void Fiber::enter() { swapcontext(&scheduler_, &fiber_); }
void Fiber::leave() { swapcontext(&fiber_, &scheduler_); }

}  // namespace emulator

#endif

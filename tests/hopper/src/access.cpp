// SPDX-License-Identifier: Apache-2.0
// The kernels are compiled with -fsanitize=thread, and linked with this in the place of the thread sanitizer: the
// compiler then calls a function for each access to memory.
#include <cstdint>

#include "block.h"
#include "fault.h"

namespace {

using emulator::SharedOrder;

void access(const void* p, uint32_t bytes, bool writes) {
  emulator::Thread* thread = emulator::running;
  if (!thread) return;
  emulator::Block& block = *thread->block;
  const uint64_t offset = uint64_t(static_cast<const char*>(p) - block.dynamic);
  if (offset >= emulator::kMostDynamic) return;
  block.at(uint32_t(offset) + emulator::kFirstAddress, bytes, writes ? "writes" : "reads");
  if (writes)
    block.order->write(uint32_t(offset), bytes, SharedOrder::By::threads, thread->known, thread->party(),
                       thread->epoch);
  else
    block.order->read(uint32_t(offset), bytes, SharedOrder::By::threads, thread->known, thread->party(), thread->epoch);
}

}  // namespace

#define EMULATOR_ACCESS(bytes)                                            \
  void __tsan_read##bytes(void* p) { access(p, bytes, false); }           \
  void __tsan_write##bytes(void* p) { access(p, bytes, true); }           \
  void __tsan_volatile_read##bytes(void* p) { access(p, bytes, false); }  \
  void __tsan_volatile_write##bytes(void* p) { access(p, bytes, true); }  \
  void __tsan_unaligned_read##bytes(void* p) { access(p, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* p) { access(p, bytes, true); }

extern "C" {
EMULATOR_ACCESS(1)
EMULATOR_ACCESS(2)
EMULATOR_ACCESS(4)
EMULATOR_ACCESS(8)
EMULATOR_ACCESS(16)
void __tsan_read_range(void* p, unsigned long bytes) { access(p, uint32_t(bytes), false); }
void __tsan_write_range(void* p, unsigned long bytes) { access(p, uint32_t(bytes), true); }
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}

// SPDX-License-Identifier: Apache-2.0
// Bugs that a test plants, to see them found: an instruction is left out, or done otherwise.
#pragma once

#include <cstdint>

namespace emulator {

enum class Bug {
  none,
  // Left out
  barrier_wait,
  barrier_arrival,
  proxy_fence,
  named_barrier,
  block_barrier,
  warp_barrier,
  products_fence,
  wgmma_wait,
  stores_wait,
  cp_async_wait_all,
  cluster_barrier,
  shared_words,
  // Done otherwise
  copies_late,      // one group more than may be
  fewer_bytes,      // announced than come
  more_bytes,       // the other way
  moved_copy,       // to 8 bytes further on
  far_operand,      // a descriptor of an operand near 256 KB
  slipped_operand,  // of one that begins 32 bytes further on
  more_registers,
  turned_matrices,
};

// `which`: the mbarrier's place in shared memory, or the named barrier; -1 for each.
void plant(Bug bug, int which = -1);
bool planted(Bug bug, int which = -1);

}  // namespace emulator

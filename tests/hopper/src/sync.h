// SPDX-License-Identifier: Apache-2.0
// What the running thread can do to wait for others.
#pragma once

#include <cstdint>

namespace emulator {

void sync_block();
void sync_warp();
void sync_named(int barrier, int threads);
void arrive_named(int barrier, int threads);
void sync_cluster();
void arrive_at_cluster();
void wait_for_cluster();                                // after arrive_at_cluster()
void write_shared_word(void* to, uint32_t word);        // of the grid's blocks
uint32_t add_to_shared_word(uint32_t* to, uint32_t x);  // returns what it was
bool wait_for_shared_words();                           // until another is written

// Each lane hands a value over and sees all 32.
const uint64_t* exchange(uint64_t value);

void mbarrier_init(uint32_t at, int count);
void mbarrier_arrive(uint32_t at, int rank);  // rank: of the block in its cluster; -1: this one
void mbarrier_expect_tx(uint32_t at, uint32_t bytes);
void barrier_wait(uint32_t at, uint32_t parity);
void fence_proxy();

void change_registers(int count, bool more);

}  // namespace emulator

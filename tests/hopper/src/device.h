// SPDX-License-Identifier: Apache-2.0
// The device: launches, and how they are scheduled.
#pragma once

#include <cstdint>
#include <functional>

namespace emulator {

// Of the schedules of the launches from here on.
void set_seed(uint32_t seed);

// A kernel may have 48 KB of shared memory beside what it declares, and more, to 227 KB, if it was allowed before.
bool allow_dynamic(const void* kernel, int bytes);
bool may_have(const void* kernel, int bytes);

// All blocks of a grid, cluster after cluster, or all at once. Throws Fault.
void launch(int blocks, int threads, int dynamic_bytes, int cluster, bool cooperative, std::function<void()> body);

// Of the running thread.
uint32_t thread_index();
uint32_t block_index();
uint32_t grid_blocks();
uint32_t block_threads();
uint32_t shared_address(const void* p);

}  // namespace emulator

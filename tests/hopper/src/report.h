// SPDX-License-Identifier: Apache-2.0
// What went wrong, in words.
#pragma once

#include <string>

namespace emulator {

struct Cluster;

// The fault of the thread that ran last, until the scheduler has seen it.
std::string& pending_fault();

// Who waits where.
std::string describe_deadlock(Cluster& cluster);

// Throws Fault where something is left under way.
void check_end(const Cluster& cluster);

}  // namespace emulator

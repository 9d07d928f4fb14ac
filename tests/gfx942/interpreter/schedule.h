// SPDX-License-Identifier: Apache-2.0
// A launch whose waves take turns: as many workgroups at once as the chip holds, a random wave for a random number of
// instructions. The same seed gives the same turns.
//
// A kernel whose workgroups wait for each other needs this: one after the other, the first would wait for ever. Kernels
// whose workgroups do not must give the same results with every seed.
#pragma once

#include "workgroup.h"

namespace gfx942 {

// Throws the first Fault, and one where no wave can go on.
void run_in_turns(const Launch& launch, Tally& tally, uint64_t seed);

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
// A launch of which some workgroups run, and what they do is recorded.
#pragma once

#include "events.h"
#include "workgroup.h"

namespace gfx942 {

// Runs as many workgroups as make about so many wave instructions, and eight at least; all, if there are so few. They
// come in pairs that are dealt to one XCD at about the same time, and the pairs are spread over the grid.
RecordedLaunch record(const Launch& launch, Tally& tally, uint64_t wave_instructions);

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
// What ends a run: an instruction that is not implemented, or a check that found something.
#pragma once

#include <stdexcept>
#include <string>

namespace gfx942 {

// In words for the person whose kernel it is. Wave::fail adds kernel, instruction, wave and lane.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace gfx942

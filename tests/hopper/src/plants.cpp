// SPDX-License-Identifier: Apache-2.0
#include "plants.h"

namespace emulator {
namespace {
Bug planted_bug = Bug::none;
int planted_at = -1;
}  // namespace

void plant(Bug bug, int which) { planted_bug = bug, planted_at = which; }
bool planted(Bug bug, int which) { return bug == planted_bug && (planted_at < 0 || planted_at == which); }

}  // namespace emulator

// SPDX-License-Identifier: Apache-2.0
// A launch: what its workgroups share, how they are dealt to the chip, and how long that takes.
#pragma once

#include "unit_time.h"

namespace gfx942::clock {

struct LaunchOptions {
  double mhz = 0;    // of the compute units; 0: what power leaves under this load
  bool warm = true;  // the call was made before, and left in the Infinity Cache what fits
  size_t trace = 0;  // stretches of one unit's time that are kept
};

struct LaunchTime {
  double microseconds = 0, mhz = 0;
  double error = 0;  // of the sampling: relative, one standard deviation
  uint64_t workgroups = 0, sampled = 0;
  int resident = 0;  // workgroups of a unit at once, and how many it has room for
  int room = 0;
  double busy_cus = 0;
  double group_cycles = 0;                   // of a workgroup among others, on average
  double alone = 1;                          // a workgroup's time by itself, over that
  double matrix_busy = 0;                    // share of the whole time, all units of the chip
  double near_overlap = 0, far_overlap = 0;  // share of lines that two workgroups have in common: at once, or ever
  Share share;
  UnitTime unit;
};

LaunchTime time_launch(const Constants& c, const RecordedLaunch& launch, const LaunchOptions& options);

// Cycles until the last workgroup ends. work: of each when `resident` share a unit; one alone takes `alone` of that.
double deal(const Constants& c, const std::vector<double>& work, int resident, double alone);

// How many workgroups a unit has room for.
int room_for(const Constants& c, uint32_t vgprs, uint32_t lds_bytes, size_t waves);

}  // namespace gfx942::clock

// SPDX-License-Identifier: Apache-2.0
// Launches of an empty kernel, one after the other in a stream.
//
//   launch_microseconds   time of a launch - (group_launch_cycles + wave_launch_cycles + instruction_miss_cycles
//                         + issue_cycles) / peak_mhz
//
// Also for CUDA.
#include "microbenchmark.h"

extern "C" __global__ void empty() {}

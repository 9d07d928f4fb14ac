// SPDX-License-Identifier: Apache-2.0
// What the model knows of the chip. mi300x.json has the values and says where each comes from.
#pragma once

#include <string_view>

namespace gfx942::clock {

// Cycles are of the compute units' clock.
struct Constants {
  // the chip
  double xcds, cus, simds, waves_of_simd, vgprs_of_simd, lds_bytes;
  double peak_mhz, matrix_mhz, matrix_power;  // under load: see mhz_under_load()
  // issue
  double issue_cycles, matrix_result_cycles, transcendental_result_cycles, matrix_blocks_vector;
  double branch_cycles, taken_branch_cycles, vector_to_scalar_cycles, barrier_cycles, sleep_cycles;
  double counter_vm, counter_lgkm, queue_cycles;
  // LDS
  double lds_cycles_without_banks, lds_latency;
  // instructions and scalars
  double instruction_cache_bytes, instruction_line_bytes, instruction_miss_cycles;
  double scalar_cache_bytes, scalar_line_bytes, scalar_hit_cycles, scalar_miss_cycles;
  // vector memory
  double address_cycles, l1_bytes, l1_bytes_a_cycle, l1_latency, l1_miss_lines;
  double l2_bytes, l2_bytes_a_cycle, l2_latency;
  double mall_bytes, mall_gb_a_second, mall_nanoseconds;
  double hbm_gb_a_second, hbm_nanoseconds;
  double cache_share;  // of a cache that can be filled and be there the next time
  // launches
  double wave_launch_cycles, group_launch_cycles, launch_microseconds;

  // Lines "name value". Throws std::invalid_argument where one is missing, unknown or no number.
  static Constants parse(std::string_view text);

  // The clock that power leaves where the matrix units are busy for this share of the time.
  double mhz_under_load(double matrix_busy) const;
};

}  // namespace gfx942::clock

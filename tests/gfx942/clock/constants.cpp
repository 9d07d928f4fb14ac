// SPDX-License-Identifier: Apache-2.0
#include "constants.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

namespace gfx942::clock {

namespace {

using C = Constants;
const std::map<std::string_view, double C::*> kNames = {
    {"xcds", &C::xcds},
    {"cus", &C::cus},
    {"simds", &C::simds},
    {"waves_of_simd", &C::waves_of_simd},
    {"vgprs_of_simd", &C::vgprs_of_simd},
    {"lds_bytes", &C::lds_bytes},
    {"peak_mhz", &C::peak_mhz},
    {"matrix_mhz", &C::matrix_mhz},
    {"matrix_power", &C::matrix_power},
    {"issue_cycles", &C::issue_cycles},
    {"matrix_result_cycles", &C::matrix_result_cycles},
    {"transcendental_result_cycles", &C::transcendental_result_cycles},
    {"matrix_blocks_vector", &C::matrix_blocks_vector},
    {"branch_cycles", &C::branch_cycles},
    {"taken_branch_cycles", &C::taken_branch_cycles},
    {"vector_to_scalar_cycles", &C::vector_to_scalar_cycles},
    {"barrier_cycles", &C::barrier_cycles},
    {"sleep_cycles", &C::sleep_cycles},
    {"counter_vm", &C::counter_vm},
    {"counter_lgkm", &C::counter_lgkm},
    {"queue_cycles", &C::queue_cycles},
    {"lds_cycles_without_banks", &C::lds_cycles_without_banks},
    {"lds_latency", &C::lds_latency},
    {"instruction_cache_bytes", &C::instruction_cache_bytes},
    {"instruction_line_bytes", &C::instruction_line_bytes},
    {"instruction_miss_cycles", &C::instruction_miss_cycles},
    {"scalar_cache_bytes", &C::scalar_cache_bytes},
    {"scalar_line_bytes", &C::scalar_line_bytes},
    {"scalar_hit_cycles", &C::scalar_hit_cycles},
    {"scalar_miss_cycles", &C::scalar_miss_cycles},
    {"address_cycles", &C::address_cycles},
    {"l1_bytes", &C::l1_bytes},
    {"l1_bytes_a_cycle", &C::l1_bytes_a_cycle},
    {"l1_latency", &C::l1_latency},
    {"l1_miss_lines", &C::l1_miss_lines},
    {"l2_bytes", &C::l2_bytes},
    {"l2_bytes_a_cycle", &C::l2_bytes_a_cycle},
    {"l2_latency", &C::l2_latency},
    {"mall_bytes", &C::mall_bytes},
    {"mall_gb_a_second", &C::mall_gb_a_second},
    {"mall_nanoseconds", &C::mall_nanoseconds},
    {"hbm_gb_a_second", &C::hbm_gb_a_second},
    {"hbm_nanoseconds", &C::hbm_nanoseconds},
    {"cache_share", &C::cache_share},
    {"wave_launch_cycles", &C::wave_launch_cycles},
    {"group_launch_cycles", &C::group_launch_cycles},
    {"launch_microseconds", &C::launch_microseconds},
};

}  // namespace

Constants Constants::parse(std::string_view text) {
  Constants made{};
  std::map<std::string_view, bool> found;
  std::istringstream lines{std::string(text)};
  std::string name;
  double value;
  while (lines >> name) {
    const auto known = kNames.find(name);
    if (known == kNames.end()) throw std::invalid_argument("constants: " + name + " is not one of the model's");
    if (!(lines >> value)) throw std::invalid_argument("constants: " + name + " is expected to be a number");
    made.*known->second = value;
    found[known->first] = true;
  }
  for (const auto& [wanted, member] : kNames)
    if (!found[wanted]) throw std::invalid_argument("constants: " + std::string(wanted) + " is missing");
  if (made.issue_cycles < 1 || !std::has_single_bit(uint64_t(made.issue_cycles)))
    throw std::invalid_argument("constants: issue_cycles is expected to be a power of two");
  return made;
}

double Constants::mhz_under_load(double matrix_busy) const {
  return std::min(peak_mhz, matrix_mhz * std::pow(std::max(matrix_busy, 1e-3), -matrix_power));
}

}  // namespace gfx942::clock

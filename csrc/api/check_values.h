// SPDX-License-Identifier: Apache-2.0
// The elementary checks that *_checks.cpp consist of. They throw std::invalid_argument, whose text begins with the
// argument's name.
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>

#include "base/float8.h"
#include "xlstm_hip.h"

namespace xlstm {

[[noreturn]] inline void invalid(const std::string& message) { throw std::invalid_argument(message); }
[[noreturn]] inline void expected(const std::string& name, const std::string& requirement, const std::string& got) {
  invalid(name + ": expected " + requirement + ", got " + got);
}

inline void in_range(const std::string& name, int64_t value, int64_t min_value, int64_t max_value) {
  if (value < min_value || value > max_value)
    expected(name, std::to_string(min_value) + " to " + std::to_string(max_value), std::to_string(value));
}
inline void at_least(const char* name, int64_t value, int64_t min_value) {
  if (value < min_value) expected(name, ">= " + std::to_string(min_value), std::to_string(value));
}

inline void is_finite(const char* name, double value) {
  if (!std::isfinite(value)) expected(name, "a finite number", std::to_string(value));
}
inline void not_negative(const char* name, double value) {
  if (!(value >= 0) || std::isinf(value)) expected(name, "a finite number >= 0", std::to_string(value));
}
inline void above_zero(const char* name, double value) {
  if (!(value > 0) || std::isinf(value)) expected(name, "a finite number above 0", std::to_string(value));
}

inline void has_data(const char* name, const void* p) {
  if (!p) expected(name, "data", "NULL");
}
inline void is_dtype(const char* name, xlstm_dtype dtype) {
  if (dtype < XLSTM_FLOAT32 || dtype > XLSTM_FLOAT64)
    expected(name, "a dtype of xlstm_dtype", std::to_string(int(dtype)));
}

// For a tensor or rows: has_dtype(name, x) accepts every dtype.
template <class Data>
void has_dtype(const char* name, const Data& x) {
  has_data(name, x.data);
  is_dtype(name, x.dtype);
}
template <class Data>
void has_dtype(const char* name, const Data& x, xlstm_dtype dtype) {
  has_dtype(name, x);
  if (x.dtype != dtype) expected(name, "dtype " + std::to_string(int(dtype)), std::to_string(int(x.dtype)));
}

inline void is_gate(xlstm_gate gate, int32_t normalize) {
  if (gate != XLSTM_GATE_EXP && gate != XLSTM_GATE_SIGMOID)
    expected("gate", "exp (0) or sigmoid (1)", std::to_string(int(gate)));
  if (gate == XLSTM_GATE_EXP && !normalize) invalid("normalize: the exp gate is always normalised");
}

// Offsets of the sequences of a packed row, or none. Their values are read on a CPU alone.
inline void is_cu_seqlens(const int64_t* offsets, int64_t sequences, int64_t batch, int64_t length, bool on_host) {
  if (!offsets) return;
  at_least("sequences", sequences, 1);
  if (batch != 1) invalid("cu_seqlens: expected batch 1, got " + std::to_string(batch));
  if (!on_host) return;
  if (offsets[0] != 0) invalid("cu_seqlens: expected to start at 0");
  for (int64_t n = 0; n < sequences; ++n)
    if (offsets[n + 1] <= offsets[n]) invalid("cu_seqlens: expected values that rise");
  if (offsets[sequences] != length)
    invalid("cu_seqlens: expected to end at S = " + std::to_string(length) + ", got " +
            std::to_string(offsets[sequences]));
}

}  // namespace xlstm

// SPDX-License-Identifier: Apache-2.0
// What the checks of params share. They throw std::invalid_argument, whose text begins with the argument's name.
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>

#include "xlstm_hip.h"

namespace xlstm {

[[noreturn]] inline void invalid(const std::string& what) { throw std::invalid_argument(what); }
[[noreturn]] inline void expected(const std::string& name, const std::string& words, const std::string& got) {
  invalid(name + ": expected " + words + ", got " + got);
}

inline void in_range(const std::string& name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    expected(name, std::to_string(least) + " to " + std::to_string(most), std::to_string(value));
}
inline void at_least(const char* name, int64_t value, int64_t least) {
  if (value < least) expected(name, ">= " + std::to_string(least), std::to_string(value));
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

inline void is_given(const char* name, const void* p) {
  if (!p) expected(name, "data", "NULL");
}
inline void is_dtype(const char* name, xlstm_dtype dtype) {
  if (dtype < XLSTM_FLOAT32 || dtype > XLSTM_FLOAT64)
    expected(name, "a dtype of xlstm_dtype", std::to_string(int(dtype)));
}

// Of a tensor or rows.
template <class Data>
void has_dtype(const char* name, const Data& x) {  // some
  is_given(name, x.data);
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

}  // namespace xlstm

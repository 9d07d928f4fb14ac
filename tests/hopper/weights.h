// SPDX-License-Identifier: Apache-2.0
// Random weights of a linear layer in every format, as they lie in memory and as numbers.
#pragma once

#include <cmath>
#include <vector>

#include "engine/gpu/params.h"
#include "numbers.h"

enum class Format { bfloat16, float16, int8, e4m3fn, e4m3fnuz, int4 };
constexpr const char* kNames[] = {"bfloat16", "float16", "int8", "e4m3fn", "e4m3fnuz", "int4"};
inline int weight_bits(Format f) { return f == Format::int4 ? 4 : f < Format::int8 ? 16 : 8; }

// A float of 8 bits, by the formats' definitions.
inline double float8_value(bool fnuz, int code) {
  const int exponent = code >> 3 & 15;
  const double value = std::ldexp((code & 7) + 8 * (exponent > 0), (exponent ? exponent : 1) - (fnuz ? 11 : 10));
  return code & 0x80 ? -value : value;
}

struct WeightFormat {
  Format format;
  int columns;
  bool offsets;
  int group;  // features
};

inline uint16_t bits_of(Format f, double x, double& rounded) {
  if (f == Format::float16) {
    const _Float16 half = _Float16(x);
    rounded = double(half);
    return __builtin_bit_cast(uint16_t, half);
  }
  const uint32_t bits = __builtin_bit_cast(uint32_t, float(x)) & 0xffff0000u;
  rounded = double(__builtin_bit_cast(float, bits));
  return uint16_t(bits >> 16);
}

// A piece's weights as they lie in memory, and what they are.
struct Weights {
  std::vector<unsigned char> data;  // at 16 bytes, as all that is allocated
  std::vector<uint16_t> scales, offsets;
  std::vector<double> value;
  xlstm::gpu::engine::DeviceLinear linear{};

  Weights(const WeightFormat& c, int rows, Numbers& number) : value(size_t(rows) * size_t(c.columns)) {
    const int bits = weight_bits(c.format);
    const bool is_float8 = bits == 8 && c.format != Format::int8, fnuz = c.format == Format::e4m3fnuz;
    const int groups = (c.columns + c.group - 1) / c.group;
    const int64_t row_bytes = bits == 16 ? c.columns * 2 : int64_t(groups) * c.group * bits / 8;
    data.resize(size_t(rows * row_bytes));
    for (int r = 0; r < rows; ++r) {
      unsigned char* row = data.data() + r * row_bytes;
      if (bits == 16)
        for (int k = 0; k < c.columns; ++k) {
          const uint16_t w = bits_of(c.format, number(), value[size_t(r * c.columns + k)]);
          row[2 * k] = uint8_t(w), row[2 * k + 1] = uint8_t(w >> 8);
        }
      for (int g = 0; bits < 16 && g < groups; ++g) {
        double scale, offset = 0;
        scales.push_back(bits_of(Format::float16, 0.02 * std::abs(number()) + 0.01, scale));
        if (c.offsets) offsets.push_back(bits_of(Format::float16, 0.1 * number(), offset));
        for (int k = g * c.group; k < (g + 1) * c.group; ++k) {
          const int q = is_float8   ? number.integer(1, 0x7e) + 0x80 * number.integer(0, 1)
                        : bits == 8 ? number.integer(-127, 127)
                                    : number.integer(0, 15);
          if (bits == 8)
            row[k] = uint8_t(q);
          else
            row[k / 32 * 16 + k % 16] |= uint8_t(q << (k % 32 < 16 ? 0 : 4));
          const double code = is_float8 ? float8_value(fnuz, q) : bits == 4 && !c.offsets ? q - 8 : q;
          if (k < c.columns) value[size_t(r * c.columns + k)] = scale * code + offset;
        }
      }
    }
    linear.data = data.data();
    linear.scales = scales.empty() ? nullptr : scales.data();
    linear.offsets = offsets.empty() ? nullptr : offsets.data();
    linear.row_bytes = row_bytes;
    linear.rows = rows, linear.columns = c.columns;
    linear.bits = bits == 16 ? 0 : bits;
    linear.group_size = bits == 16 ? 0 : c.group, linear.groups = bits == 16 ? 0 : groups;
    linear.dtype = c.format == Format::bfloat16 ? XLSTM_BFLOAT16 : XLSTM_FLOAT16;
    linear.is_aligned16 = true;
  }
};

// SPDX-License-Identifier: Apache-2.0
// What the GPU kernels of a decode step are given, by value.
#pragma once

#include <cstdint>

#include "xlstm_hip.h"

namespace xlstm::gpu::engine {

constexpr int kMostPieces = 6, kGateOfH = 3, kFirstGate = 4;  // q, k, v, o, then the gates i and f
constexpr float kMaskedInputGate = -1e4f, kMaskedForgetGate = 1e4f;

struct DeviceVector {
  const void* data;
  xlstm_dtype dtype;
};

struct DeviceLinear {
  const void *data, *scales, *offsets;
  DeviceVector bias;
  int64_t row_bytes;
  int rows, columns, bits, group_size, groups;
  xlstm_dtype dtype;
  bool whole;  // rows are pieces of 16 bytes at multiples of 16
};

enum class Input { plain, rms };  // x as it is, or what an RMS norm without a bias makes of it
enum class Output { store, add, swiglu };

struct ProductParams {
  int batch, columns, pieces;
  int stage_tiles, blocks;  // of kernels on matrix units: see MatrixPlan
  Input input;
  Output output;
  const float* x;       // (batch, columns)
  DeviceVector weight;  // of the norm
  float norm_eps;
  float cap;  // of gates, or of everything
  bool cap_all;
  const uint8_t* keep;
  float* to[kMostPieces];  // (batch, rows of the piece)
  DeviceLinear linear[kMostPieces];
};

// A float that no kernel writes, a NaN: of words that are not there yet, of a whole step in one launch.
constexpr uint32_t kAbsent = 0xffffffffu;

struct EmbedParams {
  int batch;
  int64_t dim, vocab;
  const int64_t* tokens;
  DeviceVector table;
  float* x;
  float* absent;  // a multiple of four floats that become kAbsent
  int64_t absent_floats;
};

}  // namespace xlstm::gpu::engine

// SPDX-License-Identifier: Apache-2.0
// The parameters of the decode step's GPU kernels, which kernels take by value.
#pragma once

#include <cstdint>

#include "xlstm_hip.h"

namespace xlstm::gpu::engine {

// The order of linears in the projections: q, k, v, o, i, f.
constexpr int kMaxLinears = 6, kOutputGate = 3, kFirstGate = 4;
// Where integer weights are multiplied as they are, x's are integers of so many bits, in digits to base 256.
constexpr int kXDigits = 3, kXDigitBits = 22;
constexpr int kVec8 = 8;  // features that a lane loads at a time: 16 bytes of bfloat16
constexpr float kMaskedInputGate = -1e4f, kMaskedForgetGate = 1e4f;

// The formats of weights that matrix units multiply (weight_formats.h).
struct Bfloat16Weights;
struct Float16Weights;
struct ByteWeights;
struct NibbleWeights;
struct E4m3fnWeights;
struct E4m3fnuzWeights;

struct DeviceVector {
  const void* data;
  xlstm_dtype dtype;
};

struct DeviceLinear {
  const void *data, *scales, *offsets;
  DeviceVector bias;
  int64_t row_bytes;
  int rows, columns, bits, group_size, groups;
  xlstm_code code;
  xlstm_dtype dtype;
  bool is_aligned16;  // each row begins at a multiple of 16 bytes and has a multiple of 16 bytes
};

enum class Input { plain, rms };  // rms: the RMS norm of x, without a bias
enum class Output { store, add, swiglu };

// The x's of a product, laid out for matrix units by pack_kernel (engine/gemm_mma/pack_inputs.h) or, on CDNA, by
// pack_cdna_kernel (engine/gemm_cdna/pack_cdna.h).
struct PackedX {
  char* x[2];        // in the order of features of the weights' format, and of bfloat16 gates beside quantised weights
  float* step_sums;  // of quantised weights' x, on NVIDIA
  float* rms_factors;  // of an RMS norm
  float* partials;     // sums of parts, and how many parts are there: of gemm_stream_k.h, gemm_batch.h, gemm_cdna.h
  uint32_t* arrived;
};

constexpr int kNoUnit = 1 << 30;

// A product's units in gemm_row_cdna/: rows of each linear, in 2^slice_bits slices of features; units of each group;
// the first unit of each linear, kNoUnit where there is none.
struct CdnaUnits {
  int rows, slice_bits, rounds, first[kMaxLinears];
};

struct GemmParams {
  int batch, columns, linear_count;
  int stage_tiles, blocks, stages;  // for gemm_mma/: see GemmMmaPlan
  Input input;
  Output output;
  const float* x;       // (batch, columns)
  DeviceVector weight;  // of the RMS norm
  float norm_eps;
  float cap;  // soft cap of the gates, or of every output if cap_all
  bool cap_all;
  const uint8_t* keep;
  float* to[kMaxLinears];  // outputs of each linear: (batch, rows)
  DeviceLinear linear[kMaxLinears];
  PackedX packed;            // for kernels that take x so
  int wave_rows, unit_rows;  // for gemm_mma/gemm_batch.h and gemm_cdna/: see their plans
  // For gemm_cdna/: 2^shard_bits blocks share a unit; the first unit of each linear, kNoUnit where there is none.
  int shard_bits, units_of_all, first_unit[kMaxLinears];
  // For megakernel_cdna/; and the mailboxes to which Output::add adds.
  CdnaUnits units, gate_units;
  const float* residual;
};

// The bits of an empty mailbox (engine/megakernel/mailbox.h): a NaN that no kernel publishes.
constexpr uint32_t kEmpty = 0xffffffffu;

struct EmbedParams {
  int batch;
  int64_t dim, vocab;
  const int64_t* tokens;
  DeviceVector table;
  float* x;
  float* mailboxes;  // the embedding kernel fills these with kEmpty; their count is a multiple of four
  int64_t mailbox_floats;
  uint32_t* arrived;  // and these with 0: the counters of heads_step.h and of gemm_mma/gemm_stream_k.h
  int64_t arrived_count;
};

}  // namespace xlstm::gpu::engine

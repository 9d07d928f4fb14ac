// SPDX-License-Identifier: Apache-2.0
// Shapes of the MLA kernel (mla.h) on each family: constexpr, so that the kernel, the plan and the tests use the same
// numbers.
#pragma once

#include <stdint.h>

#include "arch/layouts.h"

namespace xlstm::gpu::attention {

constexpr int kMlaValues = 512;             // features of the value: the first ones of the key
constexpr int kMlaFeatures[] = {512, 576};  // of the key
constexpr bool has_mla_dims(int64_t dqk, int64_t dv) {
  return dv == kMlaValues && (dqk == kMlaFeatures[0] || dqk == kMlaFeatures[1]);
}
constexpr int kMlaCdnaRows = 128;  // of a block of CDNA's own kernel (mla_cdna.h)
constexpr int kMlaRows[] = {16, 64, kMlaCdnaRows};
// ahead: scores, weights and out of three tiles overlap (mla.h).
constexpr bool has_mla(Family f, int rows, bool ahead) {
  if (rows == kMlaCdnaRows) return f == Family::cdna && !ahead;
  return ahead ? f == Family::nvidia && rows == 64 : !is_rdna(f) || rows == 16;
}

// A key's row in LDS: lines of 128 bytes.
constexpr int mla_row_bytes(int features, int element_bytes) { return (features * element_bytes + 127) / 128 * 128; }

struct MlaShape {
  int waves, row_strips, parts;  // waves = row_strips x parts: of the rows, and of the features, in the scores' product
  int keys, buffers;             // keys of a tile, and buffers for tiles
  int tiles_ahead;               // tiles that load while one is multiplied; AMD: into as many sets of registers
  int stages;                    // stages of scores and weights
  int lds_units;                 // units of Q's features that are in LDS, for want of registers
  int threads;
  int tile_bytes, partial_bytes, weight_bytes, query_bytes, lds_bytes;
};

// element_bytes: of a tile in LDS. Floats of 8 bits, which CDNA alone multiplies, have twice the keys in it.
constexpr MlaShape mla_shape(Family f, int rows, int features, bool ahead, int element_bytes = 2) {
  MlaShape s{};
  s.row_strips = rows / kStripColumns;
  s.waves = rows == 16 ? 4 : 8;
  s.parts = s.waves / s.row_strips;
  s.keys = is_rdna(f) ? 16 : element_bytes == 1 && rows != 64 ? 64 : 32;
  s.buffers = ahead ? 4 : f == Family::nvidia ? 2 : 1;
  // With 16 rows a tile's products are shorter than HBM's latency.
  s.tiles_ahead = f == Family::cdna && rows == 16 ? 2 : 1;
  s.stages = ahead ? 2 : 1;
  const int units = features / unit_features(f, element_bytes);
  s.lds_units = rows == kMlaCdnaRows && units > 16 ? units - 16 : 0;
  s.threads = s.waves * wave_size(f);
  s.tile_bytes = s.keys * mla_row_bytes(features, element_bytes);
  const int strip = s.keys * kStripColumns;  // scores of 16 rows against a tile
  const int writers = ahead         ? s.waves - s.row_strips
                      : s.parts > 1 ? s.waves
                                    : 0;  // ahead: part 0 keeps its partial scores
  s.partial_bytes = writers * strip * 4;
  s.weight_bytes = s.row_strips > 1 ? s.row_strips * strip * element_bytes : 0;
  s.query_bytes = s.lds_units * unit_features(f, element_bytes) * rows * element_bytes;
  const int factors = (rows + s.row_strips) * 4;  // and flags: which strips' maxima have grown
  s.lds_bytes = s.buffers * s.tile_bytes + s.stages * (s.partial_bytes + s.weight_bytes + factors) + 2 * rows * 4 +
                s.query_bytes;  // maxima, sums
  return s;
}

}  // namespace xlstm::gpu::attention

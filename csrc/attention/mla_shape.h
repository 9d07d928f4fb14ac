// SPDX-License-Identifier: Apache-2.0
// How the MLA kernel (mla_gpu.h) lies on each family: constexpr, so that the kernel, the plan and the tests have one
// answer.
#pragma once

#include <stdint.h>

#include "arch/family.h"

namespace xlstm::gpu {

constexpr int kMlaValues = 512;             // features that are the value: the first of the key
constexpr int kMlaFeatures[] = {512, 576};  // of the key
constexpr int kMlaRows[] = {16, 64};        // of a block
constexpr bool has_mla(Family f, int rows) { return f != Family::rdna || rows == 16; }

struct MlaShape {
  int waves, row_strips, parts;  // waves = row_strips x parts: of the rows, and of the features, in the scores' product
  int keys, buffers;             // of a tile, and how many there are room for
  int threads;
  int tile_bytes, partial_bytes, weight_bytes, lds_bytes;
};

constexpr MlaShape mla_shape(Family f, int rows, int features) {
  MlaShape s{};
  s.row_strips = rows / kStripColumns;
  s.waves = f == Family::nvidia && rows == 64 ? 8 : 4;
  s.parts = s.waves / s.row_strips;
  s.keys = f == Family::rdna ? 16 : 32;
  s.buffers = f == Family::nvidia ? 2 : 1;
  s.threads = s.waves * wave_size(f);
  s.tile_bytes = s.keys * features * 2;
  const int strip = s.keys * kStripColumns;  // scores of 16 rows against a tile
  s.partial_bytes = s.parts > 1 ? s.waves * strip * 4 : 0;
  s.weight_bytes = s.row_strips > 1 ? s.row_strips * strip * 2 : 0;
  const int numbers = (3 * rows + s.row_strips) * 4;  // factors, maxima, sums; which strips' maxima have grown
  s.lds_bytes = s.buffers * s.tile_bytes + s.partial_bytes + s.weight_bytes + numbers;
  return s;
}

}  // namespace xlstm::gpu

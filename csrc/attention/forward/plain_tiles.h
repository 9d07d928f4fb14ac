// SPDX-License-Identifier: Apache-2.0
// Keys and values of the usual layout on AMD: tiles that are full, in rows of 16-byte vectors and of as many features
// as the kernel has. A tile goes from memory into registers vector by vector, and from there into LDS.
#pragma once

#include "attention/forward/key_tiles.h"

namespace xlstm::gpu::attention {

template <class E, class StageK, class StageV, int kParts, int kKeys>
struct PlainTiles {
  static constexpr int kVectorsK = kParts * StageK::kVectors, kVectorsV = StageV::kVectors;

  StageK stage_k[kParts];
  StageV stage_v;
  uint32_t lane_k[StageK::kVectors], lane_v[kVectorsV];  // offsets of this lane's vectors in a tile, in bytes
  const char *at_k, *at_v;                               // of the tile
  uint32_t step_k, step_v;                               // from tile to tile

  XLSTM_DEVICE PlainTiles(const HeadTokens<E>& k, const HeadTokens<E>& v, int tile) {
    const uint32_t stride_k = row_bytes(k), stride_v = row_bytes(v);
#pragma unroll
    for (int j = 0; j < StageK::kVectors; ++j)
      lane_k[j] = StageK::lane_offset(stride_k, threadIdx.x) + StageK::uniform_offset(j, stride_k);
#pragma unroll
    for (int j = 0; j < kVectorsV; ++j)
      lane_v[j] = StageV::lane_offset(stride_v, threadIdx.x) + StageV::uniform_offset(j, stride_v);
    step_k = kKeys * stride_k, step_v = kKeys * stride_v;
    at_k = uniform(reinterpret_cast<const char*>(k.data) + int64_t(tile) * step_k);
    at_v = uniform(reinterpret_cast<const char*>(v.data) + int64_t(tile) * step_v);
  }
  XLSTM_DEVICE static bool suits(const HeadTokens<E>& x, int features) {
    return !x.in_pages() && x.is_aligned16 && x.features >= features;
  }

  XLSTM_DEVICE void advance() { at_k += step_k, at_v += step_v; }

  // An offset is opaque where it is used: only there the compiler sees that it has 32 bits, and leaves the sum with the
  // address to the load.
  XLSTM_DEVICE void fetch_key(int vector) {
    const int part = vector / StageK::kVectors, j = vector % StageK::kVectors;
    lane_k[j] = opaque(lane_k[j]);
    stage_k[part].fetched[j] = load_vec16(at_k + part * StageK::kRowBytes, lane_k[j]);
  }
  XLSTM_DEVICE void fetch_value(int j) {
    lane_v[j] = opaque(lane_v[j]);
    stage_v.fetched[j] = load_vec16(at_v, lane_v[j]);
  }
  template <class Tiles>
  XLSTM_DEVICE void store_keys(Tiles&& tile) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) store(stage_k[part], tile(part));
  }
  XLSTM_DEVICE void store_values(const typename StageV::Storage& tile) { store(stage_v, tile); }

 private:
  XLSTM_DEVICE static uint32_t row_bytes(const HeadTokens<E>& x) {
    return uint32_t(uniform(int(x.x->stride[2]))) * uint32_t(sizeof(E));
  }
  template <class Stage>
  XLSTM_DEVICE static void store(Stage& stage, const typename Stage::Storage& tile) {
#pragma unroll
    for (Vec16& vec : stage.fetched) arrive_at(vec);
    stage.store_fetched(tile, threadIdx.x);
  }
};

}  // namespace xlstm::gpu::attention

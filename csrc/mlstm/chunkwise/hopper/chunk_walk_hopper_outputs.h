// SPDX-License-Identifier: Apache-2.0
// What becomes of a Hopper walk's sums (chunk_walk_hopper.h): the warpgroups that make them store them, or leave them
// in shared memory, of this block or of the other of a pair, to the warps that finish them.
#pragma once

#include "mlstm/chunkwise/hopper/chunk_walk_hopper_smem.h"

namespace xlstm::gpu::mlstm {

template <class Room>
struct HopperOutputs {
  using Place = typename Room::Place;
  static constexpr HopperShape kShape = Room::kShape;
  static constexpr bool kPair = kShape.pair, kFlowing = Room::kFlowing, kScored = Room::kScored;
  static constexpr int kChunk = Room::kChunk, kPanel = Room::kPanel, kHalfFloats = Room::kHalfFloats;
  static constexpr int kGroup = 3;  // named barriers: 3 and 4, a warpgroup for itself

  const Room& room;
  const WalkParams& p = room.p;

  // ---- by the warpgroups that hold the state, 64 columns of y each

  // Outputs that are sums, or sums over N of each token, which was made in the block or before it, to memory.
  XLSTM_DEVICE void store(const float (&sum)[32], int n, int half, int group) const {
    if constexpr (kScored) room.gain_full(n).wait(room.parity(n));
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, here = opaque(thread);
    const uint32_t panel = room.base + uint32_t(Room::kSums + half * kPanel);
    if (thread == 0) tma_store_wait_read();  // of the chunk before
    barrier_sync(kGroup + group, kWarpgroup);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t r[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int i = 4 * (j + w / 2) + w % 2 * 2;
        float2 by{1, 1};
        if (kScored) by = *reinterpret_cast<const float2*>(room.gains(n) + 8 * (j + w / 2) + 2 * (lane % 4));
        r[w] = pack(BFloat16{}, sum[i] * by.x, sum[i + 1] * by.y);
      }
      const int row = 8 * j + here % 8 + here / 16 % 2 * 8, piece = here / 32 * 2 + here / 8 % 2;
      stmatrix_trans(panel + panel_vec16_offset(row, piece), r[0], r[1], r[2], r[3]);
    }
    fence_async_proxy();
    barrier_sync(kGroup + group, kWarpgroup);
    if (thread == 0)
      tma_store(&room.params.out, Place::first_column(room.tile) + half * 64, room.chunk_at(n) * kChunk,
                room.segment.head, room.segment.batch, panel);
  }

  // Sums that others finish lie token by token, 64 columns each; what a warp writes together, and what eight lanes
  // read, lies in different banks.
  XLSTM_DEVICE static uint32_t sum_place(uint32_t token, uint32_t column) {
    return token * 64 + (column ^ token / 2 % 4 * 8 ^ column / 32 * 4);
  }
  XLSTM_DEVICE void write_sums(const float (&sum)[32], int half) const {
    float* to = room.sums(half);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const StripPosition at = Place::in_half(i);  // of a token
      to[sum_place(at.row, at.column)] = sum[i];
    }
  }

  // To the other block of a pair, when all of the warpgroup has written them.
  XLSTM_DEVICE void send(int group) const {
    fence_async_proxy();
    barrier_sync(kGroup + group, kWarpgroup);
    const int other = room.owned_half() ^ 1;
    if (threadIdx.x % kWarpgroup == 0)
      bulk_copy_to_cta(other, room.base + Room::kIncoming, room.base + Room::kSums + other * Room::kHalfBytes,
                       Room::kHalfBytes, room.incoming_full());
  }

  // ---- outputs with more to them, by three warps: pieces of 8 columns of a token

  static constexpr int kOwned = kPair ? 1 : kShape.halves;  // halves that are finished here
  static constexpr int kRowPieces = 8 * kOwned, kTokensAtOnce = 32 / kRowPieces, kStep = kOutputWarps * kTokensAtOnce;
  static constexpr int kAhead = 6, kInGroup = 2;  // rounds of a warp on their way; in registers
  static constexpr int kBatches = (kChunk / kStep + kAhead) / kAhead;

  XLSTM_DEVICE int owned(int h) const { return kPair ? room.owned_half() : h; }  // of the halves

  XLSTM_DEVICE TokenRows<BFloat16> tile_rows(const Tokens& x) const {
    TokenRows<BFloat16> t = rows<BFloat16>(x, room.segment);
    t.data += room.tile * kShape.y_tile();
    t.columns -= room.tile * kShape.y_tile();
    return t;
  }
  // Eight columns of a token: four, and the four beside them.
  XLSTM_DEVICE static void read_sums(float (&value)[8], const float* sums, uint32_t place) {
    const Vec16 low = read_vec16(sums + place), high = read_vec16(sums + (place ^ 4));
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] = as_float(low.word[j]), value[4 + j] = as_float(high.word[j]);
  }

  // What memory has for one piece, brought before the sums are there. No condition stands in the way of a load, or the
  // next one would wait for it: where there is no piece, another one's is read.
  struct Beside {
    Vec16 with;
    float factor, self;  // of the vector, or the gain
  };

  XLSTM_DEVICE void finish(int warp) const {
    const int lane = threadIdx.x % 32, first_token = warp * kTokensAtOnce + lane / kRowPieces;
    const TokenRows<BFloat16> with = tile_rows(kFlowing ? p.with : p.out), out = tile_rows(p.out);
    const uint32_t out_stride = uint32_t(out.stride), with_stride = uint32_t(with.stride);  // 2^26 bytes at most
    const int column = lane % kRowPieces * 8, there = column < out.columns ? column : 0;
    const int half = owned(column / 64);
    const float* sums = room.sums(half);
    const float* incoming = room.incoming();
    const int which = kFlowing ? p.along : kGain;
    float* dots = p.dots + room.tile * (p.where.rows * p.where.slots * kChunk);
    for (int n = 0; n < room.chunks; ++n) {
      const int64_t slot = room.slot_of(n), t0 = int64_t(room.chunk_at(n)) * kChunk;
      const int valid = int(room.segment.end - t0 < kChunk ? room.segment.end - t0 : kChunk);
      const float* factors = p.factors + slot * kFactors * kChunk;
      const BFloat16* from = with.data + t0 * with.stride + there;
      BFloat16* to = const_cast<BFloat16*>(out.data) + t0 * out.stride + column;
      const char* y = room.stage(n) + Room::kY + half * kPanel;
      float vector[8];
      if constexpr (kFlowing) {
        const float* at = p.vector + slot * p.y.columns + room.tile * kShape.y_tile() + there;
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          const Vec16 four = read_vec16(at + j);
#pragma unroll
          for (int e = 0; e < 4; ++e) vector[j + e] = as_float(four.word[e]);
        }
      }
#pragma unroll 1
      for (int batch = 0; batch < kBatches; ++batch) {
        const int first = first_token + batch * kAhead * kStep;
        Beside beside[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int t = first + i * kStep < valid ? first + i * kStep : 0;
          beside[i].factor = factors[which * kChunk + t];
          if constexpr (kFlowing) {
            beside[i].self = factors[kSelf * kChunk + t];
            beside[i].with = read_vec16(from + uint32_t(t) * with_stride);
          }
        }
        if (batch == 0) {
          if constexpr (kPair) {
            if (warp == 0 && lane == 0) room.incoming_full().arrive_expect_tx(Room::kHalfBytes);
            room.incoming_full().wait(room.every_parity(n));
          }
#pragma unroll
          for (int h = 0; h < kOwned; ++h) room.sums_full(owned(h)).wait(room.every_parity(n));
        }
#pragma unroll
        for (int group = 0; group < kAhead; group += kInGroup) {
          float value[kInGroup][8];
#pragma unroll
          for (int i = 0; i < kInGroup; ++i) {
            const uint32_t place =
                sum_place(uint32_t(first + (group + i) * kStep) % kChunk, column % 64);  // beyond any
            read_sums(value[i], sums, place);
            if constexpr (kPair) {
              float more[8];
              read_sums(more, incoming, place);
#pragma unroll
              for (int j = 0; j < 8; ++j) value[i][j] += more[j];
            }
          }
          if (batch + 1 == kBatches && group + kInGroup == kAhead) {  // who waits to write need not wait for the rest
            __syncwarp();
            if (lane == 0) {
#pragma unroll
              for (int h = 0; h < kOwned; ++h) room.sums_free(owned(h)).arrive();
              if constexpr (kPair) room.sent_free().arrive_remote(room.owned_half() ^ 1);
            }
          }
#pragma unroll
          for (int i = 0; i < kInGroup; ++i) {
            const Beside& more = beside[group + i];
            const int t = first + (group + i) * kStep;
            const uint32_t in = uint32_t(t) % kChunk;
            const bool inside = column < out.columns && t < valid;
            float(&x)[8] = value[i];
            if constexpr (kFlowing) {
              const Vec16 own = read_vec16(y + panel_vec16_offset(in, uint32_t(column) % 64 / 8));
              float even = 0, odd = 0;
#pragma unroll
              for (int j = 0; j < 8; ++j) {
                x[j] += more.factor * vector[j];
                (j % 2 ? odd : even) += x[j] * element<BFloat16>(more.with, j);
                x[j] += more.self * element<BFloat16>(own, j);
              }
              float dot = inside ? even + odd : 0.0f;
#pragma unroll
              for (int mask = kRowPieces / 2; mask > 0; mask /= 2) dot += shuffle_xor(dot, mask);
              store_if(column == 0 && t < kChunk, dots + slot * kChunk + t, dot);
            } else {
#pragma unroll
              for (int j = 0; j < 8; ++j) x[j] *= p.gained ? more.factor : 1.0f;
            }
            Vec16 result;
#pragma unroll
            for (int w = 0; w < 4; ++w) result.word[w] = pack(BFloat16{}, x[2 * w], x[2 * w + 1]);
            store_if(inside, to + in * out_stride, result);
          }
        }
      }
      room.y_free(n).arrive_once_per_warp();
    }
  }
};

}  // namespace xlstm::gpu::mlstm

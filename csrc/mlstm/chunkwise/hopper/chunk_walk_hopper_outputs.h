// SPDX-License-Identifier: Apache-2.0
// The epilogues of a Hopper walk (chunk_walk_hopper.h). Either the consumer warpgroups store their sums by TMA
// themselves, or they write the sums to shared memory, of this block or of its peer in a pair, for three epilogue
// warps.
#pragma once

#include "mlstm/chunkwise/hopper/chunk_walk_hopper_smem.h"

namespace xlstm::gpu::mlstm {

template <class Smem>
struct HopperOutputs {
  using Layout = typename Smem::Layout;
  static constexpr HopperShape kShape = Smem::kShape;
  static constexpr bool kPair = kShape.pair, kHasGradientTerms = Smem::kHasGradientTerms,
                        kMakesScores = Smem::kMakesScores;
  static constexpr int kChunk = Smem::kChunk, kPanelBytes = Smem::kPanelBytes, kPanelFloats = Smem::kPanelFloats;
  static constexpr int kGroupBarrier = 3;  // named barriers 3 and 4: one for each consumer warpgroup

  const Smem& smem;
  const WalkParams& p = smem.p;

  // ---- in the consumer warpgroups, 64 columns of y each

  // Stores a panel of outputs by TMA: sums, or sums times 1 / N of each token.
  XLSTM_DEVICE void store_outputs(const float (&sum)[32], int n, int panel, int group) const {
    if constexpr (kMakesScores) smem.inverse_n_full(n).wait(smem.parity(n));
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, opaque_in_group = opaque(thread);
    const uint32_t address = smem.base + uint32_t(Smem::kSumsOffset + panel * kPanelBytes);
    if (thread == 0) tma_store_wait_read();  // the store of the previous chunk has read the panel
    barrier_sync(kGroupBarrier + group, kWarpgroup);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t r[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int i = 4 * (j + w / 2) + w % 2 * 2;
        float2 by{1, 1};
        if (kMakesScores) by = *reinterpret_cast<const float2*>(smem.inverse_n(n) + 8 * (j + w / 2) + 2 * (lane % 4));
        r[w] = pack(BFloat16{}, sum[i] * by.x, sum[i + 1] * by.y);
      }
      const int row = 8 * j + opaque_in_group % 8 + opaque_in_group / 16 % 2 * 8,
                vec = opaque_in_group / 32 * 2 + opaque_in_group / 8 % 2;
      stmatrix_trans(address + panel_vec16_offset(row, vec), r[0], r[1], r[2], r[3]);
    }
    fence_async_proxy();
    barrier_sync(kGroupBarrier + group, kWarpgroup);
    const int column = Layout::first_column(smem.tile) + panel * 64;
    if (smem.is_cut(n))
      store_tokens(n, column, smem.lds + Smem::kSumsOffset + panel * kPanelBytes);
    else if (thread == 0)
      tma_store(&smem.params.out, column, smem.token_at(n), smem.segment.head, smem.segment.batch, address);
  }
  // Stores a panel from this column on without the rows that are another sequence's.
  XLSTM_DEVICE void store_tokens(int n, int first_column, const char* panel) const {
    const TokenRows<BFloat16> out = rows<BFloat16>(p.out, smem.segment);
    const int thread = threadIdx.x % kWarpgroup, column = first_column + thread % 8 * 8, valid = smem.valid(n);
    for (int t = thread / 8; t < valid; t += kWarpgroup / 8)
      if (column < out.columns)
        *reinterpret_cast<Vec16*>(const_cast<BFloat16*>(out.data) + (smem.token_at(n) + t) * out.stride + column) =
            read_vec16(panel + panel_vec16_offset(t, thread % 8));
  }

  // Sums for the epilogue warps are stored token by token, 64 columns each, permuted so that what a warp writes
  // together, and what eight lanes read together, lies in different banks.
  XLSTM_DEVICE static uint32_t sum_offset(uint32_t token, uint32_t column) {
    return token * 64 + (column ^ token / 2 % 4 * 8 ^ column / 32 * 4);
  }
  XLSTM_DEVICE void write_sums(const float (&sum)[32], int panel) const {
    float* to = smem.sums(panel);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const StripPosition at = Layout::in_panel(i);  // row: token
      to[sum_offset(at.row, at.column)] = sum[i];
    }
  }

  // Sends a panel of sums to the peer block, once the entire warpgroup has written it.
  XLSTM_DEVICE void send_to_peer(int group) const {
    fence_async_proxy();
    barrier_sync(kGroupBarrier + group, kWarpgroup);
    const int peer = smem.owned_panel() ^ 1;
    if (threadIdx.x % kWarpgroup == 0)
      bulk_copy_to_cta(peer, smem.base + Smem::kIncomingOffset,
                       smem.base + Smem::kSumsOffset + peer * Smem::kOutPanelBytes, Smem::kOutPanelBytes,
                       smem.incoming_full());
  }

  // ---- the epilogue, in three warps: vectors of 8 columns of a token

  static constexpr int kOwnedPanels = kPair ? 1 : kShape.y_panels;  // panels that this block finishes
  static constexpr int kRowVec16s = 8 * kOwnedPanels, kTokensPerWarp = 32 / kRowVec16s,
                       kStep = kEpilogueWarps * kTokensPerWarp;
  // Rounds of a warp whose loads are in flight, and rounds whose sums are in registers.
  static constexpr int kRoundsAhead = 6, kRoundsInRegisters = 2;
  static constexpr int kBatches = (kChunk / kStep + kRoundsAhead) / kRoundsAhead;

  XLSTM_DEVICE int owned_panel(int h) const { return kPair ? smem.owned_panel() : h; }  // index of the hth such panel

  XLSTM_DEVICE TokenRows<BFloat16> tile_rows(const Tokens& x) const {
    TokenRows<BFloat16> t = rows<BFloat16>(x, smem.segment);
    t.data += smem.tile * kShape.y_tile();
    t.columns -= smem.tile * kShape.y_tile();
    return t;
  }
  // Eight columns of a token: a vector of four, and the next four.
  XLSTM_DEVICE static void read_sums(float (&value)[8], const float* sums, uint32_t offset) {
    const Vec16 low = read_vec16(sums + offset), high = read_vec16(sums + (offset ^ 4));
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] = as_float(low.word[j]), value[4 + j] = as_float(high.word[j]);
  }

  // Inputs of one vector of outputs from global memory, loaded before the sums are ready. No condition guards a load,
  // because the next load would wait for the condition: without a vector of its own a lane loads another lane's.
  struct TokenInputs {
    Vec16 dot_with;
    float factor, diagonal;  // factor: of the vector, or 1 / N
  };

  XLSTM_DEVICE static void load_vector(float (&vector)[8], const float* from) {
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
      const Vec16 values = read_vec16(from + j);
#pragma unroll
      for (int e = 0; e < 4; ++e) vector[j + e] = as_float(values.word[e]);
    }
  }
  // For tokens first, first + kStep, ...; invalid tokens load token 0.
  XLSTM_DEVICE void load_inputs(TokenInputs (&inputs)[kRoundsAhead], const float* factors, const BFloat16* with,
                                uint32_t with_stride, int first, int valid) const {
    const int which = kHasGradientTerms ? Smem::kTerms.vector_factor : kInverseN;
#pragma unroll
    for (int i = 0; i < kRoundsAhead; ++i) {
      const int t = first + i * kStep < valid ? first + i * kStep : 0;
      inputs[i].factor = factors[which * kChunk + t];
      if constexpr (kHasGradientTerms) {
        inputs[i].diagonal = factors[kDiagonal * kChunk + t];
        inputs[i].dot_with = read_vec16(with + uint32_t(t) * with_stride);
      }
    }
  }
  XLSTM_DEVICE void wait_for_sums(int n, bool announces) const {
    if constexpr (kPair) {
      if (announces) smem.incoming_full().arrive_expect_tx(Smem::kOutPanelBytes);
      smem.incoming_full().wait(smem.every_parity(n));
    }
#pragma unroll
    for (int h = 0; h < kOwnedPanels; ++h) smem.sums_full(owned_panel(h)).wait(smem.every_parity(n));
  }
  XLSTM_DEVICE void read_rounds(float (&value)[kRoundsInRegisters][8], const float* sums, int first, int column) const {
#pragma unroll
    for (int i = 0; i < kRoundsInRegisters; ++i) {
      const uint32_t offset = sum_offset(uint32_t(first + i * kStep) % kChunk, column % 64);
      read_sums(value[i], sums, offset);
      if constexpr (kPair) {
        float peer_sums[8];
        read_sums(peer_sums, smem.incoming(), offset);
#pragma unroll
        for (int j = 0; j < 8; ++j) value[i][j] += peer_sums[j];
      }
    }
  }
  // The sums are in registers: the consumers, and the peer's, may write the next ones.
  XLSTM_DEVICE void release_sums(int lane) const {
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (int h = 0; h < kOwnedPanels; ++h) smem.sums_free(owned_panel(h)).arrive();
      if constexpr (kPair) smem.peer_sums_free().arrive_remote(smem.owned_panel() ^ 1);
    }
  }
  // x += factor vector, then x += diagonal y. Returns this lane's part of <x, dot_with>, taken between the two.
  XLSTM_DEVICE static float add_gradient_terms(float (&x)[8], const TokenInputs& in, const float (&vector)[8],
                                               const Vec16& y) {
    float even = 0, odd = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] += in.factor * vector[j];
      (j % 2 ? odd : even) += x[j] * element<BFloat16>(in.dot_with, j);
      x[j] += in.diagonal * element<BFloat16>(y, j);
    }
    return even + odd;
  }

  XLSTM_DEVICE void epilogue(int warp) const {
    const int lane = threadIdx.x % 32, first_token = warp * kTokensPerWarp + lane / kRowVec16s;
    const TokenRows<BFloat16> with = tile_rows(kHasGradientTerms ? p.dot_with : p.out), out = tile_rows(p.out);
    const uint32_t out_stride = uint32_t(out.stride), with_stride = uint32_t(with.stride);  // at most 2^26 bytes
    const int column = lane % kRowVec16s * 8, load_column = column < out.columns ? column : 0;
    const int panel = owned_panel(column / 64);
    const float* sums = smem.sums(panel);
    float* dots = p.dots + smem.tile * (p.where.rows * p.where.slots * kChunk);
    for (int n = 0; n < smem.chunks; ++n) {
      const int64_t slot = smem.slot_of(n), t0 = smem.token_at(n);
      const int valid = smem.valid(n);
      const float* factors = p.factors + slot * kFactors * kChunk;
      const BFloat16* from = with.data + t0 * with.stride + load_column;
      BFloat16* to = const_cast<BFloat16*>(out.data) + t0 * out.stride + column;
      const char* y = smem.stage(n) + Smem::kYOffset + panel * kPanelBytes;
      float vector[8];
      if constexpr (kHasGradientTerms)
        load_vector(vector, p.vector + slot * p.y.columns + smem.tile * kShape.y_tile() + load_column);
#pragma unroll 1
      for (int batch = 0; batch < kBatches; ++batch) {
        const int first = first_token + batch * kRoundsAhead * kStep;
        TokenInputs inputs[kRoundsAhead];
        load_inputs(inputs, factors, from, with_stride, first, valid);
        if (batch == 0) wait_for_sums(n, warp == 0 && lane == 0);
#pragma unroll
        for (int group = 0; group < kRoundsAhead; group += kRoundsInRegisters) {
          float value[kRoundsInRegisters][8];
          read_rounds(value, sums, first + group * kStep, column);
          if (batch + 1 == kBatches && group + kRoundsInRegisters == kRoundsAhead) release_sums(lane);
#pragma unroll
          for (int i = 0; i < kRoundsInRegisters; ++i) {
            const int t = first + (group + i) * kStep;
            const uint32_t token = uint32_t(t) % kChunk;
            const bool inside = column < out.columns && t < valid;
            float(&x)[8] = value[i];
            if constexpr (kHasGradientTerms) {
              const Vec16 y_vec = read_vec16(y + panel_vec16_offset(token, uint32_t(column) % 64 / 8));
              const float part = add_gradient_terms(x, inputs[group + i], vector, y_vec);
              float dot = inside ? part : 0.0f;
#pragma unroll
              for (int mask = kRowVec16s / 2; mask > 0; mask /= 2) dot += shuffle_xor(dot, mask);
              store_if(column == 0 && t < kChunk, dots + slot * kChunk + t, dot);
            } else {
#pragma unroll
              for (int j = 0; j < 8; ++j) x[j] *= Smem::kTerms.divides_by_n ? inputs[group + i].factor : 1.0f;
            }
            Vec16 result;
#pragma unroll
            for (int w = 0; w < 4; ++w) result.word[w] = pack(BFloat16{}, x[2 * w], x[2 * w + 1]);
            store_if(inside, to + token * out_stride, result);
          }
        }
      }
      smem.y_free(n).arrive_once_per_warp();
    }
  }
};

}  // namespace xlstm::gpu::mlstm

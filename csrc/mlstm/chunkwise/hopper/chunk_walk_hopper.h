// SPDX-License-Identifier: Apache-2.0
// The walk (chunk_walk.h has the table of what it is) as Hopper likes it: out = f (a C) + scores y, C = decay C + (w
// x)^T y.
//
// Everything is transposed, so that the state, in accumulators, is the left operand of the next product as it lies:
//     out^T [64 of y][tokens] = C^T a^T      += y^T scores^T      C^T += (w y)^T x
// Who owns what: two warpgroups hold 128 numbers of the state in each thread, 64 columns of y by 256 rows (or twice 64
// by 128) in each. They take turns: while one multiplies by the state, the other packs, weighs, writes. Tiles of 64
// tokens come by bulk copies, two chunks ahead, which a warp of the warpgroup beside them, the block's first, asks for.
// Outputs that are sums (dv), or sums over normalisers (h), leave by bulk copies as well; those with more to them (dq,
// dk: what n and dn add, dots, the diagonal) its three other warps finish. A forward walk has all of it make scores, n
// and normalisers from the tiles that are there anyway (chunk_walk_hopper_scores.h); three threads of the state's
// second warpgroup copy there. Rows beyond 256 are a second block's, of the same cluster; each of the two sends the
// other half of its sums, and its three warps finish its own half, h and dv too; their scores come from a kernel
// before. chunk_walk_hopper_smem.h has the shared memory, chunk_walk_hopper_outputs.h what becomes of sums.
//
// Floor, forward at 256/512: flops, with each of q, k, v and h moved once. Operands in shared memory are read at 64 to
// 100 bytes a cycle of the 128 that it gives, while 20 to 36 bytes a cycle arrive.
#pragma once

#include "mlstm/chunkwise/hopper/chunk_walk_hopper_outputs.h"
#include "mlstm/chunkwise/hopper/chunk_walk_hopper_scores.h"

namespace xlstm::gpu::mlstm {

// What a thread of the first warpgroup keeps of the 168 registers that all begin with, and one of the other two has.
constexpr int kBesideRegisters = 88, kStateRegisters = 208;
static_assert(kBesideRegisters + 2 * kStateRegisters == 3 * 168);

template <class Room>
struct HopperWalk {
  using Place = typename Room::Place;
  static constexpr HopperShape kShape = Room::kShape;
  static constexpr bool kPair = kShape.pair, kOutputs = Room::kOutputs;
  static constexpr int kChunk = Room::kChunk, kPanel = Room::kPanel;
  static constexpr int kMine = kShape.per_warpgroup(), kStateRow = Place::kHalfRegisters;  // of 64 columns
  static constexpr int kTurn = 1;  // named barriers 1 and 2: whose turn it is to multiply by the state

  const Room& room;
  const HopperOutputs<Room> outputs{room};
  static constexpr int kXPanel = Room::kXPanel;
  const WalkParams& p = room.p;

  // ---- the state and its products, by two warpgroups

  struct State {
    float c[kMine][kStateRow];  // C^T / held: the decay of chunks is kept apart until it is small
    float held = 1;
  };

  // f(value, x, y) for each of this thread's numbers of the state.
  template <class F>
  XLSTM_DEVICE void each(State& state, int group, F&& f) const {
#pragma unroll
    for (int m = 0; m < kMine; ++m)
#pragma unroll
      for (int i = 0; i < kStateRow; ++i) {
        const auto [x, y] = Place::position(m * kStateRow + i, room.tile, group);
        f(state.c[m][i], x, y);
      }
  }
  template <class F>
  XLSTM_DEVICE void each_register(State& state, float* memory, F&& f) const {
    memory += threadIdx.x - kWarpgroup;
#pragma unroll
    for (int m = 0; m < kMine; ++m)
#pragma unroll
      for (int i = 0; i < kStateRow; ++i) f(state.c[m][i], memory + (m * kStateRow + i) * kHopperStateThreads);
  }
  XLSTM_DEVICE bool inside(int x, int y) const { return x < p.x.columns && y < p.y.columns; }
  XLSTM_DEVICE int64_t offset(int x, int y) const {
    return room.segment.state * int64_t(p.x.columns) * p.y.columns + x * p.state_x + y * p.state_y;
  }
  static constexpr int kStateFloats = kShape.registers() * kHopperStateThreads;
  XLSTM_DEVICE float* between(int order) const {
    return p.between + ((int64_t(room.segment.state) * (p.segments - 1) + order) * p.tiles + room.tile) * kStateFloats;
  }

  XLSTM_DEVICE void load_state(State& state, int group) const {
    if (p.alone || (room.segment.order() == 0 && !p.state_in))
      each(state, group, [](float& v, int, int) { v = 0; });
    else if (room.segment.order() == 0)
      each(state, group, [&](float& v, int x, int y) { v = inside(x, y) ? p.state_in[offset(x, y)] : 0.0f; });
    else
      each_register(state, between(room.segment.order() - 1), [](float& v, const float* at) { v = *at; });
  }
  XLSTM_DEVICE void store_registers(State& state, float* to) const {
    each_register(state, to, [&](float& v, float* at) { *at = v * state.held; });
  }
  XLSTM_DEVICE void store_state(State& state, int group) const {
    if (p.alone)
      store_registers(state, between(room.segment.order()));
    else if (room.segment.last() && p.state_out)
      each(state, group, [&](float& v, int x, int y) {
        if (inside(x, y)) p.state_out[offset(x, y)] = v * state.held;
      });
  }

  // sum = C^T a^T, 64 columns of y by the chunk's tokens. A step's operand is packed while the one before is
  // multiplied.
  XLSTM_DEVICE static void read_state(float (&sum)[32], const float (&c)[kStateRow], uint32_t a) {
#pragma unroll
    for (int q = 0; q < kShape.rows / 16; ++q) {
      uint32_t left[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) left[w] = pack(BFloat16{}, c[8 * q + 2 * w], c[8 * q + 2 * w + 1]);
      wgmma_fence();
      wgmma_rs<false>(sum, left, k_major_descriptor(a + q / 4 * kPanel) + q % 4 * kNextKMajor, q > 0);
      wgmma_commit();
      if (q) wgmma_wait<1>();
    }
  }

  // y^T times each token's weight: the left operand of C^T += (w y)^T x.
  XLSTM_DEVICE static void weigh(uint32_t (&left)[kChunk / 4], uint32_t y, const float* weight, float up) {
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, column = 2 * (lane % 4);
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) {
      const int token = 16 * k + lane % 8 + lane / 16 * 8, piece = thread / 32 * 2 + lane / 8 % 2;
      uint32_t* r = left + 4 * k;
      ldmatrix_trans(r, y + panel_vec16_offset(token, piece));
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 by = *reinterpret_cast<const float2*>(weight + 16 * k + w / 2 * 8 + column);
        r[w] = pack(BFloat16{}, low_float(BFloat16{}, r[w]) * (by.x * up), high_float(BFloat16{}, r[w]) * (by.y * up));
      }
    }
  }

  // sum += y^T scores^T, or scores of a walk back in time as they lie. The blocks of a pair have half of the tokens
  // each.
  template <bool kReverse>
  XLSTM_DEVICE void add_scored(float (&sum)[32], uint32_t y, uint32_t scores) const {
    constexpr int kSteps = kChunk / 16 / (kPair ? 2 : 1);
    constexpr uint64_t kNext = kReverse ? kNextMnMajor : kNextKMajor;
    const uint64_t first = room.owned_half() * kSteps;
    const uint64_t left = mn_major_descriptor(y, kPanel) + first * kNextMnMajor;
    const uint64_t right =
        (kReverse ? mn_major_descriptor(scores, kPanel) : k_major_descriptor(scores)) + first * kNext;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) wgmma_ss<true, kReverse>(sum, left + k * kNextMnMajor, right + k * kNext);
    wgmma_commit();
  }

  // Where all of the first warpgroup make scores, three threads of the second of the state's copy a part each, as soon
  // as it has done with what lay there, of the chunk two before: the first has, half a chunk ago, and the scores are
  // further. All threads of it wait, since the compiler keeps no products in flight where some do.
  static constexpr int kCopiesA = 0, kCopiesY = 32, kCopiesX = 64, kStages = Room::kStages;
  XLSTM_DEVICE static bool copies_too(int group) { return Room::kKeepsN && group == 1; }

  XLSTM_DEVICE void free_y(int n, int group) const {
    const int thread = threadIdx.x % kWarpgroup;
    if (thread % 32 == 0) room.y_free(n).arrive();
    if (!copies_too(group) || n + kStages >= room.chunks) return;
    room.y_free(n).wait(room.parity(n));
    if (thread == kCopiesY) room.copy_y(n + kStages);
  }
  XLSTM_DEVICE void free_x(int n, int group) const {
    const int thread = threadIdx.x % kWarpgroup;
    if (thread == 0) room.x_free(n).arrive();
    if (!copies_too(group) || n + kStages >= room.chunks) return;
    room.x_free(n).wait(room.parity(n));
    if (thread == kCopiesX) room.copy_x(n + kStages);
  }

  XLSTM_DEVICE void add_scored(float (&sum)[32], uint32_t stage, int half) const {
    if (p.reverse)
      add_scored<true>(sum, stage + Room::kY + half * kPanel, stage + Room::kScores);
    else
      add_scored<false>(sum, stage + Room::kY + half * kPanel, stage + Room::kScores);
  }

  XLSTM_DEVICE void keep_state(int group) const {
    constexpr float kLeast = 0x1p-40f;
    const int thread = threadIdx.x % kWarpgroup;
    const bool copies = copies_too(group);
    for (int n = 0; copies && n < kStages && n < room.chunks; ++n) {
      if (thread == kCopiesA) room.copy_a(n);
      if (thread == kCopiesX) room.copy_x(n);
      if (thread == kCopiesY) room.copy_y(n);
    }
    State state;
    load_state(state, group);
    float decay = p.decay[room.slot_of(0)];
    if (kOutputs && group == 1) barrier_arrive(kTurn, kHopperStateThreads);  // the first turn is the other's
    for (int n = 0; n < room.chunks; ++n) {
      const uint32_t at = room.stage_address(n), phase = room.parity(n);
      const float* inter = room.factors(n, p.inter);
      const float* weight = room.factors(n, p.weight);
      const float decay_now = decay, held_before = state.held;
      if (n + 1 < room.chunks) decay = p.decay[room.slot_of(n + 1)];
      if (n + 1 == room.chunks && p.before_last && !p.alone && room.segment.last())
        store_registers(state, p.before_last + (int64_t(room.segment.state) * p.tiles + room.tile) * kStateFloats);
      state.held *= decay_now;
      const bool settle = !(state.held >= kLeast);
      const float settled = state.held;
      if (settle) state.held = 1;
      const float up = 1 / state.held;

#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        const int half = group * kMine + m;
        const bool ends = m + 1 == kMine;  // what the chunk needs of a stage
        float sum[32];
        uint32_t left[kChunk / 4];
        if constexpr (kOutputs) {
          if (m == 0) room.a_full(n).wait(phase);
          barrier_sync(kTurn + group, kHopperStateThreads);
          read_state(sum, state.c[m], at + Room::kA);
          if (!(group == 1 && n + 1 == room.chunks && ends)) barrier_arrive(kTurn + (group ^ 1), kHopperStateThreads);
        }
        if (m == 0) room.y_full(n).wait(phase);
        weigh(left, at + Room::kY + half * kPanel, weight, up);
        if constexpr (kOutputs) {
          wgmma_wait<0>(sum);
          hold(state.c[m]);
          if (ends) {
            if (thread == 0) room.a_free(n).arrive();
            if (copies && n + kStages < room.chunks) {
              room.a_free(n).wait(phase);
              if (thread == kCopiesA) room.copy_a(n + kStages);
            }
          }
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float2 by = *reinterpret_cast<const float2*>(inter + 8 * j + 2 * (thread % 4));
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[4 * j + e] *= (e % 2 ? by.y : by.x) * held_before;
          }
          if (Room::kScored && m == 0) room.scores_full(n).wait(phase);
          add_scored(sum, at, half);
        }
        if (settle) {
#pragma unroll
          for (int i = 0; i < kStateRow; ++i) state.c[m][i] *= settled;
        }
        if (m == 0) room.x_full(n).wait(phase);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kChunk / 16; ++k)
          wgmma_rs<true>(state.c[m], left + 4 * k, mn_major_descriptor(at + Room::kX, kXPanel) + k * kNextMnMajor);
        wgmma_commit();
        if constexpr (kOutputs) {
          wgmma_wait<1>(sum);
          if constexpr (Room::kFinish) {
            const bool sent = kPair && half != room.owned_half();
            (sent ? room.sent_free() : room.sums_free(half)).wait(room.every_parity(n) ^ 1);
            outputs.write_sums(sum, half);
            if (sent)
              outputs.send(group);
            else
              room.sums_full(half).arrive();
          } else {
            outputs.store(sum, n, half, group);
          }
        } else {
          __syncwarp();  // outputs bring the warp together
        }
        if (ends) free_y(n, group);
        wgmma_wait<0>(state.c[m]);
        if (ends) free_x(n, group);
      }
    }
    store_state(state, group);
    if constexpr (Room::kStored)
      if (thread == 0) tma_store_wait();
  }

  XLSTM_DEVICE void run() const {
    const int warp = shuffle_from(int(threadIdx.x / 32), 0, 32), group = warp / 4;
    room.open();
    if (group == 0) {
      setmaxnreg_dec<kBesideRegisters>();
      if constexpr (Room::kKeepsN) {
        HopperScorer<Room>{room}.run();
      } else if (warp == kOutputWarps) {
        if (threadIdx.x % 32 == 0) room.copy_chunks();
      } else if constexpr (Room::kFinish) {
        outputs.finish(warp);
      }
    } else {
      setmaxnreg_inc<kStateRegisters>();
      keep_state(group - 1);
    }
    if constexpr (kPair) cluster_sync();  // nobody leaves while the other still writes here
  }
};

template <int kRows, int kHalves, bool kPair, HopperOutput kOutput>
__global__ __launch_bounds__(kHopperBlockThreads, 1) void walk_hopper(const __grid_constant__ HopperWalkParams params) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    const WalkParams& p = params.walk;
    const int tile = blockIdx.x % p.tiles, order = blockIdx.x / p.tiles % p.segments;
    const Segment segment = segment_of(p.where, blockIdx.x / p.tiles / p.segments, order, p.segment_chunks, p.reverse);
    if (segment.empty || (p.alone && segment.last())) return;
    using Room = HopperRoom<kRows, kHalves, kPair, kOutput>;
    const Room room(params, segment, tile, lds);
    HopperWalk<Room>{room}.run();
  }
}

}  // namespace xlstm::gpu::mlstm

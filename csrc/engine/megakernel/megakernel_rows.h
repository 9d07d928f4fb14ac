// SPDX-License-Identifier: Apache-2.0
// The megakernel of two to eight rows: a decode step of all of them, from embeddings to logits, in one persistent
// launch on Hopper. The maths, the phases and the mailboxes are those of one row (engine/megakernel/megakernel.h); a
// mailbox holds all rows' vectors, one after the other.
//
// Who owns what (megakernel_plan.h): a multiprocessor's shared memory cannot hold several rows of x beside its ring of
// weights. So blocks form clusters that stay for the whole step. In each phase a cluster takes items, 16 rows of
// weights, in turn; its blocks split the features (split-K), and each has its part of all rows of x. A warp computes an
// item over its block's features and sends the partial sums to the item's owner, a block of the cluster, through
// distributed shared memory. The owner adds up the parts in their order, as in engine/gemm_cluster/gemm_cluster.h,
// whose bits these are. Where shared memory is too small for the sums of all items of a phase, there are several
// rounds. A block also owns tiles of C, and the rows of x that its output and down items add to.
//
// Timeline of one block of the model, as a thread block sees it: that of one row, but for
//
//   prologue   spin for the block's part of all rows of x; squares, digits -> smem; sums of squares to all blocks
//   mainloop   of a round: items, partial sums to their owners
//   epilogue   of a round: wait for the sums that this block owns; publish what they come to
//   gate       2 to 4 groups of threads update a tile of C each, in turn, while the next tile comes to L2
//   down       begins with moving n and m to their tensors, when all of a head's h has been published
//
// Barriers:
//
//   which                      who arrives                   who waits                    phase
//   received (mbarrier)        thread 0, with the bytes of   all threads of the block,    a round's parity, counted
//                              the round's partial sums      before the epilogue          over the whole step
//                              (and sums of squares); the
//                              bytes by st.async
//   cluster barrier            all threads of the cluster,   all threads, before they     once a round
//                              when the block's sums may be  send sums
//                              overwritten and the next
//                              bytes are announced
//   __syncthreads              before a prologue overwrites x; when x is in shared memory
//   named barriers 1 to 4      a group's threads, in the mLSTM's step
//   a warp's ring              its own cp.async groups, then __syncwarp
//
// Floor: the bytes of the weights, and of C in and out, over the bandwidth of memory. On an H200 with two rows bfloat16
// is at 0.79 of it: products take the time of their bytes, and memory idles between phases, whose x takes three to
// eight thousand clocks to be there. With eight rows of int4 instructions and loads of x bind
// (docs/lab/decode-h200.md).
#pragma once

#include "engine/gpu/prologue_epilogue.h"
#include "engine/megakernel/gated_head.h"
#include "engine/megakernel/mailbox.h"
#include "engine/megakernel/megakernel_mainloop.h"
#include "engine/megakernel/megakernel_mlstm_step.h"

namespace xlstm::gpu::engine {

// kRows: of x that the kernel is made for.
template <class Weights, int kRows>
struct MegakernelRows {
  using Mainloop = MegakernelMainloop<Weights, kRows>;
  using Sums = typename Mainloop::Sums;
  using Ring = typename Mainloop::Ring;
  using Step = MegakernelMlstmStep<kRows>;

  const MegakernelParams& p;
  char* lds;
  Mainloop loop;
  int rank;           // in the cluster
  uint32_t turn = 0;  // rounds so far, of all phases

  XLSTM_DEVICE MegakernelRows(const MegakernelParams& params, char* memory)
      : p(params), lds(memory), loop(params, memory), rank(BlockGroup(params).rank) {}

  XLSTM_DEVICE static Mbarrier received(const MegakernelParams& p, const char* lds) {
    return {lds_address(lds) + uint32_t(p.smem.received)};
  }
  XLSTM_DEVICE float* floats(int at) const { return reinterpret_cast<float*>(lds + at); }
  XLSTM_DEVICE int blocks() const { return 1 << p.cluster_bits; }

  // ---- rounds

  XLSTM_DEVICE int round_items(Phase phase) const { return p.phase[int(phase)].plan.owned << p.cluster_bits; }
  // The items of a round that this block owns.
  XLSTM_DEVICE int owned(Phase phase, int round) const {
    const int most = p.phase[int(phase)].plan.owned, left = loop.part(phase).end - round * round_items(phase) - rank;
    const int items = left > 0 ? (left + blocks() - 1) >> p.cluster_bits : 0;
    return items < most ? items : most;
  }
  // The phases whose prologue loads an x with an RMS norm.
  XLSTM_DEVICE static bool sends_squares(Phase phase) {
    return phase == Phase::projections || phase == Phase::up || phase == Phase::head;
  }
  // Announces the bytes that a round brings this block. By one thread.
  XLSTM_DEVICE void expect(Phase phase, int round) const {
    const int parts = loop.part(phase).parts();
    const int squares = round == 0 && sends_squares(phase) ? parts * kRows * 4 : 0;
    received(p, lds).arrive_expect_tx(uint32_t(owned(phase, round) * parts * kItemRows * kRows * 4 + squares));
  }

  // Fills in the tables, and the tokens' x in the rows that the block adds to. A barrier must follow.
  XLSTM_DEVICE static void prepare(const MegakernelParams& p, char* lds) {
    Mainloop::prepare(p, lds);
    if (threadIdx.x == 0) {
      received(p, lds).init(1);
      fence_mbarrier_init();
    }
  }
  XLSTM_DEVICE void load_residual() const {
    const int items = (loop.part(Phase::output).end - rank + blocks() - 1) >> p.cluster_bits;  // of all rounds
    for (int index = int(threadIdx.x); index < items * kItemRows * kRows; index += kMegakernelThreads) {
      const int r = index % kItemRows, b = index / kItemRows % kRows, n = index / (kItemRows * kRows);
      const RowItem item = Ring::item_of(p, lds, Phase::output, (n << p.cluster_bits) + rank);
      const int dim = p.phase[int(Phase::output)].gemm.linear[0].rows;
      floats(p.smem.residual)[index] = r < item.rows && b < p.batch ? p.mailboxes[b * dim + item.first + r] : 0.0f;
    }
  }

  // ---- prologue: the block's part of x

  // Loads the part of all rows of x from its mailboxes, kBurst vec8s of a thread at a time, and applies the weights of
  // an RMS norm, if kNormed. Rows that the batch does not have are zeros.
  template <bool kNormed, int kBurst>
  XLSTM_DEVICE void load_x(Phase phase, int block, const DeviceVector& norm) {
    const WarpPart& part = loop.part(phase);
    const int columns = p.phase[int(phase)].gemm.columns, vec8s = part.steps * kStepVec8s * kRows;
    const float* const x_at = p.from(phase, block);
    struct Vec8At {
      int step, b, n;
    };
    const auto vec8_at = [&](int i) {
      const int at = i * kMegakernelThreads + int(threadIdx.x);
      return Vec8At{at / (kStepVec8s * kRows), at / kStepVec8s % kRows, at % kStepVec8s};
    };
    for (int begin = 0; begin * kMegakernelThreads < vec8s; begin += kBurst) {
      float y[kBurst][kVec8];
      const float* addresses[kBurst];
      NormVec8 weight[kBurst];
#pragma unroll
      for (int i = 0; i < kBurst; ++i) {
        const Vec8At at = vec8_at(begin + i);
        const int feature = at.step < part.steps ? (part.first_step + at.step) * kStepFeatures + at.n * kVec8 : 0;
        if (kNormed) weight[i].fetch(norm, feature);
        addresses[i] = x_at + (at.b < p.batch ? at.b * columns : 0) + feature;
      }
      spin_until_vec8s_published(addresses, y, [&](int look) { loop.ring.prefetch_beyond(look); });
      __syncwarp();  // lanes stop spinning one after the other
#pragma unroll
      for (int i = 0; i < kBurst; ++i) {
        const Vec8At at = vec8_at(begin + i);
        const bool is_inside = at.step < part.steps;
        if (at.b >= p.batch)
#pragma unroll
          for (int e = 0; e < kVec8; ++e) y[i][e] = 0;
        if constexpr (kNormed) {
          const float square_sum = sum_over_lanes<kStepVec8s>(sum_of_squares(y[i]));
          if (is_inside && at.n == 0) floats(p.smem.squares)[at.step * kRows + at.b] = square_sum;
          weight[i].multiply(norm.dtype, y[i]);
        }
        Sums::store(loop.x(), at.step, at.n, at.b, y[i], is_inside);
      }
    }
  }
  // Sends this part's sum of squares of each row to all blocks of the cluster. Where there are fewer parts than blocks,
  // the first block of a part does.
  XLSTM_DEVICE void send_squares(Phase phase) const {
    const WarpPart& part = loop.part(phase);
    const int b = int(threadIdx.x) % kRows, to = int(threadIdx.x) / kRows;
    if (to >= blocks() || rank >= part.parts()) return;
    float sum = 0;
    for (int step = 0; step < part.steps; ++step) sum += floats(p.smem.squares)[step * kRows + b];
    st_async_to_cta(uint32_t(to), lds_address(lds) + uint32_t(p.smem.factor + (rank * kRows + b) * 4), sum,
                    received(p, lds));
  }
  XLSTM_DEVICE float rms_factor(const GemmParams& gemm, int parts, int b) const {
    if (gemm.input != Input::rms) return 1;
    const float sum = sum_of_parts(floats(p.smem.factor) + b, kRows, parts);
    return 1 / __builtin_sqrtf(sum / float(gemm.columns) + gemm.norm_eps);
  }

  // The norm of heads of h, times the sigmoid of the output gate, of the heads that this block's features are in. A
  // warp computes the statistics of a whole head of a row but stores 256 of its values only, as for one row.
  XLSTM_DEVICE void load_gated_heads(int block, const DeviceVector& norm) {
    const GemmParams& gemm = p.phase[int(Phase::output)].gemm;
    const WarpPart& part = loop.part(Phase::output);
    const float *const h_at = p.from(Phase::output, block), *const gate_at = p.to(Phase::gate, kOutputGate, block);
    const int features = p.step.v.columns, vec8s = features / kVec8, parts_per_head = (vec8s + kWave - 1) / kWave;
    const int first_head = part.first_step * kStepFeatures / features,
              end_head = ((part.first_step + part.steps) * kStepFeatures + features - 1) / features;
    const int head_parts = part.steps ? (end_head - first_head) * parts_per_head : 0;
    const auto feature = [&](int j) {
      const int n = lane_id() + j * kWave;
      return n < vec8s ? n * kVec8 : 0;
    };
    for (int unit = Ring::warp(); unit < head_parts * kRows; unit += kMegakernelWarps) {
      const int b = unit / head_parts, head_part = unit % head_parts;
      const int head = first_head + head_part / parts_per_head, of_head = head_part % parts_per_head;
      const int begin = head * features;
      float y[kVec8] = {};
      if (b < p.batch) {
        const float* const row_h = h_at + b * gemm.columns + begin;
        float h[kMaxHeadVec8s + 1][kVec8];
        const float* addresses[kMaxHeadVec8s + 1];
        NormVec8 weight;
        weight.fetch(norm, begin + feature(of_head));
#pragma unroll
        for (int j = 0; j < kMaxHeadVec8s; ++j) addresses[j] = row_h + feature(j);  // past the last vec8, the first
        addresses[kMaxHeadVec8s] = gate_at + b * gemm.columns + begin + feature(of_head);
        spin_until_vec8s_published(addresses, h, [&](int look) {
          loop.ring.prefetch_beyond(2 * look), loop.ring.prefetch_beyond(2 * look + 1);
        });
        __syncwarp();
        gated_head(h, of_head, vec8s, gemm.norm_eps, weight, norm.dtype, y);
      }
      const int n = lane_id() + of_head * kWave, step = head * (features / kStepFeatures) + n / kStepVec8s;
      const int at = step - part.first_step;
      Sums::store(loop.x(), at, n % kStepVec8s, b, y, n < vec8s && at >= 0 && at < part.steps);
    }
  }

  // ---- mainloop and epilogue

  // Sends partial sums to the owner of the nth item of a round.
  XLSTM_DEVICE void send_sums(int parts, int part, int n, const Sums& sums) const {
    const auto sum_address = [&](int row, int b) {
      return lds_address(lds) + uint32_t(p.smem.partial_sums +
                                         ((((n >> p.cluster_bits) * parts + part) * kItemRows + row) * kRows + b) * 4);
    };
    const uint32_t owner = uint32_t(n & (blocks() - 1));
    sums.each_pair([&](int row, int b, float sum, float next_sum) {
      st_async_to_cta(owner, sum_address(row, b), sum, next_sum, received(p, lds));
    });
  }

  XLSTM_DEVICE void epilogue(Phase phase, int block, int round) const {
    const GemmParams& gemm = p.phase[int(phase)].gemm;
    const bool is_swiglu = gemm.output == Output::swiglu;
    const int bits = is_swiglu ? 3 : 4, parts = loop.part(phase).parts();
    for (int index = int(threadIdx.x); index < owned(phase, round) * p.batch << bits; index += kMegakernelThreads) {
      const int r = index & ((1 << bits) - 1), n = int(unsigned(index >> bits) / unsigned(p.batch));
      const int b = (index >> bits) - n * p.batch;
      const RowItem item = Ring::item_of(p, lds, phase, round * round_items(phase) + (n << p.cluster_bits) + rank);
      if (r >= item.rows) continue;
      const float factor = rms_factor(gemm, parts, b);
      const MegakernelWeights* const weights = p.block[block].linear + item.linear;
      const auto sum_of = [&](int linear, int row) {
        const float* const part_sums = floats(p.smem.partial_sums) + (n * parts * kItemRows + row) * kRows + b;
        const float sum = sum_of_parts(part_sums, kItemRows * kRows, parts);
        const DeviceVector& bias = weights[linear].bias;
        return bias.data ? sum * factor + value_of(bias, item.first + r) : sum * factor;
      };
      float y = sum_of(0, r);
      const int linear = item.linear - first_linear(phase), of_row = b * gemm.linear[linear].rows;
      if (is_swiglu) {
        y = swiglu(y, sum_of(1, r + kItemRows / 2));
      } else if (gemm.output == Output::add) {  // these rows of x belong to this thread block
        float& x = floats(p.smem.residual)[((round * p.phase[int(phase)].plan.owned + n) * kRows + b) * kItemRows + r];
        x = y += x;
      } else {
        y = cap_and_mask(gemm, linear, b, y);
      }
      if (phase == Phase::head)
        gemm.to[0][int64_t(of_row) + item.first + r] = y;
      else
        publish(p.of(block) + item.to + of_row + r, y);
    }
  }

  // A phase whose x is ready in shared memory, and whose first round's bytes are announced. next: the phase after it.
  XLSTM_DEVICE void run_phase(const PhaseCursor& now, const PhaseCursor& next) {
    const Phase phase = now.phase;
    const WarpPart& of = loop.part(phase);
    const int parts = of.parts(), part = rank & (parts - 1);
    int n = of.first;
    for (int round = 0;; ++round) {
      const int begin = round * round_items(phase), most = begin + round_items(phase);
      const bool is_last = most >= of.end;
      loop.run(phase, now.block, n, is_last ? of.end : most,
               [&](int item, const Sums& sums) { send_sums(parts, part, item - begin, sums); });
      received(p, lds).wait(turn++ & 1);
      epilogue(phase, now.block, round);
      if (threadIdx.x == 0 && !(is_last && next.done())) {
        if (is_last)
          expect(next.phase, 0);
        else
          expect(phase, round + 1);
      }
      if (is_last) break;
      cluster_arrive();
      cluster_wait();
    }
  }

  XLSTM_DEVICE void run() {
    loop.begin();
    load_residual();
    if (threadIdx.x == 0) expect(Phase::projections, 0);
    cluster_arrive();  // of this block: its mbarrier is ready, its bytes are announced
#pragma unroll 1
    for (PhaseCursor now; !now.done();) {  // one copy of each phase's code, so that the instruction cache holds it
      const MegakernelBlock& block = p.block[now.block];
      PhaseCursor next = now;
      next.advance(p.blocks);
      loop.prefetch_scales(next);
      if (now.phase == Phase::gate) {  // its x is that of the projections; h is on its way meanwhile
        Step(p, lds).step(now.block);  // in the memory of sums, which other blocks then write
        fence_async_proxy();
        cluster_arrive();
      } else if (now.phase == Phase::output) {
        load_gated_heads(now.block, block.head_norm);
      } else if (now.phase == Phase::down) {
        Step(p, lds).apply_pending_state(now.block);  // while u is on its way
        load_x<false, 3>(now.phase, now.block, {});
      } else {
        if (now.phase == Phase::projections) {
          loop.prefetch_norms(now.block);
          Step(p, lds).prefetch(block, Step(p, lds).first_tile());
        }
        load_x<true, 1>(now.phase, now.block, now.phase == Phase::up ? block.norm_ffn : block.norm);
      }
      __syncthreads();
      cluster_wait();
      if (sends_squares(now.phase)) send_squares(now.phase);
      run_phase(now, next);
      if (next.phase != Phase::gate) cluster_arrive();
      __syncthreads();  // no warp reads x
      now = next;
    }
    cluster_wait();
  }
};

template <class Weights, int kRows>
__global__ __launch_bounds__(kMegakernelThreads, 1) void megakernel_rows(XLSTM_PARAM MegakernelParams kernel_arg) {
  if constexpr (kHopper) {
    extern __shared__ __align__(128) char lds[];
    MegakernelRows<Weights, kRows>::prepare(kernel_arg, lds);
    __syncthreads();
    MegakernelRows<Weights, kRows>(kernel_arg, lds).run();
  }
}

}  // namespace xlstm::gpu::engine

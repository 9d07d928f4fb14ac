// SPDX-License-Identifier: Apache-2.0
// One token of each row through a whole xLSTM model on a GPU. A block of the model takes six parts, each of them one
// launch, but for the mLSTM's recurrent step, which takes two launches when it updates its state in place; on CDNA the
// step and the norm of heads are one launch (engine/gpu/heads_step.h). For up to eight rows on Hopper a megakernel runs
// the step in one launch (engine/megakernel/), and for one row on CDNA where it is asked for (engine/megakernel_cdna).
// A CUDA or HIP graph can capture any form.
#include <algorithm>
#include <vector>

#include "arch/launch.h"
#include "arch/schedule.h"
#include "base/arena.h"
#include "engine/gemm_cdna/gemm_cdna_launch.h"
#include "engine/gemm_cluster/gemm_cluster_launch.h"
#include "engine/gemm_mma/gemm_mma_launch.h"
#include "engine/gemm_mma/gemm_stream_k_launch.h"
#include "engine/gemm_mma/gemm_stream_k_shape.h"
#include "engine/gemm_row_cdna/gemm_row_cdna_launch.h"
#include "engine/gemv_any_shape.h"
#include "engine/gpu/device_linear.h"
#include "engine/gpu/heads_step.h"
#include "engine/gpu/one_token.h"
#include "engine/kernels.h"
#include "engine/megakernel/megakernel_launch.h"
#include "engine/megakernel_cdna/megakernel_cdna_launch.h"
#include "layer/gpu/kernels.h"
#include "mlstm/recurrent/recurrent_call.h"

namespace xlstm::gpu::engine {
namespace {

constexpr int kGemvBatch = 4;

// Whether CDNA's megakernel may take a call, whatever its tensors. Memory for it does not depend on the schedule.
bool may_persist(const xlstm_decode& p, const Chip& chip) {
  return p.part == XLSTM_DECODE_ALL && chip.family == Family::cdna && p.batch == 1 && p.head.data;
}

int64_t mailbox_floats(const xlstm_decode& p, const Chip& chip) {
  if (!may_persist(p, chip) && (p.part != XLSTM_DECODE_ALL || !chip.hopper || p.batch > kMegakernelRows)) return 0;
  return mailboxes_of(p.batch, p.dim, p.heads, p.dqk, p.dhv, p.ffn).floats(p.blocks);
}

// The most tiles of one of gemm_stream_k's products, which may be one more for each linear.
int64_t most_tiles(const xlstm_decode& p, const Chip& chip) {
  if (chip.family != Family::nvidia || p.batch <= most_unpacked(chip.family)) return 0;
  const int64_t projections = 2 * p.heads * (p.dqk + p.dhv + 1);
  return (std::max({projections, 2 * p.ffn, p.vocab, p.dim}) / kStreamKRows + kMaxLinears) *
         ceil_div(p.batch, kStreamKBatch[0]);
}

// The memory that products take beside their tensors.
struct ProductBytes {
  int64_t x[2], step_sums, rms_factors, partials, arrivals;

  void grow(const ProductBytes& other) {
    for (int n = 0; n < 2; ++n) x[n] = std::max(x[n], other.x[n]);
    step_sums = std::max(step_sums, other.step_sums), rms_factors = std::max(rms_factors, other.rms_factors);
    partials = std::max(partials, other.partials), arrivals = std::max(arrivals, other.arrivals);
  }
};
ProductBytes product_bytes(const GemmShape& shape, const Chip& chip) {
  const GemmCdnaPlan cdna = plan_gemm_cdna(shape, chip);
  if (cdna.batch) {
    const CdnaGemmBytes bytes = gemm_cdna_bytes(shape, cdna);
    return {{bytes.x[0], bytes.x[1]}, 0, bytes.rms_factors, bytes.partials, bytes.arrivals};
  }
  const PackedBytes bytes = packed_bytes(shape, plan_gemm_mma(shape, chip), chip);
  return {{bytes.x, bytes.x}, bytes.step_sums, bytes.rms_factors, bytes.partials, bytes.arrivals};
}
// The most of a step's products, of every format of weights.
ProductBytes most_product_bytes(const xlstm_decode& p, const Chip& chip) {
  struct Product {
    int64_t columns;
    bool swiglu, adds, gates;
    int linear_count;
    int64_t rows[kMaxLinears];
  };
  const int64_t keys = p.heads * p.dqk, values = p.heads * p.dhv;
  const Product products[] = {{p.dim, false, false, true, 6, {keys, keys, values, values, p.heads, p.heads}},
                              {values, false, true, false, 1, {p.dim}},
                              {p.dim, true, false, false, 2, {p.ffn, p.ffn}},
                              {p.ffn, false, true, false, 1, {p.dim}},
                              {p.dim, false, false, false, 1, {p.vocab}}};
  struct Format {
    int bits;
    bool converted, integers, offsets;
  };
  constexpr Format kFormats[] = {{16, false, false, false}, {16, true, false, false}, {8, true, true, false},
                                 {8, true, true, true},     {8, true, false, false},  {8, true, false, true},
                                 {4, true, true, false},    {4, true, true, true}};
  ProductBytes most{};
  for (const Format& of : kFormats)
    for (const Product& product : products)
      for (const bool gates : {false, true}) {
        if (gates && (!product.gates || of.bits == 16)) continue;
        most.grow(product_bytes({p.batch, product.columns, product.swiglu, of.bits, of.converted, product.linear_count,
                                 product.rows, product.adds, of.integers, of.offsets, gates},
                                chip));
      }
  return most;
}

// Counters of arrivals: on NVIDIA gemm_stream_k's tiles, on CDNA the heads of heads_step and the waves of blocks that
// share outputs, which both leave zeros.
int64_t arrivals(const xlstm_decode& p, const ProductBytes& most, const Chip& chip) {
  if (chip.family == Family::nvidia) return most_tiles(p, chip);
  if (chip.family != Family::cdna) return 0;
  return std::max(p.batch * p.heads * (may_persist(p, chip) ? p.blocks : 1), most.arrivals);
}

struct Memory {
  float* x;
  float* sum;  // to which products are added
  float *q, *k, *v, *o, *i, *f, *h, *up, *normed;
  float* mailboxes;  // of the megakernel
  int64_t arrived_count;
  uint32_t* arrived;
  MegakernelCdnaMemory cdna;
  PackedX packed;  // for one product at a time
  char* step;

  Memory(Arena& arena, const xlstm_decode& p, const Chip& chip, size_t step_bytes) {
    const int64_t B = p.batch, keys = p.heads * p.dqk, values = p.heads * p.dhv;
    const bool all = p.part == XLSTM_DECODE_ALL;
    x = all ? arena.take<float>(B * p.dim) : const_cast<float*>(p.x);
    sum = all ? x : p.out;
    q = arena.take<float>(B * keys), k = arena.take<float>(B * keys);
    v = arena.take<float>(B * values), o = arena.take<float>(B * values), h = arena.take<float>(B * values);
    i = arena.take<float>(B * p.heads), f = arena.take<float>(B * p.heads);
    up = arena.take<float>(B * p.ffn);
    normed = arena.take<float>(B * std::max(values, p.dim));
    mailboxes = arena.take<float>(mailbox_floats(p, chip));
    const ProductBytes most = most_product_bytes(p, chip);
    arrived_count = arrivals(p, most, chip);
    arrived = arena.take<uint32_t>(arrived_count);
    const bool persistent = may_persist(p, chip);
    cdna.product = arena.take<GemmParams>(persistent ? p.blocks * kCdnaProducts + 1 : 0);
    cdna.heads = arena.take<HeadsStepParams>(persistent ? p.blocks : 0);
    cdna.mailboxes = mailboxes;
    packed = {{arena.take<char>(most.x[0]), arena.take<char>(most.x[1])},
              arena.take<float>(most.step_sums / 4),
              arena.take<float>(most.rms_factors / 4),
              arena.take<float>(most.partials / 4),
              arrived};
    step = arena.take<char>(int64_t(step_bytes));
  }
};

xlstm_tensor tensor(float* data, int64_t heads, int64_t features) {
  return {data, XLSTM_FLOAT32, {heads * features, features, features}};
}

xlstm_mlstm_forward mlstm_of(const xlstm_decode& p, const xlstm_decode_block& block, const Memory& at) {
  xlstm_mlstm_forward step{};
  xlstm_mlstm& in = step.in;
  in.batch = p.batch, in.heads = p.heads, in.length = 1, in.dqk = p.dqk, in.dhv = p.dhv;
  in.gate = p.gate;
  in.normalize = p.normalize, in.normalizer_grad = 1;
  in.eps = p.eps;
  in.chunk_size = 1;
  in.q = tensor(at.q, p.heads, p.dqk), in.k = tensor(at.k, p.heads, p.dqk), in.v = tensor(at.v, p.heads, p.dhv);
  in.i = tensor(at.i, p.heads, 1), in.f = tensor(at.f, p.heads, 1);
  in.c_initial = step.c_last = block.c;
  in.n_initial = step.n_last = block.n;
  in.m_initial = step.m_last = block.m;
  step.h = tensor(at.h, p.heads, p.dhv);
  return step;
}

// Norms rows of x, or each head of them with a gate, into `to`.
void norm(const xlstm_decode& p, const xlstm_decode_norm& norm, const float* x, const float* gate, int64_t columns,
          float* to, const Chip& chip, Stream stream) {
  const auto floats = [&](const float* data) { return xlstm_rows{const_cast<float*>(data), XLSTM_FLOAT32, columns}; };
  const auto vector = [&](const xlstm_vector& v) { return xlstm_rows{const_cast<void*>(v.data), v.dtype, columns}; };
  xlstm_norm_forward call{};
  const int64_t heads = gate ? p.heads : 1;
  call.in.rows = p.batch, call.in.heads = heads, call.in.features = columns / heads;
  call.in.eps = p.norm_eps, call.in.centred = gate != nullptr;
  call.in.x = floats(x), call.in.gate = floats(gate);
  call.in.weight = vector(norm.weight), call.in.bias = vector(norm.bias);
  call.y = floats(to);
  layer::norm_forward(call, layer::plan_norm_forward_call(call, chip), stream);
}

GemmParams gemm_of(const xlstm_decode& p, const Memory& at, const float* x, int64_t columns) {
  GemmParams params{};
  params.packed = at.packed;
  params.batch = int(p.batch), params.columns = int(columns);
  params.x = x;
  params.norm_eps = float(p.norm_eps);
  return params;
}

// Makes the RMS norm of x the product's prologue, unless the norm has a bias, which no product's kernel applies.
void add_norm(GemmParams& params, const xlstm_decode_norm& of) {
  if (of.bias.data || !of.weight.data) return;
  params.input = Input::rms;
  params.weight = {of.weight.data, of.weight.dtype};
}

void add_linear(GemmParams& params, const xlstm_linear& w, float* to) {
  params.to[params.linear_count] = to;
  params.linear[params.linear_count++] = linear_of(w);
}

// ---- the mLSTM's step, then the norm of heads with the output gate, from h's inputs to at.normed

bool fits_heads_step(const xlstm_decode& p, const mlstm::RecurrentPlan& plan, const Chip& chip) {
  return chip.family == Family::cdna && plan.in_registers && p.dhv <= most_head_values(false);
}

HeadsStepParams heads_step_params(const xlstm_decode& p, const xlstm_decode_block& block, int64_t tiles,
                                  const Memory& at) {
  HeadsStepParams to{};
  to.step = one_token_params(p, tiles);
  to.q = at.q, to.k = at.k, to.v = at.v, to.i = at.i, to.f = at.f, to.o = at.o;
  to.c = block.c, to.n = block.n, to.m = block.m, to.h = at.h, to.y = at.normed;
  to.weight = {block.head_norm.weight.data, block.head_norm.weight.dtype};
  to.bias = {block.head_norm.bias.data, block.head_norm.bias.dtype};
  to.norm_eps = float(p.norm_eps);
  to.arrived = at.arrived;
  return to;
}

void run_heads_step(const xlstm_decode& p, const xlstm_decode_block& block, const mlstm::RecurrentPlan& plan,
                    const Memory& at, Stream stream) {
  HeadsStepParams to = heads_step_params(p, block, plan.tiles, at);
  to.step.interleaved_heads = plan.interleaved_heads;
  const auto kernel = plan.columns == 32 ? heads_step<32> : plan.columns == 16 ? heads_step<16> : heads_step<8>;
  launch("decode mLSTM step and heads", kernel, {plan.blocks, int(plan.threads), 0}, stream, to);
}

void run_heads(const xlstm_decode& p, const xlstm_decode_block& block, const Memory& at, const Chip& chip,
               Stream stream) {
  const xlstm_mlstm_forward step = mlstm_of(p, block, at);
  const mlstm::RecurrentPlan plan = mlstm::plan_recurrent_call(step, chip);
  if (fits_heads_step(p, plan, chip)) return run_heads_step(p, block, plan, at, stream);
  mlstm::recurrent(step, plan, at.step, stream);
  norm(p, block.head_norm, at.h, at.o, p.heads * p.dhv, at.normed, chip, stream);
}

// ---- one product, by the kernel for its format of weights

enum class Kernel { gemv, bfloat16, float16, int8, e4m3fn, e4m3fnuz, int4 };
constexpr Kernel kGemmKernels[] = {Kernel::int8, Kernel::e4m3fn,   Kernel::e4m3fnuz,
                                   Kernel::int4, Kernel::bfloat16, Kernel::float16};
bool is_float8(Kernel kernel) { return kernel == Kernel::e4m3fn || kernel == Kernel::e4m3fnuz; }
// The bits of a weight.
int bits_of(Kernel kernel) { return kernel == Kernel::int4 ? 4 : kernel == Kernel::int8 || is_float8(kernel) ? 8 : 16; }

Kernel kernel_of(const GemmParams& p, const DeviceLinear& w) {
  const bool fits = w.is_aligned16 && w.rows * w.row_bytes <= UINT32_MAX && w.columns % kVec8 == 0 &&
                    is_aligned16(w.scales) && is_aligned16(w.offsets) && is_aligned16(p.weight.data);
  // Matrix units multiply 16 bits of x: too few against float32 weights.
  if (!fits || w.dtype == XLSTM_FLOAT32 || (w.bits && w.group_size % kStepFeatures != 0) ||
      w.columns > kMostCdnaGemmColumns)
    return Kernel::gemv;
  if (w.code == XLSTM_CODE_E4M3FN) return Kernel::e4m3fn;
  if (w.code == XLSTM_CODE_E4M3FNUZ) return Kernel::e4m3fnuz;
  if (w.bits) return w.bits == 8 ? Kernel::int8 : Kernel::int4;
  return w.dtype == XLSTM_BFLOAT16 ? Kernel::bfloat16 : Kernel::float16;
}

// Whether a block may have rows of both linears.
bool same_format(const DeviceLinear& a, const DeviceLinear& b) {
  return a.group_size == b.group_size && a.dtype == b.dtype && !a.offsets == !b.offsets;
}

template <Input kInput, Output kOutput>
void run_gemv(const char* name, const GemmParams& params, const Chip& chip, Stream stream) {
  int64_t rows = 0;
  for (int j = 0; j < params.linear_count; ++j) rows += params.linear[j].rows;
  const int waves = kEngineThreads / wave_size(chip.family);
  const int64_t pairs = kOutput == Output::swiglu ? params.linear[0].rows : (rows + 1) / 2;
  const Grid grid{ceil_div(pairs, waves), kEngineThreads, 0};
  if (params.batch == 1)
    launch(name, gemv_kernel<kInput, kOutput, 1>, grid, stream, params);
  else
    launch(name, gemv_kernel<kInput, kOutput, kGemvBatch>, grid, stream, params);
}

// Calls f(format) for the format of a kernel's weights.
template <class F>
void with_weights(Kernel kernel, F&& f) {
  if (kernel == Kernel::bfloat16) return f(static_cast<Bfloat16Weights*>(nullptr));
  if (kernel == Kernel::float16) return f(static_cast<Float16Weights*>(nullptr));
  if (kernel == Kernel::int8) return f(static_cast<ByteWeights*>(nullptr));
  if (kernel == Kernel::e4m3fn) return f(static_cast<E4m3fnWeights*>(nullptr));
  if (kernel == Kernel::e4m3fnuz) return f(static_cast<E4m3fnuzWeights*>(nullptr));
  f(static_cast<NibbleWeights*>(nullptr));
}

// Gates that stayed bfloat16 are a launch of their own, of x as it was packed for them.
[[maybe_unused]] void run_stream_k(Kernel kernel, const char* name, const GemmMmaPlan& plan, const GemmParams& params,
                                   const Chip& chip, Stream stream) {
  launch_pack(params, bits_of(kernel), plan, chip, stream);
  with_weights(kernel, [&]<class Weights>(Weights*) { launch_gemm_stream_k<Weights>(name, plan, params, stream); });
  if (!has_gates(params, bits_of(kernel))) return;
  GemmParams of_gates = params;
  of_gates.packed.x[0] = params.packed.x[1];
  launch_gemm_stream_k<Bfloat16Weights>(name, plan_gates(plan, chip), of_gates, stream);
}

// One row of x on CDNA. Returns false if that kernel does not take the product.
bool run_gemm_row_cdna(Kernel kernel, const char* name, const GemmParams& params, const Chip& chip, Stream stream) {
  int64_t rows[kMaxLinears] = {}, gate_rows[kMaxLinears] = {};
  for (int j = 0; j < params.linear_count; ++j)
    (bits_of(kernel) == 16 || params.linear[j].bits ? rows : gate_rows)[j] = params.linear[j].rows;
  const bool swiglu = params.output == Output::swiglu;
  const GemmShape shape{
      params.batch, params.columns, swiglu, bits_of(kernel), kernel != Kernel::bfloat16, params.linear_count, rows};
  const GemmShape gates{params.batch, params.columns, false, 16, false, params.linear_count, gate_rows};
  const GemmRowCdnaPlan plan = plan_gemm_row_cdna(shape, gates, chip);
  if (!plan.blocks) return false;
  with_weights(kernel, [&]<class Weights>(Weights*) { launch_gemm_row_cdna<Weights>(name, plan, params, stream); });
  return true;
}

void run_gemm(Kernel kernel, const char* name, const GemmParams& params, bool all_linears, const Chip& chip,
              Stream stream) {
  int64_t rows[kMaxLinears];
  for (int j = 0; j < params.linear_count; ++j) rows[j] = params.linear[j].rows;
  const bool converted = kernel != Kernel::bfloat16;
  const bool integers = kernel == Kernel::int8 || kernel == Kernel::int4;
  const bool offsets = std::any_of(params.linear, params.linear + params.linear_count,
                                   [](const DeviceLinear& w) { return w.rows > 0 && w.offsets; });
  const GemmShape shape{params.batch,
                        params.columns,
                        params.output == Output::swiglu,
                        bits_of(kernel),
                        converted,
                        params.linear_count,
                        rows,
                        params.output == Output::add,
                        integers,
                        offsets,
                        has_gates(params, bits_of(kernel)),
                        all_linears};
  if constexpr (kHasHopperKernels) {
    // Clusters multiply integers.
    const ClusterPlan plan = plan_cluster(shape, !is_float8(kernel) && suits_clusters(params), chip);
    if (plan.batch) {
      if (kernel == Kernel::int8) return launch_gemm_cluster<ByteWeights>(name, plan, params, stream);
      if (kernel == Kernel::bfloat16) return launch_gemm_cluster<Bfloat16Weights>(name, plan, params, stream);
      return launch_gemm_cluster<NibbleWeights>(name, plan, params, stream);
    }
  }
  if constexpr (!kHasHopperKernels) {
    if (run_gemm_row_cdna(kernel, name, params, chip, stream)) return;
    const GemmCdnaPlan plan = plan_gemm_cdna(shape, chip);
    if (plan.batch) {
      launch_pack_cdna(shape, plan, params, stream);
      return with_weights(kernel,
                          [&]<class Weights>(Weights*) { launch_gemm_cdna<Weights>(name, plan, params, stream); });
    }
  }
  const GemmMmaPlan plan = plan_gemm_mma(shape, chip);
  if constexpr (kHasHopperKernels)
    if (plan.packed) return run_stream_k(kernel, name, plan, params, chip, stream);
  with_weights(kernel, [&]<class Weights>(Weights*) { launch_gemm_mma<Weights>(name, plan, params, stream); });
}

// Whether a kernel also takes linears of another format: kernels for quantised q, k, v and o take gates that stayed
// bfloat16.
bool accepts(Kernel kernel, Kernel other, Output output) {
  const bool groups = bits_of(kernel) < 16 && kernel != Kernel::gemv;
  return kernel == other || (groups && other == Kernel::bfloat16 && output == Output::store);
}

// Linears of one kernel share a launch; in that launch all the rest have no rows.
template <Input kInput, Output kOutput>
void run(const char* name, const GemmParams& all_linears, const Chip& chip, Stream stream) {
  GemmParams params = all_linears;
  params.input = kInput, params.output = kOutput;
  Kernel of[kMaxLinears];
  for (int j = 0; j < params.linear_count; ++j) of[j] = kernel_of(params, params.linear[j]);
  if (kOutput == Output::swiglu && (of[0] != of[1] || !same_format(params.linear[0], params.linear[1])))
    of[0] = of[1] = Kernel::gemv;
  bool left[kMaxLinears];
  for (int j = 0; j < params.linear_count; ++j) left[j] = true;
  bool all = true;                          // of the linears are selected
  const auto select = [&](Kernel kernel) {  // returns whether any linear has rows
    const bool is_used = std::any_of(of, of + params.linear_count, [&](Kernel other) { return other == kernel; });
    int64_t rows = 0;
    all = true;
    for (int j = 0; j < params.linear_count; ++j) {
      const bool selected = is_used && left[j] && accepts(kernel, of[j], kOutput);
      left[j] = left[j] && !selected;
      params.linear[j].rows = selected ? all_linears.linear[j].rows : 0;
      rows += params.linear[j].rows;
      all = all && selected;
    }
    return rows > 0;
  };
  for (const Kernel kernel : kGemmKernels)
    if (select(kernel)) run_gemm(kernel, name, params, all, chip, stream);
  if (select(Kernel::gemv)) run_gemv<kInput, kOutput>(name, params, chip, stream);
}

// A product of an RMS norm of x. The product's kernel applies the norm in its prologue, unless the norm has a bias.
template <Output kOutput>
void run_normed(const char* name, const xlstm_decode& p, const xlstm_decode_norm& of, GemmParams product,
                const Memory& at, const Chip& chip, Stream stream) {
  if (of.bias.data) {
    norm(p, of, product.x, nullptr, product.columns, at.normed, chip, stream);
    product.x = at.normed;
  }
  if (product.input == Input::plain) return run<Input::plain, kOutput>(name, product, chip, stream);
  run<Input::rms, kOutput>(name, product, chip, stream);
}

// ---- the products of a step

BlockGemms gemms_of(const xlstm_decode& p, const xlstm_decode_block& block, const Memory& at) {
  BlockGemms of{gemm_of(p, at, at.x, p.dim), gemm_of(p, at, at.h, p.heads * p.dhv), gemm_of(p, at, at.x, p.dim),
                gemm_of(p, at, at.up, p.ffn)};
  const xlstm_linear* const weights[kMaxLinears] = {&block.q, &block.k, &block.v, &block.o, &block.i, &block.f};
  float* const to[kMaxLinears] = {at.q, at.k, at.v, at.o, at.i, at.f};
  for (int j = 0; j < kMaxLinears; ++j) add_linear(of.projections, *weights[j], to[j]);
  of.projections.cap = float(p.gate_cap);
  of.projections.keep = p.keep;
  add_norm(of.projections, block.norm_mlstm);
  add_linear(of.output, block.out, at.sum);
  of.output.output = Output::add;
  add_linear(of.up, block.gate, at.up);
  add_linear(of.up, block.up, at.up);
  of.up.output = Output::swiglu;
  add_norm(of.up, block.norm_ffn);
  add_linear(of.down, block.down, at.sum);
  of.down.output = Output::add;
  return of;
}

GemmParams head_of(const xlstm_decode& p, const Memory& at) {
  GemmParams of = gemm_of(p, at, at.x, p.dim);
  add_linear(of, p.head, p.out);
  of.cap = float(p.output_cap);
  of.cap_all = true;
  add_norm(of, p.out_norm);
  return of;
}

void run_embed(const EmbedParams& p, Stream stream) {
  const int64_t threads = std::max({p.batch * p.dim, ceil_div(p.mailbox_floats, 4), p.arrived_count});
  if (threads == 0) return;
  launch("decode embedding", embed_kernel<0>, {ceil_div(threads, kEngineThreads), kEngineThreads, 0}, stream, p);
}

// ---- the megakernel: a step in one launch

bool same_kind(const GemmParams& a, const GemmParams& b) {
  for (int j = 0; j < a.linear_count; ++j) {
    const DeviceLinear &v = a.linear[j], &w = b.linear[j];
    if (v.bits != w.bits || !same_format(v, w)) return false;
  }
  return true;
}

// Whether the megakernel for this format takes this product, whose prologue must be `input`.
bool suits_megakernel(const GemmParams& p, Kernel kernel, Input input) {
  if (p.input != input || (kernel != Kernel::bfloat16 && !suits_clusters(p))) return false;
  if (p.output == Output::swiglu && !same_format(p.linear[0], p.linear[1])) return false;
  return std::all_of(p.linear, p.linear + p.linear_count, [&](const DeviceLinear& w) {
    const Kernel linear_kernel = kernel_of(p, w);
    return linear_kernel == kernel ? same_format(w, p.linear[0]) : accepts(kernel, linear_kernel, p.output);
  });
}

// Returns false if the megakernel does not take this model.
[[maybe_unused]] bool run_megakernel(const xlstm_decode& p, const EmbedParams& table, const Memory& at,
                                     const Chip& chip, Stream stream) {
  if (!chip.hopper || p.batch > kMegakernelRows || !p.head.data || asked_schedule() == Schedule::launches) return false;
  std::vector<BlockGemms> products;
  for (int64_t n = 0; n < p.blocks; ++n) products.push_back(gemms_of(p, p.block[n], at));
  const BlockGemms& first = products[0];
  const GemmParams head = head_of(p, at);
  const Kernel kernel = kernel_of(first.projections, first.projections.linear[0]);
  bool suits = (kernel == Kernel::int8 || kernel == Kernel::int4 || kernel == Kernel::bfloat16) &&
               suits_megakernel(head, kernel, Input::rms);
  for (int64_t n = 0; n < p.blocks; ++n) {
    const BlockGemms& block_gemms = products[size_t(n)];
    suits = suits && !p.block[n].head_norm.bias.data && is_aligned16(p.block[n].head_norm.weight.data) &&
            is_aligned16(p.block[n].c) && is_aligned16(p.block[n].n) &&
            suits_megakernel(block_gemms.projections, kernel, Input::rms) &&
            suits_megakernel(block_gemms.output, kernel, Input::plain) &&
            suits_megakernel(block_gemms.up, kernel, Input::rms) &&
            suits_megakernel(block_gemms.down, kernel, Input::plain) &&
            same_kind(block_gemms.projections, first.projections) && same_kind(block_gemms.output, first.output) &&
            same_kind(block_gemms.up, first.up) && same_kind(block_gemms.down, first.down);
  }
  const auto phase = [](const GemmParams& of, Phase p) { return PhaseShape{of.columns, phase_items(of, p).total()}; };
  const MegakernelPlan plan =
      plan_megakernel({p.batch,
                       p.blocks,
                       p.heads,
                       p.dqk,
                       p.dhv,
                       bits_of(kernel),
                       suits,
                       {phase(first.projections, Phase::projections), phase(first.projections, Phase::gate),
                        phase(first.output, Phase::output), phase(first.up, Phase::up), phase(first.down, Phase::down),
                        phase(head, Phase::head)}},
                      chip);
  const auto with_format = [&](auto&& f) {
    if (kernel == Kernel::int8) return f(static_cast<ByteWeights*>(nullptr));
    if (kernel == Kernel::int4) return f(static_cast<NibbleWeights*>(nullptr));
    return f(static_cast<Bfloat16Weights*>(nullptr));
  };
  if (!plan.blocks || !with_format([&]<class Weights>(Weights*) { return fits_megakernel<Weights>(plan); }))
    return false;
  EmbedParams embed = table;
  embed.x = at.mailboxes, embed.mailboxes = at.mailboxes + plan.mailboxes.x;
  embed.mailbox_floats = plan.mailboxes.floats(p.blocks) - plan.mailboxes.x;
  run_embed(embed, stream);
  const MegakernelCall call{p, products.data(), head, reinterpret_cast<float*>(at.step), at.mailboxes};
  with_format([&]<class Weights>(Weights*) { launch_megakernel<Weights>(plan, call, stream); });
  return true;
}

// ---- CDNA's

// Whether two products differ in pointers alone.
bool same_records(const GemmParams& a, const GemmParams& b) {
  for (int j = 0; j < a.linear_count; ++j) {
    const DeviceLinear &v = a.linear[j], &w = b.linear[j];
    if (v.rows != w.rows || v.row_bytes != w.row_bytes || v.code != w.code || v.bias.dtype != w.bias.dtype)
      return false;
  }
  return a.weight.dtype == b.weight.dtype && same_kind(a, b);
}

// Whether the megakernel for this format takes a product: of quantised projections, gates may be bfloat16.
bool suits_megakernel_cdna(const GemmParams& p, Kernel kernel, Input input) {
  if (p.input != input || (p.output == Output::swiglu && !same_format(p.linear[0], p.linear[1]))) return false;
  for (int j = 0; j < p.linear_count; ++j) {
    const Kernel linear_kernel = kernel_of(p, p.linear[j]);
    if (linear_kernel != kernel && !(j >= kFirstGate && accepts(kernel, linear_kernel, p.output))) return false;
  }
  return true;
}

bool suits_megakernel_cdna(const xlstm_decode& p, const std::vector<BlockGemms>& products, const GemmParams& head,
                           Kernel kernel) {
  const BlockGemms& first = products[0];
  const auto suits = [&](const GemmParams& of, Input input) { return suits_megakernel_cdna(of, kernel, input); };
  for (int64_t n = 0; n < p.blocks; ++n) {
    const BlockGemms& of = products[size_t(n)];
    const bool fits = is_aligned16(p.block[n].c) && is_aligned16(p.block[n].n) && suits(of.projections, Input::rms) &&
                      suits(of.output, Input::plain) && suits(of.up, Input::rms) && suits(of.down, Input::plain) &&
                      p.block[n].head_norm.weight.dtype == p.block[0].head_norm.weight.dtype &&
                      p.block[n].head_norm.bias.dtype == p.block[0].head_norm.bias.dtype &&
                      same_records(of.projections, first.projections) && same_records(of.output, first.output) &&
                      same_records(of.up, first.up) && same_records(of.down, first.down);
    if (!fits) return false;
  }
  return kernel != Kernel::gemv && p.dhv <= most_head_values(true) && suits(head, Input::rms);
}

// Returns false if the megakernel does not take this model.
bool run_megakernel_cdna(const xlstm_decode& p, const EmbedParams& table, const Memory& at, const Chip& chip,
                         Stream stream) {
  if (asked_schedule() != Schedule::persistent || !may_persist(p, chip)) return false;
  std::vector<BlockGemms> products;
  for (int64_t n = 0; n < p.blocks; ++n) products.push_back(gemms_of(p, p.block[n], at));
  const BlockGemms& first = products[0];
  const GemmParams head = head_of(p, at);
  const Kernel kernel = kernel_of(first.projections, first.projections.linear[0]);
  int64_t rows[kCdnaProducts + 2][kMaxLinears] = {};
  int n = 0;
  const auto shape = [&](const GemmParams& of, Kernel weights) {  // of the linears of this format
    for (int j = 0; j < of.linear_count; ++j)
      if (kernel_of(of, of.linear[j]) == weights) rows[n][j] = of.linear[j].rows;
    const bool converted = weights != Kernel::bfloat16;
    return GemmShape{1,        of.columns, of.output == Output::swiglu, bits_of(weights), converted, of.linear_count,
                     rows[n++]};
  };
  GemmShape gates{1, p.dim, false, 16, false, 0, nullptr};
  if (has_gates(first.projections, bits_of(kernel))) gates = shape(first.projections, Kernel::bfloat16);
  const MegakernelCdnaPlan plan =
      plan_megakernel_cdna({suits_megakernel_cdna(p, products, head, kernel),
                            p.heads,
                            p.dqk,
                            p.dhv,
                            {shape(first.projections, kernel), shape(first.output, kernel), shape(first.up, kernel),
                             shape(first.down, kernel), shape(head, kernel)},
                            gates},
                           chip);
  if (!plan.blocks) return false;
  const Mailboxes layout = mailboxes_of(1, p.dim, p.heads, p.dqk, p.dhv, p.ffn);
  EmbedParams embed = table;
  embed.x = at.mailboxes, embed.mailboxes = at.mailboxes + layout.x;
  embed.mailbox_floats = layout.floats(p.blocks) - layout.x;
  run_embed(embed, stream);
  const HeadsStepParams heads = heads_step_params(p, p.block[0], ceil_div(p.dhv, kCdnaStepColumns), at);
  const MegakernelCdnaStep step{p, products.data(), head, heads, layout, at.cdna};
  with_weights(kernel, [&]<class Weights>(Weights*) { launch_megakernel_cdna<Weights>(plan, step, stream); });
  return true;
}

}  // namespace

size_t decode_workspace(const xlstm_decode& p, const Chip& chip) {
  Arena without_step(nullptr), arena(nullptr);
  const xlstm_mlstm_forward step = mlstm_of(p, p.block[0], Memory(without_step, p, chip, 0));
  const Memory counted(arena, p, chip, mlstm::recurrent_workspace(step));
  return arena.used();
}

void decode_step(const xlstm_decode& p, const Chip& chip, void* workspace, void* stream_pointer) {
  const Stream stream = static_cast<Stream>(stream_pointer);
  Arena counter(nullptr);
  const size_t step_bytes = mlstm::recurrent_workspace(mlstm_of(p, p.block[0], Memory(counter, p, chip, 0)));
  Arena arena(workspace);
  const Memory at(arena, p, chip, step_bytes);
  const int64_t floats = p.batch * p.dim;
  EmbedParams table{};
  table.batch = int(p.batch), table.dim = p.dim, table.vocab = p.vocab, table.tokens = p.tokens;
  table.table = {p.embedding.data, p.embedding.dtype};
  table.x = at.x;
  table.arrived = at.arrived, table.arrived_count = at.arrived_count;
  const bool all = p.part == XLSTM_DECODE_ALL;
  if constexpr (kHasHopperKernels)
    if (all && run_megakernel(p, table, at, chip, stream)) return;
  if (run_megakernel_cdna(p, table, at, chip, stream)) return;
  if (!all) table.batch = 0;  // leaves the counters
  run_embed(table, stream);
  for (int64_t n = 0; n < p.blocks; ++n) {
    const xlstm_decode_block& block = p.block[n];
    BlockGemms of = gemms_of(p, block, at);
    if (all || p.part == XLSTM_DECODE_MLSTM) {
      run_normed<Output::store>("decode projections", p, block.norm_mlstm, of.projections, at, chip, stream);
      run_heads(p, block, at, chip, stream);
      of.output.x = at.normed;
      run<Input::plain, Output::add>("decode output", of.output, chip, stream);
    }
    if (all || p.part == XLSTM_DECODE_FFN) {
      run_normed<Output::swiglu>("decode up", p, block.norm_ffn, of.up, at, chip, stream);
      run<Input::plain, Output::add>("decode down", of.down, chip, stream);
    }
  }
  if (!all && p.part != XLSTM_DECODE_HEAD) return;
  if (p.head.data) {
    run_normed<Output::store>("decode head", p, p.out_norm, head_of(p, at), at, chip, stream);
  } else if (p.out_norm.weight.data) {
    norm(p, p.out_norm, at.x, nullptr, p.dim, p.out, chip, stream);
  } else {
    launch("decode output", copy_output_kernel<0>, {ceil_div(floats, kEngineThreads), kEngineThreads, 0}, stream, at.x,
           p.out, floats);
  }
}

}  // namespace xlstm::gpu::engine

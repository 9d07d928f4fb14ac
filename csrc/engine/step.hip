// SPDX-License-Identifier: Apache-2.0
// One token of each row through a whole xLSTM on a GPU: of a block six parts, each a launch but the mLSTM's step, which
// in place is two; or, of one row on Hopper, all of it as one. All can be captured in a graph.
#include <algorithm>
#include <vector>

#include "arch/launch.h"
#include "base/arena.h"
#include "engine/gemv_any_shape.h"
#include "engine/kernels.h"
#include "engine/launches.h"
#include "layer/gpu/kernels.h"
#include "mlstm/gpu/kernels.h"

namespace xlstm::gpu::engine {
namespace {

constexpr int kBatchAtOnce = 4;

int64_t passed_floats(const xlstm_decode& p, const Chip& chip) {
  if (!chip.hopper || p.batch != 1) return 0;
  return passed_of(p.dim, p.heads, p.dqk, p.dhv, p.ffn).floats(p.blocks);
}

struct Memory {
  float *x, *q, *k, *v, *o, *i, *f, *h, *up, *normed;
  float* passed;  // of a whole step in one launch
  char* step;

  Memory(Arena& arena, const xlstm_decode& p, const Chip& chip, size_t step_bytes) {
    const int64_t B = p.batch, keys = p.heads * p.dqk, values = p.heads * p.dhv;
    x = arena.take<float>(B * p.dim);
    q = arena.take<float>(B * keys), k = arena.take<float>(B * keys);
    v = arena.take<float>(B * values), o = arena.take<float>(B * values), h = arena.take<float>(B * values);
    i = arena.take<float>(B * p.heads), f = arena.take<float>(B * p.heads);
    up = arena.take<float>(B * p.ffn);
    normed = arena.take<float>(B * std::max(values, p.dim));
    passed = arena.take<float>(passed_floats(p, chip));
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

bool at_pieces(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

DeviceLinear linear_of(const xlstm_linear& w) {
  DeviceLinear d{};
  d.data = w.data, d.scales = w.scales, d.offsets = w.offsets;
  d.bias = {w.bias.data, w.bias.dtype};
  d.rows = int(w.rows), d.columns = int(w.columns), d.bits = w.bits, d.dtype = w.dtype;
  d.group_size = int(w.group_size);
  d.groups = w.bits ? int(ceil_div(w.columns, w.group_size)) : 0;
  d.row_bytes = w.bits ? int64_t(d.groups) * w.group_size * w.bits / 8 : w.columns * (w.dtype == XLSTM_FLOAT32 ? 4 : 2);
  d.whole = d.row_bytes % 16 == 0 && at_pieces(w.data);
  return d;
}

// A norm of rows of x, or of each head of them with a gate, into `to`.
void norm(const xlstm_decode& p, const xlstm_decode_norm& norm, const float* x, const float* gate, int64_t columns,
          float* to, const Chip& chip, Stream stream) {
  const auto floats = [&](const float* data) { return xlstm_rows{const_cast<float*>(data), XLSTM_FLOAT32, columns}; };
  const auto vector = [&](const xlstm_vector& v) { return xlstm_rows{const_cast<void*>(v.data), v.dtype, columns}; };
  xlstm_norm_forward call{};
  const int64_t heads = gate ? p.heads : 1;
  call.in = {p.batch, heads, columns / heads, p.norm_eps, gate != nullptr};
  call.in.x = floats(x), call.in.gate = floats(gate);
  call.in.weight = vector(norm.weight), call.in.bias = vector(norm.bias);
  call.y = floats(to);
  layer::norm_forward(call, chip, stream);
}

ProductParams product_of(const xlstm_decode& p, const float* x, int64_t columns) {
  ProductParams params{};
  params.batch = int(p.batch), params.columns = int(columns);
  params.x = x;
  params.norm_eps = float(p.norm_eps);
  return params;
}

// Of what an RMS norm makes of x. The products' own kernels know no bias.
void add_norm(ProductParams& params, const xlstm_decode_norm& of) {
  if (of.bias.data || !of.weight.data) return;
  params.input = Input::rms;
  params.weight = {of.weight.data, of.weight.dtype};
}

void add_piece(ProductParams& params, const xlstm_linear& w, float* to) {
  params.to[params.pieces] = to;
  params.linear[params.pieces++] = linear_of(w);
}

// ---- a product by the kernel for its weights

enum class Kernel { vectors, bfloat16, float16, int8, int4 };
constexpr Kernel kMatrixKernels[] = {Kernel::int8, Kernel::int4, Kernel::bfloat16, Kernel::float16};

Kernel kernel_of(const ProductParams& p, const DeviceLinear& w) {
  const bool fits = w.whole && w.rows * w.row_bytes <= UINT32_MAX && w.columns % kEight == 0 && at_pieces(w.scales) &&
                    at_pieces(w.offsets) && at_pieces(p.weight.data);
  // Matrix units see 16 bits of x: too few beside float32.
  if (!fits || w.dtype == XLSTM_FLOAT32 || (w.bits && w.group_size % kStepFeatures != 0)) return Kernel::vectors;
  if (w.bits) return w.bits == 8 ? Kernel::int8 : Kernel::int4;
  return w.dtype == XLSTM_BFLOAT16 ? Kernel::bfloat16 : Kernel::float16;
}

// Whether blocks may have rows of both.
bool alike(const DeviceLinear& a, const DeviceLinear& b) {
  return a.group_size == b.group_size && a.dtype == b.dtype && !a.offsets == !b.offsets;
}

template <Input kInput, Output kOutput>
void run_vectors(const char* name, const ProductParams& params, const Chip& chip, Stream stream) {
  int64_t rows = 0;
  for (int j = 0; j < params.pieces; ++j) rows += params.linear[j].rows;
  const int waves = kProductThreads / wave_size(chip.family);
  const int64_t pairs = kOutput == Output::swiglu ? params.linear[0].rows : (rows + 1) / 2;
  const Grid grid{ceil_div(pairs, waves), kProductThreads, 0};
  if (params.batch == 1)
    launch(name, products<kInput, kOutput, 1>, grid, stream, params);
  else
    launch(name, products<kInput, kOutput, kBatchAtOnce>, grid, stream, params);
}

void run_matrix(Kernel kernel, const char* name, const ProductParams& params, const Chip& chip, Stream stream) {
  int64_t rows[kMostPieces];
  for (int j = 0; j < params.pieces; ++j) rows[j] = params.linear[j].rows;
  const bool converted = kernel != Kernel::bfloat16;
  const int bits = kernel == Kernel::int4 ? 4 : kernel == Kernel::int8 ? 8 : 16;
  const ProductShape shape{
      params.batch, params.columns, params.output == Output::swiglu, bits, converted, params.pieces, rows};
  if constexpr (kHasHopperKernels) {
    const ClusterPlan plan = plan_cluster(shape, suits_clusters(params), chip);
    if (plan.batch) {
      if (kernel == Kernel::int8) return launch_cluster<ByteWeights>(name, plan, params, stream);
      if (kernel == Kernel::bfloat16) return launch_cluster<Bfloat16Weights>(name, plan, params, stream);
      return launch_cluster<NibbleWeights>(name, plan, params, stream);
    }
  }
  const MatrixPlan plan = plan_matrix(shape, chip);
  if (kernel == Kernel::bfloat16) return launch_matrix<Bfloat16Weights>(name, plan, params, stream);
  if (kernel == Kernel::float16) return launch_matrix<Float16Weights>(name, plan, params, stream);
  if (kernel == Kernel::int8) return launch_matrix<ByteWeights>(name, plan, params, stream);
  launch_matrix<NibbleWeights>(name, plan, params, stream);
}

// Whether a kernel multiplies weights that have another of their own: gates that stayed bfloat16 beside q, k, v and o.
bool takes(Kernel kernel, Kernel other, Output output) {
  const bool groups = kernel == Kernel::int8 || kernel == Kernel::int4;
  return kernel == other || (groups && other == Kernel::bfloat16 && output == Output::store);
}

// Pieces of one kernel are one launch: the others are then pieces without rows.
template <Input kInput, Output kOutput>
void run(const char* name, const ProductParams& given, const Chip& chip, Stream stream) {
  ProductParams params = given;
  params.input = kInput, params.output = kOutput;
  Kernel of[kMostPieces];
  for (int j = 0; j < params.pieces; ++j) of[j] = kernel_of(params, params.linear[j]);
  if (kOutput == Output::swiglu && (of[0] != of[1] || !alike(params.linear[0], params.linear[1])))
    of[0] = of[1] = Kernel::vectors;
  bool left[kMostPieces];
  for (int j = 0; j < params.pieces; ++j) left[j] = true;
  const auto only = [&](Kernel kernel) {  // and whether there is any
    const bool own = std::any_of(of, of + params.pieces, [&](Kernel other) { return other == kernel; });
    int64_t rows = 0;
    for (int j = 0; j < params.pieces; ++j) {
      const bool takes_it = own && left[j] && takes(kernel, of[j], kOutput);
      left[j] = left[j] && !takes_it;
      params.linear[j].rows = takes_it ? given.linear[j].rows : 0;
      rows += params.linear[j].rows;
    }
    return rows > 0;
  };
  for (const Kernel kernel : kMatrixKernels)
    if (only(kernel)) run_matrix(kernel, name, params, chip, stream);
  if (only(Kernel::vectors)) run_vectors<kInput, kOutput>(name, params, chip, stream);
}

// Of what an RMS norm makes of x: by the product's own kernel, which knows no bias.
template <Output kOutput>
void run_normed(const char* name, const xlstm_decode& p, const xlstm_decode_norm& of, ProductParams product,
                const Memory& at, const Chip& chip, Stream stream) {
  if (of.bias.data) {
    norm(p, of, product.x, nullptr, product.columns, at.normed, chip, stream);
    product.x = at.normed;
  }
  if (product.input == Input::plain) return run<Input::plain, kOutput>(name, product, chip, stream);
  run<Input::rms, kOutput>(name, product, chip, stream);
}

// ---- what a step multiplies

BlockProducts products_of(const xlstm_decode& p, const xlstm_decode_block& block, const Memory& at) {
  BlockProducts of{product_of(p, at.x, p.dim), product_of(p, at.h, p.heads * p.dhv), product_of(p, at.x, p.dim),
                   product_of(p, at.up, p.ffn)};
  const xlstm_linear* const weights[kMostPieces] = {&block.q, &block.k, &block.v, &block.o, &block.i, &block.f};
  float* const to[kMostPieces] = {at.q, at.k, at.v, at.o, at.i, at.f};
  for (int j = 0; j < kMostPieces; ++j) add_piece(of.projections, *weights[j], to[j]);
  of.projections.cap = float(p.gate_cap);
  of.projections.keep = p.keep;
  add_norm(of.projections, block.norm_mlstm);
  add_piece(of.output, block.out, at.x);
  of.output.output = Output::add;
  add_piece(of.up, block.gate, at.up);
  add_piece(of.up, block.up, at.up);
  of.up.output = Output::swiglu;
  add_norm(of.up, block.norm_ffn);
  add_piece(of.down, block.down, at.x);
  of.down.output = Output::add;
  return of;
}

ProductParams head_of(const xlstm_decode& p, const Memory& at) {
  ProductParams of = product_of(p, at.x, p.dim);
  add_piece(of, p.head, p.out);
  of.cap = float(p.output_cap);
  of.cap_all = true;
  add_norm(of, p.out_norm);
  return of;
}

void run_embed(const EmbedParams& p, Stream stream) {
  const int64_t threads = std::max(p.batch * p.dim, ceil_div(p.absent_floats, 4));
  launch("decode embedding", embed<0>, {ceil_div(threads, kProductThreads), kProductThreads, 0}, stream, p);
}

// ---- all of it in one launch

bool same_kind(const ProductParams& a, const ProductParams& b) {
  for (int j = 0; j < a.pieces; ++j) {
    const DeviceLinear &v = a.linear[j], &w = b.linear[j];
    if (v.bits != w.bits || !alike(v, w)) return false;
  }
  return true;
}

// Whether the kernel for these weights takes a product's, which a norm stands before or not.
bool suits_whole(const ProductParams& p, Kernel kernel, Input input) {
  if (p.input != input || (kernel != Kernel::bfloat16 && !suits_clusters(p))) return false;
  if (p.output == Output::swiglu && !alike(p.linear[0], p.linear[1])) return false;
  return std::all_of(p.linear, p.linear + p.pieces, [&](const DeviceLinear& w) {
    const Kernel own = kernel_of(p, w);
    return own == kernel ? alike(w, p.linear[0]) : takes(kernel, own, p.output);
  });
}

// False where it is not for one launch.
[[maybe_unused]] bool run_whole(const xlstm_decode& p, const EmbedParams& table, const Memory& at, const Chip& chip,
                                Stream stream) {
  if (!chip.hopper || p.batch != 1 || !p.head.data) return false;
  std::vector<BlockProducts> products;
  for (int64_t n = 0; n < p.blocks; ++n) products.push_back(products_of(p, p.block[n], at));
  const BlockProducts& first = products[0];
  const ProductParams head = head_of(p, at);
  const Kernel kernel = kernel_of(first.projections, first.projections.linear[0]);
  bool suits = (kernel == Kernel::int8 || kernel == Kernel::int4 || kernel == Kernel::bfloat16) &&
               suits_whole(head, kernel, Input::rms);
  for (int64_t n = 0; n < p.blocks; ++n) {
    const BlockProducts& own = products[size_t(n)];
    suits = suits && !p.block[n].head_norm.bias.data && at_pieces(p.block[n].head_norm.weight.data) &&
            at_pieces(p.block[n].c) && at_pieces(p.block[n].n) && suits_whole(own.projections, kernel, Input::rms) &&
            suits_whole(own.output, kernel, Input::plain) && suits_whole(own.up, kernel, Input::rms) &&
            suits_whole(own.down, kernel, Input::plain) && same_kind(own.projections, first.projections) &&
            same_kind(own.output, first.output) && same_kind(own.up, first.up) && same_kind(own.down, first.down);
  }
  const int bits = kernel == Kernel::int4 ? 4 : kernel == Kernel::int8 ? 8 : 16;
  const auto phase = [](const ProductParams& of, Phase p) { return PhaseShape{of.columns, whole_items(of, p).all()}; };
  const WholePlan plan =
      plan_whole({p.batch,
                  p.blocks,
                  p.heads,
                  p.dqk,
                  p.dhv,
                  bits,
                  suits,
                  {phase(first.projections, Phase::projections), phase(first.projections, Phase::gate),
                   phase(first.output, Phase::output), phase(first.up, Phase::up), phase(first.down, Phase::down),
                   phase(head, Phase::head)}},
                 chip);
  if (!plan.blocks) return false;
  EmbedParams passed = table;
  passed.x = at.passed, passed.absent = at.passed + plan.passed.x;
  passed.absent_floats = plan.passed.floats(p.blocks) - plan.passed.x;
  run_embed(passed, stream);
  const WholeCall call{p, products.data(), head, reinterpret_cast<float*>(at.step), at.passed};
  if (kernel == Kernel::int8)
    launch_whole<ByteWeights>(plan, call, stream);
  else if (kernel == Kernel::int4)
    launch_whole<NibbleWeights>(plan, call, stream);
  else
    launch_whole<Bfloat16Weights>(plan, call, stream);
  return true;
}

}  // namespace

size_t decode_workspace(const xlstm_decode& p, const Chip& chip) {
  Arena without_step(nullptr), arena(nullptr);
  const xlstm_mlstm_forward step = mlstm_of(p, p.block[0], Memory(without_step, p, chip, 0));
  const Memory counted(arena, p, chip, mlstm::recurrent_workspace(step, chip));
  return arena.used();
}

void decode_step(const xlstm_decode& p, const Chip& chip, void* workspace, void* stream_pointer) {
  const Stream stream = static_cast<Stream>(stream_pointer);
  Arena counter(nullptr);
  const size_t step_bytes = mlstm::recurrent_workspace(mlstm_of(p, p.block[0], Memory(counter, p, chip, 0)), chip);
  Arena arena(workspace);
  const Memory at(arena, p, chip, step_bytes);
  const int64_t values = p.heads * p.dhv, floats = p.batch * p.dim;
  const EmbedParams table{int(p.batch), p.dim,   p.vocab, p.tokens, {p.embedding.data, p.embedding.dtype},
                          at.x,         nullptr, 0};
  if constexpr (kHasHopperKernels)
    if (run_whole(p, table, at, chip, stream)) return;
  run_embed(table, stream);
  for (int64_t n = 0; n < p.blocks; ++n) {
    const xlstm_decode_block& block = p.block[n];
    BlockProducts of = products_of(p, block, at);
    run_normed<Output::store>("decode projections", p, block.norm_mlstm, of.projections, at, chip, stream);
    mlstm::recurrent(mlstm_of(p, block, at), chip, at.step, stream_pointer);
    norm(p, block.head_norm, at.h, at.o, values, at.normed, chip, stream);
    of.output.x = at.normed;
    run<Input::plain, Output::add>("decode output", of.output, chip, stream);
    run_normed<Output::swiglu>("decode up", p, block.norm_ffn, of.up, at, chip, stream);
    run<Input::plain, Output::add>("decode down", of.down, chip, stream);
  }
  if (p.head.data) {
    run_normed<Output::store>("decode head", p, p.out_norm, head_of(p, at), at, chip, stream);
  } else if (p.out_norm.weight.data) {
    norm(p, p.out_norm, at.x, nullptr, p.dim, p.out, chip, stream);
  } else {
    launch("decode output", hand_over<0>, {ceil_div(floats, kProductThreads), kProductThreads, 0}, stream, at.x, p.out,
           floats);
  }
}

}  // namespace xlstm::gpu::engine

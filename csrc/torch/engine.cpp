// SPDX-License-Identifier: Apache-2.0
// The decode and sampling ops: they turn a model's tensors into params and call the C API. Weights are read in the
// model's memory, so that the next call sees a parameter that has changed in place or moved.
#include <vector>

#include "torch/quantised_weight.h"

namespace xlstm::torch_ops {
namespace {

constexpr int64_t kSlotsOfLinear = 4, kSlotsOfNorm = 2;
constexpr int64_t kSlotsOfBlock = 3 * kSlotsOfNorm + 10 * kSlotsOfLinear;
constexpr int64_t kOtherSlots = 1 + kSlotsOfNorm + kSlotsOfLinear;

int64_t element_size(xlstm_dtype dtype) { return dtype == XLSTM_FLOAT32 ? 4 : 2; }

// Takes the model's tensors in the order of `weight_index`, a list of indices into the tensors. A norm is weight, bias.
// A linear layer is weight (or quantised weight), scales, offsets, bias. A block is its norms before the mLSTM, of the
// heads and before the feed-forward, then q, k, v, o, i, f, out, gate, up, down. After the blocks come the embedding,
// the last norm and the head. Where k, v and o are absent, q holds the fused projection of all four; likewise i holds i
// and f, and gate holds gate and up.
class Weights {
 public:
  Weights(const std::vector<Tensor>& tensors, const Tensor& weight_index, const Tensor& tokens)
      : tensors_(tensors), tokens_(tokens) {
    STD_TORCH_CHECK(weight_index.is_cpu() && weight_index.dim() == 1 && weight_index.is_contiguous() &&
                        weight_index.scalar_type() == ScalarType::Long,
                    "weight_index: expected a contiguous int64 vector on the CPU");
    next_ = static_cast<const int64_t*>(weight_index.data_ptr());
    count_ = weight_index.numel();
    STD_TORCH_CHECK(count_ > kOtherSlots && (count_ - kOtherSlots) % kSlotsOfBlock == 0, "weight_index: expected ",
                    kSlotsOfBlock, " for each block and ", kOtherSlots, ", got ", count_);
    for (int64_t j = 0; j < count_; ++j)
      STD_TORCH_CHECK(next_[j] >= -1 && next_[j] < int64_t(tensors.size()), "weight_index: expected -1 to ",
                      tensors.size() - 1, ", got ", next_[j]);
  }
  int64_t blocks() const { return (count_ - kOtherSlots) / kSlotsOfBlock; }

  const Tensor* take() {
    const int64_t index = *next_++;
    if (index < 0) return nullptr;
    const Tensor& x = tensors_[size_t(index)];
    check_device("weights", x, tokens_);
    STD_TORCH_CHECK(x.is_contiguous(), "weights: expected contiguous tensors");
    return &x;
  }
  xlstm_vector vector(const char* name, int64_t size) {
    const Tensor* x = take();
    if (!x) return {nullptr, XLSTM_FLOAT32};
    STD_TORCH_CHECK(x->numel() == size, name, ": expected ", size, " elements, got ", x->numel());
    return {x->data_ptr(), dtype_of(name, *x)};
  }
  xlstm_decode_norm norm(const char* name, int64_t size) {
    const xlstm_vector weight = vector(name, size);
    return {weight, vector(name, size)};
  }
  xlstm_linear linear(const char* name, int64_t columns) {
    const Tensor *data = take(), *scales = take(), *offsets = take();
    xlstm_linear w{};
    w.columns = columns;
    if (!data) {
      ++next_;  // skips the bias, which is absent too
      return w;
    }
    if (scales) {
      w = quantised_weight(name, *data, *scales, offsets, columns);
    } else {
      STD_TORCH_CHECK(data->dim() == 2, name, ": expected a matrix");
      w.rows = data->size(0);
      w.data = data->data_ptr();
      check_shape(name, *data, {w.rows, columns});
      w.dtype = dtype_of(name, *data);
    }
    w.bias = vector(name, w.rows);
    return w;
  }

 private:
  const std::vector<Tensor>& tensors_;
  const Tensor& tokens_;
  const int64_t* next_;
  int64_t count_;
};

// Rows [begin, begin + rows) of w.
xlstm_linear rows_of(const xlstm_linear& w, int64_t begin, int64_t rows) {
  const auto advance = [](const void* p, int64_t bytes) { return p ? static_cast<const char*>(p) + bytes : nullptr; };
  xlstm_linear part = w;
  part.rows = rows;
  const int64_t groups = w.bits ? (w.columns + w.group_size - 1) / w.group_size : 0;
  const int64_t row_bytes = w.bits ? groups * w.group_size * w.bits / 8 : w.columns * element_size(w.dtype);
  part.data = advance(w.data, begin * row_bytes);
  part.scales = advance(w.scales, begin * groups * element_size(w.dtype));
  part.offsets = advance(w.offsets, begin * groups * element_size(w.dtype));
  part.bias.data = advance(w.bias.data, begin * element_size(w.bias.dtype));
  return part;
}

// Splits a fused linear layer: where all parts but the first are absent, the first holds the rows of all parts.
void split(const char* name, std::initializer_list<xlstm_linear*> parts, std::initializer_list<int64_t> rows) {
  const xlstm_linear fused = **parts.begin();
  int64_t missing = 0, total = 0;
  for (const xlstm_linear* w : parts) missing += !w->data;
  if (!missing) return;
  for (int64_t r : rows) total += r;
  STD_TORCH_CHECK(missing == int64_t(parts.size()) - 1 && fused.data && fused.rows == total, name, ": expected ", total,
                  " rows, got ", fused.rows);
  int64_t begin = 0;
  const int64_t* count = rows.begin();
  for (xlstm_linear* w : parts) {
    *w = rows_of(fused, begin, *count);
    begin += *count++;
  }
}

float* floats(const char* name, const Tensor& x, const Tensor& tokens, std::initializer_list<int64_t> shape) {
  check_shape(name, x, shape);
  check_device(name, x, tokens);
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float && x.is_contiguous(), name,
                  ": expected a contiguous float32 tensor");
  return static_cast<float*>(x.data_ptr());
}

// Takes the weights of block n from `weights`, and its states.
xlstm_decode_block block_of(Weights& weights, const xlstm_decode& p, const std::vector<Tensor>& states, int64_t n,
                            const Tensor& tokens) {
  const int64_t keys = p.heads * p.dqk, values = p.heads * p.dhv;
  xlstm_decode_block b{};
  b.norm_mlstm = weights.norm("norm_mlstm", p.dim);
  b.head_norm = weights.norm("head_norm", values);
  b.norm_ffn = weights.norm("norm_ffn", p.dim);
  for (xlstm_linear* w : {&b.q, &b.k, &b.v, &b.o, &b.i, &b.f}) *w = weights.linear("projections", p.dim);
  b.out = weights.linear("out", values);
  b.gate = weights.linear("gate", p.dim);
  b.up = weights.linear("up", p.dim);
  split("q, k, v, o", {&b.q, &b.k, &b.v, &b.o}, {keys, keys, values, values});
  split("i, f", {&b.i, &b.f}, {p.heads, p.heads});
  const int64_t ffn = b.up.data ? b.gate.rows : b.gate.rows / 2;
  split("gate, up", {&b.gate, &b.up}, {ffn, ffn});
  b.down = weights.linear("down", ffn);
  b.c = floats("c", states[size_t(3 * n)], tokens, {p.batch, p.heads, p.dqk, p.dhv});
  b.n = floats("n", states[size_t(3 * n + 1)], tokens, {p.batch, p.heads, p.dqk});
  b.m = floats("m", states[size_t(3 * n + 2)], tokens, {p.batch, p.heads, 1});
  return b;
}

// Decodes from `first`, tokens (B) or the x (B, D) of a part.
void decode(xlstm_decode p, const Tensor& out, const Tensor& first, const OptionalTensor& keep,
            const std::vector<Tensor>& tensors, const Tensor& weight_index, const std::vector<Tensor>& states,
            int64_t heads, double norm_eps, double eps, double gate_cap, double output_cap) {
  Weights weights(tensors, weight_index, first);
  p.batch = first.size(0);
  if (keep) {
    check_shape("keep", *keep, {p.batch});
    check_device("keep", *keep, first);
    STD_TORCH_CHECK(keep->scalar_type() == ScalarType::Bool && keep->is_contiguous(),
                    "keep: expected a contiguous bool vector");
    p.keep = static_cast<const uint8_t*>(keep->data_ptr());
  }
  p.heads = heads;
  p.blocks = weights.blocks();
  STD_TORCH_CHECK(int64_t(states.size()) == 3 * p.blocks, "states: expected c, n, m of ", p.blocks, " blocks, got ",
                  states.size(), " tensors");
  STD_TORCH_CHECK(states[0].dim() == 4, "states: expected c of shape (B, NH, DHQK, DHHV)");
  p.dqk = states[0].size(2);
  p.dhv = states[0].size(3);
  const int64_t index = static_cast<const int64_t*>(weight_index.data_ptr())[weight_index.numel() - kOtherSlots];
  STD_TORCH_CHECK(index >= 0, "weight_index: expected one of an embedding, got ", index);
  const Tensor& embedding = tensors[size_t(index)];
  STD_TORCH_CHECK(embedding.dim() == 2, "weights: expected an embedding (V, D)");
  p.vocab = embedding.size(0);
  p.dim = embedding.size(1);
  std::vector<xlstm_decode_block> blocks;
  for (int64_t n = 0; n < p.blocks; ++n) blocks.push_back(block_of(weights, p, states, n, first));
  p.ffn = blocks[0].gate.rows;
  p.block = blocks.data();
  p.embedding = weights.vector("embedding", p.vocab * p.dim);
  p.out_norm = weights.norm("out_norm", p.dim);
  p.head = weights.linear("head", p.dim);
  p.gate = XLSTM_GATE_EXP;
  p.normalize = 1;
  p.norm_eps = norm_eps;
  p.eps = eps;
  p.gate_cap = gate_cap;
  p.output_cap = output_cap;
  const bool adds = p.part == XLSTM_DECODE_MLSTM || p.part == XLSTM_DECODE_FFN;
  p.out = floats("out", out, first, {p.batch, p.head.data && !adds ? p.head.rows : p.dim});
  if (p.part != XLSTM_DECODE_ALL) p.x = floats("x", first, first, {p.batch, p.dim});
  constexpr Call<xlstm_decode> kDecode = {xlstm_decode_step, xlstm_gpu_decode_step};
  run(first, p, kDecode);
}

void decode_step_(const Tensor& out, const Tensor& tokens, const OptionalTensor& keep,
                  const std::vector<Tensor>& tensors, const Tensor& weight_index, const std::vector<Tensor>& states,
                  int64_t heads, double norm_eps, double eps, double gate_cap, double output_cap) {
  STD_TORCH_CHECK(tokens.dim() == 1 && tokens.scalar_type() == ScalarType::Long && tokens.is_contiguous(),
                  "tokens: expected a contiguous int64 vector");
  xlstm_decode p{};
  p.tokens = static_cast<const int64_t*>(tokens.data_ptr());
  decode(p, out, tokens, keep, tensors, weight_index, states, heads, norm_eps, eps, gate_cap, output_cap);
}

void decode_part_(const Tensor& out, const Tensor& x, const OptionalTensor& keep, const std::vector<Tensor>& tensors,
                  const Tensor& weight_index, const std::vector<Tensor>& states, int64_t part, int64_t heads,
                  double norm_eps, double eps, double gate_cap, double output_cap) {
  STD_TORCH_CHECK(x.dim() == 2, "x: expected a matrix (B, D)");
  STD_TORCH_CHECK(part >= XLSTM_DECODE_MLSTM && part <= XLSTM_DECODE_HEAD, "part: expected ", int(XLSTM_DECODE_MLSTM),
                  " to ", int(XLSTM_DECODE_HEAD), ", got ", part);
  xlstm_decode p{};
  p.part = static_cast<xlstm_decode_part>(part);
  decode(p, out, x, keep, tensors, weight_index, states, heads, norm_eps, eps, gate_cap, output_cap);
}

template <class T>
T* elements(const char* name, const OptionalTensor& x, const Tensor& logits, ScalarType dtype,
            std::initializer_list<int64_t> shape) {
  if (!x) return nullptr;
  check_shape(name, *x, shape);
  check_device(name, *x, logits);
  STD_TORCH_CHECK(x->scalar_type() == dtype && x->is_contiguous(), name, ": expected a contiguous tensor of ",
                  dtype == ScalarType::Long ? "int64" : "bool");
  return static_cast<T*>(x->data_ptr());
}

void draw_tokens_(const Tensor& tokens, const Tensor& logits, const OptionalTensor& seeds,
                  const OptionalTensor& numbers, const OptionalTensor& seen, const OptionalTensor& going,
                  const OptionalTensor& ends, const OptionalTensor& weights, int64_t pad, double temperature,
                  int64_t top_k, double top_p, double repetition_penalty) {
  STD_TORCH_CHECK(logits.dim() == 2 && logits.scalar_type() == ScalarType::Float && logits.is_contiguous(),
                  "logits: expected a contiguous float32 matrix");
  xlstm_draw p{};
  p.batch = logits.size(0);
  p.vocab = logits.size(1);
  p.logits = static_cast<const float*>(logits.data_ptr());
  p.temperature = temperature, p.top_k = top_k, p.top_p = top_p, p.repetition_penalty = repetition_penalty;
  p.seeds = elements<int64_t>("seeds", seeds, logits, ScalarType::Long, {p.batch});
  p.numbers = elements<int64_t>("numbers", numbers, logits, ScalarType::Long, {p.batch});
  p.weights = elements<int64_t>("weights", weights, logits, ScalarType::Long, {p.batch, p.vocab});
  p.seen = elements<uint8_t>("seen", seen, logits, ScalarType::Bool, {p.batch, p.vocab});
  p.going = elements<uint8_t>("going", going, logits, ScalarType::Bool, {p.batch});
  p.ends_count = ends ? ends->numel() : 0;
  p.ends = elements<int64_t>("ends", ends, logits, ScalarType::Long, {p.ends_count});
  p.pad = pad;
  p.tokens = elements<int64_t>("tokens", tokens, logits, ScalarType::Long, {p.batch});
  constexpr Call<xlstm_draw> kDraw = {xlstm_draw_tokens, xlstm_gpu_draw_tokens};
  run(logits, p, kDraw);
}

void implement(Library& m) {
  m.impl("decode_step_", TORCH_BOX(&decode_step_));
  m.impl("decode_part_", TORCH_BOX(&decode_part_));
  m.impl("draw_tokens_", TORCH_BOX(&draw_tokens_));
}

}  // namespace
}  // namespace xlstm::torch_ops

XLSTM_OPS_IMPL_ON_DEVICES(xlstm::torch_ops::implement)

// SPDX-License-Identifier: Apache-2.0
#include "api/check_values.h"
#include "api/checks.h"
#include "engine/sampling/sampling.h"

namespace xlstm {
namespace {

// The name of a tensor in an error message. The text is put together only when there is an error.
struct Name {
  const char* tensor;
  int64_t block = -1;  // of the model's blocks
  const char* part = "";

  [[noreturn]] void expected(const std::string& requirement) const {
    invalid((block < 0 ? "" : "block " + std::to_string(block) + " ") + tensor + part + ": expected " + requirement);
  }
};

void has_float_dtype(const Name& name, xlstm_dtype dtype) {
  if (dtype != XLSTM_FLOAT32 && dtype != XLSTM_BFLOAT16 && dtype != XLSTM_FLOAT16)
    name.expected("float32, bfloat16 or float16, got dtype " + std::to_string(int(dtype)));
}

void check(const Name& name, const xlstm_vector& x, bool needed) {
  if (needed && !x.data) name.expected("data, got NULL");
  if (x.data) has_float_dtype(name, x.dtype);
}

void check(const Name& name, const xlstm_decode_norm& norm) {
  check({name.tensor, name.block, " weight"}, norm.weight, true);
  check({name.tensor, name.block, " bias"}, norm.bias, false);
}

void check(const Name& name, const xlstm_linear& w, int64_t rows, int64_t columns) {
  if (!w.data) name.expected("data, got NULL");
  if (w.rows != rows || w.columns != columns)
    name.expected("shape (" + std::to_string(rows) + ", " + std::to_string(columns) + "), got (" +
                  std::to_string(w.rows) + ", " + std::to_string(w.columns) + ")");
  has_float_dtype(name, w.dtype);
  check({name.tensor, name.block, " bias"}, w.bias, false);
  if (w.code != XLSTM_CODE_INTEGER) {
    if (w.code != XLSTM_CODE_E4M3FN && w.code != XLSTM_CODE_E4M3FNUZ)
      name.expected("code integer, E4M3FN or E4M3FNUZ (0 to 2), got " + std::to_string(int(w.code)));
    if (w.bits != 8) name.expected("bits 8 with a code of floats, got " + std::to_string(w.bits));
    if (w.offsets) name.expected("no offsets with a code of floats");
  }
  if (w.bits == 0) return;
  if (w.bits != 8 && w.bits != 4) name.expected("bits 0, 4 or 8, got " + std::to_string(w.bits));
  if (w.group_size != 32 && w.group_size != 64 && w.group_size != 128)
    name.expected("group_size 32, 64 or 128, got " + std::to_string(w.group_size));
  if (!w.scales) name.expected("scales, got NULL");
}

}  // namespace

void check_decode(const xlstm_decode& p, bool on_host) {
  at_least("batch", p.batch, 1);
  at_least("dim", p.dim, 1);
  at_least("heads", p.heads, 1);
  at_least("dqk", p.dqk, 1);
  at_least("dhv", p.dhv, 1);
  at_least("ffn", p.ffn, 1);
  at_least("vocab", p.vocab, 1);
  at_least("blocks", p.blocks, 1);
  not_negative("norm_eps", p.norm_eps);
  not_negative("eps", p.eps);
  not_negative("gate_cap", p.gate_cap);
  not_negative("output_cap", p.output_cap);
  is_gate(p.gate, p.normalize);
  in_range("part", p.part, XLSTM_DECODE_ALL, XLSTM_DECODE_HEAD);
  const bool all = p.part == XLSTM_DECODE_ALL;
  if (!all) in_range("blocks of a part", p.blocks, 1, 1);
  if (!(all ? p.tokens != nullptr : p.x != nullptr) || !p.block || !p.out)
    invalid(all ? "tokens, block, out: expected data, got NULL" : "x, block, out: expected data, got NULL");
  check({"embedding"}, p.embedding, true);
  const int64_t keys = p.heads * p.dqk, values = p.heads * p.dhv;
  for (int64_t n = 0; n < p.blocks; ++n) {
    const xlstm_decode_block& b = p.block[n];
    check({"norm_mlstm", n}, b.norm_mlstm);
    check({"head_norm", n}, b.head_norm);
    check({"norm_ffn", n}, b.norm_ffn);
    check({"q", n}, b.q, keys, p.dim);
    check({"k", n}, b.k, keys, p.dim);
    check({"v", n}, b.v, values, p.dim);
    check({"o", n}, b.o, values, p.dim);
    check({"i", n}, b.i, p.heads, p.dim);
    check({"f", n}, b.f, p.heads, p.dim);
    check({"out", n}, b.out, p.dim, values);
    check({"gate", n}, b.gate, p.ffn, p.dim);
    check({"up", n}, b.up, p.ffn, p.dim);
    check({"down", n}, b.down, p.dim, p.ffn);
    if (!b.c || !b.n || !b.m) Name{"c, n, m", n}.expected("data, got NULL");
  }
  if (p.out_norm.weight.data) check({"out_norm"}, p.out_norm);
  if (p.head.data) check({"head"}, p.head, p.head.rows, p.dim);
  for (int64_t b = 0; all && on_host && b < p.batch; ++b) in_range("tokens", p.tokens[b], 0, p.vocab - 1);
}

void check_linear_forward(const xlstm_linear_forward& p, bool on_host) {
  at_least("rows", p.rows, 1);
  at_least("weight rows", p.weight.rows, 1);
  at_least("weight columns", p.weight.columns, 1);
  check({"weight"}, p.weight, p.weight.rows, p.weight.columns);
  if (!p.weight.bits) invalid("weight: expected bits 4 or 8, got 0");
  has_data("x", p.x.data);
  has_float_dtype({"x"}, p.x.dtype);
  if (!on_host && p.x.dtype != XLSTM_BFLOAT16)
    expected("x", "bfloat16 on a GPU", "dtype " + std::to_string(int(p.x.dtype)));
  has_dtype("y", p.y, p.x.dtype);
}

void check_draw(const xlstm_draw& p, bool) {
  at_least("batch", p.batch, 1);
  in_range("vocab", p.vocab, 1, kMaxVocabulary);
  in_range("ends_count", p.ends_count, 0, kMaxEnds);
  in_range("top_k", p.top_k, 0, INT64_MAX);
  not_negative("temperature", p.temperature);
  above_zero("top_p", p.top_p);
  if (p.top_p > 1) invalid("top_p: expected at most 1, got " + std::to_string(p.top_p));
  above_zero("repetition_penalty", p.repetition_penalty);
  if (!p.logits || !p.tokens) invalid("logits, tokens: expected data, got NULL");
  if (p.temperature == 0 && (p.seeds || p.numbers || p.weights || p.top_k || p.top_p < 1))
    invalid(
        "temperature: expected above 0 with seeds, numbers, weights, top_k or top_p, which greedy decoding does not "
        "use");
  if (p.temperature > 0 && (!p.seeds || !p.numbers)) invalid("seeds, numbers: expected data, got NULL");
  if (!p.seen != (p.repetition_penalty == 1)) invalid("seen: expected with a repetition_penalty, and only with one");
  if (!p.going != !p.ends || !p.ends != (p.ends_count == 0)) invalid("going, ends: expected both, or neither");
}

}  // namespace xlstm

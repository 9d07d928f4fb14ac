// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <stdexcept>
#include <string>

#include "api/layer.h"
#include "layer/dtypes.h"

namespace xlstm {
namespace {

[[noreturn]] void invalid(const std::string& what) { throw std::invalid_argument(what); }

void not_negative(const char* name, int64_t value) {
  if (value < 0) invalid(std::string(name) + ": expected >= 0, got " + std::to_string(value));
}

void has_data(const char* name, const xlstm_rows& x, bool on_host) {
  if (!x.data) invalid(std::string(name) + ": expected data, got NULL");
  if (x.dtype < XLSTM_FLOAT32 || x.dtype > XLSTM_FLOAT64)
    invalid(std::string(name) + ": expected a dtype of xlstm_dtype, got " + std::to_string(int(x.dtype)));
  if (!on_host && x.dtype == XLSTM_FLOAT64)
    invalid(std::string(name) + ": expected float32, bfloat16 or float16 on a GPU, got float64");
}

void has_dtype(const char* name, const xlstm_rows& x, xlstm_dtype dtype, bool on_host) {
  has_data(name, x, on_host);
  if (x.dtype != dtype)
    invalid(std::string(name) + ": expected dtype " + std::to_string(int(dtype)) + ", got " +
            std::to_string(int(x.dtype)));
}

void check(const xlstm_norm& in, bool on_host) {
  not_negative("rows", in.rows);
  if (in.heads < 1) invalid("heads: expected >= 1, got " + std::to_string(in.heads));
  if (in.features < 1) invalid("features: expected >= 1, got " + std::to_string(in.features));
  if (!(in.eps >= 0) || std::isinf(in.eps))
    invalid("eps: expected a finite number >= 0, got " + std::to_string(in.eps));
  has_data("x", in.x, on_host);
  if (in.residual.data) has_data("residual", in.residual, on_host);
  if (in.weight.data) has_data("weight", in.weight, on_host);
  if (in.bias.data) has_data("bias", in.bias, on_host);
  if (in.bias.data && !in.weight.data) invalid("bias: needs weight");
  if (in.gate.data) has_data("gate", in.gate, on_host);
}

void check_cap(double cap) {
  if (!(cap > 0) || std::isinf(cap)) invalid("cap: expected a finite number > 0, got " + std::to_string(cap));
}

void check(const xlstm_cross_entropy& p, bool on_host) {
  not_negative("rows", p.rows);
  if (p.classes < 1) invalid("classes: expected >= 1, got " + std::to_string(p.classes));
  if (p.cap != 0) check_cap(p.cap);
  has_data("logits", p.logits, on_host);
  if (!p.targets) invalid("targets: expected data, got NULL");
  if (p.targets_bytes != 8 && p.targets_bytes != 1)
    invalid("targets_bytes: expected 8 (int64) or 1 (uint8), got " + std::to_string(p.targets_bytes));
  if (!p.exps) invalid("exps: expected data, got NULL");
  for (int64_t r = 0; on_host && r < p.rows; ++r) {
    const int64_t target = class_of(p, r);
    if (target != p.ignore_index && (target < 0 || target >= p.classes))
      invalid("targets: expected 0 to " + std::to_string(p.classes - 1) + " or ignore_index, got " +
              std::to_string(target) + " at row " + std::to_string(r));
  }
}

}  // namespace

void check_norm_forward(const xlstm_norm_forward& p, bool on_host) {
  check(p.in, on_host);
  const NormDtypes dtypes = dtypes_of(p.in);
  if (p.in.residual.data) has_dtype("sum", p.sum, dtypes.sum, on_host);
  has_dtype("y", p.y, dtypes.y, on_host);
}

void check_norm_backward(const xlstm_norm_backward& p, bool on_host) {
  check(p.in, on_host);
  if (p.in.residual.data) invalid("residual: expected none in backward, where x is the sum");
  has_dtype("dy", p.dy, dtypes_of(p.in).y, on_host);
  if (p.dsum.data) has_dtype("dsum", p.dsum, p.in.x.dtype, on_host);
  has_dtype("dx", p.dx, p.in.x.dtype, on_host);
  if (p.in.gate.data) has_dtype("dgate", p.dgate, p.in.gate.dtype, on_host);
  if (p.dweight.data && !p.in.weight.data) invalid("dweight: needs weight");
  if (p.dbias.data && !p.in.bias.data) invalid("dbias: needs bias");
  if (p.dweight.data) has_dtype("dweight", p.dweight, p.in.weight.dtype, on_host);
  if (p.dbias.data) has_dtype("dbias", p.dbias, p.in.bias.dtype, on_host);
}

void check_soft_cap_forward(const xlstm_soft_cap& p, bool on_host) {
  not_negative("rows", p.rows);
  not_negative("features", p.features);
  check_cap(p.cap);
  has_data("x", p.x, on_host);
  has_dtype("y", p.y, p.x.dtype, on_host);
}

void check_soft_cap_backward(const xlstm_soft_cap& p, bool on_host) {
  not_negative("rows", p.rows);
  not_negative("features", p.features);
  check_cap(p.cap);
  has_data("x", p.x, on_host);
  has_dtype("dy", p.dy, p.x.dtype, on_host);
  has_dtype("dx", p.dx, p.x.dtype, on_host);
}

void check_swiglu_forward(const xlstm_swiglu& p, bool on_host) {
  not_negative("rows", p.rows);
  not_negative("features", p.features);
  has_data("gate", p.gate, on_host);
  has_data("up", p.up, on_host);
  has_dtype("y", p.y, promoted(p.gate.dtype, p.up.dtype), on_host);
}

void check_swiglu_backward(const xlstm_swiglu& p, bool on_host) {
  not_negative("rows", p.rows);
  not_negative("features", p.features);
  has_data("gate", p.gate, on_host);
  has_data("up", p.up, on_host);
  has_dtype("dy", p.dy, promoted(p.gate.dtype, p.up.dtype), on_host);
  has_dtype("dgate", p.dgate, p.gate.dtype, on_host);
  has_dtype("dup", p.dup, p.up.dtype, on_host);
}

void check_cross_entropy_forward(const xlstm_cross_entropy& p, bool on_host) {
  check(p, on_host);
  if (!p.loss) invalid("loss: expected data, got NULL");
}

void check_cross_entropy_backward(const xlstm_cross_entropy& p, bool on_host) {
  check(p, on_host);
  if (!p.dloss) invalid("dloss: expected data, got NULL");
  has_dtype("dlogits", p.dlogits, p.logits.dtype, on_host);
}

}  // namespace xlstm

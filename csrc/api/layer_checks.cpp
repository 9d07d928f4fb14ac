// SPDX-License-Identifier: Apache-2.0
#include "api/check_values.h"
#include "api/checks.h"
#include "layer/dtypes.h"

namespace xlstm {
namespace {

void is_rows(const char* name, const xlstm_rows& x, bool on_host) {
  has_dtype(name, x);
  if (!on_host && x.dtype == XLSTM_FLOAT64) expected(name, "float32, bfloat16 or float16 on a GPU", "float64");
}

void is_rows(const char* name, const xlstm_rows& x, xlstm_dtype dtype, bool on_host) {
  is_rows(name, x, on_host);
  has_dtype(name, x, dtype);
}

// A norm's result, and its gradient: of the promoted dtype, or a two-byte one, to which float32 is rounded once more.
void is_result(const char* name, const xlstm_rows& y, xlstm_dtype promoted, bool on_host) {
  const bool two_byte = y.dtype == XLSTM_BFLOAT16 || y.dtype == XLSTM_FLOAT16;
  is_rows(name, y, two_byte && promoted == XLSTM_FLOAT32 ? y.dtype : promoted, on_host);
}

void check(const xlstm_norm& in, bool on_host) {
  at_least("rows", in.rows, 0);
  at_least("heads", in.heads, 1);
  at_least("features", in.features, 1);
  not_negative("eps", in.eps);
  is_rows("x", in.x, on_host);
  if (in.residual.data) is_rows("residual", in.residual, on_host);
  if (in.weight.data) is_rows("weight", in.weight, on_host);
  if (in.bias.data) is_rows("bias", in.bias, on_host);
  if (in.bias.data && !in.weight.data) invalid("bias: needs weight");
  if (in.gate.data) is_rows("gate", in.gate, on_host);
}

void check(const xlstm_cross_entropy& p, bool on_host) {
  at_least("rows", p.rows, 0);
  at_least("classes", p.classes, 1);
  if (p.cap != 0) above_zero("cap", p.cap);
  is_rows("logits", p.logits, on_host);
  has_data("targets", p.targets);
  if (p.targets_bytes != 8 && p.targets_bytes != 1)
    invalid("targets_bytes: expected 8 (int64) or 1 (uint8), got " + std::to_string(p.targets_bytes));
  has_data("exps", p.exps);
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
  if (p.in.residual.data) is_rows("sum", p.sum, dtypes.sum, on_host);
  is_result("y", p.y, dtypes.y, on_host);
}

void check_norm_backward(const xlstm_norm_backward& p, bool on_host) {
  check(p.in, on_host);
  if (p.in.residual.data) invalid("residual: expected none in backward, where x is the sum");
  is_result("dy", p.dy, dtypes_of(p.in).y, on_host);
  if (p.dsum.data) is_rows("dsum", p.dsum, p.in.x.dtype, on_host);
  is_rows("dx", p.dx, p.in.x.dtype, on_host);
  if (p.in.gate.data) is_rows("dgate", p.dgate, p.in.gate.dtype, on_host);
  if (p.dweight.data && !p.in.weight.data) invalid("dweight: needs weight");
  if (p.dbias.data && !p.in.bias.data) invalid("dbias: needs bias");
  if (p.dweight.data) is_rows("dweight", p.dweight, p.in.weight.dtype, on_host);
  if (p.dbias.data) is_rows("dbias", p.dbias, p.in.bias.dtype, on_host);
}

void check_soft_cap_forward(const xlstm_soft_cap& p, bool on_host) {
  at_least("rows", p.rows, 0);
  at_least("features", p.features, 0);
  above_zero("cap", p.cap);
  is_rows("x", p.x, on_host);
  is_rows("y", p.y, p.x.dtype, on_host);
}

void check_soft_cap_backward(const xlstm_soft_cap& p, bool on_host) {
  at_least("rows", p.rows, 0);
  at_least("features", p.features, 0);
  above_zero("cap", p.cap);
  is_rows("x", p.x, on_host);
  is_rows("dy", p.dy, p.x.dtype, on_host);
  is_rows("dx", p.dx, p.x.dtype, on_host);
}

void check_swiglu_forward(const xlstm_swiglu& p, bool on_host) {
  at_least("rows", p.rows, 0);
  at_least("features", p.features, 0);
  is_rows("gate", p.gate, on_host);
  is_rows("up", p.up, on_host);
  is_rows("y", p.y, promoted(p.gate.dtype, p.up.dtype), on_host);
}

void check_swiglu_backward(const xlstm_swiglu& p, bool on_host) {
  at_least("rows", p.rows, 0);
  at_least("features", p.features, 0);
  is_rows("gate", p.gate, on_host);
  is_rows("up", p.up, on_host);
  is_rows("dy", p.dy, promoted(p.gate.dtype, p.up.dtype), on_host);
  is_rows("dgate", p.dgate, p.gate.dtype, on_host);
  is_rows("dup", p.dup, p.up.dtype, on_host);
}

void check_cross_entropy_forward(const xlstm_cross_entropy& p, bool on_host) {
  check(p, on_host);
  has_data("loss", p.loss);
}

void check_cross_entropy_backward(const xlstm_cross_entropy& p, bool on_host) {
  check(p, on_host);
  has_data("dloss", p.dloss);
  is_rows("dlogits", p.dlogits, p.logits.dtype, on_host);
}

}  // namespace xlstm

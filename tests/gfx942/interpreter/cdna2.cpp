// SPDX-License-Identifier: Apache-2.0
// What gfx90a has and its successors have not, but products of matrices: multiply-adds that round the product, too.
// They take denormals for 0 and leave 0 for them, whatever MODE says; compilers use them to divide integers.
#include "operations.h"

namespace gfx942 {
namespace {

struct MultiplyAdd {
  float operator()(float a, float b, float c) const { return flushed(flushed(flushed(a) * flushed(b)) + flushed(c)); }
};

}  // namespace

void add_cdna2(Table& t) {
  t["v_mad_f32"] = vector_op(MultiplyAdd{});
  t["v_madmk_f32"] = t["v_madak_f32"] = t["v_mad_f32"];  // the constant stands where it belongs
  t["v_mac_f32"] = accumulate_op(MultiplyAdd{});
}

}  // namespace gfx942

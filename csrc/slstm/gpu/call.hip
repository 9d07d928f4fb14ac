// SPDX-License-Identifier: Apache-2.0
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "slstm/gpu/call.h"
#include "slstm/gpu/params.h"

namespace xlstm::gpu::slstm {
namespace {

int element_bytes(const xlstm_slstm& in) { return in.dtype == XLSTM_FLOAT32 ? 4 : 2; }
int64_t sequences_of(const xlstm_slstm& in) { return in.cu_seqlens ? in.sequences : in.batch; }

// A lane loads and stores vectors of up to 8 units and 16 bytes.
struct Named {
  const char* name;
  const void* data;
};
void check_layout(const xlstm_slstm& in, std::initializer_list<Named> tensors) {
  if (in.units % 8 != 0)
    throw std::invalid_argument("units: expected a multiple of 8 on a GPU, got " + std::to_string(in.units));
  for (const Named& x : tensors)
    if (reinterpret_cast<uintptr_t>(x.data) % 16 != 0)
      throw std::invalid_argument(std::string(x.name) + ": expected an address that is a multiple of 16 on a GPU");
}

CellShape shape_of(const xlstm_slstm& in, const CellPlan& plan) {
  return {in.cu_seqlens, sequences_of(in), int(in.length), int(in.heads),
          int(in.units), plan.padded,      plan.rows,      in.cell};
}

const float* floats(const void* x) { return static_cast<const float*>(x); }
float* floats(void* x) { return static_cast<float*>(x); }

template <class Call>
void with_element(xlstm_dtype dtype, Call&& call) {
  if (dtype == XLSTM_BFLOAT16)
    call(BFloat16{});
  else if (dtype == XLSTM_FLOAT16)
    call(Float16{});
  else
    call(float{});
}

}  // namespace

CellPlan plan_call(const xlstm_slstm_forward& p, const Chip& chip) {
  return plan_cell(sequences_of(p.in), p.in.heads, p.in.length, p.in.units, element_bytes(p.in), false, chip);
}
CellPlan plan_call(const xlstm_slstm_backward& p, const Chip& chip) {
  return plan_cell(sequences_of(p.in), p.in.heads, p.in.length, p.in.units, element_bytes(p.in), true, chip);
}

size_t workspace(const CellPlan& plan) { return size_t(plan.carried) * sizeof(float); }

void forward(const xlstm_slstm_forward& call, const CellPlan& plan, void* workspace, void* stream) {
  const xlstm_slstm& in = call.in;
  check_layout(in, {{"recurrent", in.recurrent},
                    {"x", call.x},
                    {"bias", call.bias},
                    {"h_initial", in.h_initial},
                    {"c_initial", in.c_initial},
                    {"n_initial", in.n_initial},
                    {"m_initial", in.m_initial},
                    {"h", call.h},
                    {"gates", call.gates},
                    {"memory", call.memory},
                    {"m", call.m},
                    {"h_last", call.h_last},
                    {"c_last", call.c_last},
                    {"n_last", call.n_last},
                    {"m_last", call.m_last}});
  for (const int64_t stride : call.x_stride)
    if (stride % 8 != 0)
      throw std::invalid_argument("x_stride: expected multiples of 8 on a GPU, got " + std::to_string(stride));
  ForwardParams p{};
  p.at = shape_of(in, plan);
  p.recurrent = in.recurrent;
  p.x = call.x;
  for (int axis = 0; axis < 4; ++axis) p.x_stride[axis] = call.x_stride[axis];
  p.bias = floats(call.bias);
  p.h_initial = in.h_initial;
  p.c_initial = floats(in.c_initial);
  p.n_initial = floats(in.n_initial);
  p.m_initial = floats(in.m_initial);
  p.h = call.h;
  p.gates = call.gates;
  p.memory = floats(call.memory);
  p.m = floats(call.m);
  p.h_last = call.h_last;
  p.c_last = floats(call.c_last);
  p.n_last = floats(call.n_last);
  p.m_last = floats(call.m_last);
  if (plan.carried && !p.c_last) {  // where the states stay from token to token
    const int64_t states = plan.carried / kCarriedValues;
    p.c_last = static_cast<float*>(workspace);
    p.n_last = p.c_last + states;
    p.m_last = p.n_last + states;
  }
  with_element(in.dtype, [&](auto e) { launch_forward<decltype(e)>(p, plan, static_cast<Stream>(stream)); });
}

void backward(const xlstm_slstm_backward& call, const CellPlan& plan, void* workspace, void* stream) {
  const xlstm_slstm& in = call.in;
  check_layout(in, {{"recurrent", in.recurrent},
                    {"c_initial", in.c_initial},
                    {"n_initial", in.n_initial},
                    {"gates", call.gates},
                    {"memory", call.memory},
                    {"dh", call.dh},
                    {"dc", call.dc},
                    {"dn", call.dn},
                    {"dm", call.dm},
                    {"dc_last", call.dc_last},
                    {"dn_last", call.dn_last},
                    {"dm_last", call.dm_last},
                    {"dx", call.dx},
                    {"dbias", call.dbias},
                    {"dh_initial", call.dh_initial},
                    {"dc_initial", call.dc_initial},
                    {"dn_initial", call.dn_initial},
                    {"dm_initial", call.dm_initial}});
  BackwardParams p{};
  p.at = shape_of(in, plan);
  p.recurrent = in.recurrent;
  p.c_initial = floats(in.c_initial);
  p.n_initial = floats(in.n_initial);
  p.gates = call.gates;
  p.memory = floats(call.memory);
  p.carried = static_cast<float*>(workspace);
  p.dh = call.dh;
  p.dc = floats(call.dc);
  p.dn = floats(call.dn);
  p.dm = floats(call.dm);
  p.dc_last = floats(call.dc_last);
  p.dn_last = floats(call.dn_last);
  p.dm_last = floats(call.dm_last);
  p.dx = call.dx;
  p.dbias = floats(call.dbias);
  p.dh_initial = floats(call.dh_initial);
  p.dc_initial = floats(call.dc_initial);
  p.dn_initial = floats(call.dn_initial);
  p.dm_initial = floats(call.dm_initial);
  with_element(in.dtype, [&](auto e) { launch_backward<decltype(e)>(p, plan, static_cast<Stream>(stream)); });
}

}  // namespace xlstm::gpu::slstm

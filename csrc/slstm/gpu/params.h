// SPDX-License-Identifier: Apache-2.0
// The params of the recurrent cells' kernels, and the launches of each element type.
#pragma once

#include "arch/launch.h"
#include "slstm/gpu/plan.h"

namespace xlstm::gpu::slstm {

// Which sequences a call has, and what its blocks own.
struct CellShape {
  const int64_t* cu_seqlens;
  int64_t sequences;
  int length, heads, units, padded;  // padded: of a row of the matrix, and of a gate in a row of LDS
  int rows;                          // sequences of a block
  xlstm_cell cell;
};

struct ForwardParams {
  CellShape at;
  const void *recurrent, *x;
  int64_t x_stride[4];
  const float* bias;
  const void* h_initial;
  const float *c_initial, *n_initial, *m_initial;
  void *h, *gates;
  float *memory, *m;
  void* h_last;
  float *c_last, *n_last, *m_last;
};

struct BackwardParams {
  CellShape at;
  const void* recurrent;
  const float *c_initial, *n_initial;
  const void* gates;
  const float* memory;
  const void* dh;
  float* carried;
  const float *dc, *dn, *dm, *dc_last, *dn_last, *dm_last;
  void* dx;
  float *dbias, *dh_initial, *dc_initial, *dn_initial, *dm_initial;
};

template <class E>
void launch_forward(const ForwardParams&, const CellPlan&, Stream);
template <class E>
void launch_backward(const BackwardParams&, const CellPlan&, Stream);

}  // namespace xlstm::gpu::slstm

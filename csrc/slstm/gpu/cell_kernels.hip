// SPDX-License-Identifier: Apache-2.0
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16 float
#include "slstm/gpu/backward.h"
#include "slstm/gpu/forward.h"

namespace xlstm::gpu::slstm {
namespace {

template <template <int> class Kernel, class E, class Params>
void launch_cell(const char* name, const Params& p, const CellPlan& plan, Stream stream) {
  const auto start = [&](auto kernel) { launch(name, kernel, {plan.blocks, plan.threads, plan.lds_bytes}, stream, p); };
  if constexpr (sizeof(E) == 2) {
    switch (plan.resident) {
      case 32:
        return start(Kernel<32>::get());
      case 64:
        return start(Kernel<64>::get());
      case 96:
        return start(Kernel<96>::get());
      case 128:
        return start(Kernel<128>::get());
    }
  }
  start(Kernel<0>::get());
}

using E = XLSTM_ELEMENT;

template <int kResident>
struct Forward {
  static auto get() { return cell_forward<E, kResident>; }
};
template <int kResident>
struct Backward {
  static auto get() { return cell_backward<E, kResident>; }
};

}  // namespace

template <>
void launch_forward<E>(const ForwardParams& p, const CellPlan& plan, Stream stream) {
  launch_cell<Forward, E>("sLSTM", p, plan, stream);
}
template <>
void launch_backward<E>(const BackwardParams& p, const CellPlan& plan, Stream stream) {
  launch_cell<Backward, E>("sLSTM, backward", p, plan, stream);
}

}  // namespace xlstm::gpu::slstm

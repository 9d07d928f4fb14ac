// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/arena.h"
#include "layer/gpu/kernels.h"
#include "layer/gpu/launch.h"
#include "layer/gpu/norm_backward.h"
#include "layer/gpu/norm_forward.h"

namespace xlstm::gpu::layer {
namespace {

// The kernels count rows, and go one stride beyond the last, in 32 bits.
void check_size(const xlstm_norm& in) {
  if (in.rows * in.heads > 1 << 30) throw std::runtime_error("norm: more heads of rows than a GPU call takes, 2^30");
}

using Tensors = std::initializer_list<const xlstm_rows*>;

bool all_are(xlstm_dtype dtype, Tensors tensors) {
  return std::ranges::all_of(tensors, [&](const xlstm_rows* x) { return !x->data || x->dtype == dtype; });
}

// A call's tensors by their part in the mixtures that autocast makes (Mixed).
struct NormTensors {
  Tensors all, of_x, of_y;

  bool are_mixed(const xlstm_norm& in) const {
    const xlstm_dtype x = (*of_x.begin())->dtype, y = (*of_y.begin())->dtype;
    return y != XLSTM_FLOAT32 && (x == XLSTM_FLOAT32 || x == y) && all_are(x, of_x) && all_are(y, of_y) &&
           in.weight.data && all_are(XLSTM_FLOAT32, {&in.weight, &in.bias});
  }
};

// Calls f(Kind) as with_kind() does, and for the mixtures, where `has_mixed` says that there are kernels for this call.
// A head of more features than the `chunks(Kind)` of a group's threads hold goes to the kernel for Any.
template <class Chunks, class F>
void with_norm_kind(const xlstm_norm& in, const NormTensors& tensors, bool has_mixed, Chunks&& chunks, F&& f) {
  const auto by_length = [&]<class E, bool kAligned>(Kind<E, kAligned> kind) {
    if (in.features > int64_t(kMaxGroup) * kChunk * chunks(kind))
      f(Kind<Any, kAligned>{});
    else
      f(kind);
  };
  const auto mixed = [&](auto y) {
    if (in.x.dtype == XLSTM_FLOAT32)
      by_length(Kind<Mixed<float, decltype(y)>, true>{});
    else
      by_length(Kind<Mixed<decltype(y), decltype(y)>, true>{});
  };
  with_kind<true>(in.rows, in.features, tensors.all, [&]<class E, bool kAligned>(Kind<E, kAligned> kind) {
    if constexpr (std::is_same_v<E, Any> && kAligned)
      if (has_mixed && tensors.are_mixed(in))
        return (*tensors.of_y.begin())->dtype == XLSTM_BFLOAT16 ? mixed(BFloat16{}) : mixed(Float16{});
    by_length(kind);
  });
}

// Calls f(Kind) with the kind of kernel for this call.
template <class F>
void with_forward_kind(const xlstm_norm_forward& call, F&& f) {
  const xlstm_norm& in = call.in;
  const NormTensors tensors{{&in.x, &in.residual, &in.weight, &in.bias, &in.gate, &call.sum, &call.y},
                            {&in.x, &call.sum},
                            {&call.y, &in.residual, &in.gate}};
  const auto chunks = []<class E, bool kAligned>(Kind<E, kAligned>) { return kForwardChunks<E, kAligned>; };
  with_norm_kind(in, tensors, true, chunks, f);
}
// Calls f(kernel) with the kernel for this call.
template <class F>
void with_backward(const xlstm_norm_backward& call, F&& f) {
  const xlstm_norm& in = call.in;
  const NormTensors tensors{{&in.x, &in.weight, &in.bias, &in.gate, &call.dy, &call.dsum, &call.dx, &call.dgate},
                            {&in.x, &call.dsum, &call.dx},
                            {&call.dy, &in.gate, &call.dgate}};
  const bool has_mixed = !call.dbias.data && (!in.gate.data || in.gate.dtype == in.x.dtype);
  with_norm_kind(
      in, tensors, has_mixed, [](auto) { return kRegisterChunks; },
      [&]<class E, bool kAligned>(Kind<E, kAligned>) {
        if constexpr (!kAligned || std::is_same_v<E, Any>) {
          f(norm_backward_rows<E, kAligned, true, true>);  // for all calls
        } else {
          constexpr bool kBias = !Roles<E>::is_mixed;
          constexpr bool kGate = std::is_same_v<typename Roles<E>::X, typename Roles<E>::Y>;
          if (kBias && call.dbias.data)
            f(norm_backward_rows<E, true, kGate, kBias>);
          else if (kGate && in.gate.data)
            f(norm_backward_rows<E, true, kGate, false>);
          else
            f(norm_backward_rows<E, true, false, false>);
        }
      });
}

struct Workspace {
  int64_t slices, width;
  float *dweight, *dbias;
  size_t used;

  Workspace(const xlstm_norm_backward& p, const PersistentPlan& plan, void* workspace)
      : slices(plan.slices), width(p.in.heads * p.in.features) {
    Arena arena(workspace);
    dweight = p.dweight.data ? arena.take<float>(slices * width) : nullptr;
    dbias = p.dbias.data ? arena.take<float>(slices * width) : nullptr;
    used = arena.used();
  }
};

void sum_slices_into(const float* from, const Workspace& space, const xlstm_rows& to, Stream stream) {
  if (!to.data) return;
  const SumSlicesParams p{from, int(space.slices), space.width, to};
  launch("norm, gradients of weight and bias", sum_slices<0>, {ceil_div(space.width, kSliceColumns), kLayerThreads, 0},
         stream, p);
}

}  // namespace

Groups plan_norm_forward_call(const xlstm_norm_forward& call, const Chip& chip) {
  const xlstm_norm& in = call.in;
  check_size(in);
  Groups groups{};
  with_forward_kind(call, [&]<class E, bool kAligned>(Kind<E, kAligned>) {
    groups = plan_norm(chip, in.rows, in.heads, in.features, kForwardChunks<E, kAligned>);
  });
  return groups;
}

void norm_forward(const xlstm_norm_forward& call, const Groups& groups, void* stream) {
  const xlstm_norm& in = call.in;
  const NormForwardParams p{call, dtypes_of(in), int(in.rows * in.heads), Group(groups.lanes)};
  const Grid grid{groups.blocks, groups.threads, 0, groups.early_launch};
  with_forward_kind(call, [&]<class E, bool kAligned>(Kind<E, kAligned>) {
    launch("norm", norm_forward_rows<E, kAligned>, grid, static_cast<Stream>(stream), p);
  });
}

PersistentPlan plan_norm_backward_call(const xlstm_norm_backward& call, const Chip& chip) {
  check_size(call.in);
  return plan_norm_backward(chip, call.in.rows, call.in.heads, call.in.features);
}

size_t norm_backward_workspace(const xlstm_norm_backward& p, const PersistentPlan& plan) {
  return Workspace(p, plan, nullptr).used;
}

void norm_backward(const xlstm_norm_backward& call, const PersistentPlan& plan, void* workspace, void* stream) {
  const Workspace space(call, plan, workspace);
  const int slices = int(plan.slices), items = slices * int(call.in.heads);
  const NormBackwardParams p{call, items, slices, Group(plan.lanes), space.dweight, space.dbias};
  with_backward(call, [&](auto kernel) {
    launch("norm, backward", kernel, {plan.blocks, plan.threads, 0}, static_cast<Stream>(stream), p);
  });
  sum_slices_into(space.dweight, space, call.dweight, static_cast<Stream>(stream));
  sum_slices_into(space.dbias, space, call.dbias, static_cast<Stream>(stream));
}

}  // namespace xlstm::gpu::layer

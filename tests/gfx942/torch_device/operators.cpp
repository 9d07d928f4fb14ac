// SPDX-License-Identifier: Apache-2.0
// torch's operators for the emulated device. Memory and views are its own; all else is computed by the operator's CPU
// kernel, on CPU tensors that lie in the device's memory.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <unordered_map>

namespace {

using at::Tensor;
using c10::IValue;

// ---- between the device and the host

Tensor on_host(const Tensor& x) {
  const auto options = x.options().device(at::kCPU).pinned_memory(false);
  Tensor y;
  if (x.numel() == 0) {
    y = at::empty_strided(x.sizes(), x.strides(), options);
  } else {
    y = at::from_blob(x.data_ptr(), x.sizes(), x.strides(), options);
  }
  if (x.unsafeGetTensorImpl()->is_wrapped_number()) y.unsafeGetTensorImpl()->set_wrapped_number(true);
  return y;
}

// Arguments of one call on the host, and its results on the device again.
class HostCall {
 public:
  IValue argument(const IValue& x) {
    if (x.isTensor()) return tensor(x.toTensor());
    if (x.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : x.toTensorVector()) list.push_back(tensor(t));
      return list;
    }
    if (x.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor>& t : x.toOptionalTensorVector())
        list.push_back(t ? std::optional<Tensor>(tensor(*t)) : t);
      return list;
    }
    if (x.isDevice()) return c10::Device(at::kCPU);
    return x;
  }

  IValue result(const IValue& x) {
    if (x.isTensor()) return on_device(x.toTensor());
    if (x.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : x.toTensorVector()) list.push_back(on_device(t));
      return list;
    }
    return x;
  }

  // What an operator made longer or shorter on the host: an out= argument of another size.
  void resize_originals() {
    for (const auto& [host, device] : originals_) {
      const Tensor now(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(host));
      if (now.sizes() == device.sizes()) continue;
      device.resize_(now.sizes());
      on_host(device).copy_(now);
    }
  }

 private:
  Tensor tensor(const Tensor& x) {
    if (!x.defined() || !x.is_cuda()) return x;
    Tensor host = on_host(x);
    originals_[host.unsafeGetTensorImpl()] = x;
    kept_.push_back(host);
    return host;
  }

  Tensor on_device(const Tensor& x) {
    if (!x.defined()) return x;
    if (const auto found = originals_.find(x.unsafeGetTensorImpl()); found != originals_.end()) return found->second;
    for (const auto& [host, device] : originals_)  // a view of an argument
      if (host->unsafe_storage().data() == x.storage().data() && x.numel())
        TORCH_CHECK(false, "the emulated device has no view of this kind");
    const auto& storage = x.storage();
    c10::Storage& there = storages_[storage.unsafeGetStorageImpl()];
    if (!there) {
      c10::Allocator* allocator = c10::GetAllocator(at::kCUDA);
      there = c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), allocator->allocate(storage.nbytes()),
                           allocator, true);
      if (storage.nbytes()) std::memcpy(there.mutable_data(), storage.data(), storage.nbytes());
    }
    Tensor y = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(there),
                                                        c10::DispatchKeySet(c10::DispatchKey::CUDA), x.dtype());
    y.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), x.strides(), x.storage_offset());
    return y;
  }

  std::unordered_map<c10::TensorImpl*, Tensor> originals_;  // by their stand-ins on the host
  std::vector<Tensor> kept_;
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;  // results may share one
};

void on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t first = stack->size() - schema.arguments().size();
  HostCall call;
  for (size_t k = first; k < stack->size(); ++k) (*stack)[k] = call.argument((*stack)[k]);
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.resize_originals();
  for (size_t k = stack->size() - schema.returns().size(); k < stack->size(); ++k)
    (*stack)[k] = call.result((*stack)[k]);
}

// ---- memory

Tensor& filled(Tensor& x) {
  const auto& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())
    at::native::fill_empty_deterministic_(x);
  return x;
}

c10::ScalarType type_of(std::optional<c10::ScalarType> dtype) { return c10::dtype_or_default(dtype); }

Tensor empty(at::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
             std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  Tensor x = at::detail::empty_generic(size, c10::GetAllocator(at::kCUDA), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                       type_of(dtype), format);
  return filled(x);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  Tensor x = at::detail::empty_strided_generic(size, stride, c10::GetAllocator(at::kCUDA),
                                               c10::DispatchKeySet(c10::DispatchKey::CUDA), type_of(dtype));
  return filled(x);
}

Tensor& copy_(Tensor& to, const Tensor& from, bool) {
  const auto host = [](const Tensor& x) { return x.is_cuda() ? on_host(x) : x; };
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  host(to).copy_(host(from));
  return to;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_host>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<Tensor (*)(const Tensor&, at::IntArrayRef)>(at::native::view));
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
}

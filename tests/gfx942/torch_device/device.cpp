// SPDX-License-Identifier: Apache-2.0
// A device for a torch without one: "cuda", whose memory is the interpreter's and whose one stream is HIP's null
// stream.
#define __HIP_PLATFORM_AMD__
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <hip/hip_runtime_api.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <new>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

constexpr c10::DeviceType kType = c10::DeviceType::CUDA;
const Device kDevice(kType, 0);
const Stream kStream(Stream::DEFAULT, kDevice);

void check(hipError_t status) { TORCH_CHECK(status == hipSuccess, hipGetErrorString(status)); }

// hipMalloc for every tensor, so that each ends where its allocation does.
class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* p = nullptr;
    check(hipMalloc(&p, bytes));
    return {p, p, &release, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void release(void* p) { (void)hipFree(p); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator)

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  Device exchangeDevice(Device to) const override {
    setDevice(to);
    return kDevice;
  }
  Device getDevice() const override { return kDevice; }
  void setDevice(Device to) const override { TORCH_CHECK(to.index() <= 0, "there is one emulated GPU, cuda:0"); }
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return kStream; }
  Stream getDefaultStream(Device) const override { return kStream; }
  Stream exchangeStream(Stream) const override { return kStream; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  DeviceIndex deviceCount() const noexcept override { return 1; }
};

}  // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}

namespace {

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasROCM() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &allocator; }
  Device getDeviceFromPtr(void*) const override { return kDevice; }
  void deviceSynchronize(DeviceIndex) const override {}
};

// torch makes its hooks once, while it is imported, and keeps them: those of a torch without a GPU become these, in
// their place. Neither has members.
static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));
[[maybe_unused]] const Hooks* const hooks =
    new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) Hooks();

}  // namespace

// What a torch for GPUs exports and the op library asks for.
extern "C" __attribute__((visibility("default"))) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t,
                                                                                                    void** stream) {
  *stream = nullptr;
  return AOTI_TORCH_SUCCESS;
}

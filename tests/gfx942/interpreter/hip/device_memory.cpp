// SPDX-License-Identifier: Apache-2.0
// Allocations. What a kernel may touch ends with the last byte that was asked for, and is NaN in every format until it
// is written.
#include <cstdlib>
#include <cstring>

#include "gfx942_control.h"
#include "memory.h"
#include "runtime.h"

namespace gfx942::hip {
namespace {

constexpr int kPoison = 0xff;
constexpr size_t kAlignment = 256;

struct Heap {
  std::mutex lock;
  std::map<void*, size_t> bytes;
  size_t all = 0;
};
Heap& heap() {
  static Heap& h = *new Heap;  // tensors are freed after this library's destructors have run
  return h;
}

void* allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard guard(heap().lock);
  if (bytes > device_properties().totalGlobalMem - heap().all)
    throw Error(hipErrorOutOfMemory, std::to_string(bytes) + " bytes were asked for; the device has " +
                                         std::to_string(device_properties().totalGlobalMem - heap().all) + " left");
  // Room after each, so that no two allocations touch: what one overruns is not the next one's beginning.
  void* p = std::aligned_alloc(kAlignment, (bytes / kAlignment + 2) * kAlignment);
  if (!p) throw std::bad_alloc();
  std::memset(p, kPoison, bytes);
  heap().bytes[p] = bytes;
  heap().all += bytes;
  memory().add(p, bytes);
  return p;
}

void release(void* p) {
  if (!p) return;
  const std::lock_guard guard(heap().lock);
  const auto found = heap().bytes.find(p);
  if (found == heap().bytes.end()) throw Error(hipErrorInvalidValue, "hipFree: no allocation begins there");
  memory().remove(p);
  heap().all -= found->second;
  heap().bytes.erase(found);
  std::free(p);
}

void check_device_range(const void* p, size_t bytes, const char* what) {
  if (bytes && !memory().find(reinterpret_cast<uint64_t>(p), bytes).end)
    throw Error(hipErrorInvalidValue, std::string(what) + ": " + std::to_string(bytes) +
                                          " bytes that do not lie in one allocation of the device");
}

void copy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  if (kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice) check_device_range(to, bytes, "hipMemcpy, to");
  if (kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice)
    check_device_range(from, bytes, "hipMemcpy, from");
  std::memmove(to, from, bytes);
}

template <class T>
void fill(void* to, T value, size_t count) {
  check_device_range(to, count * sizeof(T), "hipMemset");
  std::fill_n(static_cast<T*>(to), count, value);
}

}  // namespace
}  // namespace gfx942::hip

using namespace gfx942::hip;

extern "C" {

hipError_t hipMalloc(void** p, size_t bytes) {
  return call([&] { given(p, "the pointer") = allocate(bytes); });
}
hipError_t hipMallocAsync(void** p, size_t bytes, hipStream_t) { return hipMalloc(p, bytes); }
hipError_t hipFree(void* p) {
  return call([&] { release(p); });
}
hipError_t hipFreeAsync(void* p, hipStream_t) { return hipFree(p); }

// Pinned memory of the host is the device's too.
hipError_t hipHostMalloc(void** p, size_t bytes, unsigned) { return hipMalloc(p, bytes); }
hipError_t hipHostFree(void* p) { return hipFree(p); }
hipError_t hipHostGetDevicePointer(void** device, void* host, unsigned) {
  return call([&] { given(device, "the pointer") = host; });
}

hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  return call([&] { copy(to, from, bytes, kind); });
}
hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t stream) {
  return call([&] {
    check_stream(stream);
    copy(to, from, bytes, kind);
  });
}
hipError_t hipMemcpyWithStream(void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t stream) {
  return hipMemcpyAsync(to, from, bytes, kind, stream);
}
hipError_t hipMemcpyHtoD(hipDeviceptr_t to, void* from, size_t bytes) {
  return hipMemcpy(to, from, bytes, hipMemcpyHostToDevice);
}
hipError_t hipMemcpyDtoH(void* to, hipDeviceptr_t from, size_t bytes) {
  return hipMemcpy(to, from, bytes, hipMemcpyDeviceToHost);
}
hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes) {
  return hipMemcpy(to, from, bytes, hipMemcpyDeviceToDevice);
}

hipError_t hipMemset(void* to, int value, size_t bytes) {
  return call([&] { fill(to, uint8_t(value), bytes); });
}
hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream) {
  return call([&] {
    check_stream(stream);
    fill(to, uint8_t(value), bytes);
  });
}
hipError_t hipMemsetD32(hipDeviceptr_t to, int value, size_t count) {
  return call([&] { fill(to, value, count); });
}

hipError_t hipMemGetInfo(size_t* left, size_t* all) {
  return call([&] {
    const std::lock_guard guard(heap().lock);
    given(left, "the free size") = device_properties().totalGlobalMem - heap().all;
    given(all, "the total size") = device_properties().totalGlobalMem;
  });
}

void gfx942_register_memory(const void* begin, size_t bytes) { gfx942::memory().add(begin, bytes); }
void gfx942_unregister_memory(const void* begin) { gfx942::memory().remove(begin); }

}  // extern "C"

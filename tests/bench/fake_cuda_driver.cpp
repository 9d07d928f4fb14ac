// SPDX-License-Identifier: Apache-2.0
// A CUDA driver without a GPU, for benchmarks/mi300x/gpu.py: memory is the host's, a kernel does nothing, and a round
// of it takes 2 ns a body. A module's image is "code"; kernels are told by their names.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kInvalidValue = 1, kNotInitialised = 3, kInvalidContext = 201, kInvalidImage = 200, kNotFound = 500;
constexpr char kContext = 0;
bool initialised = false;
const void* current = nullptr;
double now = 0;  // milliseconds

struct Function {
  std::string name;
};
struct Event {
  double time = 0;
};
struct Arguments {
  void* memory;
  uint32_t rounds, other;
};

}  // namespace

#define NEEDS_CONTEXT                       \
  if (!initialised) return kNotInitialised; \
  if (current != &kContext) return kInvalidContext;

extern "C" {

int cuInit(unsigned flags) {
  initialised = true;
  return flags ? kInvalidValue : 0;
}
int cuGetErrorString(int status, const char** text) {
  *text = status == kNotFound       ? "named symbol not found"
          : status == kInvalidImage ? "device kernel image is invalid"
                                    : nullptr;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, initialised ? 0 : kNotInitialised; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  return *value = 1980000, attribute == 13 ? 0 : kInvalidValue;
}
int cuDevicePrimaryCtxRetain(const void** context, int) { return *context = &kContext, 0; }
int cuCtxSetCurrent(const void* context) { return current = context, 0; }
int cuCtxSynchronize() { NEEDS_CONTEXT return 0; }

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  NEEDS_CONTEXT
  return *address = uint64_t(std::malloc(bytes)), 0;
}
int cuMemFree_v2(uint64_t address) { return std::free(reinterpret_cast<void*>(address)), 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  return std::memcpy(to, reinterpret_cast<void*>(from), bytes), 0;
}
int cuMemsetD32_v2(uint64_t, unsigned, size_t) { NEEDS_CONTEXT return 0; }

int cuModuleLoadData(const void** module, const char* image) {
  NEEDS_CONTEXT
  return *module = image, std::strncmp(image, "code", 4) ? kInvalidImage : 0;
}
int cuModuleGetFunction(Function** function, const void*, const char* name) {
  if (!std::strcmp(name, "nothing")) return kNotFound;
  return *function = new Function{name}, 0;
}
int cuLaunchKernel(Function* f, unsigned grid, unsigned y, unsigned z, unsigned block, unsigned block_y,
                   unsigned block_z, unsigned, void* stream, void** arguments, void** extra) {
  NEEDS_CONTEXT
  if (!grid || y * z * block_y * block_z != 1 || block % 64 || block > 1024 || stream || extra) return kInvalidValue;
  const double bodies = f->name.ends_with("_long") ? 48 : f->name.ends_with("_short") ? 16 : 1;
  now += 2e-6 * bodies * static_cast<const Arguments*>(arguments[0])->rounds + 3e-3;
  return 0;
}

int cuEventCreate(Event** event, unsigned flags) { return *event = new Event, flags ? kInvalidValue : 0; }
int cuEventRecord(Event* event, void* stream) { return event->time = now, stream ? kInvalidValue : 0; }
int cuEventSynchronize(Event*) { return 0; }
int cuEventElapsedTime(float* milliseconds, const Event* begin, const Event* end) {
  return *milliseconds = float(end->time - begin->time), 0;
}

}  // extern "C"

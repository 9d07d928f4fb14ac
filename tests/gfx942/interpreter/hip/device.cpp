// SPDX-License-Identifier: Apache-2.0
// The one device, as its own runtime describes it.
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime.h"

namespace gfx942::hip {

// GFX942_CHIP: which chip the device has; an MI300X's where it is not set.
const Chip& chip() {
  static const Chip& chosen = [&]() -> const Chip& {
    const char* asked = std::getenv("GFX942_CHIP");
    const Chip* found = chip_named(asked && *asked ? asked : "gfx942");
    if (!found)
      throw Error(hipErrorInvalidDevice, std::string("GFX942_CHIP: expected ") + chip_names() + ", got " + asked);
    return *found;
  }();
  return chosen;
}

// GFX942_STAND_IN_FOR: another chip by name, for which a library is to say that it has no code.
const char* chip_name() {
  static const char* asked = std::getenv("GFX942_STAND_IN_FOR");
  return asked ? asked : chip().name;
}

namespace {

hipDeviceProp_t properties_of(const Chip& c) {
  hipDeviceProp_t p;
  std::memset(&p, 0, sizeof p);
  std::snprintf(p.name, sizeof p.name, "%s", c.card);
  std::snprintf(p.gcnArchName, sizeof p.gcnArchName, "%s:sramecc+:xnack-", chip_name());
  p.totalGlobalMem = size_t(c.memory_gib) << 30;
  p.sharedMemPerBlock = p.maxSharedMemoryPerMultiProcessor = c.lds_bytes;
  p.regsPerBlock = 64 << 10;
  p.warpSize = kLanes;
  p.maxThreadsPerBlock = kMostThreads;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = p.maxThreadsDim[2] = kMostThreads;
  p.maxGridSize[0] = INT_MAX;
  p.maxGridSize[1] = p.maxGridSize[2] = 65536;
  p.clockRate = 1000 * c.megahertz;  // kHz, like those below
  p.memoryClockRate = 1000 * c.memory_megahertz;
  p.clockInstructionRate = 100000;
  p.memoryBusWidth = c.memory_bits;
  p.totalConstMem = INT_MAX;
  p.major = c.major;
  p.minor = c.minor;
  p.multiProcessorCount = c.compute_units;
  p.l2CacheSize = c.l2_mib << 20;  // of one die
  p.maxThreadsPerMultiProcessor = 2048;
  p.arch.hasGlobalInt32Atomics = p.arch.hasGlobalFloatAtomicExch = p.arch.hasSharedInt32Atomics = 1;
  p.arch.hasSharedFloatAtomicExch = p.arch.hasFloatAtomicAdd = p.arch.hasGlobalInt64Atomics = 1;
  p.arch.hasSharedInt64Atomics = p.arch.hasDoubles = p.arch.hasWarpVote = p.arch.hasWarpBallot = 1;
  p.arch.hasWarpShuffle = p.arch.hasThreadFenceSystem = p.arch.has3dGrid = 1;
  p.canMapHostMemory = p.isLargeBar = p.ECCEnabled = p.cooperativeLaunch = 1;
  p.memPitch = INT_MAX;
  return p;
}

int attribute_of(hipDeviceAttribute_t which) {
  const hipDeviceProp_t& p = device_properties();
  switch (which) {
    case hipDeviceAttributeEccEnabled:
      return p.ECCEnabled;
    case hipDeviceAttributeCanMapHostMemory:
      return p.canMapHostMemory;
    case hipDeviceAttributeClockRate:
      return p.clockRate;
    case hipDeviceAttributeL2CacheSize:
      return p.l2CacheSize;
    case hipDeviceAttributeComputeCapabilityMajor:
      return p.major;
    case hipDeviceAttributeComputeCapabilityMinor:
      return p.minor;
    case hipDeviceAttributeMaxBlockDimX:
    case hipDeviceAttributeMaxBlockDimY:
    case hipDeviceAttributeMaxBlockDimZ:
    case hipDeviceAttributeMaxThreadsPerBlock:
      return p.maxThreadsPerBlock;
    case hipDeviceAttributeMaxGridDimX:
      return p.maxGridSize[0];
    case hipDeviceAttributeMaxGridDimY:
      return p.maxGridSize[1];
    case hipDeviceAttributeMaxGridDimZ:
      return p.maxGridSize[2];
    case hipDeviceAttributeMaxThreadsPerMultiProcessor:
      return p.maxThreadsPerMultiProcessor;
    case hipDeviceAttributeMemoryBusWidth:
      return p.memoryBusWidth;
    case hipDeviceAttributeMemoryClockRate:
      return p.memoryClockRate;
    case hipDeviceAttributeMultiprocessorCount:
    case hipDeviceAttributePhysicalMultiProcessorCount:
      return p.multiProcessorCount;
    case hipDeviceAttributeMaxRegistersPerBlock:
      return p.regsPerBlock;
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor:
      return int(p.sharedMemPerBlock);
    case hipDeviceAttributeTotalConstantMemory:
      return int(p.totalConstMem);
    case hipDeviceAttributeWarpSize:
      return p.warpSize;
    case hipDeviceAttributeClockInstructionRate:
      return p.clockInstructionRate;
    case hipDeviceAttributeIsLargeBar:
      return p.isLargeBar;
    case hipDeviceAttributeCooperativeLaunch:
      return p.cooperativeLaunch;
    case hipDeviceAttributeConcurrentKernels:
    case hipDeviceAttributeCooperativeMultiDeviceLaunch:
    case hipDeviceAttributeIntegrated:
    case hipDeviceAttributeIsMultiGpuBoard:
    case hipDeviceAttributeKernelExecTimeout:
    case hipDeviceAttributeManagedMemory:
    case hipDeviceAttributeConcurrentManagedAccess:
    case hipDeviceAttributePageableMemoryAccess:
    case hipDeviceAttributeMemoryPoolsSupported:
    case hipDeviceAttributeImageSupport:
      return 0;
    default:
      throw Error(hipErrorInvalidValue, "device attribute " + std::to_string(int(which)) + " is not known here");
  }
}

void check_device(int device) {
  if (device != 0) throw Error(hipErrorInvalidDevice, "there is one device, 0");
}

}  // namespace

const hipDeviceProp_t& device_properties() {
  static const hipDeviceProp_t p = properties_of(chip());
  return p;
}

}  // namespace gfx942::hip

using namespace gfx942::hip;

extern "C" {

hipError_t hipInit(unsigned) { return hipSuccess; }
hipError_t hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }
hipError_t hipRuntimeGetVersion(int* version) {
  return call([&] { given(version, "the version") = HIP_VERSION; });
}
hipError_t hipGetDeviceCount(int* count) {
  return call([&] { given(count, "the count") = 1; });
}
hipError_t hipGetDevice(int* device) {
  return call([&] { given(device, "the device") = 0; });
}
hipError_t hipSetDevice(int device) {
  return call([&] { check_device(device); });
}
hipError_t hipDeviceGet(hipDevice_t* device, int ordinal) {
  return call([&] { check_device(ordinal), given(device, "the device") = ordinal; });
}
hipError_t hipDeviceGetName(char* name, int buffer, hipDevice_t device) {
  return call([&] {
    check_device(device);
    std::strncpy(&given(name, "the name"), device_properties().name, size_t(buffer));
  });
}
hipError_t hipDeviceTotalMem(size_t* bytes, hipDevice_t device) {
  return call([&] { check_device(device), given(bytes, "the size") = device_properties().totalGlobalMem; });
}
hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device) {
  return call([&] { check_device(device), given(properties, "the properties") = device_properties(); });
}
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
  return call([&] { check_device(device), given(value, "the value") = attribute_of(attribute); });
}
hipError_t hipDeviceSynchronize() { return hipSuccess; }

}  // extern "C"

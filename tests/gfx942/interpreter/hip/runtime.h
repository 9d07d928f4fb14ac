// SPDX-License-Identifier: Apache-2.0
// The state behind the HIP calls: the errors of each thread, code objects and their kernels, what was counted.
#pragma once

#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__
#endif
#include <hip/hip_runtime_api.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "code.h"
#include "events.h"
#include "fault.h"
#include "workgroup.h"

namespace gfx942::hip {

// ---- errors

struct Error : std::runtime_error {
  Error(hipError_t c, const std::string& text) : std::runtime_error(text), code(c) {}
  hipError_t code;
};

// Makes it this thread's last error. hipGetErrorString then gives this text for it.
hipError_t failed(hipError_t code, const std::string& text);
const std::string& last_text();  // of this thread's last failure

// A HIP call: what its body throws becomes the call's error.
template <class Body>
hipError_t call(Body body) {
  try {
    body();
    return hipSuccess;
  } catch (const Error& e) {
    return failed(e.code, e.what());
  } catch (const Fault& e) {
    return failed(hipErrorLaunchFailure, e.what());
  } catch (const std::bad_alloc&) {
    return failed(hipErrorOutOfMemory, "the host has no memory left");
  } catch (const std::exception& e) {
    return failed(hipErrorUnknown, e.what());
  }
}

// What a caller must give.
template <class T>
T& given(T* p, const char* what) {
  if (!p) throw Error(hipErrorInvalidValue, std::string(what) + " is null");
  return *p;
}

// ---- code

class Module;

// A kernel, perhaps not decoded yet. hipFunction_t points to one.
struct Function {
  Module* module;
  std::string name;
  const Code& code() const;
};

// A code object, out of a bundle of several chips' or alone. It is loaded when first used, so that a library with
// code for other chips loads, and says so when a kernel is asked for.
class Module {
 public:
  explicit Module(const uint8_t* image) : image_(image) {}
  CodeObject& object();
  bool has_code();  // for the device's chip
  Function& function(const std::string& name);

 private:
  const uint8_t* image_;
  std::once_flag once_;
  std::unique_ptr<CodeObject> object_;
  std::map<std::string, Function> functions_;
};

// The code object of an image for the device: __CLANG_OFFLOAD_BUNDLE__ or ELF. Throws where there is none.
std::span<const uint8_t> code_object_of(const uint8_t* image);

struct Variable {
  Module* module;
  std::string name;
};

// ---- launches

struct Shape {  // what a kernel was launched with
  std::array<uint32_t, 3> grid, block;
  uint32_t dynamic_lds;
  auto operator<=>(const Shape&) const = default;
};

struct Record {
  Tally tally;
  std::map<Shape, uint64_t> launches;
};

// Explicit arguments: a pointer to each, or a buffer that holds them as the kernel wants them.
struct Arguments {
  void* const* each = nullptr;
  std::span<const uint8_t> buffer;
};
// Cooperative: all workgroups are there at once, and their waves take turns.
void launch(const Function& function, const Shape& shape, const Arguments& arguments, bool cooperative = false);
void check_stream(hipStream_t stream);

struct Runtime {
  std::recursive_mutex lock;
  std::map<Module*, std::unique_ptr<Module>> modules;
  std::unordered_map<const void*, Function*> kernels;   // by the address that host code launches
  std::unordered_map<const void*, Variable> variables;  // by the address of the host's shadow
  std::map<const Function*, Record> records;            // of those that were launched
  RunOptions options;
  uint64_t schedule;  // the seed of every launch's turns (schedule.h); 0: only cooperative launches take turns
  uint64_t recorded_instructions = 0;  // about so many a launch; 0: nothing is recorded
  std::vector<std::pair<const Function*, RecordedLaunch>> recorded;

  Runtime();  // with the seed that GFX942_SCHEDULE says
  Module& add(const uint8_t* image);
  void remove(Module* module);
  Module& module(const void* handle);
  const Function& kernel(const void* host_address);
};
Runtime& runtime();

// ---- facts

const Chip& chip();       // of the device
const char* chip_name();  // what programs see as its name, without its features
const hipDeviceProp_t& device_properties();
constexpr int kMostThreads = 1024;

}  // namespace gfx942::hip

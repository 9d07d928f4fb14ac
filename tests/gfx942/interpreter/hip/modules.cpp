// SPDX-License-Identifier: Apache-2.0
// Code objects: what host code registers when it is loaded, and what is loaded as a module.
#include <elf.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "runtime.h"

namespace gfx942::hip {
namespace {

constexpr char kBundle[] = "__CLANG_OFFLOAD_BUNDLE__", kCompressed[] = "CCOB";
constexpr std::string_view kPlatform = "hipv4-amdgcn-amd-amdhsa--";

template <class T>
T read(const uint8_t*& at) {
  T x;
  std::memcpy(&x, at, sizeof x);
  at += sizeof x;
  return x;
}

// After the chip's name follow the features that the code insists on. These chips have :sramecc+:xnack-.
bool fits(std::string_view target) {
  const std::string own = std::string(kPlatform) + chip_name();
  if (!target.starts_with(own)) return false;
  const std::string_view features = target.substr(own.size());
  if (features.empty()) return true;
  return features[0] == ':' && features.find("xnack+") == features.npos && features.find("sramecc-") == features.npos;
}

// An image comes without its size: an ELF file ends with its section headers.
size_t bytes_of_elf(const uint8_t* image) {
  Elf64_Ehdr head;
  std::memcpy(&head, image, sizeof head);
  return head.e_shoff + size_t(head.e_shnum) * head.e_shentsize;
}

}  // namespace

std::span<const uint8_t> code_object_of(const uint8_t* image) {
  if (std::memcmp(image, ELFMAG, SELFMAG) == 0) return {image, bytes_of_elf(image)};
  if (std::memcmp(image, kCompressed, std::strlen(kCompressed)) == 0)
    throw Error(hipErrorInvalidImage,
                "compressed offload bundles are not implemented: compile without --offload-compress");
  if (std::memcmp(image, kBundle, std::strlen(kBundle)) != 0)
    throw Error(hipErrorInvalidImage, "expected a code object or an offload bundle");
  const uint8_t* at = image + std::strlen(kBundle);
  std::string others;
  for (uint64_t left = read<uint64_t>(at); left; --left) {
    const uint64_t offset = read<uint64_t>(at), bytes = read<uint64_t>(at), length = read<uint64_t>(at);
    const std::string_view target(reinterpret_cast<const char*>(at), length);
    at += length;
    if (fits(target)) return {image + offset, bytes};
    others.append(others.empty() ? "" : ", ").append(target);
  }
  throw Error(hipErrorNoBinaryForGpu, std::string("there is no code for ") + chip_name() + ", only for " + others);
}

CodeObject& Module::object() {
  std::call_once(once_, [&] {
    const auto elf = code_object_of(image_);
    try {
      object_ = std::make_unique<CodeObject>(elf);
    } catch (const Fault& e) {
      throw Error(hipErrorInvalidImage, e.what());
    }
    if (&object_->chip() != &chip())
      throw Error(hipErrorNoBinaryForGpu, std::string("code object: expected one for ") + chip().name +
                                              ", which the device is, got one for " + object_->chip().name);
  });
  return *object_;
}

bool Module::has_code() {
  try {
    object();
  } catch (const Error& e) {
    if (e.code != hipErrorNoBinaryForGpu) throw;
    return false;
  }
  return true;
}

Function& Module::function(const std::string& name) {
  return functions_.try_emplace(name, Function{this, name}).first->second;
}

const Code& Function::code() const { return module->object().kernel(name); }

Runtime::Runtime() : schedule(0) {
  const char* given = std::getenv("GFX942_SCHEDULE");
  if (!given) return;
  const std::string_view text = given;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), schedule);
  if (error != std::errc() || end != text.end())
    throw Fault("GFX942_SCHEDULE: expected a whole number, the seed, got \"" + std::string(text) + "\"");
}

Module& Runtime::add(const uint8_t* image) {
  auto made = std::make_unique<Module>(image);
  return *(modules[made.get()] = std::move(made));
}

void Runtime::remove(Module* module) {
  std::erase_if(kernels, [&](const auto& k) { return k.second->module == module; });
  std::erase_if(variables, [&](const auto& v) { return v.second.module == module; });
  std::erase_if(records, [&](const auto& r) { return r.first->module == module; });
  std::erase_if(recorded, [&](const auto& r) { return r.first->module == module; });
  modules.erase(module);
}

Module& Runtime::module(const void* handle) {
  const auto found = modules.find(static_cast<Module*>(const_cast<void*>(handle)));
  if (found == modules.end()) throw Error(hipErrorInvalidHandle, "no such module");
  return *found->second;
}

const Function& Runtime::kernel(const void* host_address) {
  const std::lock_guard guard(lock);
  const auto found = kernels.find(host_address);
  if (found == kernels.end()) throw Error(hipErrorInvalidDeviceFunction, "no kernel is registered for this function");
  return *found->second;
}

Runtime& runtime() {
  static Runtime& all = *new Runtime;  // libraries unregister their code after this one's destructors have run
  return all;
}

}  // namespace gfx942::hip

using namespace gfx942::hip;

namespace {

// What the compiler puts before a fat binary.
struct Wrapper {
  uint32_t magic, version;
  const uint8_t* image;
  void* unused;
};
constexpr uint32_t kWrapperMagic = 0x48495046;  // "HIPF"

std::pair<void*, size_t> variable_of(const void* shadow) {
  Runtime& r = runtime();
  const auto found = r.variables.find(shadow);
  if (found == r.variables.end())
    throw Error(hipErrorInvalidSymbol, "no device variable is registered for this address");
  const auto where = found->second.module->object().variable(found->second.name);
  if (!where.first) throw Error(hipErrorInvalidSymbol, "the code object has no variable " + found->second.name);
  return where;
}

}  // namespace

extern "C" {

void** __hipRegisterFatBinary(const void* data) {
  const auto& wrapper = *static_cast<const Wrapper*>(data);
  const std::lock_guard guard(runtime().lock);
  if (wrapper.magic != kWrapperMagic) return nullptr;
  return reinterpret_cast<void**>(&runtime().add(wrapper.image));
}

void __hipRegisterFunction(void** module, const void* host_function, char*, const char* name, unsigned, void*, void*,
                           void*, void*, int*) {
  const std::lock_guard guard(runtime().lock);
  if (module) runtime().kernels[host_function] = &runtime().module(module).function(name);
}

void __hipRegisterVar(void** module, void* shadow, char*, char* name, int, size_t, int, int) {
  const std::lock_guard guard(runtime().lock);
  if (module) runtime().variables[shadow] = {&runtime().module(module), name};
}

void __hipUnregisterFatBinary(void** module) {
  const std::lock_guard guard(runtime().lock);
  if (module) (void)hipModuleUnload(reinterpret_cast<hipModule_t>(module));
}

hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  return call([&] {
    const std::lock_guard guard(runtime().lock);
    Module& made = runtime().add(&given(static_cast<const uint8_t*>(image), "the image"));
    try {
      made.object();
    } catch (...) {
      runtime().modules.erase(&made);
      throw;
    }
    given(module, "the module") = reinterpret_cast<hipModule_t>(&made);
  });
}

hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned, hipJitOption*, void**) {
  return hipModuleLoadData(module, image);
}

hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
  return call([&] {
    std::ifstream file(&given(path, "the path"), std::ios::binary);
    if (!file) throw Error(hipErrorFileNotFound, std::string("cannot read ") + path);
    const std::vector<char> image{std::istreambuf_iterator<char>(file), {}};
    const hipError_t status = hipModuleLoadData(module, image.data());
    if (status != hipSuccess) throw Error(status, last_text());
  });
}

hipError_t hipModuleUnload(hipModule_t module) {
  return call([&] {
    const std::lock_guard guard(runtime().lock);
    runtime().remove(&runtime().module(module));
  });
}

hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
  return call([&] {
    const std::lock_guard guard(runtime().lock);
    Module& m = runtime().module(module);
    const auto names = m.object().names();
    if (std::find(names.begin(), names.end(), &given(name, "the name")) == names.end())
      throw Error(hipErrorNotFound, std::string("the code object has no kernel ") + name);
    given(function, "the function") = reinterpret_cast<hipFunction_t>(&m.function(name));
  });
}

hipError_t hipModuleGetGlobal(hipDeviceptr_t* address, size_t* bytes, hipModule_t module, const char* name) {
  return call([&] {
    const std::lock_guard guard(runtime().lock);
    const auto [where, size] = runtime().module(module).object().variable(&given(name, "the name"));
    if (!where) throw Error(hipErrorNotFound, std::string("the code object has no variable ") + name);
    if (address) *address = where;
    if (bytes) *bytes = size;
  });
}

hipError_t hipGetSymbolAddress(void** address, const void* symbol) {
  return call([&] { given(address, "the address") = variable_of(symbol).first; });
}
hipError_t hipGetSymbolSize(size_t* bytes, const void* symbol) {
  return call([&] { given(bytes, "the size") = variable_of(symbol).second; });
}
hipError_t hipMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, hipMemcpyKind) {
  return call([&] {
    const auto [where, size] = variable_of(symbol);
    if (offset > size || bytes > size - offset) throw Error(hipErrorInvalidValue, "more bytes than the variable has");
    std::memcpy(static_cast<uint8_t*>(where) + offset, from, bytes);
  });
}
hipError_t hipMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, hipMemcpyKind) {
  return call([&] {
    const auto [where, size] = variable_of(symbol);
    if (offset > size || bytes > size - offset) throw Error(hipErrorInvalidValue, "more bytes than the variable has");
    std::memcpy(to, static_cast<const uint8_t*>(where) + offset, bytes);
  });
}

}  // extern "C"

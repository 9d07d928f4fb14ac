// SPDX-License-Identifier: Apache-2.0
// The C interface of libLLVM is declared here, so that its headers need not be installed. The library is loaded when it
// is first needed, and its symbols are seen by nobody else: a process may hold another LLVM.
#include "decoder.h"

#include <dlfcn.h>

#include <cstdlib>

#include "fault.h"

namespace gfx942 {
namespace {

struct Llvm {
  std::string path;
  void* (*create)(const char* triple, const char* cpu, void* info, int tag, void* info_lookup, void* symbol_lookup);
  size_t (*disassemble)(void* disassembler, uint8_t* bytes, uint64_t size, uint64_t pc, char* text, size_t buffer);
  void (*dispose)(void* disassembler);
  unsigned version = 0;
};

const Llvm& llvm() {
  static const Llvm loaded = [] {
    const char* asked = std::getenv("GFX942_LLVM");
    Llvm l;
    l.path = asked && *asked ? asked : GFX942_LLVM_LIBRARY;
    void* library = dlopen(l.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw Fault(std::string("decode: no LLVM: ") + dlerror());
    const auto symbol = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (!function) throw Fault("decode: " + l.path + " has no " + name);
    };
    for (const char* name : {"LLVMInitializeAMDGPUTargetInfo", "LLVMInitializeAMDGPUTarget",
                             "LLVMInitializeAMDGPUTargetMC", "LLVMInitializeAMDGPUDisassembler"}) {
      void (*initialise)();
      symbol(initialise, name);
      initialise();
    }
    symbol(l.create, "LLVMCreateDisasmCPU");
    symbol(l.disassemble, "LLVMDisasmInstruction");
    symbol(l.dispose, "LLVMDisasmDispose");
    void (*get_version)(unsigned*, unsigned*, unsigned*);
    symbol(get_version, "LLVMGetVersion");
    get_version(&l.version, nullptr, nullptr);
    return l;
  }();
  return loaded;
}

// Asked for a chip that it does not know, LLVM ends the process or takes another one.
void* create(const Chip& chip) {
  const unsigned first = chip.isa == Isa::cdna4 ? 20 : 17;
  void* made =
      llvm().version < first ? nullptr : llvm().create("amdgcn-amd-amdhsa", chip.name, nullptr, 0, nullptr, nullptr);
  if (!made)
    throw Fault("decode: the LLVM " + std::to_string(llvm().version) + " in " + llvm().path + " does not know " +
                chip.name + "; GFX942_LLVM may name one that does");
  return made;
}

}  // namespace

Decoder::Decoder(const Chip& chip) : handle_(create(chip)) {}

Decoder::~Decoder() { llvm().dispose(handle_); }

size_t Decoder::read(const uint8_t* at, const uint8_t* end, std::string& text) const {
  char buffer[512];
  const size_t bytes = llvm().disassemble(handle_, const_cast<uint8_t*>(at), uint64_t(end - at),
                                          reinterpret_cast<uint64_t>(at), buffer, sizeof buffer);
  if (bytes) text = buffer;
  return bytes;
}

std::string known_to_another(const Chip& chip, const uint8_t* at, const uint8_t* end) {
  for (const Chip& other : chips()) {
    if (&other == &chip) continue;
    try {
      std::string text;
      if (!Decoder(other).read(at, end, text)) continue;
      const size_t begin = text.find_first_not_of(" \t");
      return "for " + std::string(other.name) + " it is " + text.substr(begin == text.npos ? 0 : begin);
    } catch (const Fault&) {  // this LLVM does not know the other chip
    }
  }
  return "";
}

}  // namespace gfx942

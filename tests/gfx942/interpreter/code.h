// SPDX-License-Identifier: Apache-2.0
// A code object: an ELF file of AMD kernels, loaded where the interpreter can reach it.
#pragma once

#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "chip.h"
#include "instruction.h"

namespace gfx942 {

// A parameter of a kernel as its metadata has it.
struct Argument {
  std::string kind;  // by_value, global_buffer, hidden_block_count_x, ...
  uint32_t offset = 0, size = 0;
};

class CodeObject;

// What a kernel needs at launch: of its metadata and its descriptor.
struct Code {
  std::string name, symbol;  // as mangled; the descriptor's
  std::vector<Argument> arguments;
  uint32_t kernarg_bytes = 0, lds_bytes = 0, scratch_bytes = 0, most_threads = 0;
  uint32_t vgprs = 0, agprs = 0, sgprs = 0, vgpr_spills = 0, sgpr_spills = 0;
  uint32_t mode = 0;  // the MODE register at the start, its bits 0 to 9
  bool sets_fp16_ovfl = false;
  uint32_t user_sgprs = 0;  // their number, and which are there
  uint32_t properties = 0;  // KERNEL_CODE_PROPERTIES; in the upper half, KERNARG_PRELOAD
  uint32_t rsrc2 = 0;       // COMPUTE_PGM_RSRC2
  uint64_t base = 0;        // what to subtract from an address for the one that a disassembler shows
  std::vector<Instruction> instructions;
  const CodeObject* object = nullptr;
};

class CodeObject {
 public:
  // Throws Fault where it is no code object of a chip that is known, or asks for what is not implemented.
  explicit CodeObject(std::span<const uint8_t> elf);
  ~CodeObject();
  CodeObject(const CodeObject&) = delete;

  const Chip& chip() const { return *chip_; }
  const Code& kernel(const std::string& name);  // decoded when first asked for
  std::vector<std::string> names() const;
  // A variable of the device, or null.
  std::pair<void*, size_t> variable(const std::string& name) const;
  // file:line of an instruction, inlined callers after it, or "" where the object was compiled without -g.
  std::string source_of(uint64_t address) const;
  std::vector<std::string> sources_of(std::span<const uint64_t> addresses) const;

 private:
  void load(std::span<const uint8_t> elf);
  void relocate(uint64_t dynamic, uint64_t bytes);
  void read_metadata(std::span<const uint8_t> note);
  void decode(Code& code);

  struct Symbol {
    uint64_t address, bytes;
  };
  const Chip* chip_;
  uint8_t* image_ = nullptr;
  size_t image_bytes_ = 0;
  const uint8_t* code_end_ = nullptr;
  std::vector<uint8_t> with_lines_;  // the file, where it has line numbers
  std::map<std::string, Symbol> symbols_;
  std::map<std::string, Code> kernels_;
  std::mutex decoding_;
};

// The chip's instructions in [begin, end), whose addresses are the real ones.
std::vector<Instruction> disassemble(const Chip& chip, const uint8_t* begin, const uint8_t* end);
// One of them, from its text.
Instruction parse(const Chip& chip, const std::string& text);

}  // namespace gfx942

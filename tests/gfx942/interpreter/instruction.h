// SPDX-License-Identifier: Apache-2.0
// An instruction as the interpreter keeps it. LLVM's disassembler gives the text, decode.cpp takes it apart once, and
// operations.h says what each mnemonic does.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace gfx942 {

constexpr int kLanes = 64;
using Mask = uint64_t;  // a bit for each lane

// Registers by one number: scalars 0 to 127 as the encoding has them, then vectors, then accumulators.
constexpr int kScalars = 128;
constexpr int kVectors = 512;
constexpr int kVcc = 106, kM0 = 124, kExec = 126;
constexpr int kAccumulators = 256;  // first one, within the vectors

// How the bits of an operand are read: what a constant in the text means, and how a modifier acts.
enum class Type : uint8_t { none, b16, b32, b64, f16, f32, f64, i16, i32, i64, bf16 };

struct Operand {
  enum class Kind : uint8_t { none, vector, scalar, constant, special };
  // Read-only values that are no registers.
  enum class Special : uint8_t { none, scc, vccz, execz, shared_base, shared_limit, private_base, private_limit };

  Kind kind = Kind::none;
  Special special = Special::none;
  uint8_t registers = 1;
  bool negate = false, absolute = false, sign_extend = false;
  uint16_t index = 0;  // of the first register
  uint64_t value = 0;  // of a constant

  bool is_vector() const { return kind == Kind::vector; }
  bool is_scalar() const { return kind == Kind::scalar; }
  explicit operator bool() const { return kind != Kind::none; }
};

// A part of a register: SDWA.
enum class Select : uint8_t { dword, byte0, byte1, byte2, byte3, word0, word1 };
enum class Unused : uint8_t { pad, sext, preserve };

// Lanes that change places on their way in: DPP.
enum class Dpp : uint8_t {
  none,
  quad_perm,
  row_shl,
  row_shr,
  row_ror,
  wave_shl,
  wave_rol,
  wave_shr,
  wave_ror,
  row_mirror,
  row_half_mirror,
  row_bcast,
  row_newbcast
};

// What of DPP is the same each time that an instruction runs.
struct DppSources {
  uint32_t lane[kLanes] = {};  // where each lane's value comes from, or lane 0 where there is no such lane
  Mask there = 0;              // the lanes that have a source
  Mask chosen = 0;             // and those that row_mask and bank_mask let through
};

struct Modifiers {
  uint8_t op_sel = 0, op_sel_hi = 7, neg_lo = 0, neg_hi = 0;  // a bit for each operand
  bool op_sel_hi_given = false;
  float multiply = 1;  // omod
  bool clamp = false;
  bool sdwa = false;
  Select dst_sel = Select::dword, src_sel[2] = {Select::dword, Select::dword};
  Unused dst_unused = Unused::pad;
  Dpp dpp = Dpp::none;
  uint8_t dpp_amount = 0, quad[4] = {0, 1, 2, 3}, row_mask = 15, bank_mask = 15;
  bool bound_ctrl = false;
  uint8_t cbsz = 0, abid = 0, blgp = 0;
  uint8_t bit_table = 0;                         // of v_bitop3
  int32_t offset = 0, offset0 = 0, offset1 = 0;  // a swizzle's is encoded as the hardware has it
  bool glc = false, slc = false,
       scc = false;                           // of caches, by the names of gfx90a; glc: an atomic returns its old value
  bool sc0 = false, nt = false, sc1 = false;  // the same bits, by those of gfx942
  bool gds = false, lds = false, offen = false, idxen = false;
  int16_t vmcnt = -1, lgkmcnt = -1, expcnt = -1;  // of s_waitcnt; -1: not waited for
};

class Wave;
struct Instruction;
using Action = void (*)(Wave&, const Instruction&);

// What an instruction keeps busy; counters.h sums by it.
enum class Unit : uint8_t { scalar, scalar_memory, vector, transcendental, matrix, lds, memory, branch, barrier, wait };
constexpr int kUnits = 10;

struct Operation {
  Action run = nullptr;
  Unit unit = Unit::scalar;
  uint8_t cycles = 4;              // that a SIMD's unit is taken, for a whole wave
  uint8_t results = 1;             // operands that are written, first in the text
  std::array<Type, 6> types = {};  // of each operand in the text, results first
};

struct Instruction {
  const Operation* operation = nullptr;
  Action run = nullptr;
  uint32_t next = 0;    // index of the instruction that follows
  uint32_t target = 0;  // of a branch: index
  uint8_t operands = 0;
  std::array<Operand, 6> operand = {};
  Modifiers with = {};
  const DppSources* dpp = nullptr;
  uint32_t index = 0, bytes = 0;
  uint64_t address = 0;       // where it lies now; `address - base` is what a disassembler shows
  std::string mnemonic = {};  // without _e32, _e64, _sdwa, _dpp
  std::string text = {};

  const Operand& destination() const { return operand[0]; }
  const Operand& source(int j) const { return operand[operation->results + j]; }
};

}  // namespace gfx942

// SPDX-License-Identifier: Apache-2.0
// AMX on a CPU without it: a library to preload. Linux's answer to a request for tile registers becomes yes, and each
// tile instruction, which is an illegal one on this machine, is executed by the handler of SIGILL. So the machine code
// of the instruction set `amx` runs as it is compiled, its other instructions by the CPU itself.
//
// What the manual makes a fault is one here, with a message: an instruction without a configuration, shapes that do not
// fit, an unknown instruction. Products follow the manual: of bfloat16, the even and the odd products of a pair are
// summed apart, with one rounding each and denormals taken as zero, and both sums are added to the tile's; of bytes,
// sums are integers of 32 bits that wrap around.
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cmath>

#define PUBLIC extern "C" __attribute__((visibility("default")))

namespace {

struct Tile {
  uint8_t byte[16][64];
};
struct Shapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(Shapes) == 64);

thread_local Shapes shapes;
thread_local Tile tiles[8];
std::atomic<long> products, row_products, byte_products;  // executed: of bfloat16; of 16 rows of it; of bytes

[[noreturn]] void fail(const char* what) {
  fprintf(stderr, "AMX emulator: %s\n", what);
  abort();
}

struct Instruction {
  int opcode, prefix, reg, rm, vvvv, length;
  bool memory;
  uint64_t address, stride;
};

// The register numbers of an encoding, as indices of a signal's context.
constexpr int kRegister[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

// Decodes an instruction of VEX's three-byte form in opcode map 0F38; false: not one.
bool decode(const uint8_t* code, const greg_t* registers, Instruction& out) {
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2) return false;
  const int x = code[1] & 0x40 ? 0 : 8, b = code[1] & 0x20 ? 0 : 8;
  out.vvvv = ~(code[2] >> 3) & 15;
  out.prefix = code[2] & 3;
  out.opcode = code[3];
  const int mode = code[4] >> 6;
  out.reg = code[4] >> 3 & 7;
  out.rm = code[4] & 7;
  out.memory = mode != 3;
  const uint8_t* at = code + 5;
  if (out.memory) {
    int base = out.rm | b;
    uint64_t index = 0;
    bool has_base = true;
    if (out.rm == 4) {
      const uint8_t sib = *at++;
      base = (sib & 7) | b;
      const int number = (sib >> 3 & 7) | x;
      if (number != 4) index = uint64_t(registers[kRegister[number]]) << (sib >> 6);
      has_base = !((sib & 7) == 5 && mode == 0);
    } else if (out.rm == 5 && mode == 0) {  // relative to the next instruction
      has_base = false;
      out.address = uint64_t(code + 5 + 4);
    }
    out.address += has_base ? uint64_t(registers[kRegister[base]]) : 0;
    out.stride = index;
    if (mode == 1) {
      out.address += int64_t(int8_t(*at++));
    } else if (mode == 2 || !has_base) {
      int32_t displacement;
      memcpy(&displacement, at, 4);
      at += 4;
      out.address += int64_t(displacement);
    }
  }
  out.length = int(at - code);
  return true;
}

float flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x; }
float widen(uint16_t bits) {
  const uint32_t word = uint32_t(bits) << 16;
  float x;
  memcpy(&x, &word, 4);
  return flush(x);
}

void multiply_bf16(Tile& sums, const Tile& left, const Tile& right, int rows, int columns, int pairs) {
  for (int m = 0; m < rows; ++m)
    for (int n = 0; n < columns; ++n) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < pairs; ++k) {
        uint16_t a[2], b[2];
        memcpy(a, left.byte[m] + 4 * k, 4);
        memcpy(b, right.byte[k] + 4 * n, 4);
        even = flush(std::fma(widen(a[0]), widen(b[0]), even));
        odd = flush(std::fma(widen(a[1]), widen(b[1]), odd));
      }
      memcpy(&sum, sums.byte[m] + 4 * n, 4);
      sum = flush(flush(sum) + flush(even + odd));
      memcpy(sums.byte[m] + 4 * n, &sum, 4);
    }
}

// TDPBSSD: signed bytes on both sides.
void multiply_bytes(Tile& sums, const Tile& left, const Tile& right, int rows, int columns, int quads) {
  for (int m = 0; m < rows; ++m)
    for (int n = 0; n < columns; ++n) {
      uint32_t sum;
      memcpy(&sum, sums.byte[m] + 4 * n, 4);
      for (int k = 0; k < quads; ++k)
        for (int e = 0; e < 4; ++e) sum += uint32_t(int8_t(left.byte[m][4 * k + e]) * int8_t(right.byte[k][4 * n + e]));
      memcpy(sums.byte[m] + 4 * n, &sum, 4);
    }
}

void load_shapes(const Shapes& from) {
  if (from.palette > 1 || from.start_row) fail("LDTILECFG: palette or start row");
  for (int t = 0; t < 16; ++t)
    if (from.row_bytes[t] > 64 || from.rows[t] > 16 || (t >= 8 && (from.row_bytes[t] || from.rows[t])))
      fail("LDTILECFG: a tile's shape");
  shapes = from;
  memset(tiles, 0, sizeof tiles);
}

bool execute(const Instruction& x) {
  if (x.opcode == 0x49 && x.prefix == 0) {
    if (x.memory)
      load_shapes(*reinterpret_cast<const Shapes*>(x.address));
    else
      shapes = {};
    return true;
  }
  if (!shapes.palette) fail("a tile instruction without a configuration");
  const int rows = shapes.rows[x.reg], row_bytes = shapes.row_bytes[x.reg];
  Tile& tile = tiles[x.reg];
  if (!rows || !row_bytes) fail("a tile register without a shape");
  if (x.opcode == 0x49 && x.prefix == 3 && !x.memory) {
    memset(&tile, 0, sizeof tile);
    return true;
  }
  if (x.opcode == 0x4b && x.memory && x.prefix != 0) {
    for (int r = 0; r < rows; ++r) {
      uint8_t* row = reinterpret_cast<uint8_t*>(x.address + uint64_t(r) * x.stride);
      if (x.prefix == 2)
        memcpy(row, tile.byte[r], size_t(row_bytes));
      else
        memcpy(tile.byte[r], row, size_t(row_bytes));
    }
    return true;
  }
  const bool is_of_bfloat16 = x.opcode == 0x5c && x.prefix == 2, is_of_bytes = x.opcode == 0x5e && x.prefix == 3;
  if ((is_of_bfloat16 || is_of_bytes) && !x.memory) {
    const int left = x.rm, right = x.vvvv;
    if (left == right || left == x.reg || right == x.reg) fail("a product: one tile twice");
    if (shapes.rows[left] != rows || shapes.row_bytes[right] != row_bytes ||
        shapes.row_bytes[left] != 4 * shapes.rows[right])
      fail("a product: shapes that do not fit");
    (is_of_bytes ? byte_products : products).fetch_add(1, std::memory_order_relaxed);
    if (is_of_bfloat16 && rows == 16) row_products.fetch_add(1, std::memory_order_relaxed);
    const auto multiply = is_of_bytes ? multiply_bytes : multiply_bf16;
    multiply(tile, tiles[left], tiles[right], rows, row_bytes / 4, shapes.rows[right]);
    return true;
  }
  return false;
}

void on_illegal(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction x = {};
  if (!decode(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers, x) || !execute(x))
    fail("an illegal instruction that is none of AMX");
  registers[REG_RIP] += x.length;
}

long raw_syscall(long number, const long* a) {
  long result;
  register long a4 asm("r10") = a[3], a5 asm("r8") = a[4], a6 asm("r9") = a[5];
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(a4), "r"(a5), "r"(a6)
               : "rcx", "r11", "memory");
  return result;
}

using SigactionFunction = int (*)(int, const struct sigaction*, struct sigaction*);
SigactionFunction next_sigaction() {
  static const auto next = reinterpret_cast<SigactionFunction>(dlsym(RTLD_NEXT, "sigaction"));
  return next;
}

__attribute__((constructor)) void install() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (next_sigaction()(SIGILL, &action, nullptr) != 0) fail("no handler of SIGILL");
}

}  // namespace

// The number of tiles' products that were executed.
PUBLIC long amx_products(void) { return products; }
PUBLIC long amx_row_products(void) { return row_products; }
PUBLIC long amx_byte_products(void) { return byte_products; }

// Other handlers of SIGILL, as Python's faulthandler has one, stay away.
PUBLIC int sigaction(int signal, const struct sigaction* action, struct sigaction* old) {
  return next_sigaction()(signal, signal == SIGILL ? nullptr : action, old);
}

// Linux's answers about tile registers; all other calls go to it.
PUBLIC long syscall(long number, ...) {
  constexpr long kSupportedFeatures = 0x1021, kRequestPermission = 0x1023, kTileData = 18;
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& x : a) x = va_arg(list, long);
  va_end(list);
  if (number == SYS_arch_prctl && a[0] == kSupportedFeatures) {
    *reinterpret_cast<uint64_t*>(a[1]) = uint64_t(1) << kTileData;
    return 0;
  }
  if (number == SYS_arch_prctl && a[0] == kRequestPermission) return 0;
  const long result = raw_syscall(number, a);
  if (result >= 0 || result < -4095) return result;
  errno = int(-result);
  return -1;
}

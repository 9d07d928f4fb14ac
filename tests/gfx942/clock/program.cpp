// SPDX-License-Identifier: Apache-2.0
#include "program.h"

namespace gfx942::clock {

namespace {

Port port_of(const Instruction& i) {
  switch (i.operation->unit) {
    case Unit::vector:
    case Unit::transcendental:
    case Unit::matrix:
      return Port::vector;
    case Unit::scalar:
    case Unit::scalar_memory:
      return Port::scalar;
    case Unit::lds:
      return Port::lds;
    case Unit::memory:
      return Port::memory;
    case Unit::branch:
      return i.mnemonic == "s_endpgm" ? Port::none : Port::branch;
    case Unit::barrier:
    case Unit::wait:
      return Port::none;
  }
  return Port::none;
}

Registers registers_of(const Operand& o) {
  return {uint16_t(o.is_vector() ? kScalars + o.index : o.index), o.registers};
}

}  // namespace

std::vector<Step> steps_of(const Code& code, const Constants& constants) {
  std::vector<Step> steps;
  for (const Instruction& i : code.instructions) {
    Step s;
    s.unit = i.operation->unit;
    s.port = port_of(i);
    s.cycles = i.operation->cycles;
    s.line = uint32_t((i.address - code.base) / uint64_t(constants.instruction_line_bytes));
    s.atomic = i.mnemonic.find("_atomic_") != std::string::npos;
    s.store = i.mnemonic.find("_store_") != std::string::npos || (s.atomic && !i.with.sc0);
    s.bypasses_l1 = s.atomic || s.store || i.with.sc1;
    s.ends = i.mnemonic == "s_endpgm";
    s.vmcnt = i.with.vmcnt, s.lgkmcnt = i.with.lgkmcnt;
    if (i.mnemonic == "s_setprio") s.priority = int16_t(i.operand[0].value & 3);
    if (i.mnemonic == "s_nop") s.pause = uint16_t((i.operand[0].value & 15) * constants.issue_cycles);
    if (i.mnemonic == "s_sleep") s.pause = uint16_t((i.operand[0].value & 127) * constants.sleep_cycles);
    for (int k = 0; k < i.operands; ++k) {
      const Operand& o = i.operand[k];
      if (!o.is_vector() && !o.is_scalar()) continue;
      if (k < i.operation->results) {
        s.written[s.writes++] = registers_of(o);
        s.vector_writes_scalar |= s.port == Port::vector && o.is_scalar();
      } else {
        if (s.unit == Unit::matrix && k == 3 && o.is_vector() && o.index == i.operand[0].index) s.accumulator = s.reads;
        s.read[s.reads++] = registers_of(o);
      }
    }
    if (i.mnemonic.starts_with("s_cbranch_vcc")) s.read[s.reads++] = {kVcc, 2};
    steps.push_back(s);
  }
  return steps;
}

bool Cursor::next() {
  lds = halves = lanes = lines = 0;
  touches_lds = false;
  memory = memory_end = nullptr;
  if (more_) {
    ++index, --more_;
  } else {
    if (at_ == end_) return false;
    index = *at_ & (Events::kMostInstructions - 1);
    more_ = *at_++ >> 20 & Events::kMostMore;
  }
  if (!more_) read_requests();
  return true;
}

void Cursor::read_requests() {
  for (; at_ != end_ && Events::kind(*at_) == Events::Kind::lds; ++at_) lds += *at_ & 0xffff, touches_lds = true;
  memory = at_;
  while (at_ != end_ && Events::kind(*at_) == Events::Kind::memory) {
    const uint32_t count = *at_ & 255;
    lines += count, halves += *at_ >> 8 & 255, lanes += *at_ >> 16 & 127;
    at_ += 1 + count;
  }
  memory_end = at_;
  for (; at_ != end_ && Events::kind(*at_) == Events::Kind::lds; ++at_) lds += *at_ & 0xffff, touches_lds = true;
}

}  // namespace gfx942::clock

// SPDX-License-Identifier: Apache-2.0
// From LLVM's text of an instruction to its operands and modifiers.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <string_view>

#include "code.h"
#include "decoder.h"
#include "fault.h"
#include "operations.h"

namespace gfx942 {
namespace {

using std::string_view;

[[noreturn]] void not_understood(string_view what, string_view text) {
  throw Fault("decode: " + std::string(what) + " in: " + std::string(text));
}

string_view trimmed(string_view s) {
  while (!s.empty() && std::isspace(uint8_t(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(uint8_t(s.back()))) s.remove_suffix(1);
  return s;
}

// The parts between `separator`s that are in no bracket.
std::vector<string_view> split(string_view s, char separator) {
  std::vector<string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t k = 0; k <= s.size(); ++k) {
    if (k == s.size() || (s[k] == separator && depth == 0)) {
      if (const string_view part = trimmed(s.substr(begin, k - begin)); !part.empty()) parts.push_back(part);
      begin = k + 1;
    } else if (s[k] == '(' || s[k] == '[') {
      ++depth;
    } else if (s[k] == ')' || s[k] == ']') {
      --depth;
    }
  }
  return parts;
}

int64_t number(string_view s, string_view text) {
  const bool minus = !s.empty() && s[0] == '-';
  if (minus) s.remove_prefix(1);
  const bool hex = s.starts_with("0x");
  if (hex) s.remove_prefix(2);
  uint64_t x = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), x, hex ? 16 : 10);
  if (error != std::errc() || end != s.data() + s.size()) not_understood("a number was expected", text);
  return minus ? -int64_t(x) : int64_t(x);
}

bool take_prefix(string_view& s, string_view prefix) {
  if (!s.starts_with(prefix)) return false;
  s.remove_prefix(prefix.size());
  return true;
}

// v7, v[4:5], a[0:3], s3, ttmp4: after the letters.
bool registers(string_view s, Operand& o, Operand::Kind kind, int base) {
  int first = 0, last = 0;
  if (s.empty()) return false;
  if (s[0] == '[') {
    const size_t colon = s.find(':');
    if (s.back() != ']') return false;
    first = int(number(s.substr(1, (colon == string_view::npos ? s.size() - 1 : colon) - 1), s));
    last = colon == string_view::npos ? first : int(number(s.substr(colon + 1, s.size() - colon - 2), s));
  } else {
    if (!std::isdigit(uint8_t(s[0]))) return false;
    first = last = int(number(s, s));
  }
  o.kind = kind;
  o.index = uint16_t(base + first);
  o.registers = uint8_t(last - first + 1);
  return true;
}

bool named(string_view s, Operand& o) {
  struct Name {
    string_view name;
    uint8_t index, registers;
  };
  constexpr Name kNames[] = {{"vcc", 106, 2},
                             {"vcc_lo", 106, 1},
                             {"vcc_hi", 107, 1},
                             {"exec", 126, 2},
                             {"exec_lo", 126, 1},
                             {"exec_hi", 127, 1},
                             {"m0", 124, 1},
                             {"flat_scratch", 102, 2},
                             {"flat_scratch_lo", 102, 1},
                             {"flat_scratch_hi", 103, 1},
                             {"xnack_mask", 104, 2},
                             {"xnack_mask_lo", 104, 1},
                             {"xnack_mask_hi", 105, 1}};
  for (const Name& n : kNames)
    if (n.name == s) {
      o.kind = Operand::Kind::scalar, o.index = n.index, o.registers = n.registers;
      return true;
    }
  using S = Operand::Special;
  constexpr std::pair<string_view, S> kSpecial[] = {{"src_scc", S::scc},
                                                    {"src_vccz", S::vccz},
                                                    {"src_execz", S::execz},
                                                    {"src_shared_base", S::shared_base},
                                                    {"src_shared_limit", S::shared_limit},
                                                    {"src_private_base", S::private_base},
                                                    {"src_private_limit", S::private_limit}};
  for (const auto& [name, special] : kSpecial)
    if (name == s) {
      o.kind = Operand::Kind::special, o.special = special;
      return true;
    }
  return false;
}

// A constant's value is left to constant(), which knows the type; its text is what `literal` is then.
Operand operand(string_view s, string_view& literal, string_view text) {
  Operand o;
  if (s == "off") return o;
  for (bool more = true; more;) {
    more = false;
    if (s.size() > 2 && s[0] == '-' && !std::isdigit(uint8_t(s[1]))) o.negate = more = true, s.remove_prefix(1);
    if (s.size() > 2 && s.front() == '|' && s.back() == '|') o.absolute = more = true, s = s.substr(1, s.size() - 2);
    if (s.starts_with("neg(")) o.negate = more = true, s = s.substr(4, s.size() - 5);
    if (s.starts_with("abs(")) o.absolute = more = true, s = s.substr(4, s.size() - 5);
    if (s.starts_with("sext(")) o.sign_extend = more = true, s = s.substr(5, s.size() - 6);
  }
  if (named(s, o)) return o;
  string_view rest = s;
  if (take_prefix(rest, "ttmp") && registers(rest, o, Operand::Kind::scalar, 108)) return o;
  rest = s;
  if (take_prefix(rest, "v") && registers(rest, o, Operand::Kind::vector, 0)) return o;
  rest = s;
  if (take_prefix(rest, "a") && registers(rest, o, Operand::Kind::vector, kAccumulators)) return o;
  rest = s;
  if (take_prefix(rest, "s") && registers(rest, o, Operand::Kind::scalar, 0)) return o;
  if (s.empty() || !(std::isdigit(uint8_t(s[0])) || s[0] == '-')) not_understood("an operand", text);
  o.kind = Operand::Kind::constant;
  literal = s;
  return o;
}

// The bits of a constant for an operand of a type. 32-bit literals are the upper half of a double; small integers are
// themselves in every type; decimals with a point are floats of the operand's own type.
uint64_t constant(string_view s, Type type, string_view text) {
  if (s.find('.') == string_view::npos) {
    const int64_t x = number(s, text);
    if (type == Type::f64 && s.starts_with("0x")) return uint64_t(x) << 32;
    // A literal of a 64-bit integer: sign-extended where it is signed, else zero-extended.
    if (type == Type::i64 && s.starts_with("0x")) return uint64_t(int64_t(int32_t(x)));
    return uint64_t(x);
  }
  const double x = std::strtod(std::string(s).c_str(), nullptr);
  const bool inverse_2pi = s.starts_with("0.1591549");
  switch (type) {
    case Type::f64:
    case Type::b64:
    case Type::i64:
      return inverse_2pi ? 0x3fc45f306dc9c882u : std::bit_cast<uint64_t>(x);
    case Type::f16:
    case Type::b16:
    case Type::i16:
      return inverse_2pi ? 0x3118 : narrow(x).bits;
    default:
      return inverse_2pi ? 0x3e22f983u : std::bit_cast<uint32_t>(float(x));
  }
}

// ---- modifiers

uint8_t bits_of_list(string_view s, string_view text) {  // [0,1,1]: bit j is element j
  if (s.size() < 2 || s.front() != '[' || s.back() != ']') not_understood("a list", text);
  uint8_t bits = 0;
  int j = 0;
  for (string_view part : split(s.substr(1, s.size() - 2), ',')) bits |= uint8_t(number(part, text) << j++);
  return bits;
}

Select select(string_view s, string_view text) {
  constexpr string_view kNames[] = {"DWORD", "BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1"};
  for (int k = 0; k < 7; ++k)
    if (kNames[k] == s) return Select(k);
  not_understood("a selection", text);
}

bool dpp(string_view name, string_view value, Modifiers& m, string_view text) {
  constexpr std::pair<string_view, Dpp> kShifts[] = {{"row_shl", Dpp::row_shl},
                                                     {"row_shr", Dpp::row_shr},
                                                     {"row_ror", Dpp::row_ror},
                                                     {"wave_shl", Dpp::wave_shl},
                                                     {"wave_rol", Dpp::wave_rol},
                                                     {"wave_shr", Dpp::wave_shr},
                                                     {"wave_ror", Dpp::wave_ror},
                                                     {"row_bcast", Dpp::row_bcast},
                                                     {"row_newbcast", Dpp::row_newbcast},
                                                     {"row_mirror", Dpp::row_mirror},
                                                     {"row_half_mirror", Dpp::row_half_mirror}};
  for (const auto& [key, kind] : kShifts)
    if (key == name) {
      m.dpp = kind;
      if (!value.empty()) m.dpp_amount = uint8_t(number(value, text));
      return true;
    }
  if (name == "quad_perm") {
    m.dpp = Dpp::quad_perm;
    int j = 0;
    for (string_view part : split(value.substr(1, value.size() - 2), ','))
      m.quad[j++ & 3] = uint8_t(number(part, text));
  } else if (name == "row_mask") {
    m.row_mask = uint8_t(number(value, text));
  } else if (name == "bank_mask") {
    m.bank_mask = uint8_t(number(value, text));
  } else if (name == "bound_ctrl") {
    m.bound_ctrl = true;  // both spellings, :0 and :1, are of the bit that is set
  } else {
    return false;
  }
  return true;
}

void modifier(string_view s, Modifiers& m, string_view text) {
  const size_t colon = s.find(':');
  const string_view name = s.substr(0, colon), value = colon == string_view::npos ? "" : s.substr(colon + 1);
  if (name == "glc")
    m.glc = true;
  else if (name == "slc")
    m.slc = true;
  else if (name == "scc")
    m.scc = true;
  else if (name == "sc0")
    m.sc0 = true;
  else if (name == "sc1")
    m.sc1 = true;
  else if (name == "nt")
    m.nt = true;
  else if (name == "gds")
    m.gds = true;
  else if (name == "lds")
    m.lds = true;
  else if (name == "offen")
    m.offen = true;
  else if (name == "idxen")
    m.idxen = true;
  else if (name == "clamp")
    m.clamp = true;
  else if (name == "op_sel")
    m.op_sel = bits_of_list(value, text);
  else if (name == "op_sel_hi")
    m.op_sel_hi = bits_of_list(value, text), m.op_sel_hi_given = true;
  else if (name == "neg")
    m.blgp = bits_of_list(value, text);  // of v_mfma_f64, where blgp would be
  else if (name == "neg_lo")
    m.neg_lo = bits_of_list(value, text);
  else if (name == "neg_hi")
    m.neg_hi = bits_of_list(value, text);
  else if (name == "mul")
    m.multiply = float(number(value, text));
  else if (name == "div")
    m.multiply = 1 / float(number(value, text));
  else if (name == "cbsz")
    m.cbsz = uint8_t(number(value, text));
  else if (name == "abid")
    m.abid = uint8_t(number(value, text));
  else if (name == "blgp")
    m.blgp = uint8_t(number(value, text));
  else if (name == "bitop3")
    m.bit_table = uint8_t(number(value, text));
  else if (name == "offset")
    m.offset = value.starts_with("swizzle(") ? 0 : int32_t(number(value, text));  // a swizzle is read from the code
  else if (name == "offset0")
    m.offset0 = int32_t(number(value, text));
  else if (name == "offset1")
    m.offset1 = int32_t(number(value, text));
  else if (name == "dst_sel")
    m.dst_sel = select(value, text);
  else if (name == "src0_sel")
    m.src_sel[0] = select(value, text);
  else if (name == "src1_sel")
    m.src_sel[1] = select(value, text);
  else if (name == "dst_unused")
    m.dst_unused = value == "UNUSED_PRESERVE" ? Unused::preserve : value == "UNUSED_SEXT" ? Unused::sext : Unused::pad;
  else if (!dpp(name, value, m, text))
    not_understood("modifier " + std::string(s), text);
}

bool is_operand(string_view s) {
  if (s.empty()) return false;
  Operand o;
  if (s == "off" || named(s, o) || std::isdigit(uint8_t(s[0])) || s[0] == '-' || s[0] == '|') return true;
  const size_t letters = s.find_first_of("[0123456789");
  return letters != string_view::npos &&
         (s.substr(0, letters) == "v" || s.substr(0, letters) == "a" || s.substr(0, letters) == "s" ||
          s.substr(0, letters) == "ttmp" || s.starts_with("sext("));
}

void waits(string_view s, Modifiers& m, string_view text) {
  for (string_view part : split(s, ' ')) {
    const size_t bracket = part.find('(');
    if (part == "&") continue;
    const int16_t count = int16_t(number(part.substr(bracket + 1, part.size() - bracket - 2), text));
    const string_view name = part.substr(0, bracket);
    (name == "vmcnt" ? m.vmcnt : name == "lgkmcnt" ? m.lgkmcnt : m.expcnt) = count;
  }
}

// hwreg(HW_REG_MODE, 4, 2) as the encoding has it: id | offset << 6 | (width - 1) << 11.
uint64_t hardware_register(string_view s, string_view text) {
  const auto parts = split(s.substr(6, s.size() - 7), ',');
  const uint64_t id = parts[0] == "HW_REG_MODE" ? 1 : std::isdigit(uint8_t(parts[0][0])) ? number(parts[0], text) : 0;
  if (!id) not_understood("hardware register " + std::string(parts[0]), text);
  const uint64_t offset = parts.size() > 1 ? number(parts[1], text) : 0;
  const uint64_t width = parts.size() > 2 ? number(parts[2], text) : 32;
  return id | offset << 6 | (width - 1) << 11;
}

// gpr_idx(SRC0,DST): a bit for each.
uint64_t indexed_operands(string_view s, string_view text) {
  constexpr string_view kNames[] = {"SRC0", "SRC1", "SRC2", "DST"};
  uint64_t bits = 0;
  for (string_view part : split(s.substr(8, s.size() - 9), ',')) {
    const auto found = std::find(std::begin(kNames), std::end(kNames), part);
    if (found == std::end(kNames)) not_understood("an operand's name", text);
    bits |= uint64_t(1) << (found - kNames);
  }
  return bits;
}

// Words that are operands, but no registers and no numbers; hwreg(...), gpr_idx(...).
bool special_constant(string_view s, string_view text, Operand& o) {
  const bool of_hardware = s.starts_with("hwreg("), of_index = s.starts_with("gpr_idx(");
  if (!of_hardware && !of_index) return false;
  o.kind = Operand::Kind::constant;
  o.value = of_hardware ? hardware_register(s, text) : indexed_operands(s, text);
  return true;
}

void not_implemented(Wave& w, const Instruction& i) {
  w.fail(i, "the interpreter does not implement this instruction");
}
constexpr Operation kNotImplemented = {&not_implemented, Unit::scalar, 4, 1, {}};

}  // namespace

Instruction parse(const Chip& chip, const std::string& text) {
  Instruction i;
  i.text = std::string(trimmed(text));
  const string_view whole = i.text;
  const size_t space = std::min(whole.find(' '), whole.find('\t'));
  string_view name = whole.substr(0, space);
  for (string_view suffix : {"_e32", "_e64", "_dpp", "_sdwa"})
    if (name.ends_with(suffix)) {
      i.with.sdwa = suffix == "_sdwa";
      name.remove_suffix(suffix.size());
      break;
    }
  i.mnemonic = name;
  const Operation* known = find_operation(chip, name);
  i.operation = known ? known : &kNotImplemented;
  i.run = i.operation->run;
  string_view rest = space == string_view::npos ? "" : trimmed(whole.substr(space));
  if (name == "s_waitcnt") {
    waits(rest, i.with, whole);
    return i;
  }
  if (!known) return i;  // its operands may be of a kind that is not known either

  auto parts = split(rest, ',');
  if (!parts.empty()) {  // modifiers follow the last operand
    auto tail = split(parts.back(), ' ');
    Operand unused;
    size_t first = is_operand(tail[0]) || special_constant(tail[0], whole, unused) ? 1 : 0;
    for (size_t k = first; k < tail.size(); ++k) modifier(tail[k], i.with, whole);
    if (first)
      parts.back() = tail[0];
    else
      parts.pop_back();
  }
  if (parts.size() > i.operand.size()) not_understood("too many operands", whole);
  for (size_t k = 0; k < parts.size(); ++k) {
    Operand& o = i.operand[k];
    if (special_constant(parts[k], whole, o)) continue;
    string_view literal;
    o = operand(parts[k], literal, whole);
    if (o.kind == Operand::Kind::constant) o.value = constant(literal, i.operation->types[k], whole);
  }
  i.operands = uint8_t(parts.size());
  if (i.with.dpp != Dpp::none) i.dpp = dpp_sources(i.with);
  return i;
}

std::vector<Instruction> disassemble(const Chip& chip, const uint8_t* begin, const uint8_t* end) {
  const Decoder decoder(chip);
  std::vector<Instruction> all;
  std::vector<uint32_t> index_at((end - begin) / 4 + 1, ~0u);
  std::string text;
  for (const uint8_t* at = begin; at < end;) {
    const size_t bytes = decoder.read(at, end, text);
    if (!bytes) {
      const std::string other = known_to_another(chip, at, end);
      throw Fault("decode: " + std::string(chip.name) + " has no such instruction at offset " +
                  std::to_string(at - begin) + (other.empty() ? "" : ": " + other));
    }
    Instruction i = parse(chip, text);
    // LLVM's text has the mode of a swizzle in words, and of a rotation not all of it.
    if (i.text.starts_with("ds_swizzle_b32")) i.with.offset = at[0] | at[1] << 8;
    i.address = reinterpret_cast<uint64_t>(at);
    i.bytes = uint32_t(bytes);
    i.index = uint32_t(all.size());
    i.next = i.index + 1;
    index_at[(at - begin) / 4] = i.index;
    all.push_back(std::move(i));
    at += bytes;
  }
  for (Instruction& i : all) {
    if (i.operation->unit != Unit::branch || i.operands == 0 || i.operand[0].kind != Operand::Kind::constant) continue;
    const int64_t target =
        int64_t(i.address - reinterpret_cast<uint64_t>(begin)) + 4 + 4 * int64_t(int16_t(i.operand[0].value));
    if (target < 0 || target / 4 >= int64_t(index_at.size()) || index_at[target / 4] == ~0u)
      not_understood("a branch to no instruction", i.text);
    i.target = index_at[target / 4];
  }
  return all;
}

}  // namespace gfx942

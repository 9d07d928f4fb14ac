// SPDX-License-Identifier: Apache-2.0
#include <list>

#include "operations.h"

namespace gfx942 {
namespace {

Table table_of(const Chip& chip) {
  Table t;
  add_scalar(t);
  add_control(t);
  add_vector_floats(t);
  add_vector_integers(t);
  add_compares(t);
  add_conversions(t, chip.isa);
  add_divisions(t);
  add_packed(t);
  add_lane_moves(t);
  add_matrix(t, chip.isa);
  add_lds(t);
  add_memory(t);
  if (chip.isa == Isa::cdna2) add_cdna2(t);
  if (chip.isa == Isa::cdna4) add_cdna4(t);
  return t;
}

}  // namespace

std::string_view kept(std::string name) {
  static std::list<std::string> names;
  return names.emplace_back(std::move(name));
}

const Table& operations(const Chip& chip) {
  static const std::vector<Table> all = [] {
    std::vector<Table> tables;
    for (const Chip& c : chips()) tables.push_back(table_of(c));
    return tables;
  }();
  return all[size_t(&chip - chips().data())];
}

const Operation* find_operation(const Chip& chip, std::string_view mnemonic) {
  const Table& table = operations(chip);
  const auto found = table.find(mnemonic);
  return found == table.end() ? nullptr : &found->second;
}

}  // namespace gfx942

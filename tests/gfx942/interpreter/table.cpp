// SPDX-License-Identifier: Apache-2.0
#include "operations.h"

namespace gfx942 {

const Table& operations() {
  static const Table all = [] {
    Table t;
    add_scalar(t);
    add_control(t);
    add_vector_floats(t);
    add_vector_integers(t);
    add_compares(t);
    add_conversions(t);
    add_divisions(t);
    add_packed(t);
    add_lane_moves(t);
    add_matrix(t);
    add_lds(t);
    add_memory(t);
    return t;
  }();
  return all;
}

const Operation* find_operation(std::string_view mnemonic) {
  const auto found = operations().find(mnemonic);
  return found == operations().end() ? nullptr : &found->second;
}

}  // namespace gfx942

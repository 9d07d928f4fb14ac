// SPDX-License-Identifier: Apache-2.0
// What a walk computes, and the terms of its sums that follow from it (the table in chunk_walk.h). Each output is a
// type, so that a kernel's symbol names it: chunk_walk<BFloat16, 256, 32, output::dq>.
#pragma once

#include <type_traits>

#include "mlstm/gpu/params.h"

namespace xlstm::gpu::mlstm {

struct WalkTerms {
  const char* name;             // of the launch
  bool reverse = false;         // from the last chunk to the first
  bool states_only = false;     // no output: each segment but the last begins with zeros and stores its final state
  Factor inter = kFactors;      // factor of each token's row of a C; kFactors, here and below: no such term
  Factor weight;                // factor of each token's row of x, in x^T y
  bool divides_by_n = false;    // out times kInverseN
  bool gradient_terms = false;  // out += vector_factor vector; dots += <out, dot_with>; out += kDiagonal y
  Factor vector_factor = kFactors;
};

namespace output {

struct h {
  static constexpr WalkTerms kTerms{.name = "walk of h", .inter = kInter, .weight = kInto, .divides_by_n = true};
};
struct dq {
  static constexpr WalkTerms kTerms{
      .name = "walk of dq", .inter = kInter, .weight = kInto, .gradient_terms = true, .vector_factor = kInterDl};
};
struct dk {
  static constexpr WalkTerms kTerms{.name = "walk of dk",
                                    .reverse = true,
                                    .inter = kInto,
                                    .weight = kInter,
                                    .gradient_terms = true,
                                    .vector_factor = kInto};
};
struct dv {
  static constexpr WalkTerms kTerms{.name = "walk of dv", .reverse = true, .inter = kInto, .weight = kInter};
};
// The states at the borders between segments: C for h and dq, dC for dk and dv.
struct c {
  static constexpr WalkTerms kTerms{.name = "states of segments", .states_only = true, .weight = kInto};
};
struct dc {
  static constexpr WalkTerms kTerms{
      .name = "states of segments", .reverse = true, .states_only = true, .weight = kInter};
};

}  // namespace output

// Whether CDNA's walk (chunk_walk_cdna.h) can load these tensors.
inline bool rows_are_vectors(const WalkParams& p, const WalkTerms& terms) {
  const auto are_vectors = [](const Tokens& x) { return x.is_aligned16 && x.stride[2] >= x.columns; };
  return are_vectors(p.x) && are_vectors(p.y) && (terms.states_only || (are_vectors(p.a) && are_vectors(p.out))) &&
         (!terms.gradient_terms || are_vectors(p.dot_with));
}

// The states that a walk begins its segments with.
template <class Output>
using StatesOf = std::conditional_t<Output::kTerms.reverse, output::dc, output::c>;

}  // namespace xlstm::gpu::mlstm

// SPDX-License-Identifier: Apache-2.0
// What a walk computes, and the terms of its sums that follow from it (the table in chunk_walk.h). Each output is a
// type, so that a kernel's symbol names it: chunk_walk<BFloat16, 256, 32, output::dq>.
#pragma once

#include <type_traits>

#include "mlstm/gpu/params.h"

namespace xlstm::gpu::mlstm {

struct WalkTerms {
  const char* name;     // of the launch
  bool reverse;         // from the last chunk to the first
  bool states_only;     // no output: each segment but the last begins with zeros and stores its final state
  Factor inter;         // factor of each token's row of a C
  Factor weight;        // factor of each token's row of x, in x^T y
  bool divides_by_n;    // out times kInverseN
  bool gradient_terms;  // out += vector_factor vector; dots += <out, dot_with>; out += kDiagonal y
  Factor vector_factor;
};

namespace output {

struct h {
  static constexpr WalkTerms kTerms{"walk of h", false, false, kInter, kInto, true, false, kFactors};
};
struct dq {
  static constexpr WalkTerms kTerms{"walk of dq", false, false, kInter, kInto, false, true, kInterDl};
};
struct dk {
  static constexpr WalkTerms kTerms{"walk of dk", true, false, kInto, kInter, false, true, kInto};
};
struct dv {
  static constexpr WalkTerms kTerms{"walk of dv", true, false, kInto, kInter, false, false, kFactors};
};
// The states at the borders between segments: C for h and dq, dC for dk and dv.
struct c {
  static constexpr WalkTerms kTerms{"states of segments", false, true, kFactors, kInto, false, false, kFactors};
};
struct dc {
  static constexpr WalkTerms kTerms{"states of segments", true, true, kFactors, kInter, false, false, kFactors};
};

}  // namespace output

// The states that a walk begins its segments with.
template <class Output>
using StatesOf = std::conditional_t<Output::kTerms.reverse, output::dc, output::c>;

}  // namespace xlstm::gpu::mlstm

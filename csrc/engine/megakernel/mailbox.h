// SPDX-License-Identifier: Apache-2.0
// How blocks of a grid that all run at once hand floats to each other (engine/megakernel/megakernel.h): a word tells by
// itself whether it is there. Memory begins as kAbsent, each word is left once, and who needs it looks until it is
// another. So nobody arrives, nobody orders what he wrote before, and the look that finds a word has it: a counter of
// arrivals cost a trip to L2 for the order, one for the counter, one to see it and one for the words.
#pragma once

#include "arch/hopper/hopper.h"
#include "engine/gemm_mma/input_vectors.h"
#include "engine/prologue_epilogue.h"

namespace xlstm::gpu::engine {

// Once.
XLSTM_DEVICE void leave(float* to, float x) { store_relaxed_gpu(to, as_bits(present(x))); }

XLSTM_DEVICE bool any_absent(const Vec16& piece) {
  bool absent = false;
#pragma unroll
  for (int w = 0; w < 4; ++w) absent |= piece.word[w] == kAbsent;
  return absent;
}

XLSTM_DEVICE float await_word(const float* from) {
  uint32_t word;
  do word = load_relaxed_gpu(from);
  while (word == kAbsent && spin_again());
  return as_float(word);
}
// Four of them, from a multiple of 16 bytes on.
XLSTM_DEVICE Vec16 await_piece(const float* from) {
  Vec16 piece;
  do piece = load_relaxed_gpu_vec16(from);
  while (any_absent(piece) && spin_again());
  return piece;
}
// Eights, all of which are asked for before any is waited for; meanwhile(n): when the nth look is on its way.
template <int kCount, class Meanwhile>
XLSTM_DEVICE void await_eights(const float* const (&from)[kCount], float (&to)[kCount][kEight], Meanwhile&& meanwhile) {
  Vec16 piece[2 * kCount];
  bool absent;
  int looks = 0;
  do {
    absent = false;
#pragma unroll
    for (int n = 0; n < 2 * kCount; ++n) piece[n] = load_relaxed_gpu_vec16(from[n / 2] + n % 2 * 4);
    meanwhile(looks++);
#pragma unroll
    for (int n = 0; n < 2 * kCount; ++n) absent |= any_absent(piece[n]);
  } while (absent && spin_again());
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int e = 0; e < kEight; ++e) to[i][e] = as_float(piece[2 * i + e / 4].word[e % 4]);
}

}  // namespace xlstm::gpu::engine

// SPDX-License-Identifier: Apache-2.0
// What keys and values are in memory: elements E as q's, or floats of 8 bits, which become E in registers, behind the
// load and ahead of the product. Their descale is a factor of the scores and of out.
#pragma once

#include "arch/operands.h"
#include "attention/layout.h"
#include "base/float8.h"

namespace xlstm::gpu::attention {

template <class Key>
constexpr bool kIsFloat8 = sizeof(Key) == 1;

// A kernel's elements: E, of q and of the keys, or one of these: keys have another format, or q and the keys have it,
// and are multiplied in it, and E is of out alone.
template <class E>
struct E4m3fnKeys {};
template <class E>
struct E4m3fnuzKeys {};
template <class E>
struct E4m3fnProducts {};
template <class E>
struct E4m3fnuzProducts {};

template <class Query_, class Key_, class Out_>
struct ElementTypes {
  using Query = Query_;
  using Key = Key_;
  using Out = Out_;
};
template <class Elements>
struct ElementsOf : ElementTypes<Elements, Elements, Elements> {};
template <class E>
struct ElementsOf<E4m3fnKeys<E>> : ElementTypes<E, Float8E4m3fn, E> {};
template <class E>
struct ElementsOf<E4m3fnuzKeys<E>> : ElementTypes<E, Float8E4m3fnuz, E> {};
template <class E>
struct ElementsOf<E4m3fnProducts<E>> : ElementTypes<Float8E4m3fn, Float8E4m3fn, E> {};
template <class E>
struct ElementsOf<E4m3fnuzProducts<E>> : ElementTypes<Float8E4m3fnuz, Float8E4m3fnuz, E> {};
template <class Elements>
using QueryOf = typename ElementsOf<Elements>::Query;
template <class Elements>
using KeyOf = typename ElementsOf<Elements>::Key;
template <class Elements>
using OutOf = typename ElementsOf<Elements>::Out;
// Whether keys become elements of q's format in registers.
template <class Elements>
constexpr bool kWidensKeys = sizeof(KeyOf<Elements>) < sizeof(QueryOf<Elements>);

// What 1 in the elements of keys or values of a key head stands for.
template <class Key>
XLSTM_DEVICE float key_descale(const xlstm_descale& x, const AttentionLayout& at, int64_t key_head) {
  if constexpr (kIsFloat8<Key>) return descale_of(x, at.index, key_head) * widened_unit<Key>();
  return 1;
}

// As many floats of 8 bits as there are elements in a vector of kWords.
template <int kWords>
struct alignas(2 * kWords) Float8Vec {
  uint32_t word[kWords / 2];
};
// Words [first, first + kWords / 2) of floats of 8 bits, as elements.
template <class E, class Key, int kWords>
XLSTM_DEVICE void widen_words(const uint32_t* from, uint32_t (&to)[kWords]) {
#pragma unroll
  for (int w = 0; w < kWords; w += 2) {
    uint32_t pair[2];
    widen_float8<E, Key>(from[w / 2], pair);
    to[w] = pair[0], to[w + 1] = pair[1];
  }
}

// Calls launch(Elements) for keys of `dtype`, which is E's or a float of 8 bits.
template <class E, class Launch>
void with_elements(E e, xlstm_dtype dtype, Launch&& launch) {
  if (dtype == XLSTM_FLOAT8_E4M3FN)
    launch(E4m3fnKeys<E>{});
  else if (dtype == XLSTM_FLOAT8_E4M3FNUZ)
    launch(E4m3fnuzKeys<E>{});
  else
    launch(e);
}

}  // namespace xlstm::gpu::attention

// SPDX-License-Identifier: Apache-2.0
// The addresses of a head's keys, by one rule for all layouts (attention/layout.h): a walk's loads have no branches.
// Keys that are not in pages are one page, whose entry is never used; an entry is loaded nevertheless, of the queries,
// which every call has.
#pragma once

#include <limits.h>

#include "attention/layout.h"

namespace xlstm::gpu::attention {

struct KeySlots {
  const int32_t* entries;
  uint32_t page_size, first_key;
  int32_t last_page;
  int last_key;      // of the walk: later keys repeat it
  const char* data;  // of slot 0 of page 0
  uint64_t page_bytes, slot_bytes;
  uint32_t inverse;  // CDNA: 2^32 / page_size, at most 1 too small

  KeySlots() = default;
  XLSTM_DEVICE KeySlots(const AttentionLayout& at, int64_t head, int element_bytes, int last)
      : entries(static_cast<const int32_t*>(at.in.q.data)),
        page_size(INT_MAX),
        first_key(uint32_t(at.first_key)),
        last_page(0),
        last_key(last),
        page_bytes(0),
        slot_bytes(uint64_t(at.in.k.stride[2] * element_bytes)) {
    const xlstm_attention& in = at.in;
    int64_t row = in.cu_seqlens_k ? at.first_token * in.k.stride[2] : at.kv_row * in.k.stride[0];
    if (in.block_table) {
      entries = in.block_table + at.index * in.block_table_stride;
      page_size = uint32_t(in.page_size);
      last_page = int32_t(in.pages - 1 < INT_MAX ? in.pages - 1 : INT_MAX);
      page_bytes = uint64_t(in.k.stride[0] * element_bytes);
      row = 0;
    }
    data = static_cast<const char*>(in.k.data) + (row + head * in.k.stride[1]) * element_bytes;
    if constexpr (kFamily == Family::cdna) inverse = uint32_t(uniform(int(opaque(UINT_MAX / page_size))));
  }
  // The same, opaque: vector registers hold nothing of it ahead of this point.
  XLSTM_DEVICE KeySlots in_scalars() const {
    KeySlots k = *this;
    for (uint32_t* x : {&k.page_size, &k.first_key, &k.inverse}) *x = uint32_t(opaque_uniform(int(*x)));
    for (int32_t* x : {&k.last_page, &k.last_key}) *x = opaque_uniform(*x);
    k.data = opaque_uniform(k.data);
    return k;
  }

  // Where key j lies: the page's entry is loaded here, and used by address().
  struct Slot {
    int32_t entry;
    uint32_t in_page;
  };
  XLSTM_DEVICE Slot slot(int j) const {
    const uint32_t t = first_key + uint32_t(j < last_key ? j : last_key), page = page_of(t);
    return {entry(page), t - page * page_size};
  }
  XLSTM_DEVICE int32_t entry(uint32_t page) const {
    if constexpr (kFamily == Family::cdna)  // 32 bits suffice: memory does not hold the keys of 2^30 pages
      return load_bits<int32_t>(reinterpret_cast<const char*>(entries), page * uint32_t(sizeof(int32_t)));
    else
      return global(entries)[page];
  }
  // t / page_size. CDNA's compiler would keep the divisor's reciprocal in a vector register, and correct twice.
  XLSTM_DEVICE uint32_t page_of(uint32_t t) const {
    if constexpr (kFamily == Family::cdna) {
      const uint32_t page = uint32_t(uint64_t(t) * inverse >> 32);  // at most 1 too small, as t < 2^31
      return t - page * page_size < page_size ? page : page + 1;
    } else {
      return t / page_size;
    }
  }
  XLSTM_DEVICE const char* address(const Slot& slot) const {
    const int32_t page = slot.entry < 0 ? 0 : slot.entry < last_page ? slot.entry : last_page;
    return data + uint32_t(page) * page_bytes + slot.in_page * slot_bytes;
  }
};

}  // namespace xlstm::gpu::attention

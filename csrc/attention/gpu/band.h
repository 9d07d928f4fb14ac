// SPDX-License-Identifier: Apache-2.0
// The visible pairs of a sequence as a band of key - query, for kernels that walk tiles of one side for a block of the
// other side's tokens.
#pragma once

#include "arch/fragments.h"
#include "attention/layout.h"

namespace xlstm::gpu::attention {

// The tiles that a block walks: `count` tiles from tile `first` on.
struct VisibleTiles {
  int first, count;
};

// A query sees the keys with min_distance <= key - query - diagonal <= min_distance + span.
struct Band {
  int min_distance, span, diagonal;  // diagonal: keys - queries

  Band() = default;
  XLSTM_DEVICE Band(const xlstm_attention& in, int keys_minus_queries) : diagonal(keys_minus_queries) {
    constexpr int64_t kUnlimited = INT32_MAX;
    const int64_t left = in.window_left < 0 || in.window_left > kUnlimited ? kUnlimited : in.window_left;
    const int64_t right = in.window_right < 0 || in.window_right > kUnlimited ? kUnlimited : in.window_right;
    min_distance = uniform(int(-left));
    span = uniform(int(uint32_t(right + left)));
  }
  // The other side's tiles that some of the tokens [owned, owned + count) see, or are seen by.
  template <bool kOfKeys>
  XLSTM_DEVICE VisibleTiles visible_tiles(int owned, int count, int queries, int keys, int tile) const {
    const int64_t end_owned = owned + count < (kOfKeys ? keys : queries) ? owned + count : (kOfKeys ? keys : queries);
    const int64_t max_distance = int64_t(min_distance) + uint32_t(span);
    const int64_t low = kOfKeys ? owned - diagonal - max_distance : owned + diagonal + int64_t(min_distance);
    const int64_t high =
        kOfKeys ? end_owned - diagonal - int64_t(min_distance) : end_owned + diagonal + max_distance;  // excluded
    const int64_t all = kOfKeys ? queries : keys;
    const int64_t begin = low < 0 ? 0 : low, end = high < all ? high : all;
    const int first = uniform(int(begin / tile));
    return {first, end > begin ? uniform(int((end + tile - 1) / tile)) - first : 0};
  }
  // Tiles that begin at [begin, end) are fully visible to `count` owned tokens from `first_owned` on.
  struct FullyVisible {
    int begin, end;

    XLSTM_DEVICE bool contains(int first) const { return first >= begin && first < end; }
  };
  template <bool kOfKeys>
  XLSTM_DEVICE FullyVisible fully_visible_tiles(int first_owned, int count, int keys, int tile) const {
    const int64_t last = int64_t(first_owned) + count - 1, low = int64_t(min_distance) + diagonal,
                  high = low + uint32_t(span);
    const int64_t begin = kOfKeys ? last - high : last + low;
    int64_t end = (kOfKeys ? first_owned - low : first_owned + high) - tile + 2;
    if (!kOfKeys && end > keys - tile + 1) end = keys - tile + 1;
    const auto clamp = [](int64_t x) { return x < 0 ? 0 : x < INT32_MAX ? int(x) : INT32_MAX; };
    return {clamp(begin), clamp(end)};
  }
};

}  // namespace xlstm::gpu::attention

// SPDX-License-Identifier: Apache-2.0
// Which keys the queries of a sequence see, as a band of key - query: what kernels ask of it that walk tiles of one
// side for a block of the other's tokens.
#pragma once

#include "arch/fragments.h"
#include "attention/layout.h"

namespace xlstm::gpu::attention {

// Tiles that a block walks, from the first on.
struct TilesSeen {
  int first, count;
};

// A query sees the keys with least <= key - query - apart <= least + span.
struct Band {
  int least, span, apart;  // apart: keys - queries

  Band() = default;
  XLSTM_DEVICE Band(const xlstm_attention& in, int keys_less_queries) : apart(keys_less_queries) {
    constexpr int64_t kFar = INT32_MAX;
    const int64_t left = in.window_left < 0 || in.window_left > kFar ? kFar : in.window_left;
    const int64_t right = in.window_right < 0 || in.window_right > kFar ? kFar : in.window_right;
    least = uniform(int(-left));
    span = uniform(int(uint32_t(right + left)));
  }
  // Of the other side's tiles those that some of the tokens [owned, owned + count) see, or are seen by.
  template <bool kOfKeys>
  XLSTM_DEVICE TilesSeen tiles_seen(int owned, int count, int queries, int keys, int tile) const {
    const int64_t end_owned = owned + count < (kOfKeys ? keys : queries) ? owned + count : (kOfKeys ? keys : queries);
    const int64_t most = int64_t(least) + uint32_t(span);
    const int64_t low = kOfKeys ? owned - apart - most : owned + apart + int64_t(least);
    const int64_t high = kOfKeys ? end_owned - apart - int64_t(least) : end_owned + apart + most;  // excluded
    const int64_t all = kOfKeys ? queries : keys;
    const int64_t begin = low < 0 ? 0 : low, end = high < all ? high : all;
    const int first = uniform(int(begin / tile));
    return {first, end > begin ? uniform(int((end + tile - 1) / tile)) - first : 0};
  }
  // Tiles that begin at [begin, end) are seen whole by `count` owned tokens from `mine` on.
  struct Whole {
    int begin, end;

    XLSTM_DEVICE bool has(int first) const { return first >= begin && first < end; }
  };
  template <bool kOfKeys>
  XLSTM_DEVICE Whole seen_whole(int mine, int count, int keys, int tile) const {
    const int64_t last = int64_t(mine) + count - 1, low = int64_t(least) + apart, high = low + uint32_t(span);
    const int64_t begin = kOfKeys ? last - high : last + low;
    int64_t end = (kOfKeys ? mine - low : mine + high) - tile + 2;
    if (!kOfKeys && end > keys - tile + 1) end = keys - tile + 1;
    const auto within = [](int64_t x) { return x < 0 ? 0 : x < INT32_MAX ? int(x) : INT32_MAX; };
    return {within(begin), within(end)};
  }
};

}  // namespace xlstm::gpu::attention

// SPDX-License-Identifier: Apache-2.0
#include "order.h"

#include <algorithm>

#include "block.h"
#include "fault.h"

namespace emulator {
namespace {

std::string access_text(uint32_t at, SharedOrder::By by, const char* does) {
  return text("%s shared memory at %u%s", does, at, by == SharedOrder::By::async ? " (asynchronously)" : "");
}

}  // namespace

void Knowledge::join(const Knowledge& other) {
  for (size_t i = 0; i < over.size(); ++i) over[i] = std::max(over[i], other.over[i]);
  for (size_t i = 0; i < fenced.size(); ++i) fenced[i] = std::max(fenced[i], other.fenced[i]);
}

void SharedOrder::after_writer(const Word& word, uint32_t at, By by, const Knowledge& known, Party party,
                               const char* does) const {
  if (!word.written || (by == By::threads && word.writer == party)) return;
  if (known.over[word.writer] < word.written)
    fault(access_text(at, by, does) + ", which " + party_name(word.writer) + " wrote, without a barrier since");
  if (by == By::async && !word.written_async && known.fenced[word.writer] < word.written)
    fault(access_text(at, by, does) + ", which " + party_name(word.writer) +
          " wrote, without a proxy fence by it since");
}

void SharedOrder::read(uint32_t at, uint32_t bytes, By by, const Knowledge& known, Party party, uint32_t epoch) {
  for (uint32_t w = at / 4; w < (at + bytes + 3) / 4; ++w) {
    Word& word = words_[w];
    if (!word.written) fault(access_text(4 * w, by, "reads") + ", which nobody wrote");
    after_writer(word, 4 * w, by, known, party, "reads");
    if (word.more) {
      (*word.more)[party] = epoch;
      continue;
    }
    int i = 0;
    while (i < word.readers && word.reader[i] != party) ++i;
    if (i == kFew) {
      word.more = std::make_unique<std::vector<uint32_t>>(known.over.size());
      for (int j = 0; j < kFew; ++j) (*word.more)[word.reader[j]] = word.read[j];
      (*word.more)[party] = epoch;
      continue;
    }
    word.reader[i] = party;
    word.read[i] = epoch;
    if (i == word.readers) ++word.readers;
  }
}

void SharedOrder::write(uint32_t at, uint32_t bytes, By by, const Knowledge& known, Party party, uint32_t epoch) {
  for (uint32_t w = at / 4; w < (at + bytes + 3) / 4; ++w) {
    Word& word = words_[w];
    after_writer(word, 4 * w, by, known, party, "writes");
    const auto after_reader = [&](Party reader, uint32_t read) {
      if (reader != party && known.over[reader] < read)
        fault(access_text(4 * w, by, "writes") + ", which " + party_name(reader) + " may still be reading");
    };
    for (int i = 0; i < word.readers; ++i) after_reader(word.reader[i], word.read[i]);
    if (word.more)
      for (size_t party = 0; party < word.more->size(); ++party)
        if ((*word.more)[party]) after_reader(Party(party), (*word.more)[party]);
    word.readers = 0;
    word.more.reset();
    word.writer = party;
    word.written = epoch;
    word.written_async = by == By::async;
  }
}

}  // namespace emulator

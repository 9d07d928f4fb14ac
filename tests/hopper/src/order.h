// SPDX-License-Identifier: Apache-2.0
// Who may rely on what in shared memory. Every access is held against the one before it by another party: between them
// there must be a barrier that both know of, whatever the schedule happened to be. So a missing wait is found even
// where this run's order was harmless.
//
// Parties are threads, and what works beside them: copies that arrive at a barrier, products of a warpgroup, bulk
// stores of a thread, a thread's own copies. Each party counts its epochs; a thread knows of every party the last epoch
// that is over for it, and barriers hand that on. What threads write is seen by copies and products (the async proxy)
// only after a fence by the writer: so a second count says which epochs of a thread were fenced.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace emulator {

using Party = uint32_t;

struct Knowledge {
  std::vector<uint32_t> over, fenced;  // by party: the last epoch that is over, and that the async proxy sees

  void reset(int parties) {
    over.assign(parties, 0);
    fenced.assign(parties, 0);
  }
  void join(const Knowledge& other);
};

// What has happened to each word of one block's shared memory.
class SharedOrder {
 public:
  explicit SharedOrder(int bytes) : words_(bytes / 4) {}

  enum class By { threads, async };

  // By `who`, which knows what is over, in an epoch of its own; faults where something before it is not.
  void read(uint32_t at, uint32_t bytes, By by, const Knowledge& known, Party party, uint32_t epoch);
  void write(uint32_t at, uint32_t bytes, By by, const Knowledge& known, Party party, uint32_t epoch);

 private:
  static constexpr int kFew = 2;
  struct Word {
    Party writer = 0;
    uint32_t written = 0;  // epoch; 0: never
    bool written_async = false;
    uint8_t readers = 0;
    Party reader[kFew] = {};
    uint32_t read[kFew] = {};
    std::unique_ptr<std::vector<uint32_t>> more;  // epochs by party, where readers are many
  };

  void after_writer(const Word& word, uint32_t at, By by, const Knowledge& known, Party party, const char* does) const;

  std::vector<Word> words_;
};

}  // namespace emulator

// SPDX-License-Identifier: Apache-2.0
// Which host memory a kernel may touch: allocations, code objects, arguments. Device addresses are host addresses.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>

namespace gfx942 {

class Memory {
 public:
  void add(const void* begin, size_t bytes);
  void remove(const void* begin);
  // The allocation that holds [address, address + bytes), as [begin, end), or {0, 0}.
  struct Range {
    uint64_t begin = 0, end = 0;
    bool holds(uint64_t address, uint64_t bytes) const {
      return address >= begin && address < end && bytes <= end - address;
    }
  };
  Range find(uint64_t address, uint64_t bytes) const;
  uint64_t generation() const { return generation_; }  // changes with every allocation: what was found is then stale

 private:
  mutable std::shared_mutex lock_;
  std::map<uint64_t, uint64_t> ranges_;  // begin -> end
  std::atomic<uint64_t> generation_{0};
};

Memory& memory();

}  // namespace gfx942

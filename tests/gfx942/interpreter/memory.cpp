// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <mutex>

namespace gfx942 {

void Memory::add(const void* begin, size_t bytes) {
  const std::unique_lock lock(lock_);
  const auto address = reinterpret_cast<uint64_t>(begin);
  ranges_[address] = address + bytes;
  ++generation_;
}

void Memory::remove(const void* begin) {
  const std::unique_lock lock(lock_);
  ranges_.erase(reinterpret_cast<uint64_t>(begin));
  ++generation_;
}

Memory::Range Memory::find(uint64_t address, uint64_t bytes) const {
  const std::shared_lock lock(lock_);
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return {};
  --after;
  const Range range{after->first, after->second};
  return range.holds(address, bytes) ? range : Range{};
}

Memory& memory() {
  static Memory& all = *new Memory;  // code objects are unloaded when the process ends, after statics
  return all;
}

}  // namespace gfx942

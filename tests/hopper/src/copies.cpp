// SPDX-License-Identifier: Apache-2.0
#include "copies.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "block.h"
#include "fault.h"
#include "plants.h"
#include "sync.h"

namespace emulator {
namespace {

constexpr int kRowBytes = 128;

// Pieces of 16 bytes are permuted by the address's bits 7 to 9.
uint32_t permuted(uint32_t at) { return at ^ (at / 128 % 8 * 16); }

void check_aligned(const char* name, uint64_t value, uint64_t by) {
  if (value % by)
    fault(text("copies with %s %llu, no multiple of %llu", name, (unsigned long long)value, (unsigned long long)by));
}

// Of a copy that is issued now: what it will write is NaN until it has arrived.
struct Arriving {
  PhaseBarrier* barrier;
  char* to;
  uint32_t bytes;

  Arriving(Block& target, uint32_t at, uint32_t size, uint32_t barrier_at)
      : barrier(&target.barrier(barrier_at)), to(target.at(at, size, "copies to")), bytes(size) {
    target.order->write(uint32_t(to - target.dynamic), size, SharedOrder::By::async, running->known, barrier->party,
                        uint32_t(++barrier->copies));
    std::memset(to, 0xff, size);
    ++barrier->under_way;
  }
  void done() {
    barrier->bytes -= bytes;
    --barrier->under_way;
    barrier->settle();
  }
};

// Where a panel's element lies in the tensor, or null where it lies outside.
char* element(const TensorMap& map, const int (&at)[4], int row, int column) {
  const int64_t coordinates[4] = {at[0] + column, at[1] + row, at[2], at[3]};
  char* p = map.data + 2 * coordinates[0];
  for (int axis = 0; axis < 4; ++axis) {
    if (coordinates[axis] < 0 || coordinates[axis] >= map.size[axis]) return nullptr;
    if (axis) p += coordinates[axis] * map.stride[axis - 1];
  }
  return p;
}

}  // namespace

char* Block::at(uint32_t address, uint32_t bytes, const char* does) {
  if (address < kFirstAddress || address + bytes > kFirstAddress + uint32_t(cluster->launch.dynamic_bytes))
    fault(text("%s shared memory at %u to %u, where the block has %d bytes", does, address - kFirstAddress,
               address - kFirstAddress + bytes, cluster->launch.dynamic_bytes));
  return dynamic + (address - kFirstAddress);
}

void tma_load(uint32_t to, const TensorMap& from, const int (&at)[4], uint32_t barrier) {
  check_aligned("a panel at", to, uint64_t(std::min(from.rows, 8) * kRowBytes));
  Arriving arriving(*running->block, to, uint32_t(from.rows * kRowBytes), barrier);
  cluster->later(*running->block, [arriving, from, to, coordinates = std::to_array(at)]() mutable {
    const int where[4] = {coordinates[0], coordinates[1], coordinates[2], coordinates[3]};
    for (int row = 0; row < from.rows; ++row)
      for (int column = 0; column < 64; ++column) {
        uint16_t value = 0;
        if (const char* p = element(from, where, row, column)) std::memcpy(&value, p, 2);
        const uint32_t offset = permuted(to + uint32_t(row * kRowBytes + 2 * column)) - to;
        std::memcpy(arriving.to + offset, &value, 2);
      }
    arriving.done();
  });
}

void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  if (planted(Bug::moved_copy)) to += 8;
  check_aligned("a target at", to, 16);
  check_aligned("a source at", reinterpret_cast<uintptr_t>(from), 16);
  check_aligned("a size of", bytes, 16);
  Arriving arriving(*running->block, to, bytes, barrier);
  cluster->later(*running->block, [arriving, from]() mutable {
    std::memcpy(arriving.to, from, arriving.bytes);
    arriving.done();
  });
}

void prefetch_bytes(const void* from, int bytes) {
  check_aligned("a source at", reinterpret_cast<uintptr_t>(from), 16);
  if (bytes <= 0) fault(text("asks for %d bytes", bytes));
  check_aligned("a size of", uint64_t(bytes), 16);
  volatile char last = static_cast<const char*>(from)[bytes - 1];
  (void)last;
}

void bulk_copy_to_cta(uint32_t rank, uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  check_aligned("a target at", to, 16);
  check_aligned("a source at", from, 16);
  check_aligned("a size of", bytes, 16);
  Block &sender = *running->block, &target = cluster->peer(rank, "copies to");
  const char* source = sender.at(from, bytes, "copies from");
  Arriving arriving(target, to, bytes, barrier);
  // Its reading is over when it has arrived: who learns of that may write here.
  sender.order->read(uint32_t(source - sender.dynamic), bytes, SharedOrder::By::async, running->known,
                     arriving.barrier->party, uint32_t(arriving.barrier->copies));
  cluster->later(sender, [arriving, source]() mutable {
    std::memcpy(arriving.to, source, arriving.bytes);
    arriving.done();
  });
}

void st_async_to_cta(uint32_t rank, uint32_t to, std::vector<float> numbers, uint32_t barrier) {
  const uint32_t bytes = uint32_t(4 * numbers.size());
  check_aligned("a target at", to, bytes);
  Arriving arriving(cluster->peer(rank, "copies to"), to, bytes, barrier);
  cluster->later(*running->block, [arriving, numbers]() mutable {
    std::memcpy(arriving.to, numbers.data(), arriving.bytes);
    arriving.done();
  });
}

void tma_store(const TensorMap& to, const int (&at)[4], uint32_t from) {
  check_aligned("a panel at", from, 1024);
  Thread& thread = *running;
  Block& block = *thread.block;
  const uint32_t bytes = uint32_t(to.rows * kRowBytes);
  const char* source = block.at(from, bytes, "stores from");
  block.order->read(uint32_t(source - block.dynamic), bytes, SharedOrder::By::async, thread.known,
                    block.stores_of(thread), uint32_t(++thread.stores));
  cluster->later(block, [&thread, &block, to, from, source, coordinates = std::to_array(at)] {
    const int where[4] = {coordinates[0], coordinates[1], coordinates[2], coordinates[3]};
    for (int row = 0; row < to.rows; ++row)
      for (int column = 0; column < 64; ++column)
        if (char* p = element(to, where, row, column))
          std::memcpy(p, source + (permuted(from + uint32_t(row * kRowBytes + 2 * column)) - from), 2);
    ++thread.tma_store_wait_read;
    block.stores.wake();
  });
}

void wait_for_stores() {
  if (planted(Bug::stores_wait)) return;
  Thread& thread = *running;
  while (thread.tma_store_wait_read < thread.stores) thread.block->stores.wait({"its bulk stores"});
  thread.stores_waited = thread.stores;
  if (thread.stores) thread.known.over[thread.block->stores_of(thread)] = uint32_t(thread.stores);
}

// ---- copies of a thread

void copy_of_thread(uint32_t to, const void* from, uint32_t size, int bytes) {
  check_aligned("a target at", to, size);
  check_aligned("a source at", reinterpret_cast<uintptr_t>(from), size);
  if (bytes < 0 || uint32_t(bytes) > size) fault(text("copies %d bytes of %u", bytes, size));
  Thread& thread = *running;
  Block& block = *thread.block;
  char* target = block.at(to, size, "copies to");
  const int group = int(thread.copy_groups.size()) - 1;
  block.order->write(uint32_t(target - block.dynamic), size, SharedOrder::By::threads, thread.known,
                     block.copies_of(thread), uint32_t(group + 1));
  std::memset(target, 0xff, size);
  ++thread.copy_groups[size_t(group)];
  cluster->later(block, [&thread, &block, target, from, size, bytes, group] {
    std::memcpy(target, from, size_t(bytes));
    std::memset(target + bytes, 0, size - uint32_t(bytes));
    --thread.copy_groups[size_t(group)];
    block.copies.wake();
  });
}

void group_copies() { running->copy_groups.push_back(0); }

void wait_for_copies(int but_the_last) {
  if (planted(Bug::cp_async_wait_all)) return;
  if (planted(Bug::copies_late)) ++but_the_last;
  Thread& thread = *running;
  const int over = int(thread.copy_groups.size()) - 1 - but_the_last;  // the last of them is not closed
  for (int group = 0; group < over; ++group)
    while (thread.copy_groups[size_t(group)])
      thread.block->copies.wait({"copies of its own, all but %d groups", but_the_last});
  if (over > 0) {
    uint32_t& known = thread.known.over[thread.block->copies_of(thread)];
    known = std::max(known, uint32_t(over));
  }
}

// ---- matrices of a warp

namespace {

// The 16 bytes at each lane's address, which this lane takes part in.
char* row_of(const uint64_t* addresses, int lane) {
  return running->block->at(uint32_t(addresses[lane]), 16, "moves matrices at");
}

const uint64_t* rows(uint32_t at) {
  check_aligned("a matrix row at", at, 16);
  return exchange(at);
}

}  // namespace

void load_matrices(uint32_t (&r)[4], uint32_t at, bool transposed) {
  if (planted(Bug::turned_matrices)) transposed = !transposed;
  Thread& thread = *running;
  const uint64_t* addresses = rows(at);
  char* row = thread.block->at(at, 16, "loads matrices from");
  thread.block->order->read(uint32_t(row - thread.block->dynamic), 16, SharedOrder::By::threads, thread.known,
                            thread.party(), thread.epoch);
  const int lane = thread.lane();
  for (int m = 0; m < 4; ++m)
    for (int h = 0; h < 2; ++h) {
      uint16_t value;
      if (transposed)
        std::memcpy(&value, row_of(addresses, 8 * m + 2 * (lane % 4) + h) + lane / 4 * 2, 2);
      else
        std::memcpy(&value, row_of(addresses, 8 * m + lane / 4) + lane % 4 * 4 + 2 * h, 2);
      r[m] = h ? r[m] | uint32_t(value) << 16 : value;
    }
  exchange(0);  // all have read
}

void stmatrix(const uint32_t (&r)[4], uint32_t at, bool transposed) {
  Thread& thread = *running;
  const uint64_t* addresses = rows(at);
  char* row = thread.block->at(at, 16, "stores matrices to");
  thread.block->order->write(uint32_t(row - thread.block->dynamic), 16, SharedOrder::By::threads, thread.known,
                             thread.party(), thread.epoch);
  const int lane = thread.lane();
  for (int m = 0; m < 4; ++m)
    for (int h = 0; h < 2; ++h) {
      const uint16_t value = uint16_t(r[m] >> (16 * h));
      if (transposed)
        std::memcpy(row_of(addresses, 8 * m + 2 * (lane % 4) + h) + lane / 4 * 2, &value, 2);
      else
        std::memcpy(row_of(addresses, 8 * m + lane / 4) + lane % 4 * 4 + 2 * h, &value, 2);
    }
  exchange(0);  // all have written
}

}  // namespace emulator

// SPDX-License-Identifier: Apache-2.0
// Blocks while they run: their threads as fibers, their shared memory, and what they wait for. The blocks of a cluster,
// or of a cooperative launch, run together. Which thread goes on next, and when copies, products and stores get done,
// is drawn from a seed.
//
// Shared memory is the program's thread-local storage: `__shared__` is thread_local, and each block of a cluster has an
// operating system's thread, of which one at a time runs.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fibers.h"
#include "order.h"

namespace emulator {

constexpr int kWarp = 32, kGroup = 128;  // threads
constexpr int kMostBarriers = 32, kMostStorers = 8, kMostGroups = 8;
constexpr int kMostDynamic = 227 << 10;   // bytes of shared memory that a block may ask for
constexpr uint32_t kFirstAddress = 1024;  // of shared memory: address 0 is nobody's

struct Block;
struct Cluster;

// What a thread that cannot go on waits for.
struct Waiting {
  const char* text = "";
  int64_t which = 0;
};

// Accumulators that products are still to be added to: the kernel sees NaN until it has waited for them.
struct Sum {
  float* at;
  std::vector<float> values;
  int group;  // the last that adds to it
};

struct Thread {
  enum class State { ready, waiting, finished };

  Block* block = nullptr;
  int index = 0;
  State state = State::ready;
  Waiting waiting;
  Fiber fiber;
  Knowledge known;
  uint32_t epoch = 1;
  bool begun = false;  // products, since the last group
  int committed = 0;   // groups of products
  std::vector<Sum> sums;
  int registers = 0;
  uint32_t cluster_arrivals = 0;
  int stores = 0, tma_store_wait_read = 0, stores_waited = 0;  // bulk stores: issued; read; waited for
  std::vector<int> copy_groups{0};  // its own copies that are under way, by group; the last is open

  int lane() const { return index % kWarp; }
  int warp() const { return index / kWarp; }
  void set(State now);
  Party party() const;
  // What this thread did so far, for others to learn; what it does next is of another epoch.
  void tell(Knowledge& to);
  void fence();
};

// Threads that wait for the same thing.
class Queue {
 public:
  void wait(const Waiting& waiting);  // the running thread; until wake()
  void wake(const Knowledge* learned = nullptr);

 private:
  std::vector<Thread*> threads_;
};

// bar.sync and bar.arrive, __syncthreads, __syncwarp, and the cluster's barrier.
struct Meeting {
  int expected = 0, arrived = 0;
  Knowledge gathered;
  Queue queue;

  void meet(int threads, bool waits, const Waiting& waiting);
};

// The barrier of a cluster: threads arrive, and wait later.
struct ClusterBarrier {
  int arrived = 0;
  uint32_t phase = 0;  // phases that have ended
  Knowledge gathered, last;
  Queue queue;
};

// An mbarrier.
struct PhaseBarrier {
  Party party = 0;                        // its copies
  int index = 0, count = 0, pending = 0;  // index: in its block
  int64_t bytes = 0;  // announced and not there; or less than none, where copies come before the word
  uint32_t phase = 0;
  int copies = 0, under_way = 0;  // in all; of those
  Knowledge gathered, last;       // of this phase; of the one that ended
  Queue queue;

  void settle();  // ends the phase if it is complete
};

// What lanes of a warp hand each other. Two rooms: who is fast may be in the next exchange already.
struct Exchange {
  uint64_t value[2][kWarp];
  int arrived = 0;
  uint64_t generation = 0;
  Queue queue;
};

// D[64][columns] += A[64][16] B[16][columns], as its warpgroup's threads issue it one by one.
struct Product {
  uint64_t a = 0, b = 0;  // descriptors; a only where A is not held
  int columns = 0, group = 0;
  bool a_in_registers = false, a_across = false, b_across = false, add = false, float16 = false;

  bool operator==(const Product&) const = default;
};
struct IssuedProduct : Product {
  int issued = 0;
  std::array<std::array<uint32_t, 4>, kGroup> left;  // registers of A
  std::array<float*, kGroup> sum;
};

struct ProductGroup {
  std::deque<IssuedProduct> products;  // not yet done
  std::array<int, kGroup> issued{};    // by each thread, in all
  int dropped = 0;                     // products that are done
  std::array<int, kGroup> committed{};
  int complete = 0, done = 0;  // groups that all threads committed; that are done
  Queue queue;
};

struct Block {
  Cluster* cluster = nullptr;
  int rank = 0;  // among the blocks that run together
  uint32_t index = 0;
  char *storage = nullptr, *dynamic = nullptr;  // shared memory: all of it; what the launch asked for
  size_t storage_bytes = 0;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<uint32_t> ready;  // lanes of each warp
  std::unique_ptr<SharedOrder> order;
  std::map<int, Meeting> named, warps;
  std::map<uint32_t, PhaseBarrier> barriers;
  std::vector<Exchange> exchanges;
  std::array<ProductGroup, kMostGroups> groups;
  std::map<int, int> storers;  // threads that have bulk stores, by number
  Queue stores, copies, registers;
  int unfinished = 0;

  char* at(uint32_t address, uint32_t bytes, const char* does);  // faults where that is not the block's
  PhaseBarrier& barrier(uint32_t address);
  Party first_party() const;
  Party products_of(int group) const;
  Party stores_of(const Thread& thread);
  Party copies_of(const Thread& thread) const;
};

// What is done beside the threads: a copy that arrives, say.
struct Event {
  Block* block;
  std::function<void()> happens;
};

struct Launch {
  int blocks, threads, dynamic_bytes, cluster,
      together;                // blocks of a cluster; that run together: one or more clusters
  std::function<void()> body;  // of a thread
};

// The blocks that run together.
struct Cluster {
  const Launch& launch;
  std::vector<std::unique_ptr<Block>> blocks;
  std::deque<Event> events;
  std::vector<ClusterBarrier> barriers;  // of each cluster
  Queue grid;                            // who waits for words that others write
  std::mt19937 random;
  int parties_of_block;
  int ready = 0;                       // threads
  std::string* asked_where = nullptr;  // who is resumed says where it waits, and waits on

  Cluster(const Launch& launch, uint32_t first_block, uint32_t seed);
  void run();  // throws Fault

  // The block of this rank in the running block's cluster; faults where there is none.
  Block& peer(uint32_t rank, const char* does);
  int parties() const { return parties_of_block * int(blocks.size()); }
  void later(Block& block, std::function<void()> happens) { events.push_back({&block, std::move(happens)}); }
};

// The thread that runs, or null while an event happens; and the cluster.
extern Thread* running;
extern Cluster* cluster;

std::string party_name(Party party);

}  // namespace emulator

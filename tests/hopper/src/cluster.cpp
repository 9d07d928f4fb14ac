// SPDX-License-Identifier: Apache-2.0
// The scheduler: whose turn it is, and what happens when it is nobody's.
#include <link.h>

#include <bit>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "block.h"
#include "fault.h"
#include "report.h"
#include "shared_storage.h"

namespace emulator {

Thread* running = nullptr;
Cluster* cluster = nullptr;

namespace {

// The program's own thread-local storage, of the thread that asks.
std::pair<char*, size_t> thread_storage() {
  std::pair<char*, size_t> found{};
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* out) {
        for (int i = 0; i < object->dlpi_phnum; ++i)
          if (object->dlpi_phdr[i].p_type == PT_TLS)
            *static_cast<std::pair<char*, size_t>*>(out) = {static_cast<char*>(object->dlpi_tls_data),
                                                            object->dlpi_phdr[i].p_memsz};
        return 1;  // the program comes first
      },
      &found);
  return found;
}

void thread_entry() {
  cluster->launch.body();
  Thread& thread = *running;
  thread.set(Thread::State::finished);
  --thread.block->unfinished;
  thread.fiber.leave();
}

// Runs a cluster's blocks in turns, each on an operating system's thread.
class Turns {
 public:
  explicit Turns(Cluster& c) : cluster_(c), changed_(c.blocks.size()), skipped_(c.blocks.size()) {
    const int eager =
        int(cluster_.random() % 3);  // when events happen: at once, now and then, or when nothing else can
    event_odds_ = eager == 0 ? 1 : eager == 1 ? 8 : 0;
  }

  void run_block(Block& block) {
    std::unique_lock lock(mutex_);
    prepare(block);
    const int all = int(cluster_.blocks.size());
    if (++prepared_ == all) wake(turn_);
    for (;;) {
      changed_[block.rank].wait(lock, [&] { return (prepared_ == all && turn_ == block.rank) || over_; });
      if (over_) return;
      try {
        step(block);
      } catch (...) {
        error_ = std::current_exception();
        over_ = true;
      }
      running = nullptr;
      if (over_)
        for (int rank = 0; rank < all; ++rank) wake(rank);
      else if (turn_ != block.rank)
        wake(turn_);
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void wake(int rank) { changed_[rank].notify_one(); }

  void prepare(Block& block) {
    std::tie(block.storage, block.storage_bytes) = thread_storage();
    block.dynamic = dynamic_shared();
    std::memset(block.storage, 0xff, block.storage_bytes);  // NaN in every format
    for (auto& thread : block.threads) thread->fiber.begin(thread_entry);
  }

  // A few threads of one warp of this block; then whose turn is next.
  void step(Block& block) {
    Thread* first = ready(block);
    if (first) {
      const int warp = first->warp(), end = std::min<int>((warp + 1) * kWarp, int(block.threads.size()));
      for (int t = first->index; t < end; ++t) {
        Thread& thread = *block.threads[t];
        if (thread.state != Thread::State::ready) continue;
        running = &thread;
        thread.fiber.enter();
        running = nullptr;
        if (!pending_fault().empty()) throw Fault(std::exchange(pending_fault(), {}));
      }
    }
    const bool any_ready = cluster_.ready > 0;
    if (!cluster_.events.empty() && (!any_ready || (event_odds_ && cluster_.random() % event_odds_ == 0))) {
      const size_t which = cluster_.random() % cluster_.events.size();
      Event event = std::move(cluster_.events[which]);
      cluster_.events.erase(cluster_.events.begin() + which);
      event.happens();
      if (!pending_fault().empty()) throw Fault(std::exchange(pending_fault(), {}));
    } else if (!any_ready) {
      for (auto& b : cluster_.blocks)
        if (b->unfinished) throw Fault(describe_deadlock(cluster_));
      check_end(cluster_);
      over_ = true;
    }
    const uint32_t blocks = uint32_t(cluster_.blocks.size());
    if (blocks > 1 && (!first || cluster_.random() % kStepsOfTurn == 0)) turn_ = int(cluster_.random() % blocks);
  }

  // A ready thread, the first of its warp, of any warp; now and then some warps are held back for long.
  Thread* ready(Block& block) {
    uint32_t& skipped = skipped_[block.rank];
    if (cluster_.random() % 256 == 0) skipped = cluster_.random() & cluster_.random();
    const int warps = int(block.ready.size()), start = int(cluster_.random() % warps);
    for (const uint32_t passed_over : {skipped, 0u})
      for (int i = 0; i < warps; ++i) {
        const int warp = (start + i) % warps;
        if (passed_over >> warp % 32 & 1) continue;
        if (block.ready[warp]) return block.threads[warp * kWarp + std::countr_zero(block.ready[warp])].get();
      }
    return nullptr;
  }

  static constexpr uint32_t kStepsOfTurn = 4;  // about so many: the next block's turn is a switch of threads

  Cluster& cluster_;
  std::mutex mutex_;
  std::vector<std::condition_variable> changed_;  // of each block: its turn
  int prepared_ = 0, turn_ = 0;
  bool over_ = false;
  std::exception_ptr error_;
  uint32_t event_odds_;
  std::vector<uint32_t> skipped_;
};

}  // namespace

void Thread::set(State now) {
  const bool was_ready = state == State::ready, is_ready = now == State::ready;
  state = now;
  if (was_ready == is_ready) return;
  block->ready[warp()] ^= 1u << lane();
  block->cluster->ready += is_ready ? 1 : -1;
}

Cluster::Cluster(const Launch& launch_of, uint32_t first_block, uint32_t seed) : launch(launch_of), random(seed) {
  parties_of_block = 2 * launch.threads + kMostBarriers + kMostGroups + kMostStorers;
  barriers.resize(size_t(launch.together / launch.cluster));
  for (int rank = 0; rank < launch.together; ++rank) {
    blocks.push_back(std::make_unique<Block>());
    Block& block = *blocks.back();
    block.cluster = this;
    block.rank = rank;
    block.index = first_block + rank;
    block.order = std::make_unique<SharedOrder>((launch.dynamic_bytes + 15) / 16 * 16);
    block.exchanges.resize((launch.threads + kWarp - 1) / kWarp);
    block.unfinished = launch.threads;
    block.ready.resize(block.exchanges.size());
  }
  for (auto& block : blocks)
    for (int t = 0; t < launch.threads; ++t) {
      block->threads.push_back(std::make_unique<Thread>());
      Thread& thread = *block->threads.back();
      thread.block = block.get();
      thread.index = t;
      block->ready[thread.warp()] |= 1u << thread.lane();
      ++ready;
      thread.registers = 65536 / launch.threads / 8 * 8;  // as __launch_bounds__ has the compiler take
      thread.known.reset(parties());
      thread.known.over[thread.party()] = thread.epoch;
    }
}

Block& Cluster::peer(uint32_t rank, const char* does) {
  if (rank >= uint32_t(launch.cluster)) fault(text("%s block %u of a cluster of %d", does, rank, launch.cluster));
  Block& target = *blocks[size_t(running->block->rank / launch.cluster * launch.cluster) + rank];
  if (!target.unfinished) fault(text("%s a block that is gone", does));
  return target;
}

void Cluster::run() {
  cluster = this;
  Turns turns(*this);
  std::vector<std::thread> threads;
  for (auto& block : blocks) threads.emplace_back([&turns, &block] { turns.run_block(*block); });
  for (auto& thread : threads) thread.join();
  cluster = nullptr;
  turns.rethrow();
}

}  // namespace emulator

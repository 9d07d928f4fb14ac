// SPDX-License-Identifier: Apache-2.0
#include "sync.h"

#include "block.h"
#include "fault.h"
#include "plants.h"

namespace emulator {

Party Block::first_party() const { return Party(rank * cluster->parties_of_block); }
Party Block::products_of(int group) const {
  return first_party() + Party(threads.size()) + kMostBarriers + Party(group);
}
Party Block::stores_of(const Thread& thread) {
  const auto [found, added] = storers.try_emplace(thread.index, int(storers.size()));
  if (found->second >= kMostStorers) fault("is one of more threads that store in bulk than are counted");
  return first_party() + Party(threads.size()) + kMostBarriers + kMostGroups + Party(found->second);
}

Party Block::copies_of(const Thread& thread) const {
  return first_party() + Party(threads.size()) + kMostBarriers + kMostGroups + kMostStorers + Party(thread.index);
}

Party Thread::party() const { return block->first_party() + Party(index); }

void Thread::tell(Knowledge& to) {
  if (to.over.empty()) to.reset(block->cluster->parties());
  to.join(known);
  known.over[party()] = ++epoch;
}

void Thread::fence() {
  const Party copies = block->copies_of(*this);
  known.fenced[copies] = known.over[copies];  // its own copies that it has waited for
  known.fenced[party()] = epoch;
  known.over[party()] = ++epoch;
}

void Meeting::meet(int threads, bool waits, const Waiting& waiting) {
  if (arrived && threads != expected)
    fault(text("comes to a barrier for %d threads where %d others came for %d", threads, arrived, expected));
  expected = threads;
  running->tell(gathered);
  if (++arrived < threads) {
    if (waits) queue.wait(waiting);
    return;
  }
  arrived = 0;
  if (waits) running->known.join(gathered);
  queue.wake(&gathered);
  gathered = {};
}

void sync_block() {
  if (planted(Bug::block_barrier)) return;
  Block& block = *running->block;
  block.named[0].meet(int(block.threads.size()), true, {"__syncthreads()"});
}
void sync_warp() {
  if (planted(Bug::warp_barrier)) return;
  running->block->warps[running->warp()].meet(kWarp, true, {"__syncwarp() of warp %d", running->warp()});
}

namespace {
void named(int barrier, int threads, bool waits) {
  if (planted(Bug::named_barrier, barrier)) return;
  if (barrier < 1 || barrier > 15) fault(text("uses named barrier %d: there are 1 to 15", barrier));
  if (threads % kWarp) fault(text("meets %d threads at a barrier, which is no number of warps", threads));
  running->block->named[barrier].meet(threads, waits, {"named barrier %d", barrier});
}
}  // namespace
void sync_named(int barrier, int threads) { named(barrier, threads, true); }
void arrive_named(int barrier, int threads) { named(barrier, threads, false); }

namespace {
ClusterBarrier& own_barrier() { return cluster->barriers[size_t(running->block->rank / cluster->launch.cluster)]; }
}  // namespace
void arrive_at_cluster() {
  if (planted(Bug::cluster_barrier)) return;
  ClusterBarrier& barrier = own_barrier();
  if (running->cluster_arrivals++ != barrier.phase)
    fault("arrives at the cluster's barrier before it has waited there");
  running->tell(barrier.gathered);
  if (++barrier.arrived < cluster->launch.cluster * cluster->launch.threads) return;
  barrier.arrived = 0, ++barrier.phase;
  barrier.last = std::move(barrier.gathered), barrier.gathered = {};
  barrier.queue.wake(&barrier.last);
}
void wait_for_cluster() {
  if (planted(Bug::cluster_barrier)) return;
  ClusterBarrier& barrier = own_barrier();
  if (running->cluster_arrivals > barrier.phase)
    barrier.queue.wait({"the cluster's barrier"});
  else
    running->known.join(barrier.last);
}
void sync_cluster() { arrive_at_cluster(), wait_for_cluster(); }

uint32_t add_to_shared_word(uint32_t* to, uint32_t x) { return __atomic_fetch_add(to, x, __ATOMIC_ACQ_REL); }

void write_shared_word(void* to, uint32_t word) {
  *static_cast<uint32_t*>(to) = word;
  cluster->grid.wake();
}
bool wait_for_shared_words() {
  if (planted(Bug::shared_words)) return false;
  cluster->grid.wait({"words of other blocks"});
  return true;
}

const uint64_t* exchange(uint64_t value) {
  Thread& thread = *running;
  Exchange& with = thread.block->exchanges[thread.warp()];
  uint64_t* values = with.value[with.generation % 2];
  values[thread.lane()] = value;
  if (++with.arrived < kWarp) {
    with.queue.wait({"the other lanes of warp %d", thread.warp()});
  } else {
    with.arrived = 0;
    ++with.generation;
    with.queue.wake();
  }
  return values;
}

// ---- mbarriers

PhaseBarrier& Block::barrier(uint32_t address) {
  const auto found = barriers.find(address);
  if (found == barriers.end()) fault(text("uses an mbarrier at %u that nobody initialised", address));
  return found->second;
}

void PhaseBarrier::settle() {
  if (pending || bytes) return;
  if (under_way)
    fault(text("mbarrier %d has all the bytes that were announced while %d copies are under way", index, under_way));
  pending = count;
  ++phase;
  gathered.over[party] = uint32_t(copies);
  last = std::move(gathered);
  gathered = {};
  gathered.reset(cluster->parties());
  queue.wake(&last);
}

void mbarrier_init(uint32_t at, int count) {
  Block& block = *running->block;
  if (at % 8) fault(text("initialises an mbarrier at %u, no multiple of 8", at));
  block.at(at, 8, "initialises an mbarrier in");
  if (block.barriers.count(at)) fault(text("initialises the mbarrier at %u again", at));
  if (block.barriers.size() == kMostBarriers) fault("initialises more mbarriers than are counted");
  PhaseBarrier& barrier = block.barriers[at];
  barrier.index = int(block.barriers.size()) - 1;
  barrier.party = block.first_party() + Party(block.threads.size()) + Party(barrier.index);
  barrier.count = barrier.pending = count;
  barrier.gathered.reset(cluster->parties());
}

void mbarrier_arrive(uint32_t at, int rank) {
  if (planted(Bug::barrier_arrival, int(at - kFirstAddress))) return;
  Block& target = rank < 0 ? *running->block : cluster->peer(uint32_t(rank), "arrives at");
  PhaseBarrier& barrier = target.barrier(at);
  if (barrier.pending == 0) fault(text("arrives at mbarrier %d once more than its %d", barrier.index, barrier.count));
  running->tell(barrier.gathered);
  --barrier.pending;
  barrier.settle();
}

void mbarrier_expect_tx(uint32_t at, uint32_t bytes) {
  if (planted(Bug::fewer_bytes)) bytes -= 16;
  if (planted(Bug::more_bytes)) bytes += 16;
  running->block->barrier(at).bytes += bytes;
  mbarrier_arrive(at, -1);
}

void barrier_wait(uint32_t at, uint32_t parity) {
  if (planted(Bug::barrier_wait, int(at - kFirstAddress))) return;
  PhaseBarrier& barrier = running->block->barrier(at);
  if (parity > 1) fault(text("waits for parity %u", parity));
  if (barrier.phase % 2 == parity)
    barrier.queue.wait({parity ? "an odd phase of mbarrier %d" : "an even phase of mbarrier %d", barrier.index});
  else if (!barrier.last.over.empty())
    running->known.join(barrier.last);
}

void fence_proxy() {
  if (!planted(Bug::proxy_fence)) running->fence();
}

// ---- registers

void change_registers(int count, bool more) {
  Thread& thread = *running;
  if (more && planted(Bug::more_registers)) count += 8;
  if (count % 8 || count < 24 || count > 256) fault(text("sets %d registers: a multiple of 8 from 24 to 256", count));
  if (more ? count < thread.registers : count > thread.registers)
    fault(text("%s registers from %d to %d", more ? "takes" : "leaves", thread.registers, count));
  int all = 0;
  const int block_has = 65536 / int(thread.block->threads.size()) / 8 * 8 * int(thread.block->threads.size());
  const auto fits = [&] {
    all = count - thread.registers;
    for (auto& other : thread.block->threads) all += other->registers;
    return all <= block_has;
  };
  while (!fits()) thread.block->registers.wait({"%d registers a thread", count});
  thread.registers = count;
  if (!more) thread.block->registers.wake();
}

}  // namespace emulator

// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <set>

#include "block.h"
#include "fault.h"

namespace emulator {
namespace {

// The lines of the kernel at which the running thread stands, innermost first.
std::string source_lines() {
  void* frames[24];
  const int count = backtrace(frames, 24);
  char program[512];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return "";
  program[length] = 0;
  std::string command = std::string("addr2line -i -e '") + program + "'";
  for (int i = 0; i < count; ++i) {
    Dl_info where;
    if (!dladdr(frames[i], &where)) continue;
    command += text(" %zx", static_cast<char*>(frames[i]) - 1 - static_cast<char*>(where.dli_fbase));
  }
  std::string lines;
  std::set<std::string> seen;
  if (FILE* out = popen((command + " 2>/dev/null").c_str(), "r")) {
    char line[1024];
    while (std::fgets(line, sizeof line, out)) {
      const std::string symbol = line;
      const size_t at = symbol.find("csrc/");
      if (at == std::string::npos) continue;
      const std::string location = symbol.substr(at, symbol.find_first_of(" \n", at) - at);
      if (seen.insert(location).second) lines += (lines.empty() ? "" : " < ") + location;
    }
    pclose(out);
  }
  return lines;
}

std::string thread_name(const Thread& t) {
  const bool single_block = t.block->cluster->blocks.size() == 1;
  return text("thread %d%s", t.index, single_block ? "" : text(" of block %d", t.block->rank).c_str());
}

}  // namespace

std::string& pending_fault() {
  static std::string message;
  return message;
}

void fault(const std::string& message) {
  if (!running) throw Fault(message);
  Thread& thread = *running;
  pending_fault() = thread_name(thread) + " " + message + ", at " + source_lines();
  thread.set(Thread::State::finished);
  for (;;) thread.fiber.leave();
}

std::string party_name(Party party) {
  const Cluster& c = *cluster;
  const Block& block = *c.blocks[party / c.parties_of_block];
  int which = int(party) % c.parties_of_block;
  const int threads = int(block.threads.size());
  if (which < threads) return thread_name(*block.threads[which]);
  which -= threads;
  const std::string of = c.blocks.size() == 1 ? "" : text(" of block %d", block.rank);
  if (which < kMostBarriers) return text("a copy to mbarrier %d", which) + of;
  which -= kMostBarriers;
  if (which < kMostGroups) return text("products of warpgroup %d", which) + of;
  which -= kMostGroups;
  if (which < kMostStorers) return "a bulk store" + of;
  return "a copy by " + thread_name(*block.threads[size_t(which - kMostStorers)]);
}

void Queue::wait(const Waiting& waiting) {
  Thread& thread = *running;
  threads_.push_back(&thread);
  thread.waiting = waiting;
  thread.set(Thread::State::waiting);
  for (thread.fiber.leave(); thread.block->cluster->asked_where; thread.fiber.leave())
    *thread.block->cluster->asked_where = source_lines();
}

void Queue::wake(const Knowledge* learned) {
  for (Thread* thread : threads_) {
    if (learned) thread->known.join(*learned);
    thread->set(Thread::State::ready);
  }
  threads_.clear();
}

std::string describe_deadlock(Cluster& c) {
  std::string report = "deadlock:";
  std::string where;
  c.asked_where = &where;
  for (auto& block : c.blocks)
    for (size_t first = 0; first < block->threads.size();) {
      Thread& thread = *block->threads[first];
      size_t last = first;
      const auto same = [&](const Thread& other) {
        return other.state == thread.state && other.waiting.text == thread.waiting.text &&
               other.waiting.which == thread.waiting.which;
      };
      while (last + 1 < block->threads.size() && same(*block->threads[last + 1])) ++last;
      if (thread.state == Thread::State::waiting) {
        running = &thread;
        thread.fiber.enter();
        running = nullptr;
        std::string which = text(thread.waiting.text, int(thread.waiting.which));
        report += text("\n  threads %zu to %zu of block %d: ", first, last, block->rank) + which + ", at " + where;
      }
      first = last + 1;
    }
  c.asked_where = nullptr;
  for (auto& block : c.blocks)
    for (auto& [at, barrier] : block->barriers)
      if (barrier.pending < barrier.count || barrier.bytes)
        report += text("\n  mbarrier %d of block %d, phase %u: %d of %d arrivals and %lld bytes to come", barrier.index,
                       block->rank, barrier.phase, barrier.pending, barrier.count, (long long)barrier.bytes);
  return report;
}

void check_end(const Cluster& c) {
  for (auto& block : c.blocks) {
    for (auto& [at, barrier] : block->barriers)
      if (barrier.bytes || barrier.under_way)
        throw Fault(
            text("the block ends while mbarrier %d expects %lld bytes", barrier.index, (long long)barrier.bytes));
    for (auto& [id, meeting] : block->named)
      if (meeting.arrived)
        throw Fault(
            text("the block ends while %d of %d threads stand at barrier %d", meeting.arrived, meeting.expected, id));
    for (auto& group : block->groups)
      if (!group.products.empty()) throw Fault("the block ends with products under way");
    for (auto& thread : block->threads) {
      if (thread->stores > thread->stores_waited)
        throw Fault(thread_name(*thread) + " ends without waiting for its bulk stores");
      if (!thread->sums.empty()) throw Fault(thread_name(*thread) + " ends without waiting for its products");
    }
  }
}

}  // namespace emulator

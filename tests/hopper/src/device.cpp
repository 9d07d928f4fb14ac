// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include "block.h"
#include "fault.h"
#include "shared_storage.h"

namespace emulator {
namespace {
uint32_t next_seed = 1;
std::map<const void*, int> allowed;
}  // namespace

bool allow_dynamic(const void* kernel, int bytes) {
  if (bytes > kMostDynamic) return false;
  allowed[kernel] = bytes;
  return true;
}
bool may_have(const void* kernel, int bytes) {
  const auto found = allowed.find(kernel);
  return bytes <= (found == allowed.end() ? 48 << 10 : found->second);
}

void set_seed(uint32_t seed) { next_seed = seed; }

void launch(int blocks, int threads, int dynamic_bytes, int cluster_blocks, bool cooperative,
            std::function<void()> body) {
  if (blocks % cluster_blocks) fault(text("launches %d blocks in clusters of %d", blocks, cluster_blocks));
  const int together = cooperative ? blocks : cluster_blocks;
  const Launch launch{blocks, threads, dynamic_bytes, cluster_blocks, together, std::move(body)};
  for (int first = 0; first < blocks; first += together) Cluster(launch, uint32_t(first), next_seed++).run();
}

uint32_t thread_index() { return uint32_t(running->index); }
uint32_t grid_blocks() { return uint32_t(cluster->launch.blocks); }
uint32_t block_threads() { return uint32_t(cluster->launch.threads); }
uint32_t block_index() { return running->block->index; }
uint32_t shared_address(const void* p) {
  return uint32_t(static_cast<const char*>(p) - running->block->dynamic) + kFirstAddress;
}

}  // namespace emulator

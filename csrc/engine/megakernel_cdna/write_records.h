// SPDX-License-Identifier: Apache-2.0
// The records that megakernel_cdna reads its params from.
#pragma once

#include "arch/compiler_barriers.h"
#include "engine/gpu/heads_step.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

// Records that differ in a few pointers: a base, whose pointers at pointer_at are those of each record, and whose
// pointers at shift_at point to mailboxes, which lie alike for each block of the model.
template <class Record>
struct RecordsParams {
  static constexpr int kMostEach = 32, kBytes = 4000;
  static constexpr int kMost = (kBytes - int(sizeof(Record)) - 64 - 4 * kMostEach) / 8;

  Record base;
  Record* to;
  int64_t shift_bytes;  // of a record against the one before
  int first, stride, each, shifts;
  uint16_t pointer_at[kMostEach], shift_at[kMostEach];  // bytes from the beginning of a record
  const void* pointer[kMost];                           // `each` of each record
};

// A block writes a record.
template <class Record>
__global__ __launch_bounds__(kWave) void write_records_kernel(XLSTM_PARAM RecordsParams<Record> kernel_arg) {
  if constexpr (kFamily == Family::cdna) {
    const RecordsParams<Record>& p = *kernel_params(kernel_arg);
    const int n = int(blockIdx.x), lane = int(threadIdx.x);
    Record* const record = p.to + (p.first + n) * p.stride;
    const auto at = [&](int offset) {
      return reinterpret_cast<const char**>(reinterpret_cast<char*>(record) + offset);
    };
    static_assert(sizeof(Record) % 8 == 0);
    for (int word = lane; word < int(sizeof(Record) / 8); word += kWave)
      *at(word * 8) = reinterpret_cast<const char* const*>(&p.base)[word];
    __syncthreads();
    if (lane < p.each) *at(p.pointer_at[lane]) = static_cast<const char*>(p.pointer[n * p.each + lane]);
    if (lane < p.shifts) {
      const int offset = p.shift_at[lane];
      *at(offset) = reinterpret_cast<const char* const*>(&p.base)[offset / 8] + (p.first + n) * p.shift_bytes;
    }
  }
}

template <class Record>
void launch_write_records(const RecordsParams<Record>&, int count, Stream);

}  // namespace xlstm::gpu::engine

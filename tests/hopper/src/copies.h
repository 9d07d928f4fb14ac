// SPDX-License-Identifier: Apache-2.0
// Bulk copies, copies of a thread (cp.async), and a warp's matrix loads and stores. Addresses are of shared memory.
#pragma once

#include <cstdint>
#include <vector>

namespace emulator {

// What cuTensorMapEncodeTiled() makes: four axes of 2-byte elements, the first without gaps; a box of 64 by `rows`.
struct TensorMap {
  char* data;
  int64_t size[4], stride[3];  // strides in bytes, of the second axis on
  int rows;
};

void tma_load(uint32_t to, const TensorMap& from, const int (&at)[4], uint32_t barrier);
void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier);
void prefetch_bytes(const void* from, int bytes);  // faults where a copy of them would
void bulk_copy_to_cta(uint32_t block, uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier);
void st_async_to_cta(uint32_t block, uint32_t to, std::vector<float> numbers, uint32_t barrier);
void tma_store(const TensorMap& to, const int (&at)[4], uint32_t from);
void wait_for_stores();

// A thread's own: of `size` bytes the first `bytes`, zeros after them. They are there for it when it has waited for
// their group, for others behind a barrier after that.
void copy_of_thread(uint32_t to, const void* from, uint32_t size, int bytes);
void group_copies();
void wait_for_copies(int but_the_last);

// Four matrices of 8 rows of 16 bytes; lane l says where row l % 8 of matrix l / 8 lies.
void load_matrices(uint32_t (&r)[4], uint32_t at, bool transposed);
void stmatrix(const uint32_t (&r)[4], uint32_t at, bool transposed);

}  // namespace emulator

// SPDX-License-Identifier: Apache-2.0
// Kernels that do little but move memory, with the access pattern, block size and grid of benchmarks whose results on
// an MI300X are published (measured.json): BabelStream's five, reads with so many loads at once, and a copy.
#include <hip/hip_runtime.h>

namespace {

constexpr double kScalar = 0.4;
constexpr int kStreamThreads = 1024, kReadThreads = 256;

__device__ size_t first() { return size_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ size_t step() { return size_t(gridDim.x) * blockDim.x; }

}  // namespace

// ---- BabelStream: blocks of 1024, an element of a thread; in dot two

extern "C" __global__ void copy(const double* a, double* c, size_t n) {
  for (size_t i = first(); i < n; i += step()) c[i] = a[i];
}

extern "C" __global__ void mul(double* b, const double* c, size_t n) {
  for (size_t i = first(); i < n; i += step()) b[i] = kScalar * c[i];
}

extern "C" __global__ void add(const double* a, const double* b, double* c, size_t n) {
  for (size_t i = first(); i < n; i += step()) c[i] = a[i] + b[i];
}

extern "C" __global__ void triad(double* a, const double* b, const double* c, size_t n) {
  for (size_t i = first(); i < n; i += step()) a[i] = b[i] + kScalar * c[i];
}

// sums: one of each block.
extern "C" __global__ void dot(const double* a, const double* b, double* sums, size_t n) {
  __shared__ double partial[kStreamThreads];
  double sum = 0;
  for (size_t i = first(); i < n; i += step()) sum += a[i] * b[i];
  partial[threadIdx.x] = sum;
  for (int half = kStreamThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

// ---- reads: a thread has N loads of 16 bytes under way before it uses the first

namespace {

template <int N>
__device__ void read(const uint4* from, size_t n, unsigned* sink) {
  uint4 all{0, 0, 0, 0};
  const auto take = [&](const uint4& x) { all.x ^= x.x, all.y ^= x.y, all.z ^= x.z, all.w ^= x.w; };
  size_t i = first();
  for (; i + (N - 1) * step() < n; i += N * step()) {
    uint4 some[N];
#pragma unroll
    for (int k = 0; k < N; ++k) some[k] = from[i + k * step()];
#pragma unroll
    for (int k = 0; k < N; ++k) take(some[k]);
  }
  for (; i < n; i += step()) take(from[i]);
  unsigned one = all.x ^ all.y ^ all.z ^ all.w;
  for (int apart = 32; apart > 0; apart /= 2) one ^= __shfl_xor(one, apart, 64);
  if (threadIdx.x % 64 == 0) atomicXor(sink, one);
}

}  // namespace

#define READ(N)                                                                                                      \
  extern "C" __global__ __launch_bounds__(kReadThreads) void read_##N(const uint4* from, size_t n, unsigned* sink) { \
    read<N>(from, n, sink);                                                                                          \
  }
READ(1)
READ(2)
READ(4)
READ(8)
READ(16)
READ(32)

// ---- a copy: blocks of 256, 16 bytes of a thread

extern "C" __global__ __launch_bounds__(kReadThreads) void copy_16(const uint4* from, uint4* to, size_t n) {
  if (const size_t i = first(); i < n) to[i] = from[i];
}

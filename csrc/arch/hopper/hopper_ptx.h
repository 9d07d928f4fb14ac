// SPDX-License-Identifier: Apache-2.0
// Hopper's instructions that C++ has no name for, one function each; hopper.h describes their use. tests/hopper has the
// same functions for a CPU.
#pragma once

namespace xlstm::gpu {

// ---- mbarriers (Mbarrier in hopper.h), by their address

XLSTM_DEVICE void mbarrier_init(uint32_t at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
XLSTM_DEVICE void mbarrier_arrive(uint32_t at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
XLSTM_DEVICE void mbarrier_expect_tx(uint32_t at, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
XLSTM_DEVICE void mbarrier_arrive_remote(uint32_t at, uint32_t block) {
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; "
      "}" ::"r"(at),
      "r"(block)
      : "memory");
}
XLSTM_DEVICE bool mbarrier_test_wait(uint32_t at, uint32_t parity) {
  uint32_t yes;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(yes)
               : "r"(at), "r"(parity)
               : "memory");
  return yes;
}

// After mbarrier_init(), before any other thread or copy uses the mbarriers; a barrier of the block must follow.
XLSTM_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Makes this thread's writes to shared memory visible to the async proxy (TMA and wgmma); a barrier must follow.
XLSTM_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

XLSTM_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// The same in two: what this thread did before it arrives is visible to threads that have waited.
XLSTM_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
XLSTM_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// ---- words that the blocks of a grid share while they run (Grid::together, arch/launch.h): each word is stored and
// loaded atomically, and the accesses order nothing else

XLSTM_DEVICE void store_relaxed_gpu(float* to, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
XLSTM_DEVICE uint32_t load_relaxed_gpu(const float* from) {
  uint32_t word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
XLSTM_DEVICE Vec16 load_relaxed_gpu_vec16(const float* from) {
  Vec16 p;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(p.word[0]), "=r"(p.word[1]), "=r"(p.word[2]), "=r"(p.word[3])
               : "l"(from)
               : "memory");
  return p;
}
// Called between loads that have not seen the word yet: whether to continue spinning.
XLSTM_DEVICE bool spin_again() { return true; }

// ---- setmaxnreg: registers of a warpgroup, called by all of its warps; multiples of 8

template <int kCount>
XLSTM_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
XLSTM_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// ---- TMA and bulk copies

// Loads a panel of a tensor (columns, tokens, heads, batch), from (column, token, head, batch) on; zeros outside the
// tensor.
XLSTM_DEVICE void tma_load(uint32_t to, const void* from, int column, int token, int head, int batch,
                           uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to),
      "l"(from), "r"(column), "r"(token), "r"(head), "r"(batch), "r"(barrier)
      : "memory");
}
// Copies contiguous bytes; addresses and count are multiples of 16.
XLSTM_DEVICE void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// Prefetches contiguous bytes to L2; address and count are multiples of 16.
XLSTM_DEVICE void bulk_prefetch_l2(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// Copies from this block's shared memory to that of a block of the cluster, this one or another, and completes the
// bytes at the mbarrier there.
XLSTM_DEVICE void bulk_copy_to_cta(uint32_t block, uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "{ .reg .b32 there, barrier; mapa.shared::cluster.u32 there, %0, %4; mapa.shared::cluster.u32 barrier, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%1], %2, [barrier]; }" ::"r"(
          to),
      "r"(from), "r"(bytes), "r"(barrier), "r"(block)
      : "memory");
}
// Stores numbers to the shared memory of a block of the cluster, this one or another, and completes their bytes at the
// mbarrier there. Addresses are multiples of the number's size.
XLSTM_DEVICE void st_async_to_cta(uint32_t block, uint32_t to, float x, uint32_t barrier) {
  asm volatile(
      "{ .reg .b32 there, barrier; mapa.shared::cluster.u32 there, %0, %3; mapa.shared::cluster.u32 barrier, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %1, [barrier]; }" ::"r"(to),
      "f"(x), "r"(barrier), "r"(block)
      : "memory");
}
XLSTM_DEVICE void st_async_to_cta(uint32_t block, uint32_t to, float x, float y, uint32_t barrier) {
  asm volatile(
      "{ .reg .b32 there, barrier; mapa.shared::cluster.u32 there, %0, %4; mapa.shared::cluster.u32 barrier, %3, %4;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%1, %2}, [barrier]; }" ::"r"(to),
      "f"(x), "f"(y), "r"(barrier), "r"(block)
      : "memory");
}
// Stores a panel to memory, as far as it lies inside the tensor. The same thread must wait for its stores.
XLSTM_DEVICE void tma_store(const void* to, int column, int token, int head, int batch, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];\n"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(column), "r"(token), "r"(head), "r"(batch), "r"(from)
      : "memory");
}
// Waits until all of this thread's stores have been read from shared memory, or have arrived.
XLSTM_DEVICE void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
XLSTM_DEVICE void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Prefetches the tensor map in the kernel's params, to hide its latency.
XLSTM_DEVICE void prefetch(const void* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// ---- wgmma

// wgmma_fence: the registers that the next wgmmas read are written. wgmma_commit: what was issued is a group.
// wgmma_wait: all but the last kGroups groups are complete. Until then the compiler must not touch the accumulators,
// and it does not know them: `sums` are those that are waited for.
XLSTM_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
XLSTM_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kCount>
XLSTM_DEVICE void hold(float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}
template <int kGroups, class... Sums>
XLSTM_DEVICE void wgmma_wait(Sums&... sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
  (hold(sums), ...);
}

#define XLSTM_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define XLSTM_D16(d, i) XLSTM_D4(d, i), XLSTM_D4(d, i + 4), XLSTM_D4(d, i + 8), XLSTM_D4(d, i + 12)
#define XLSTM_D32(d, i) XLSTM_D16(d, i), XLSTM_D16(d, i + 16)
#define XLSTM_D64(d, i) XLSTM_D32(d, i), XLSTM_D32(d, i + 32)
#define XLSTM_TEXT8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define XLSTM_TEXT16 XLSTM_TEXT8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define XLSTM_TEXT32                                                                                                   \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30," \
  "%31"
// clang-format off
#define XLSTM_TEXT56 \
  XLSTM_TEXT32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55"
#define XLSTM_TEXT64 XLSTM_TEXT56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define XLSTM_TEXT96 \
  XLSTM_TEXT64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
               ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define XLSTM_TEXT128 \
  XLSTM_TEXT96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
               ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// clang-format on

// Operands are bfloat16 or float16.
#define XLSTM_MULTIPLY(before, after, ...)                     \
  if constexpr (__is_same(E, Float16))                         \
    asm volatile(before "k16.f32.f16.f16 " after __VA_ARGS__); \
  else                                                         \
    asm volatile(before "k16.f32.bf16.bf16 " after __VA_ARGS__)

// Both operands in shared memory; n = 64, 128, 112, 80, 72 or 8 columns. add: false starts a sum.
template <bool kAMnMajor, bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_ss(float (&sum)[32], uint64_t a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY("{ .reg .pred p; setp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64",
                 "{" XLSTM_TEXT32 "}, %32, %33, p, 1, 1, %35, %36; }", : XLSTM_D32(sum, 0) : "l"(a), "l"(b),
                 "r"(int(add)), "n"(int(kAMnMajor)), "n"(int(kBMnMajor)));
}
template <bool kAMnMajor, bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_ss(float (&sum)[64], uint64_t a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY("{ .reg .pred p; setp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128",
                 "{" XLSTM_TEXT64 "}, %64, %65, p, 1, 1, %67, %68; }", : XLSTM_D64(sum, 0) : "l"(a), "l"(b),
                 "r"(int(add)), "n"(int(kAMnMajor)), "n"(int(kBMnMajor)));
}
template <bool kAMnMajor, bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_ss(float (&sum)[56], uint64_t a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY("{ .reg .pred p; setp.ne.b32 p, %58, 0;\nwgmma.mma_async.sync.aligned.m64n112",
                 "{" XLSTM_TEXT56 "}, %56, %57, p, 1, 1, %59, %60; }", : XLSTM_D32(sum, 0), XLSTM_D16(sum, 32),
                 XLSTM_D4(sum, 48), XLSTM_D4(sum, 52) : "l"(a), "l"(b), "r"(int(add)), "n"(int(kAMnMajor)),
                 "n"(int(kBMnMajor)));
}
template <bool kAMnMajor, bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_ss(float (&sum)[40], uint64_t a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY(
      "{ .reg .pred p; setp.ne.b32 p, %42, 0;\nwgmma.mma_async.sync.aligned.m64n80",
      "{" XLSTM_TEXT32 ",%32,%33,%34,%35,%36,%37,%38,%39}, %40, %41, p, 1, 1, %43, %44; }", : XLSTM_D32(sum, 0),
      XLSTM_D4(sum, 32), XLSTM_D4(sum, 36) : "l"(a), "l"(b), "r"(int(add)), "n"(int(kAMnMajor)), "n"(int(kBMnMajor)));
}
template <bool kAMnMajor, bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_ss(float (&sum)[36], uint64_t a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY("{ .reg .pred p; setp.ne.b32 p, %38, 0;\nwgmma.mma_async.sync.aligned.m64n72",
                 "{" XLSTM_TEXT32 ",%32,%33,%34,%35}, %36, %37, p, 1, 1, %39, %40; }", : XLSTM_D32(sum, 0),
                 XLSTM_D4(sum, 32) : "l"(a), "l"(b), "r"(int(add)), "n"(int(kAMnMajor)), "n"(int(kBMnMajor)));
}
template <bool kAMnMajor, bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_ss(float (&sum)[4], uint64_t a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY("{ .reg .pred p; setp.ne.b32 p, %6, 0;\nwgmma.mma_async.sync.aligned.m64n8",
                 "{%0,%1,%2,%3}, %4, %5, p, 1, 1, %7, %8; }", : XLSTM_D4(sum, 0) : "l"(a), "l"(b), "r"(int(add)),
                 "n"(int(kAMnMajor)), "n"(int(kBMnMajor)));
}

// A in registers; n = 16, 32, 64, 128, 192 or 256 columns.
template <bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_rs(float (&sum)[8], const uint32_t* a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY("{ .reg .pred p; setp.ne.b32 p, %13, 0;\nwgmma.mma_async.sync.aligned.m64n16",
                 "{" XLSTM_TEXT8 "}, {%8, %9, %10, %11}, %12, p, 1, 1, %14; }", : XLSTM_D4(sum, 0),
                 XLSTM_D4(sum, 4) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)),
                 "n"(int(kBMnMajor)));
}
template <bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_rs(float (&sum)[16], const uint32_t* a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY("{ .reg .pred p; setp.ne.b32 p, %21, 0;\nwgmma.mma_async.sync.aligned.m64n32",
                 "{" XLSTM_TEXT16 "}, {%16, %17, %18, %19}, %20, p, 1, 1, %22; }", : XLSTM_D16(sum, 0) : "r"(a[0]),
                 "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(int(kBMnMajor)));
}
template <bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_rs(float (&sum)[32], const uint32_t* a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY("{ .reg .pred p; setp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64",
                 "{" XLSTM_TEXT32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38; }", : XLSTM_D32(sum, 0) : "r"(a[0]),
                 "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(int(kBMnMajor)));
}
template <bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_rs(float (&sum)[64], const uint32_t* a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY("{ .reg .pred p; setp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128",
                 "{" XLSTM_TEXT64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70; }", : XLSTM_D64(sum, 0) : "r"(a[0]),
                 "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(int(kBMnMajor)));
}
template <bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_rs(float (&sum)[96], const uint32_t* a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY("{ .reg .pred p; setp.ne.b32 p, %101, 0;\nwgmma.mma_async.sync.aligned.m64n192",
                 "{" XLSTM_TEXT96 "}, {%96, %97, %98, %99}, %100, p, 1, 1, %102; }", : XLSTM_D64(sum, 0),
                 XLSTM_D32(sum, 64) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)),
                 "n"(int(kBMnMajor)));
}
template <bool kBMnMajor, class E = BFloat16>
XLSTM_DEVICE void wgmma_rs(float (&sum)[128], const uint32_t* a, uint64_t b, bool add = true) {
  XLSTM_MULTIPLY("{ .reg .pred p; setp.ne.b32 p, %133, 0;\nwgmma.mma_async.sync.aligned.m64n256",
                 "{" XLSTM_TEXT128 "}, {%128, %129, %130, %131}, %132, p, 1, 1, %134; }", : XLSTM_D64(sum, 0),
                 XLSTM_D64(sum, 64) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)),
                 "n"(int(kBMnMajor)));
}
#undef XLSTM_MULTIPLY
#undef XLSTM_D4
#undef XLSTM_D16
#undef XLSTM_D32
#undef XLSTM_D64
#undef XLSTM_TEXT8
#undef XLSTM_TEXT16
#undef XLSTM_TEXT32
#undef XLSTM_TEXT56
#undef XLSTM_TEXT64
#undef XLSTM_TEXT96
#undef XLSTM_TEXT128

// ---- single threads and warps

// Four 8 x 8 matrices of 2-byte elements: lane l has the address of row l % 8 of matrix l / 8, or, transposed, of its
// column.
XLSTM_DEVICE void stmatrix(uint32_t at, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(r0), "r"(r1), "r"(r2),
               "r"(r3)
               : "memory");
}

XLSTM_DEVICE void stmatrix_trans(uint32_t at, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

// The same number, which the compiler takes for a new one (like opaque in arch/compiler_barriers.h): values derived
// from it are computed where they are used, rather than kept through a loop.
XLSTM_DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Predicated stores: no branch that later instructions would have to stay behind.
XLSTM_DEVICE void store_if(bool happens, void* to, const Vec16& x) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.v4.b32 [%1], {%2, %3, %4, %5}; }" ::"r"(int(happens)),
      "l"(to), "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3]));
}
XLSTM_DEVICE void store_if(bool happens, float* to, float x) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.f32 [%1], %2; }" ::"r"(int(happens)), "l"(to),
               "f"(x));
}

}  // namespace xlstm::gpu

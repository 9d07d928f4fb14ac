# SPDX-License-Identifier: Apache-2.0
"""What one workgroup passes to another: no fault by LLVM's memory model, and one for each piece that is left out."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

import builds
from assembly import kernel_text
from wave_programs import WAVE

pytestmark = pytest.mark.skipif(builds.CHIP == "gfx90a", reason="its device has one L2")

# Workgroup 0 stores data and sets the flag. The others wait for it, and copy the data.
PASSES = """  s_load_dwordx4 s[8:11], s[0:1], 0x0
  s_load_dwordx2 s[12:13], s[0:1], 0x10
  v_and_b32 v0, 0x3ff, v0
  v_lshlrev_b32 v1, 2, v0
  v_mov_b32 v3, 0
  v_mov_b32 v4, 1
  s_waitcnt lgkmcnt(0)
  s_cmp_lg_u32 s2, 0
  s_cbranch_scc1 again
  global_store_dword v1, v0, s[8:9]
  buffer_wbl2 sc1
  s_waitcnt vmcnt(0) ; of the data
  global_store_dword v3, v4, s[10:11] sc1 ; the flag
  s_endpgm
again:
  global_load_dword v4, v3, s[10:11] sc1 ; the flag
  s_waitcnt vmcnt(0) ; of the flag
  v_readfirstlane_b32 s14, v4
  s_cmp_eq_u32 s14, 0
  s_cbranch_scc1 again
  buffer_inv sc1
  global_load_dword v2, v1, s[8:9] ; the data
  s_lshl_b32 s15, s2, 8
  v_add_u32 v1, s15, v1
  s_waitcnt vmcnt(0) ; of the copy
  global_store_dword v1, v2, s[12:13]"""
NOT_RELEASED = "no buffer_wbl2 sc1 with s_waitcnt vmcnt.0. has followed it"
NOT_ACQUIRED = "no buffer_inv sc1 stands between the load that saw it released"
FAULTS = {
    "no release": ("  buffer_wbl2 sc1\n", "", NOT_RELEASED),
    "a release of the workgroup's scope": ("buffer_wbl2 sc1", "buffer_wbl2 sc0", NOT_RELEASED),
    "a release before the data": (
        "  global_store_dword v1, v0, s[8:9]\n  buffer_wbl2 sc1",
        "  buffer_wbl2 sc1\n  s_nop 0\n  global_store_dword v1, v0, s[8:9]",
        NOT_RELEASED,
    ),
    "no wait for the release": ("s_waitcnt vmcnt(0) ; of the data", "s_nop 0", NOT_RELEASED),
    "a wait for less": ("s_waitcnt vmcnt(0) ; of the data", "s_waitcnt vmcnt(1)", NOT_RELEASED),
    "a flag without device scope": ("s[10:11] sc1 ; the flag\n  s_endpgm", "s[10:11] sc0\n  s_endpgm", NOT_RELEASED),
    "a flag read without device scope": (
        "global_load_dword v4, v3, s[10:11] sc1",
        "global_load_dword v4, v3, s[10:11] sc0",
        "this access has no device scope",
    ),
    "no acquire": ("  buffer_inv sc1\n", "", NOT_ACQUIRED),
    "an acquire of the workgroup's scope": ("buffer_inv sc1", "buffer_inv sc0", NOT_ACQUIRED),
    "no flag": ("  s_cbranch_scc1 again\n  buffer_inv", "  buffer_inv", "nothing that this wave has read|buffer_wbl2"),
}
GROUPS = 5


def passes(device: ModuleType, body: str, seed: int) -> np.ndarray:
    data, flag, copies = np.zeros(WAVE, np.uint32), np.zeros(1, np.uint32), np.zeros(GROUPS * WAVE, np.uint32)
    with device.schedule(seed), device.Module(device.assemble(kernel_text(body, ["*"] * 3))) as module:
        module.launch("kernel", GROUPS, WAVE, (data, flag, copies))
    return copies.reshape(GROUPS, WAVE)[1:]


@pytest.mark.parametrize("seed", range(1, 6))
def test_release_and_acquire(device: ModuleType, seed: int) -> None:
    assert np.all(passes(device, PASSES, seed) == np.arange(WAVE))


@pytest.mark.parametrize("name", FAULTS)
def test_a_piece_that_is_left_out(device: ModuleType, name: str) -> None:
    """Whatever turns are taken, as long as the data was stored before it was read."""
    old, new, says = FAULTS[name]
    assert PASSES.count(old) == 1
    body = PASSES.replace(old, new)
    found = 0
    for seed in range(1, 6):
        try:
            passes(device, body, seed)
        except device.Fault as fault:
            assert "(check memory-order)" in str(fault)
            found += 1
            last = str(fault)
    assert found == 5 or (name == "no flag" and found)
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(last)


def test_an_acquire_before_the_flag_has_come(device: ModuleType) -> None:
    """The second wave of instructions invalidates too early; the wait comes behind."""
    old = "  buffer_inv sc1\n"
    body = PASSES.replace(old, "").replace("  s_waitcnt vmcnt(0) ; of the flag\n", old + "  s_waitcnt vmcnt(0)\n")
    with pytest.raises(device.Fault, match=NOT_ACQUIRED):
        passes(device, body, 1)


def test_data_that_is_read_at_device_scope_needs_no_acquire(device: ModuleType) -> None:
    body = PASSES.replace("  buffer_inv sc1\n", "").replace("s[8:9] ; the data", "s[8:9] sc1")
    assert np.all(passes(device, body, 1) == np.arange(WAVE))
    with pytest.raises(device.Fault, match=NOT_RELEASED):
        passes(device, body.replace("  buffer_wbl2 sc1\n", ""), 1)


SOURCE = """
#include <hip/hip_runtime.h>
#define DEVICE __HIP_MEMORY_SCOPE_AGENT
extern "C" {
// The workgroup that counts last adds up what all have stored.
__global__ void last_adds(const unsigned* x, unsigned* parts, unsigned* count, unsigned* sum) {
  __shared__ unsigned arrived;
  parts[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  if (BARRIER) __syncthreads();
  if (threadIdx.x == 0) arrived = __hip_atomic_fetch_add(count, 1u, ORDER, DEVICE);
  __syncthreads();
  if (arrived + 1 != gridDim.x) return;
  unsigned s = 0;
  for (unsigned k = 0; k < gridDim.x; ++k) s += parts[k * blockDim.x + threadIdx.x];
  sum[threadIdx.x] = s;
}
// A value and the number of its round in one word need neither release nor acquire.
__global__ void words(unsigned long* words, unsigned rounds, unsigned* to) {
  unsigned x = threadIdx.x;
  for (unsigned round = 1; round <= rounds; ++round) {
    unsigned long* mine = words + (round % 2 * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    __hip_atomic_store(mine, (unsigned long)round << 32 | x, __ATOMIC_RELAXED, DEVICE);
    unsigned sum = 0;
    for (unsigned k = 0; k < gridDim.x; ++k) {
      unsigned long found;
      do found = __hip_atomic_load(words + (round % 2 * gridDim.x + k) * blockDim.x + threadIdx.x, __ATOMIC_RELAXED,
                                   DEVICE);
      while (found >> 32 != round);
      sum += unsigned(found) * (k + 1);
    }
    x = sum;
  }
  to[blockIdx.x * blockDim.x + threadIdx.x] = x;
}
}
"""


@pytest.fixture(scope="module")
def modules(device: ModuleType) -> Iterator[dict[str, ModuleType]]:
    kinds = {
        "right": ("-DBARRIER=1", "-DORDER=__ATOMIC_ACQ_REL"),
        "no barrier": ("-DBARRIER=0", "-DORDER=__ATOMIC_ACQ_REL"),
        "relaxed": ("-DBARRIER=1", "-DORDER=__ATOMIC_RELAXED"),
        "no acquire": ("-DBARRIER=1", "-DORDER=__ATOMIC_RELEASE"),
    }
    loaded = {name: device.Module(device.compile_hip(SOURCE, *flags)) for name, flags in kinds.items()}
    yield loaded
    for module in loaded.values():
        module.close()


def last_adds(module: ModuleType, groups: int = 6, threads: int = 256) -> None:
    x = np.arange(groups * threads, dtype=np.uint32)
    parts, count, total = np.zeros_like(x), np.zeros(1, np.uint32), np.zeros(threads, np.uint32)
    module.launch_cooperative("last_adds", groups, threads, (x, parts, count, total))
    assert np.array_equal(total, x.reshape(groups, threads).sum(0, dtype=np.uint32))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_last_workgroup(device: ModuleType, modules: dict[str, ModuleType], seed: int) -> None:
    with device.schedule(seed):
        last_adds(modules["right"])


@pytest.mark.parametrize("name, says", [
    ("no barrier", NOT_RELEASED), ("relaxed", NOT_RELEASED), ("no acquire", NOT_ACQUIRED),
])  # fmt: skip
def test_a_last_workgroup_with_a_fault(
    device: ModuleType, modules: dict[str, ModuleType], name: str, says: str
) -> None:
    with pytest.raises(device.Fault, match=says):
        last_adds(modules[name])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_words_that_are_their_own_flags(device: ModuleType, modules: dict[str, ModuleType], seed: int) -> None:
    groups, rounds, threads = 5, 4, 64
    words, to = np.zeros(2 * groups * threads, np.uint64), np.zeros((groups, threads), np.uint32)
    with device.schedule(seed):
        modules["right"].launch_cooperative("words", groups, threads, (words, rounds, to))
    x = np.arange(threads, dtype=np.uint32)
    for _ in range(rounds):
        x = x * np.uint32(sum(range(1, groups + 1)))
    assert np.all(to == x)

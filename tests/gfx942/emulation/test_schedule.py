# SPDX-License-Identifier: Apache-2.0
"""Workgroups that take turns: kernels whose workgroups wait for each other, and what ends the run when they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

SOURCE = """
#include <hip/hip_runtime.h>
__device__ unsigned see(const unsigned* flag) {
  return __hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ void set(unsigned* flag, unsigned x) {
  __hip_atomic_store(flag, x, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}
extern "C" {
// Each workgroup waits for the one behind it: one after the other, the first would wait for ever.
__global__ void chain(unsigned* flag) {
  const unsigned next = blockIdx.x + 1;
  if (next < gridDim.x)
    while (!see(flag + next)) __builtin_amdgcn_s_sleep(1);
  set(flag + blockIdx.x, next < gridDim.x ? see(flag + next) + 1 : 1);
}
__global__ void tickets(unsigned* next, unsigned* to) {
  if (threadIdx.x == 0) to[atomicAdd(next, 1)] = blockIdx.x;
}
__global__ void waits(const unsigned* flag) {
  while (!see(flag)) {}
}
__global__ void waits_by_swapping(unsigned* flag) {
  while (atomicCAS(flag, 1u, 0u) != 1u) {}
}
__global__ void waits_at_the_barrier(const unsigned* flag) {
  if (threadIdx.x < 64)
    while (!see(flag)) {}
  __syncthreads();
}
__global__ void counts(unsigned* to, unsigned n) {
  unsigned x = 1;
  for (unsigned k = 0; k < n; ++k) x = x * 1664525u + 1013904223u;
  to[blockIdx.x * blockDim.x + threadIdx.x] = x;
}
__global__ void reverses(unsigned* x) {
  extern __shared__ unsigned shared[];
  unsigned* own = x + blockIdx.x * blockDim.x;
  shared[threadIdx.x] = own[threadIdx.x];
  __syncthreads();
  own[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
}
"""
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def module(device: ModuleType) -> Iterator[ModuleType]:
    with device.Module(device.compile_hip(SOURCE)) as loaded:
        yield loaded


def test_a_cooperative_launch(module: ModuleType) -> None:
    flags = np.zeros(40, np.uint32)
    module.launch_cooperative("chain", 40, 64, (flags,))
    assert flags.tolist() == list(range(40, 0, -1))


@pytest.mark.parametrize("seed", SEEDS)
def test_workgroups_that_wait_for_each_other(device: ModuleType, module: ModuleType, seed: int) -> None:
    flags = np.zeros(12, np.uint32)
    with device.schedule(seed):
        module.launch("chain", 12, 64, (flags,))
    assert flags.tolist() == list(range(12, 0, -1))


def tickets(device: ModuleType, module: ModuleType, seed: int) -> list[int]:
    to = np.zeros(64, np.uint32)
    with device.schedule(seed):
        module.launch("tickets", 64, 128, (np.zeros(1, np.uint32), to))
    assert sorted(to) == list(range(64))
    return to.tolist()


def test_a_seed_is_an_order(device: ModuleType, module: ModuleType) -> None:
    orders = [tickets(device, module, seed) for seed in SEEDS]
    assert orders == [tickets(device, module, seed) for seed in SEEDS]
    assert len({tuple(order) for order in orders}) == len(SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_lds_and_barriers(device: ModuleType, module: ModuleType, seed: int) -> None:
    x = np.arange(9 * 256, dtype=np.uint32)
    expected = x.reshape(9, 256)[:, ::-1].copy()
    with device.schedule(seed):
        module.launch("reverses", 9, 256, (x,), lds=1024)
    assert np.array_equal(x.reshape(9, 256), expected)


def test_more_workgroups_than_the_chip_holds(device: ModuleType, module: ModuleType) -> None:
    """They begin as others end, as long as they do not wait for each other."""
    held = device.properties()["compute_units"]
    x = np.arange((held + 9) * 64, dtype=np.uint32)
    expected = x.reshape(-1, 64)[:, ::-1].copy()
    lds = device.properties()["lds_bytes"]
    with device.schedule(1):
        module.launch("reverses", held + 9, 64, (x,), lds=lds)
    assert np.array_equal(x.reshape(-1, 64), expected)
    with pytest.raises(device.HipError, match=rf"of {held + 1} blocks; the chip holds {held} at once"):
        module.launch_cooperative("reverses", held + 1, 64, (x,), lds=lds)
    with pytest.raises(device.HipError, match=rf"the chip holds {held * 8} at once"):
        module.launch_cooperative("reverses", 100_000, 256, (x,), lds=1024)


@pytest.mark.parametrize("kernel", ["waits", "waits_by_swapping", "waits_at_the_barrier"])
def test_nobody_sets_the_flag(device: ModuleType, module: ModuleType, kernel: str) -> None:
    for warned in ((), ("deadlock",)):  # no workgroup is left to begin, so the run cannot go on
        with device.warn(*warned), pytest.raises(device.Fault, match=r"deadlock: [^$]*3 of 3 workgroups have begun"):
            module.launch_cooperative(kernel, 3, 128, (np.zeros(1, np.uint32),))


def test_a_long_loop_is_no_deadlock(device: ModuleType, module: ModuleType) -> None:
    to, n = np.zeros(64, np.uint32), 20_000
    module.launch_cooperative("counts", 1, 64, (to, n))
    x = 1
    for _ in range(n):
        x = (x * 1664525 + 1013904223) % (1 << 32)
    assert np.all(to == x)


def test_a_launch_that_takes_turns_is_not_sampled(device: ModuleType, module: ModuleType) -> None:
    device.set_recording(1000)
    try:
        with device.schedule(1), pytest.raises(device.HipError, match="can be neither recorded nor sampled"):
            module.launch("counts", 2, 64, (np.zeros(128, np.uint32), 1))
    finally:
        device.set_recording(0)


def test_a_cooperative_launch_is_recorded_without_its_waits(device: ModuleType, module: ModuleType) -> None:
    """It runs in turns first; when it is recorded, all flags are set."""
    flag = np.zeros(2, np.uint32)
    device.set_recording(1000)
    try:
        module.launch_cooperative("chain", 2, 64, (flag,))
    finally:
        device.set_recording(0)
        device.forget_recordings()
    assert list(flag) == [2, 1]


def test_a_seed_that_is_none(device: ModuleType) -> None:
    with pytest.raises(ValueError, match="seed: expected"), device.schedule(0):
        pass

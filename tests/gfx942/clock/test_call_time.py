# SPDX-License-Identifier: Apache-2.0
"""A call kernel by kernel: counts are of all workgroups, whichever ran, and calls add up."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

ROWS = 64  # of 256 floats, that each workgroup reads
SOURCE = """
#include <hip/hip_runtime.h>
extern "C" __global__ void sums(float* out, const float* x, int rows) {
  float s = 0;
  for (int i = 0; i < rows; ++i) s += x[i * 256 + threadIdx.x];
  out[blockIdx.x * 256 + threadIdx.x] = s;
}
"""


@pytest.fixture(scope="module")
def call_time(device: ModuleType) -> ModuleType:
    import call_time

    return call_time


def test_counts_are_of_all_workgroups(device: ModuleType, call_time: ModuleType) -> None:
    """Two launches, of which some workgroups run."""
    groups = (200, 300)
    out, x = np.zeros(256 * max(groups), np.float32), np.ones(256 * ROWS, np.float32)
    with device.Module(device.compile_hip(SOURCE)) as module:

        def call() -> None:
            for n in groups:
                module.launch("sums", n, 256, (out, x, ROWS))

        (found,) = call_time.predicted(call, 1, lambda names: [f"{name} here" for name in names])
        (alone,) = call_time.predicted(lambda: module.launch("sums", groups[1], 256, (out, x, ROWS)), 1, list)
    assert (found.kernel, found.launches, found.workgroups) == ("sums here", 2, 300)
    # A row of floats for each thread, its sum, and the arguments, which each of the four waves loads.
    of_group = 4 * 256 * (ROWS + 1)
    assert sum(groups) * of_group < found.counts.moved < sum(groups) * (of_group + 4 * 256)
    assert found.counts.memory == sum(groups) * 4 * (ROWS + 1)
    assert found.counts.products == 0 and found.counts.waits > 0
    assert alone.microseconds < found.microseconds < 2 * alone.microseconds
    assert found.binds == "memory" and max(found.causes, key=lambda cause: found.causes[cause]) == "wait: memory"


def test_a_model_of_many_blocks(call_time: ModuleType) -> None:
    """One block with a head, and what a second block adds, 31 times."""
    counts = call_time.Counts(vector=10)
    of_block = call_time.KernelTime("block", 3, 6.0, 2100, 0, 8, 1, 0, "VALU", {}, counts)
    head = replace(of_block, kernel="head", launches=1, microseconds=40.0)
    small = replace(head, microseconds=5.0)
    two = replace(of_block, launches=6, microseconds=12.0, counts=counts + counts)
    found = call_time.combined([(1, [of_block, head]), (31, [two, small]), (-31, [of_block, small])])
    assert [(k.kernel, k.launches, k.microseconds, k.counts.vector) for k in found] == [
        ("block", 3 * 32, 6.0 * 32, 320),
        ("head", 1, 40.0, 10),
    ]


@pytest.mark.rows("ci")  # Triton is a download of hundreds of megabytes
def test_a_tuned_kernel_of_triton(peers: ModuleType) -> None:
    """Of a tuned kernel the configuration counts that is predicted to be the fastest, once."""
    import torch

    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 128, 1, 64, generator=random).bfloat16() for _ in range(3))
    named = {"q": q, "k": k, "v": v, "g": torch.full((1, 128, 1), -0.1), "backward": True}
    one, two = (peers.predicted("simple_gla_training", named, 10_000, tried) for tried in (1, 2))
    launches = {k.kernel: k.launches for k in one}
    assert launches == {k.kernel: k.launches for k in two}
    assert launches["chunk_fwd_kernel_h"] == 2 and launches["chunk_fwd_kernel_o"] == 1  # backward makes states again
    assert sum(k.microseconds for k in two) <= sum(k.microseconds for k in one)

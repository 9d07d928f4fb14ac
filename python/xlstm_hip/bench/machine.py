# SPDX-License-Identifier: Apache-2.0
"""A device and its clocks. On a GPU: its own events, a graph, a cold L2; and the memory that a call takes.

On the CPU, to try a benchmark out, the clock is the host's, and graphs and memory are not to be had.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import time
from collections.abc import Sequence

import torch

from .registry import DTYPES
from .timing import Call

FLUSH_FACTOR = 4  # so many times L2 is written to empty it
SETS_FACTOR = 3  # input sets that take turns fill L2 so many times
CPU_CACHE = 32 << 20  # stands for L2 where there is none to ask for

atexit.register(gc.unfreeze)  # after Machine.clean: what is left at the end would be called a leak


def lost(device: torch.device) -> bool:
    """Whether a GPU no longer serves this process, as after a kernel's wild access: from then on it says so at every
    call. An error that it says once is none of that kind."""
    for _ in range(2 if device.type == "cuda" else 0):
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            continue
        return False
    return device.type == "cuda"


class Machine:
    def __init__(self, device: str) -> None:
        self.gpu = torch.device(device).type == "cuda"
        self.l2_bytes = CPU_CACHE
        if self.gpu:
            self.l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(FLUSH_FACTOR * self.l2_bytes if self.gpu else 1, dtype=torch.uint8, device=device)
        self.device = self._flush.device  # as tensors name it: cuda:0, also where cuda was asked for

    def synchronize(self) -> None:
        if self.gpu:
            torch.cuda.synchronize(self.device)

    def free_bytes(self) -> int:
        if not self.gpu:
            return 4 << 30
        reserved = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + reserved

    def sets(self, set_bytes: int) -> int:
        """The number of input sets that must take turns so that none is in L2 at its turn."""
        return max(1, -(-SETS_FACTOR * self.l2_bytes // set_bytes)) if set_bytes < SETS_FACTOR * self.l2_bytes else 1

    def seconds(self, call: Call, times: int) -> float:
        """The seconds of so many calls back to back; the host's time if it is slower than the GPU."""
        if not self.gpu:
            begin = time.perf_counter()
            for _ in range(times):
                call()
            return time.perf_counter() - begin
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(times):
            call()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3

    def cold_seconds(self, call: Call, times: int) -> float:
        """The seconds of so many calls, each with an empty L2: the flush, which is not counted, also hides the host's
        time."""
        if not self.gpu:
            return self.seconds(call, times)
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(times)]
        for begin, end in events:
            self._flush.zero_()
            begin.record()
            call()
            end.record()
        self.synchronize()
        return sum(begin.elapsed_time(end) for begin, end in events) * 1e-3

    def clean(self) -> None:
        """Gives back what a measurement left. What is still there then, a million objects of imported modules for the
        most part, no later call looks at again: that would take it longer than many a measurement.
        """
        gc.collect()
        gc.freeze()
        if self.gpu:
            torch.cuda.empty_cache()

    def clean_all(self) -> None:
        """clean, with another look at everything: for who has let go of what lived through one."""
        gc.unfreeze()
        self.clean()

    def host_ms(self, call: Call, times: int = 10) -> float:
        """The host's time to put one call on the stream."""
        call()
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            call()
        taken = (time.perf_counter() - begin) / times * 1e3
        self.synchronize()
        return taken

    def peak_bytes(self, call: Call) -> int | None:
        """Allocated at the worst moment of a call, beyond what was before."""
        if not self.gpu:
            return None
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        out = call()
        self.synchronize()
        peak = torch.cuda.max_memory_allocated(self.device) - before
        del out
        return peak

    def graph_of(self, calls: Sequence[Call]) -> Call:
        """One replay does all the calls; each has run before, so nothing is compiled in the capture."""
        if not self.gpu:
            raise LookupError("no graphs on the CPU")
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            calls[0]()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()

        def replay(_alive: tuple[Call, ...] = tuple(calls)) -> None:  # it reads and writes what they hold
            graph.replay()

        return replay


def taking_turns(calls: Sequence[Call]) -> Call:
    """One call that is the next of these each time."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def _best(machine: Machine, call: Call, quick: bool) -> float:
    """Seconds of a call, the least of five goes."""
    times = 3 if quick or not machine.gpu else 20
    machine.seconds(call, times)
    return min(machine.seconds(call, times) / times for _ in range(5))


def copying(machine: Machine, moved: int) -> Call:
    """torch's own copy, that reads and writes so many bytes in all."""
    source = torch.ones(moved // 2, dtype=torch.uint8, device=machine.device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def multiplying(machine: Machine, dtype: str, side: int) -> Call:
    """A square matrix product, of 2 * side**3 operations."""
    a, b = (torch.randn(side, side, device=machine.device).to(DTYPES[dtype]) for _ in range(2))
    product = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=product)


def copy_rate(machine: Machine, quick: bool) -> float:
    """Bytes read and written a second by a copy that no cache holds."""
    moved = 2 << (20 if quick else 30 if machine.gpu else 28)
    return moved / _best(machine, copying(machine, moved), quick)


def matmul_rate(machine: Machine, dtype: str, quick: bool) -> float:
    """Operations a second of a large matrix product."""
    side = 256 if quick else 8192 if machine.gpu else 2048
    return 2 * side**3 / _best(machine, multiplying(machine, dtype, side), quick)


def ceilings(machine: Machine, quick: bool) -> dict[str, float]:
    """The device's own rates: bytes that a copy reads and writes a second, and flops of a bf16 matrix product."""
    return {"copy_bytes_per_second": copy_rate(machine, quick), "bf16_flops": matmul_rate(machine, "bf16", quick)}

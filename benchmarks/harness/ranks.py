# SPDX-License-Identifier: Apache-2.0
"""Processes that are ranks of torch.distributed on this machine, each with a GPU or a thread, timed together."""

from __future__ import annotations

import functools
import gc
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

Work = Callable[[], Tensor]


class Ranks:
    """So many processes, for one measurement after the other."""

    def __init__(self, count: int, device: str) -> None:
        context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(rank, count, device, self._folder.name, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)

    def measure(self, rounds: int, make: Callable[..., tuple[Work, bool]], *arguments: Any) -> dict[str, Any]:
        """make     called on each rank as make(*arguments, device): the work, and whether ranks have parts of its
                    result

        ms: of each round, the slowest rank's; peak_bytes: the most that a rank had on its GPU; check: the result's
        norm.
        """
        for pipe in self._pipes:
            pipe.send((rounds, make, arguments))
        found = []
        for rank, pipe in enumerate(self._pipes):
            try:
                found.append(pipe.recv())
            except EOFError:
                raise SystemExit(f"xlstm_hip: rank {rank} died") from None
            if isinstance(found[-1], str):  # the others may wait for it
                raise SystemExit(f"xlstm_hip: rank {rank} failed:\n{found[-1]}")
        results: dict[str, Any] = found[0]
        return results


@functools.cache
def ranks_of(count: int, device: str) -> Ranks:
    """They stay for the next measurement, until the program ends."""
    return Ranks(count, device)


def _rank(rank: int, count: int, kind: str, folder: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    on_gpu = kind == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=meeting, rank=rank, world_size=count)
    while True:
        task = pipe.recv()
        try:
            rounds, make, arguments = task
            pipe.send(_measured(rounds, make, arguments, device))
        except Exception:
            pipe.send(traceback.format_exc())
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()


def _measured(
    rounds: int, make: Callable[..., tuple[Work, bool]], arguments: tuple[Any, ...], device: torch.device
) -> dict[str, Any]:
    call, has_parts = make(*arguments, device)
    check = call().double().square().sum()
    if has_parts:
        dist.all_reduce(check)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    ms = [_round(call, device) for _ in range(rounds)]
    peak = torch.tensor(float(torch.cuda.max_memory_allocated() if device.type == "cuda" else 0), device=device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return {"ms": ms, "peak_bytes": int(peak), "check": float(check) ** 0.5}


def _round(call: Work, device: torch.device) -> float:
    dist.barrier()
    begin = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    took = torch.tensor(1e3 * (time.perf_counter() - begin), device=device)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)

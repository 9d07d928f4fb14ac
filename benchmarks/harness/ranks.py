# SPDX-License-Identifier: Apache-2.0
"""Processes that are ranks of torch.distributed on this machine, each with a GPU or a thread, timed together."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

Work = Callable[[], Tensor]  # a number of the result that does not depend on the ranks


def measure(
    ranks: int, device: str, rounds: int, make: Callable[..., tuple[Work, bool]], *arguments: Any
) -> dict[str, Any]:
    """make     called on each rank as make(*arguments, device): the work, and whether its numbers are to be summed

    ms: of each round, the slowest rank's; peak_bytes: the most that a rank had on its GPU; check: the work's number.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (ranks, device, rounds, make, arguments, folder), ranks)
        found: dict[str, Any] = torch.load(f"{folder}/found.pt")
        return found


def _rank(
    rank: int, ranks: int, kind: str, rounds: int, make: Callable[..., Any], arguments: tuple[Any, ...], folder: str
) -> None:
    torch.set_num_threads(1)
    on_gpu = kind == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=meeting, rank=rank, world_size=ranks)
    call, summed = make(*arguments, device)
    check = call()
    if summed:
        dist.all_reduce(check)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    ms = [_round(call, device) for _ in range(rounds)]
    peak = torch.tensor(float(torch.cuda.max_memory_allocated() if on_gpu else 0), device=device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    if rank == 0:
        torch.save({"ms": ms, "peak_bytes": int(peak), "check": float(check)}, f"{folder}/found.pt")
    dist.destroy_process_group()


def _round(call: Callable[[], Tensor], device: torch.device) -> float:
    dist.barrier()
    begin = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    took = torch.tensor(1e3 * (time.perf_counter() - begin), device=device)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)

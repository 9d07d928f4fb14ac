# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch.distributed as processes on this machine, by gloo, or by NCCL or RCCL with a GPU each."""

from __future__ import annotations

import datetime
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LIMIT = 120  # seconds


def run_ranks(folder: Path, size: int, function: Callable[..., Any], *arguments: Any, device: str = "cpu") -> list[Any]:
    """What function(*arguments) returns on each of so many ranks; a string if it raised: the traceback."""
    folder.mkdir(parents=True, exist_ok=True)
    context = mp.get_context("spawn")
    ranks = [
        context.Process(target=_rank, args=(folder, rank, size, function, arguments, device), daemon=True)
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(LIMIT)
    alive = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for process in ranks:
        process.kill()
    assert not alive, f"ranks {alive} did not end in {LIMIT} s"
    return [
        torch.load(path, weights_only=False) if (path := folder / f"{rank}.pt").exists() else "it died"
        for rank in range(size)
    ]


def _rank(
    folder: Path, rank: int, size: int, function: Callable[..., Any], arguments: tuple[Any, ...], device: str
) -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=LIMIT / 2)
    backend = "gloo"
    if device == "cuda":
        torch.cuda.set_device(rank)
        backend = "nccl"
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=size, timeout=limit)
    try:
        result = function(*arguments)
    except Exception:
        result = traceback.format_exc()
    torch.save(result, folder / f"{rank}.pt")
    if not isinstance(result, str):
        dist.destroy_process_group()

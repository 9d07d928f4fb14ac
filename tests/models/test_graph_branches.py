# SPDX-License-Identifier: Apache-2.0
"""Branches of a captured step, with streams that write down what is asked of them. test_decode_engine_gpu runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from xlstm_hip.models import graph_branches


class Stream:
    def __init__(self, name: str, log: list[tuple[str, ...]]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append((self.name, "waits for", other.name))


class GpuTokens:
    """What in_branches asks of x."""

    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self, tokens: int) -> None:
        self.shape = (9, tokens, 64)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    events: list[tuple[str, ...]] = []
    current = [Stream("main", events)]

    @contextlib.contextmanager
    def stream(of: Stream) -> Iterator[None]:
        current.append(of)
        yield
        current.pop()

    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(graph_branches, "_side_stream", lambda device, number: Stream(f"side {number}", events))
    return events


def run(x, log: list[tuple[str, ...]]) -> list[str]:
    def call(name: str) -> str:
        log.append((torch.cuda.current_stream(None).name, "runs", name))
        return name

    return graph_branches.in_branches(x, lambda: call("a"), lambda: call("b"), lambda: call("c"))


def test_branches_fork_behind_main_and_main_joins_them(log: list[tuple[str, ...]]) -> None:
    assert run(GpuTokens(1), log) == ["a", "b", "c"]
    for side, name in (("side 1", "b"), ("side 2", "c")):
        fork, work, join = (
            log.index(e) for e in ((side, "waits for", "main"), (side, "runs", name), ("main", "waits for", side))
        )
        assert fork < work < join
    assert ("main", "runs", "a") in log and len(log) == 7


@pytest.mark.parametrize("why", ["a prompt", "no capture", "HIP", "a CPU"])
def test_else_calls_follow_each_other(why: str, log: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "no capture":
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    if why == "HIP":
        monkeypatch.setattr(torch.version, "hip", "7.2")
    x = torch.zeros(9, 1, 64) if why == "a CPU" else GpuTokens(5 if why == "a prompt" else 1)
    assert run(x, log) == ["a", "b", "c"]
    assert log == [("main", "runs", name) for name in "abc"]

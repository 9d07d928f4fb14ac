# SPDX-License-Identifier: Apache-2.0
"""mlstm_interface with cp_group: each rank's part of h and of every gradient is that of one rank with all tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from support.ranks import run_ranks
from xlstm_hip import mlstm_interface, register_mlstm_kernel
from xlstm_hip.distributed import ContextParallel, mlstm

HEADS, DQK, DHV = 2, 16, 24
STATES = ((DQK, DHV), (DQK,), (1,))


@dataclass(frozen=True)
class Case:
    name: str
    lengths: tuple[int, ...]  # tokens of each rank
    cu_seqlens: tuple[int, ...] | None = None
    states: bool = True  # initial ones given; last ones are always asked for
    gate: str = "exp"
    layout: str = "bhsd"
    dtype: torch.dtype = torch.float64
    closed: bool = False  # forget and input gates that are closed to the utmost
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def batch(self) -> int:
        return 1 if self.cu_seqlens else 2

    @property
    def sequences(self) -> int:
        return len(self.cu_seqlens) - 1 if self.cu_seqlens else self.batch

    def span(self, rank: int) -> slice:
        begin = sum(self.lengths[:rank])
        return slice(begin, begin + self.lengths[rank])


CASES = (
    Case("two halves", (50, 50), states=False),
    Case("uneven", (37, 90), layout="bshd"),
    Case("sigmoid gate", (37, 40), gate="sigmoid"),
    Case("not normalised", (40, 37), gate="sigmoid", options=(("normalize", False),)),
    Case("closed gates", (33, 47), closed=True),
    Case("bfloat16", (130, 70), dtype=torch.bfloat16),
    Case("float32", (70, 130), dtype=torch.float32, states=False),
    Case("one packed sequence", (30, 30), (0, 60)),
    Case("a border between ranks", (30, 30), (0, 30, 60), states=False),
    Case("four, one of a token", (37, 90, 1, 40)),
    Case("four, the sigmoid gate", (1, 25, 60, 3), gate="sigmoid", states=False),
    Case("four, packed", (30, 30, 30, 30), (0, 10, 50, 95, 96, 120)),
    Case("four, packed, over three ranks", (30, 30, 30, 31), (0, 29, 95, 121), layout="bshd"),
    Case("four, packed, the sigmoid gate", (30, 30, 30, 30), (0, 30, 60, 61, 120), gate="sigmoid"),
)


BY_HEADS = {"uneven", "bfloat16", "float32", "four, one of a token", "four, packed", "four, packed, over three ranks"}


def inputs_of(case: Case) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """q, k, v, i, f of all tokens; initial states; what the loss multiplies h and the last states with."""
    rng = torch.Generator().manual_seed(len(case.name))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    shape = (case.batch, HEADS, sum(case.lengths))
    tokens = [random(*shape, DQK), random(*shape, DQK), random(*shape, DHV), 2 * random(*shape), 2 * random(*shape) + 3]
    if case.closed:
        tokens[3][..., ::3], tokens[4][..., 5::40] = -80, -80
    tokens = [x.to(case.dtype) for x in tokens]
    states = [random(case.sequences, HEADS, *dims) for dims in STATES] if case.states else []
    if states and case.gate == "sigmoid":
        states[2].zero_()
    weights = [random(*shape, DHV), *(random(case.sequences, HEADS, *dims) for dims in STATES)]
    return tokens, [x.to(torch.float64 if case.dtype == torch.float64 else torch.float32) for x in states], weights


def call(case: Case, span: slice, dtype: torch.dtype, of_states: float, **more: Any) -> list[Tensor]:
    """h of these tokens, the last states, and the gradients of all inputs of a loss of them."""
    tokens, states, weights = inputs_of(case)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    leaves = [x[:, :, span].to(dtype).requires_grad_() for x in tokens]
    starts = [x.to(wide).requires_grad_() for x in states]
    turned = [x.transpose(1, 2) if case.layout == "bshd" else x for x in leaves]
    cu_seqlens = None if case.cu_seqlens is None else torch.tensor(case.cu_seqlens)
    h, last = mlstm_interface(
        *turned, *starts, return_last_states=True, gate=case.gate, layout=case.layout, chunk_size=16,
        **{"cu_seqlens": cu_seqlens, **dict(case.options), **more},
    )  # fmt: skip
    h = h.transpose(1, 2) if case.layout == "bshd" else h
    loss = (h * weights[0][:, :, span].to(dtype)).sum()
    loss = loss + of_states * sum((x * w.to(wide)).sum() for x, w in zip(last, weights[1:], strict=True))
    # Gradients of some inputs alone: ranks need one another's for each.
    few = [
        x for some in (leaves[:1], leaves[1:3], leaves[3:]) for x in torch.autograd.grad(loss, some, retain_graph=True)
    ]
    loss.backward()
    assert all(torch.equal(x, leaf.grad) for x, leaf in zip(few, leaves, strict=True))
    return [x.detach() for x in (h, *last)] + [x.grad for x in (*leaves, *starts)]


def call_of_rank(cases: tuple[Case, ...]) -> dict[str, list[Tensor]]:
    rank, results = dist.get_rank(), {}
    for case in cases:
        group: Any = dist.group.WORLD
        more: dict[str, Any] = {"cp_group": group}
        if case.name == "four, packed":  # the split made before
            more = {
                "cp_group": ContextParallel(group, case.lengths[rank], torch.tensor(case.cu_seqlens)),
                "cu_seqlens": None,
            }
        # Short sequences go by all heads at once, unless a head's tokens are work enough.
        mlstm.LEAST_WORK["cpu"] = 1 if case.name in BY_HEADS else 1024
        # The loss of the whole: the last states, which all ranks have, are counted once.
        results[case.name] = call(case, case.span(rank), case.dtype, 1.0 if rank == 1 else 0.0, **more)
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, list[Tensor]]]]:
    return {
        size: run_ranks(
            tmp_path_factory.mktemp("ranks"), size, call_of_rank, tuple(x for x in CASES if len(x.lengths) == size)
        )
        for size in (2, 4)
    }


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_parts_are_those_of_the_whole(results: dict[int, list[Any]], case: Case) -> None:
    ranks = results[len(case.lengths)]
    assert all(isinstance(x, dict) for x in ranks), "\n".join(x for x in ranks if isinstance(x, str))
    parts = [x[case.name] for x in ranks]
    everything = slice(0, sum(case.lengths))
    true = call(case, everything, torch.float64, 1.0)
    alone = call(case, everything, case.dtype, 1.0)
    names = ("h", "c", "n", "m", "dq", "dk", "dv", "di", "df", "dc_initial", "dn_initial", "dm_initial")
    for n, name in enumerate(names[: len(true)]):
        if name in ("c", "n", "m"):
            whole = parts[0][n]
            assert all(torch.equal(whole, part[n]) for part in parts), name
        elif name.endswith("initial"):
            whole = sum(part[n] for part in parts)
        else:
            whole = torch.cat([part[n] for part in parts], 2)
        least = 1e-11 * true[n].abs().max().item()
        error, may = ((x.double() - true[n]).norm().item() for x in (whole, alone[n]))
        assert error <= 2 * may + least, (name, error, may)


def refused() -> dict[str, str]:
    """The messages of calls that are wrong, by what is."""
    rank, group = dist.get_rank(), dist.group.WORLD
    q, i = torch.zeros(1, HEADS, 8, DQK), torch.zeros(1, HEADS, 8)
    messages = {}

    def say(name: str, function: Any) -> None:
        try:
            function()
            messages[name] = "no error"
        except (ValueError, TypeError, RuntimeError) as error:
            messages[name] = f"{type(error).__name__}: {error}"

    other = torch.zeros(1, HEADS, 8, DQK * (1 + rank))
    say("dims", lambda: mlstm_interface(other, other, q, i, i, cp_group=group))
    say("group", lambda: mlstm_interface(q, q, q, i, i, cp_group="cp"))
    register_mlstm_kernel(
        "chunkwise--stateless", len, kind="chunkwise", devices=("cpu",), dtypes=(torch.float32,), gradient="exact",
        states=False,
    )  # fmt: skip
    say("kernel", lambda: mlstm_interface(q, q, q, i, i, cp_group=group, kernel="chunkwise--stateless"))
    say("offsets", lambda: mlstm_interface(q, q, q, i, i, cp_group=group, cu_seqlens=torch.tensor([0, 5, 15])))
    say("other offsets", lambda: ContextParallel(group, 8, torch.tensor([0, 5 + rank, 16])))
    say("length", lambda: mlstm_interface(q, q, q, i, i, cp_group=ContextParallel(group, 7)))
    say("states", lambda: mlstm_interface(q, q, q, i, i, torch.zeros(1), None, None, cp_group=group))
    return messages


def test_wrong_calls_are_refused_on_every_rank(tmp_path_factory: pytest.TempPathFactory) -> None:
    for messages in run_ranks(tmp_path_factory.mktemp("refused"), 2, refused):
        assert isinstance(messages, dict), messages
        assert messages["dims"].startswith("ValueError: cp_group: expected the same shapes"), messages
        assert "on rank 0 and" in messages["dims"] and "on rank 1" in messages["dims"]
        assert messages["group"].startswith("TypeError: cp_group: expected a process group"), messages
        assert "takes no initial states" in messages["kernel"], messages
        assert "expected to end at S = 16, got 15" in messages["offsets"], messages
        assert "cu_seqlens: expected the same cu_seqlens on every rank" in messages["other offsets"], messages
        assert "cp_group: expected a ContextParallel of S = 8 tokens, got one of 7" in messages["length"], messages
        assert "n_initial, m_initial: expected all three states" in messages["states"], messages


def test_without_a_process_group() -> None:
    q, i = torch.zeros(1, HEADS, 8, DQK), torch.zeros(1, HEADS, 8)
    with pytest.raises(RuntimeError, match="cp_group: torch.distributed has no process group yet"):
        mlstm_interface(q, q, q, i, i, cp_group="cp")


def dies_on_rank_0() -> str:
    q, i = torch.zeros(1, HEADS, 8, DQK), torch.zeros(1, HEADS, 8)
    context = ContextParallel(dist.group.WORLD, 8)
    mlstm_interface(q, q, q, i, i, cp_group=context)
    if dist.get_rank() == 0:
        raise SystemExit(3)
    mlstm_interface(q, q, q, i, i, cp_group=context)
    return "went on"


def test_a_rank_that_dies_ends_the_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    dead, alive = run_ranks(tmp_path_factory.mktemp("dead"), 2, dies_on_rank_0)
    assert dead == "it died" and "mlstm_interface" in alive and "peer" in alive.lower(), alive

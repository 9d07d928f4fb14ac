# SPDX-License-Identifier: Apache-2.0
"""context_parallel_attention: each rank's part of the output and of every gradient is that of all tokens."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from support.ranks import run_ranks
from xlstm_hip.attention import flash_attn_func
from xlstm_hip.distributed import ContextParallel, attention, context_parallel_attention

LENGTHS = (30, 45, 1)
CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "full": {"causal": False},
    "window": {"window_size": (20, 0)},
    "soft cap": {"softcap": 5.0, "softmax_scale": 0.3},
    "slopes": {"alibi_slopes": torch.tensor([0.1, 0.2, 0.3, 0.4])},
}


def inputs() -> tuple[list[Tensor], Tensor]:
    rng = torch.Generator().manual_seed(1)
    total = sum(LENGTHS)
    q, k, v, weight = (torch.randn(2, total, heads, 16, generator=rng) for heads in (4, 2, 2, 4))
    return [q, k, v], weight


def results_of(function: Any, span: slice, dtype: torch.dtype, **options: Any) -> list[Tensor]:
    tensors, weight = inputs()
    leaves = [x[:, span].to(dtype).requires_grad_() for x in tensors]
    out = function(*leaves, **options)
    loss = (out * weight[:, span].to(dtype)).sum()
    few = [x for leaf in leaves for x in torch.autograd.grad(loss, leaf, retain_graph=True)]
    loss.backward()
    assert all(torch.equal(x, leaf.grad) for x, leaf in zip(few, leaves, strict=True))
    return [out.detach(), *(x.grad for x in leaves)]


def parts() -> dict[str, list[Tensor]]:
    attention.BLOCK = 4
    rank = dist.get_rank()
    begin = sum(LENGTHS[:rank])
    context = ContextParallel(dist.group.WORLD, LENGTHS[rank])
    span = slice(begin, begin + LENGTHS[rank])
    return {
        name: results_of(context_parallel_attention, span, torch.float32, cp_group=context, **options)
        for name, options in CASES.items()
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Tensor]]]:
    return run_ranks(tmp_path_factory.mktemp("ranks"), len(LENGTHS), parts)


@pytest.mark.parametrize("name", CASES)
def test_parts_are_those_of_the_whole(ranks: list[Any], name: str) -> None:
    assert all(isinstance(x, dict) for x in ranks), "\n".join(x for x in ranks if isinstance(x, str))
    options = {"causal": True, **CASES[name]}
    true = results_of(flash_attn_func, slice(None), torch.float64, **options)
    alone = results_of(flash_attn_func, slice(None), torch.float32, **options)
    for n, output in enumerate(("out", "dq", "dk", "dv")):
        whole = torch.cat([part[name][n] for part in ranks], 1)
        error, may = ((x.double() - true[n]).norm().item() for x in (whole, alone[n]))
        assert error <= 2 * may, (output, error, may)


def test_queries_move_until_all_ranks_have_the_same_number_of_pairs() -> None:
    assert attention.moves_for((64, 64)) == attention.moves_for((4096,)) == []
    assert attention.moves_for((4096, 4096)) == [(1, 0, 8192 - 1088, 8192)]
    rng = random.Random(0)
    for _ in range(40):
        lengths = [rng.choice((1, 700, 1024, rng.randrange(1, 3000))) for _ in range(rng.randrange(2, 9))]
        begins = [sum(lengths[:rank]) for rank in range(len(lengths))]
        queries = [[begin + n for n in range(length)] for begin, length in zip(begins, lengths, strict=True)]
        had = [sum(queries[rank]) + len(queries[rank]) for rank in range(len(lengths))]
        moves = attention.moves_for(lengths)
        assert moves == sorted(moves, key=lambda m: (m.sender, m.begin))
        for sender in {m.sender for m in moves}:
            sent = [m for m in moves if m.sender == sender]
            assert [m.receiver for m in sent] == sorted({m.receiver for m in sent})
            assert sent[-1].end == begins[sender] + lengths[sender]
            assert all(a.end == b.begin for a, b in itertools.pairwise(sent))
        for m in moves:
            queries[m.receiver] += range(m.begin, m.end)
            queries[m.sender] = [n for n in queries[m.sender] if not m.begin <= n < m.end]
        assert sorted(itertools.chain(*queries)) == list(range(sum(lengths)))
        have = [sum(mine) + len(mine) for mine in queries]
        # What a block of the last queries is, for each other rank, may be left.
        assert max(have) <= min(max(had), sum(had) / len(had) + len(lengths) * attention.BLOCK * sum(lengths))


def test_bad_input() -> None:
    x = torch.zeros(1, 4, 2, 16)
    with pytest.raises(ValueError, match="dropout_p: not over several ranks"):
        context_parallel_attention(x, x, x, None, dropout_p=0.1)
    with pytest.raises(ValueError, match=r"window_size: expected \(-1, -1\) over several ranks unless causal"):
        context_parallel_attention(x, x, x, None, causal=False, window_size=(3, 3))
    with pytest.raises(ValueError, match="k: expected S = 4, this rank's tokens, got 5"):
        context_parallel_attention(x, torch.zeros(1, 5, 2, 16), x, None)
    with pytest.raises(RuntimeError, match="cp_group: torch.distributed has no process group yet"):
        context_parallel_attention(x, x, x, None)

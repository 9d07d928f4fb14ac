# SPDX-License-Identifier: Apache-2.0
"""A model over ranks that each have a part of the tokens: logits, loss, gradients, reading and then writing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from support.peer_models import small_model, tokens
from support.ranks import run_ranks
from xlstm_hip import mLSTMBackendConfig, register_mlstm_kernel
from xlstm_hip.mlstm.registry import unregister_mlstm_kernel
from xlstm_hip.models.mlstm_call import MLSTMCall

LENGTHS = (40, 25)
TOTAL = sum(LENGTHS)
PACKED = (0, 30, 50, TOTAL)


def targets_of(x: Tensor) -> Tensor:
    y = torch.cat((x[:, 1:], torch.full_like(x[:, :1], -100)), 1)
    y[:, 3:9] = -100
    return y


def trained(model: Any, x: Tensor, y: Tensor, **options: Any) -> list[Tensor]:
    loss = model.loss(x, y, **options)
    loss.backward()
    gradients = [p.grad for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    return [loss.detach(), *gradients]


def of_model(model: Any, span: slice, group: Any) -> dict[str, list[Tensor]]:
    """What training and reading give for these tokens, with the whole of them over the ranks of a group."""
    x, one = tokens(2, TOTAL), tokens(1, TOTAL, seed=2)
    packed = torch.tensor(PACKED)
    results = {
        "loss": trained(model, x[:, span], targets_of(x)[:, span], cp_group=group),
        "packed": trained(model, one[:, span], targets_of(one)[:, span], cu_seqlens=packed, cp_group=group),
    }
    model.backbone.activation_checkpointing = True
    results["checkpointed"] = trained(model, x[:, span], targets_of(x)[:, span], cp_group=group)
    model.backbone.activation_checkpointing = False
    with torch.no_grad():
        logits, state = model.read(x[:, span], cp_group=group)
        again, state = model.read(x[:, span], state, cp_group=group)  # on from there
        results["read"] = [logits, again, *(y for layer in state.values() for y in layer)]
        results["written"] = [model.step(again.argmax(-1), state)]
        mask = torch.arange(TOTAL).expand(2, -1) >= torch.tensor([[9], [0]])
        results["logits"] = [model(x[:, span], mask=mask[:, span], cp_group=group)]
    return results


def part_of_model() -> dict[str, list[Tensor]]:
    rank = dist.get_rank()
    begin = sum(LENGTHS[:rank])
    return of_model(small_model().double(), slice(begin, begin + LENGTHS[rank]), dist.group.WORLD)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Tensor]]]:
    return run_ranks(tmp_path_factory.mktemp("ranks"), len(LENGTHS), part_of_model)


def test_a_model_over_ranks(ranks: list[Any]) -> None:
    assert all(isinstance(x, dict) for x in ranks), "\n".join(x for x in ranks if isinstance(x, str))
    alone = of_model(small_model().double(), slice(None), None)

    def check(name: str, parts: list[Tensor], true: Tensor) -> None:
        for part in parts:
            torch.testing.assert_close(part, true, rtol=1e-9, atol=1e-9 * true.abs().max().item(), msg=name)

    for name in ("loss", "packed", "checkpointed"):
        check(name, [x[name][0] for x in ranks], alone[name][0])
        for n, true in enumerate(alone[name][1:], 1):
            check(f"{name}: gradient {n}", [sum(x[name][n] for x in ranks)], true)  # type: ignore[list-item]
    for name in ("read", "written"):
        for n, true in enumerate(alone[name]):
            check(f"{name} {n}", [x[name][n] for x in ranks], true)
    check("logits", [torch.cat([x["logits"][0] for x in ranks], 1)], alone["logits"][0])


def test_without_a_process_group() -> None:
    model = small_model()
    with pytest.raises(RuntimeError, match="cp_group: torch.distributed has no process group yet"):
        model(tokens(1, 8), cp_group="cp")
    with pytest.raises(ValueError, match="replay: expected False with cp_group"):
        model.read(tokens(1, 8), cp_group="cp", replay=True)


def test_a_kernel_for_multiples_is_refused() -> None:
    register_mlstm_kernel(
        "chunkwise--multiples", len, kind="chunkwise", devices=("cpu",), dtypes=(torch.float32,), gradient="exact",
        any_length=False,
    )  # fmt: skip
    try:
        config = mLSTMBackendConfig(chunkwise_kernel="chunkwise--multiples")
        with pytest.raises(NotImplementedError, match="cp_group: kernel 'chunkwise--multiples' takes multiples"):
            MLSTMCall.of(config, context=object())
    finally:
        unregister_mlstm_kernel("chunkwise--multiples", "chunkwise")

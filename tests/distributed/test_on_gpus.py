# SPDX-License-Identifier: Apache-2.0
"""Ranks with a GPU each: the mLSTM, attention, training and decoding over them, as one GPU does it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from support.peer_models import small_model, tokens
from support.ranks import run_ranks
from xlstm_hip import mlstm_interface
from xlstm_hip.attention import flash_attn_func
from xlstm_hip.distributed import ContextParallel, context_parallel_attention, step_sums, tensor_parallel
from xlstm_hip.models import generate
from xlstm_hip.quantize import quantize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
RANKS = 2
LENGTHS = (700, 1348)
PACKED = (0, 100, 900, sum(LENGTHS))
HEADS = {"64/128": (4, 64, 128), "256/512": (2, 256, 512)}
# Heads of 64 values, which the kernels of large models take.
WIDE: dict[str, Any] = {"embedding_dim": 512, "num_heads": 4, "num_blocks": 2, "vocab_size": 997}
WEIGHTS = {"float32": 0, "bfloat16": 0, "int8": 8, "int4": 4}
LENGTH = 96


def of_mlstm(heads: str, span: slice, device: str, dtype: torch.dtype, packed: bool, **options: Any) -> list[Tensor]:
    """h, and the gradients of all inputs."""
    count, dqk, dhv = HEADS[heads]
    draw = torch.Generator().manual_seed(0)
    shape = (1, count, sum(LENGTHS))
    inputs = [
        torch.randn(*shape, *dims, generator=draw, dtype=torch.float64) for dims in ((dqk,), (dqk,), (dhv,), (), ())
    ]
    inputs[4] += 3
    weight = torch.randn(*shape, dhv, generator=draw, dtype=torch.float64)
    leaves = [x.to(torch.bfloat16)[:, :, span].to(device, dtype).requires_grad_() for x in inputs]
    if packed and "cp_group" not in options:
        options["cu_seqlens"] = torch.tensor(PACKED, device=device)
    h = mlstm_interface(*leaves, **options)
    h.backward(weight[:, :, span].to(torch.bfloat16).to(device, dtype))
    return [x.detach().cpu() for x in (h, *(leaf.grad for leaf in leaves))]  # type: ignore[union-attr]


def of_attention(function: Any, span: slice, device: str, dtype: torch.dtype, **options: Any) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, sum(LENGTHS), heads, 128, generator=draw) for heads in (8, 2, 2, 8)]
    q, k, v, weight = (x.to(torch.bfloat16)[:, span].to(device, dtype) for x in tensors)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = function(*leaves, causal=True, **options)
    out.backward(weight)
    return [x.detach().cpu() for x in (out, *(leaf.grad for leaf in leaves))]  # type: ignore[union-attr]


def model_of(weights: str, device: str, dtype: torch.dtype | None = None) -> Any:
    """dtype: in which the numbers are computed with, of weights that are rounded the same."""
    bits = WEIGHTS[weights]
    model = small_model(dtype=torch.float32 if weights == "float32" else torch.bfloat16, **WIDE)
    if bits:
        model = quantize(model, bits, 64, progress=False)[0]
    return model.to(device) if dtype is None else model.to(device, dtype)


def of_steps(model: Any, device: str) -> list[Tensor]:
    """The logits of five steps of three rows, of which one does not go on in one of them."""
    x = tokens(3, 40, WIDE["vocab_size"]).to(device)
    keep = torch.tensor([True, False, True], device=device)
    with torch.no_grad():
        _, state = model.read(x)
        found = [model.step(x[:, n], state, keep if n == 3 else None).double().cpu() for n in range(5)]
    return found


def of_training(model: Any, device: str) -> list[Tensor]:
    x = tokens(2, LENGTH, WIDE["vocab_size"]).to(device)
    loss = model.loss(x, x.roll(-1, 1))
    loss.backward()
    gradients = [whole(p.grad).double().cpu() for p in model.parameters()]
    return [loss.detach().double().cpu(), *gradients]


def whole(x: Any) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def part() -> dict[Any, Any]:
    rank, group = dist.get_rank(), dist.group.WORLD
    span = slice(sum(LENGTHS[:rank]), sum(LENGTHS[: rank + 1]))
    found: dict[Any, Any] = {}
    for heads in HEADS:
        for packed in (False, True):
            context = ContextParallel(group, LENGTHS[rank], torch.tensor(PACKED) if packed else None)
            found[heads, packed] = of_mlstm(heads, span, "cuda", torch.bfloat16, packed, cp_group=context)
    context = ContextParallel(group, LENGTHS[rank])
    found["attention"] = of_attention(context_parallel_attention, span, "cuda", torch.bfloat16, cp_group=context)
    mesh = init_device_mesh("cuda", (RANKS,))
    for weights in WEIGHTS:
        for most in (0, 8):
            step_sums.MOST_RANKS_OF_ONE_KERNEL = most
            model = tensor_parallel(model_of(weights, "cuda"), mesh)
            found["steps", weights, most > 0] = of_steps(model, "cuda")
            found["engine", weights] = model.status().no_engine
        sampled = generate(model, tokens(2, 9, WIDE["vocab_size"]).tolist(), 24, temperature=1.0, top_k=50)
        found["text", weights] = sampled.tokens.cpu()
    for sequence_parallel in (False, True):
        model = tensor_parallel(model_of("float32", "cuda"), mesh, sequence_parallel)
        found["training", sequence_parallel] = of_training(model, "cuda")
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    found = run_ranks(tmp_path_factory.mktemp("gpus"), RANKS, part, device="cuda")
    failed = [x for x in found if isinstance(x, str)]
    assert not failed, "\n".join(failed)
    return found


def check(names: tuple[str, ...], found: list[Tensor], alone: list[Tensor], true: list[Tensor]) -> None:
    for name, x, one, of_all in zip(names, found, alone, true, strict=True):
        error, may = ((y.double() - of_all.double()).norm().item() for y in (x, one))
        assert error <= 2 * may + 1e-11 * of_all.norm().item(), (name, error, may)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_the_mlstm(ranks: list[dict[Any, Any]], heads: str, packed: bool) -> None:
    whole = [torch.cat(parts, 2) for parts in zip(*(x[heads, packed] for x in ranks), strict=True)]
    alone = of_mlstm(heads, slice(None), "cuda", torch.bfloat16, packed)
    true = of_mlstm(heads, slice(None), "cpu", torch.float64, packed)
    check(("h", "dq", "dk", "dv", "di", "df"), whole, alone, true)


def test_attention(ranks: list[dict[Any, Any]]) -> None:
    whole = [torch.cat(parts, 1) for parts in zip(*(x["attention"] for x in ranks), strict=True)]
    alone = of_attention(flash_attn_func, slice(None), "cuda", torch.bfloat16)
    true = of_attention(flash_attn_func, slice(None), "cpu", torch.float64)
    check(("out", "dq", "dk", "dv"), whole, alone, true)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_steps_of_a_divided_model(ranks: list[dict[Any, Any]], weights: str) -> None:
    true = of_steps(model_of(weights, "cpu", torch.float64), "cpu")
    alone = of_steps(model_of(weights, "cuda"), "cuda")
    names = tuple(f"step {n}" for n in range(len(true)))
    for by_one_kernel in (True, False):
        found = [x["steps", weights, by_one_kernel] for x in ranks]
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)), "ranks have different logits"
        check(names, found[0], alone, true)
    assert ranks[0]["engine", weights] is None
    assert torch.equal(ranks[0]["text", weights], ranks[1]["text", weights])


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_training_a_divided_model(ranks: list[dict[Any, Any]], sequence_parallel: bool) -> None:
    model = small_model(**WIDE)
    true = of_training(model.double(), "cpu")
    alone = of_training(model_of("float32", "cuda"), "cuda")
    # Of a bias with four numbers errors are chance: all tensors together are held to those of one GPU.
    for rank in ranks:
        error, may = (
            sum(float((x - y).norm() / y.norm()) ** 2 for x, y in zip(found, true, strict=True))
            for found in (rank["training", sequence_parallel], alone)
        )
        assert error <= 4 * may, (error, may)
        check(("loss",), rank["training", sequence_parallel][:1], alone[:1], true[:1])

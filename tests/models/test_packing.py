# SPDX-License-Identifier: Apache-2.0
"""Packed sequences through whole models, in float64: each as by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from support.peer_models import relative, small_model, tokens
from xlstm_hip.mlstm import registry

LENGTHS = (7, 1, 20, 33)
SAME = 1e-12  # float64: the order of sums


def packed() -> tuple[list[Tensor], Tensor, Tensor]:
    """Sequences (1, length), all of them in one row, and its offsets."""
    parts = [tokens(1, length, seed=length) for length in LENGTHS]
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    return parts, torch.cat(parts, 1), ends


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_each_sequence_is_as_by_itself_and_so_is_its_state(dtype: torch.dtype) -> None:
    model = small_model(dtype=torch.float64, return_last_states=True)
    parts, row, ends = packed()
    with torch.no_grad():
        logits, state = model(row, cu_seqlens=ends.to(dtype))
        alone = [model(part) for part in parts]
        assert relative(logits, torch.cat([out for out, _ in alone], 1)) < SAME
        for block, layer in state.items():
            for x, same in zip(layer, zip(*(last[block] for _, last in alone), strict=True), strict=True):
                assert relative(x, torch.cat(same)) < SAME
        # The states are rows of a batch, and sequences packed after them go on with them.
        again, _ = model(row, state, cu_seqlens=ends)
        twice = [model(part, last)[0] for part, (_, last) in zip(parts, alone, strict=True)]
        assert relative(again, torch.cat(twice, 1)) < SAME


def test_a_packed_prompt_is_decoded_as_a_batch() -> None:
    model = small_model(dtype=torch.float64, return_last_states=True)
    parts, row, ends = packed()
    with torch.no_grad():
        _, state = model(row, cu_seqlens=ends)
        step = model.step(row[0, ends[1:] - 1], state)
        for n, part in enumerate(parts):
            _, part_state = model(part)
            assert relative(step[n], model.step(part[0, -1:], part_state)[0]) < SAME


def test_loss_and_gradients() -> None:
    model = small_model(dtype=torch.float64)
    parts, row, ends = packed()
    targets = row.roll(-1, 1)
    targets[0, ends[1:] - 1] = -100
    model.loss(row, targets, cu_seqlens=ends).backward()
    actual = [x.grad.clone() for x in model.parameters() if x.grad is not None]
    model.zero_grad()
    count = sum(length - 1 for length in LENGTHS)
    for part in parts:
        if part.shape[1] > 1:
            goal = torch.nn.functional.pad(part[:, 1:], (0, 1), value=-100)
            (model.loss(part, goal) * ((part.shape[1] - 1) / count)).backward()
    want = [x.grad for x in model.parameters() if x.grad is not None]
    assert all(relative(x, y) < 1e-10 for x, y in zip(actual, want, strict=True))  # as gradients cancel


def test_checkpointing_keeps_them_apart() -> None:
    model = small_model(dtype=torch.float64)
    _, row, ends = packed()
    want = model(row, cu_seqlens=ends)
    model.backbone.activation_checkpointing = True
    actual = model(row, cu_seqlens=ends)
    actual.sum().backward()
    assert torch.equal(actual, want)


@pytest.mark.parametrize(
    "change, error, text",
    [
        ({"x": tokens(2, 8)}, ValueError, "cu_seqlens: expected packed sequences in one row, got a batch of 2"),
        ({"cu_seqlens": torch.tensor([0, 9])}, ValueError, "cu_seqlens: expected to end at S = 8, got 9"),
        ({"cu_seqlens": torch.tensor([1, 8])}, ValueError, "cu_seqlens: expected to start at 0, got 1"),
        ({"cu_seqlens": torch.tensor([0, 5, 5, 8])}, ValueError, "cu_seqlens: expected values that rise"),
        ({"cu_seqlens": torch.tensor([0.0, 8.0])}, TypeError, "cu_seqlens: expected int32 or int64"),
        ({"cu_seqlens": torch.tensor(8)}, ValueError, r"cu_seqlens: expected shape \(N \+ 1\)"),
        ({"cu_seqlens": [0, 8]}, TypeError, "cu_seqlens: expected a torch.Tensor, got list"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], text: str) -> None:
    call = {"x": tokens(1, 8), "cu_seqlens": torch.tensor([0, 8])} | change
    with pytest.raises(error, match=text):
        small_model()(**call)


def test_a_state_of_another_number_of_sequences_is_refused() -> None:
    model = small_model(return_last_states=True)
    _, row, ends = packed()
    with torch.no_grad():
        _, state = model(tokens(1, 4))
        with pytest.raises(ValueError, match=r"state\[0\]: c: expected shape .* = \(4, "):
            model(row, state, cu_seqlens=ends)


def test_a_kernel_of_multiples_is_refused() -> None:
    name = "chunkwise--of_multiples"
    about = {"devices": ("*",), "dtypes": (torch.float32,), "gradient": "unstated"}
    registry.register_mlstm_kernel(name, lambda *arguments: None, kind="chunkwise", any_length=False, **about)
    try:
        model = small_model(chunkwise_kernel=name)
        with pytest.raises(NotImplementedError, match="cu_seqlens: kernel 'chunkwise--of_multiples' takes multiples"):
            model(tokens(1, 16), cu_seqlens=torch.tensor([0, 16]))
    finally:
        registry.unregister_mlstm_kernel(name, "chunkwise")

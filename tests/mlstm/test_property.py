# SPDX-License-Identifier: Apache-2.0
"""hypothesis over shapes, strides, chunks and packings: the fused kernels against the truth in float64."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.reference import max_error, outputs_and_gradients, truth
from xlstm_hip import mlstm_interface

EXACT = 1e-10  # float64, whatever the conditioning of a random small case

few = settings(max_examples=40, deadline=None, derandomize=True)
sizes = st.integers(1, 20)


def spread(x: Tensor, gap: int, order: tuple[int, ...]) -> Tensor:
    """The same values in memory of another order of axes, with a gap after each row."""
    *outer, last = x.shape
    buffer = torch.empty([outer[axis] for axis in order] + [last + gap], dtype=x.dtype)
    back = [order.index(axis) for axis in range(len(order))]
    view = buffer.permute(*back, len(order))[..., :last]
    return view.copy_(x)


@st.composite
def calls(draw: Any) -> tuple[dict[str, Tensor], tuple[Tensor, ...], dict[str, Any], dict[str, Any]]:
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    length, dqk, dhv = draw(st.integers(1, 40)), draw(sizes), draw(sizes)
    gate = draw(st.sampled_from(["exp", "sigmoid"]))
    ends = None
    if draw(st.booleans()):
        batch = 1
        cuts = draw(st.sets(st.integers(1, length), max_size=4)) | {length}
        ends = [0, *sorted(cuts)]
    sequences = batch if ends is None else len(ends) - 1
    rng = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    scale = draw(st.sampled_from([0.1, 1.0, 8.0]))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    tokens = (batch, heads, length)
    inputs = {"q": random(*tokens, dqk), "k": random(*tokens, dqk), "v": random(*tokens, dhv)}
    inputs |= {"i": scale * random(*tokens), "f": scale * random(*tokens) + 1}
    shapes = ((sequences, heads, dqk, dhv), (sequences, heads, dqk), (sequences, heads, 1))
    if draw(st.booleans()):
        names = ("c_initial", "n_initial", "m_initial")
        inputs |= {name: random(*shape) for name, shape in zip(names, shapes, strict=True)}
    cotangents = (random(*tokens, dhv), *(random(*shape) for shape in shapes))
    common = {"eps": draw(st.sampled_from([0.0, 1e-6, 0.1]))}
    if ends is not None:
        common["cu_seqlens"] = torch.tensor(ends)
    truth_options: dict[str, Any] = {"gate": gate}
    if gate == "sigmoid":
        truth_options["normalize"] = draw(st.booleans())
    options = {
        "chunk_size": draw(st.integers(1, 50)),
        "orders": [draw(st.permutations([0, 1, 2])) for _ in range(3)],
        "gap": draw(st.integers(0, 3)),
        "kernel": draw(st.sampled_from(["chunkwise--fused", "fused"])),
    }
    return inputs, cotangents, common | truth_options, options


@few
@given(calls())
def test_any_shape_and_stride(call: Any) -> None:
    inputs, cotangents, options, kernel_options = call
    kernel = kernel_options["kernel"] + ("_siging" if options["gate"] == "sigmoid" else "")

    class Spread(torch.autograd.Function):
        """Moves a tensor in memory; the gradient passes."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, order: tuple[int, ...]) -> Tensor:
            return spread(x, kernel_options["gap"], order)

        @staticmethod
        def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
            return dx, None

    def function(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **arguments: Any) -> Any:
        q, k, v = (Spread.apply(x, tuple(order)) for x, order in zip((q, k, v), kernel_options["orders"], strict=True))
        i, f = i.mT.contiguous().mT, f.transpose(0, 2).contiguous().transpose(0, 2)
        return mlstm_interface(
            q, k, v, i, f, return_last_states=True, chunk_size=kernel_options["chunk_size"], kernel=kernel, **arguments
        )

    outputs, gradients = outputs_and_gradients(function, inputs, cotangents, **options)
    expected, expected_gradients = outputs_and_gradients(truth, inputs, cotangents, **options)
    scale = max(float(x.abs().max()) for x in expected_gradients.values())
    for name, x in expected.items():
        assert max_error(outputs[name], x) < EXACT, name
    for name, x in expected_gradients.items():
        assert float((gradients[name] - x).abs().max()) < EXACT * max(scale, 1e-3), f"d{name}"

# SPDX-License-Identifier: Apache-2.0
"""The recurrent cells' functions beside what they promise: steps and sequences agree, packed sequences do not see each
other, gradients of every state, bad input."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from xlstm_hip.reference.slstm import slstm_sequence
from xlstm_hip.slstm import flashrnn, slstm_interface, slstm_step_interface
from xlstm_hip.slstm.ops import OPS, backward_matrix, forward_matrix

CELLS = [("slstm", "sigmoid"), ("slstm", "exp"), ("lstm", "sigmoid")]


def make(
    batch: int = 2, length: int = 6, heads: int = 2, units: int = 5, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(batch, length, 4, heads, units, dtype=dtype)
    bias = torch.randn(4, heads, units, dtype=torch.promote_types(dtype, torch.float32))
    return x, torch.randn(4, heads, units, units, dtype=dtype) / units**0.5, bias


def states_of(function: str, sequences: int, heads: int, units: int, dtype: torch.dtype = torch.float64) -> Any:
    wide = torch.promote_types(dtype, torch.float32)
    h, c, m = (torch.randn(sequences, heads, units, dtype=wide) / 2 for _ in range(3))
    n = 1 + torch.rand(sequences, heads, units, dtype=wide)
    return (h.to(dtype), c) if function == "lstm" else (h.to(dtype), c, n, m)


@pytest.mark.parametrize("function, forget_gate", CELLS)
@pytest.mark.parametrize("packed", [False, True])
def test_gradcheck(function: str, forget_gate: str, packed: bool) -> None:
    x, recurrent, bias = make(1 if packed else 2, 5, 2, 3)
    states = states_of(function, 2, 2, 3)
    ends = torch.tensor([0, 2, 5]) if packed else None

    def call(x: Tensor, recurrent: Tensor, bias: Tensor, *states: Tensor) -> Any:
        h, last = slstm_interface(
            x, recurrent, bias, states, return_last_states=True, function=function, forget_gate=forget_gate,
            cu_seqlens=ends,
        )  # fmt: skip
        return h, *last

    leaves = [t.requires_grad_() for t in (x, recurrent, bias, *states)]
    assert torch.autograd.gradcheck(call, leaves)


@pytest.mark.parametrize("function, forget_gate", CELLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_and_parts_are_the_sequence(function: str, forget_gate: str, dtype: torch.dtype) -> None:
    x, recurrent, bias = make(3, 7, 2, 24, dtype)
    options = {"function": function, "forget_gate": forget_gate}
    h, last = slstm_interface(x, recurrent, bias, return_last_states=True, **options)
    first, states = slstm_interface(x[:, :4], recurrent, bias, return_last_states=True, **options)
    rest, parts_last = slstm_interface(x[:, 4:], recurrent, bias, states, return_last_states=True, **options)
    close = {"rtol": 0, "atol": 4 * torch.finfo(dtype).eps}  # of a token's product, which is summed in another order
    torch.testing.assert_close(torch.cat((first, rest), 1), h, **close)
    states = None
    in_place = copy.deepcopy([torch.zeros_like(s) for s in last])
    for t in range(7):
        out, states = slstm_step_interface(x[:, t], recurrent, bias, states, **options)
        written, _ = slstm_step_interface(x[:, t], recurrent, bias, tuple(in_place), in_place=True, **options)
        assert written.equal(out) and in_place[0].equal(out)
        torch.testing.assert_close(out, h[:, t], **close)
    for found, again, want in zip(states, parts_last, last, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
        torch.testing.assert_close(again, want, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_packed_sequences_are_alone() -> None:
    x, recurrent, bias = make(1, 19, 2, 16, torch.float32)
    ends = [0, 1, 9, 19]
    h, last = slstm_interface(x, recurrent, bias, return_last_states=True, cu_seqlens=torch.tensor(ends))
    for n in range(3):
        part = x[:, ends[n] : ends[n + 1]]
        alone, alone_last = slstm_interface(part, recurrent, bias, return_last_states=True)
        torch.testing.assert_close(h[:, ends[n] : ends[n + 1]], alone, rtol=1e-5, atol=1e-6)
        for s, t in zip(last, alone_last, strict=True):
            torch.testing.assert_close(s[n : n + 1], t, rtol=1e-5, atol=1e-6)


def test_a_unit_without_past_reads_neither_c_nor_m() -> None:
    x, recurrent, bias = make(2, 4, 1, 8)
    h, c, n, m = states_of("slstm", 2, 1, 8)
    n[0] = 0
    other = (h, c.clone(), n, m.clone())
    other[1][0], other[3][0] = 7.0, -900.0
    for s, t in zip(
        slstm_interface(x, recurrent, bias, (h, c, n, m), return_last_states=True)[1],
        slstm_interface(x, recurrent, bias, other, return_last_states=True)[1],
        strict=True,
    ):
        assert s.equal(t)


def test_gates_of_any_size_stay_finite() -> None:
    x, recurrent, bias = make(2, 9, 1, 8, torch.float32)
    x = x * 60
    h = slstm_interface(x, recurrent, bias)
    assert h.isfinite().all() and h.abs().max() <= 1
    x[1, 4, 0, 0, 0] = float("nan")
    h = slstm_interface(x, recurrent, bias)
    assert h[0].isfinite().all() and h[1, :4].isfinite().all() and h[1, 5:].isnan().all()


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads: int) -> None:
    x, recurrent, bias = make(5, 20, 3, 32, torch.float32)
    leaves = [t.requires_grad_() for t in (x, recurrent, bias)]
    before = torch.get_num_threads()

    def run(n: int) -> list[Tensor]:
        torch.set_num_threads(n)
        h = slstm_interface(*leaves)
        return [h, torch.autograd.grad(h.sum(), leaves)[0]]

    try:
        alone = run(1)
        assert all(a.equal(b) for a, b in zip(run(threads), alone, strict=True))
    finally:
        torch.set_num_threads(before)


def test_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    x, recurrent, bias = make(2, 6, 2, 8)
    fused = slstm_interface(x, recurrent, bias)
    monkeypatch.setenv("XLSTM_HIP_BACKEND", "reference")
    torch.testing.assert_close(slstm_interface(x, recurrent, bias), fused)


def test_compiled() -> None:
    x, recurrent, bias = make(2, 6, 2, 16, torch.float32)
    leaves = [t.requires_grad_() for t in (x, recurrent, bias)]

    def call(*arguments: Tensor) -> Tensor:
        return slstm_interface(*arguments).sin()

    h, again = call(*leaves), torch.compile(call, fullgraph=True)(*leaves)
    torch.testing.assert_close(again, h)
    for a, b in zip(torch.autograd.grad(again.sum(), leaves), torch.autograd.grad(h.sum(), leaves), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("function", ["slstm", "lstm"])
def test_opcheck(function: str) -> None:
    x, recurrent, bias = make(2, 5, 2, 8, torch.float32)
    cell, states = 2 if function == "lstm" else 0, [*states_of(function, 2, 2, 8, torch.float32), None, None][:4]
    matrix = forward_matrix(recurrent)
    torch.library.opcheck(OPS.slstm_forward, (x, matrix, bias, *states, None, cell, True, True))
    h, *_, gates, memory, _ = OPS.slstm_forward(x, matrix, bias, *states, None, cell, True, False)
    nothing = (None,) * 6
    torch.library.opcheck(
        OPS.slstm_backward,
        (h, backward_matrix(recurrent), gates, memory, states[1], states[2], None, *nothing, cell, True, True),
    )
    torch.library.opcheck(OPS.slstm_step_, (x[:, :1], matrix, bias, *states, cell))


# ---- FlashRNN's function


@pytest.mark.parametrize("function", ["slstm", "lstm"])
def test_flashrnn(function: str) -> None:
    x, recurrent, bias = make(2, 6, 2, 16, torch.float32)
    given = states_of(function, 2, 2, 16, torch.float32)
    states = torch.stack(given)[:, :, None]
    leaves = [t.requires_grad_() for t in (x, recurrent, bias, states)]
    tokens, last = flashrnn(*leaves, function=function, dtype="float32")
    assert tokens.shape == (len(given), 2, 6, 2, 16) and last.shape == (len(given), 2, 1, 2, 16)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    want, _ = slstm_sequence(*wide[:3], tuple(wide[3][:, :, 0].unbind(0)), lstm=function == "lstm")
    torch.testing.assert_close(tokens.double(), torch.stack(want), rtol=1e-5, atol=1e-6)
    assert last[:, :, 0].equal(tokens[:, :, -1])
    sent = torch.randn(tokens.shape, dtype=torch.float64)  # every state of every token has a gradient
    found = torch.autograd.grad((tokens.double() * sent).sum() + last.double().sum(), leaves)
    expected = torch.autograd.grad((torch.stack(want) * sent).sum() + torch.stack(want)[:, :, -1].sum(), wide)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def test_flashrnn_dtype() -> None:
    x, recurrent, bias = make(2, 6, 2, 16, torch.float32)
    tokens, _ = flashrnn(x, recurrent, bias)
    assert tokens.dtype == torch.float32
    want = slstm_interface(x.bfloat16(), recurrent, bias, function="lstm").float()
    assert tokens[0].equal(want)


# ---- bad input


def _bad(message: str, error: type[Exception] = ValueError, **changed: Any) -> Any:
    return pytest.param(changed, error, message, id=message[:40])


@pytest.mark.parametrize(
    "changed, error, message",
    [
        _bad("x: expected 5 dimensions", x=torch.zeros(2, 3, 4, 8)),
        _bad("x: expected 4 gates i, f, z, o", x=torch.zeros(2, 3, 3, 2, 8)),
        _bad("x: expected float32, bfloat16", TypeError, x=torch.zeros(2, 3, 4, 2, 8, dtype=torch.int32)),
        _bad("x: expected S >= 1", x=torch.zeros(2, 0, 4, 2, 8)),
        _bad("x: expected a torch.Tensor", TypeError, x=[1.0]),
        _bad(r"recurrent: expected shape \(4, NH, U, U\)", recurrent=torch.zeros(2, 4, 8, 8)),
        _bad(r"bias: expected shape \(4, NH, U\)", bias=torch.zeros(4, 16)),
        _bad(r"states: expected \(h, c, n, m\) of a slstm", TypeError, states=(torch.zeros(2, 2, 8),)),
        _bad("states, n: expected shape", states=(*[torch.zeros(2, 2, 8)] * 2, torch.zeros(1), torch.zeros(2, 2, 8))),
        _bad("function: expected one of 'slstm', 'lstm'", function="gru"),
        _bad("forget_gate: expected one of 'sigmoid', 'exp'", forget_gate="tanh"),
        _bad("forget_gate: expected 'sigmoid', the only one of an LSTM", function="lstm", forget_gate="exp"),
        _bad("cu_seqlens: expected packed sequences in one row", cu_seqlens=torch.tensor([0, 3])),
        _bad("cu_seqlens: expected values that rise", x=torch.zeros(1, 3, 4, 2, 8), cu_seqlens=torch.tensor([0, 0, 3])),
        _bad("cu_seqlens: expected to end at S = 3", x=torch.zeros(1, 3, 4, 2, 8), cu_seqlens=torch.tensor([0, 2])),
    ],
)
def test_bad_input(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    good = {"x": torch.zeros(2, 3, 4, 2, 8), "recurrent": torch.zeros(4, 2, 8, 8), "bias": None, "states": None}
    with pytest.raises(error, match=message):
        slstm_interface(**(good | changed))


def test_bad_steps() -> None:
    x, recurrent = torch.zeros(2, 4, 2, 8), torch.zeros(4, 2, 8, 8)
    states = [torch.zeros(2, 2, 8) for _ in range(4)]
    with pytest.raises(ValueError, match="states: expected the states to write over with in_place, got None"):
        slstm_step_interface(x, recurrent, in_place=True)
    with pytest.raises(ValueError, match="states, c: expected a contiguous tensor of torch.float32 to write over"):
        slstm_step_interface(x, recurrent, None, (states[0], states[1].double(), *states[2:]), in_place=True)
    with pytest.raises(ValueError, match="in_place: expected no gradient to be asked for"):
        slstm_step_interface(x.requires_grad_(), recurrent, None, states, in_place=True)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"function": "gru"}, "function: expected one of 'slstm', 'lstm', got 'gru'"),
        ({"backend": "vanilla"}, "backend: expected one of 'cuda_fused', 'cuda', 'triton_fused', got 'vanilla'"),
        ({"dtype": "float64"}, "dtype: expected one of 'bfloat16', 'float16', 'float32', got 'float64'"),
        ({"config": object()}, "config: expected None, got object"),
        ({"states": torch.zeros(4, 2, 1, 2, 8)}, "states: expected shape"),
    ],
)
def test_bad_flashrnn(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flashrnn(torch.zeros(2, 3, 4, 2, 8), torch.zeros(4, 2, 8, 8), torch.zeros(4, 2, 8), **options)

# SPDX-License-Identifier: Apache-2.0
"""Checks of the fused kernels on a GPU beside the table: graphs, streams, devices, tracing, errors.

A check takes a device, raises AssertionError, and unittest.SkipTest (which pytest knows too) where it cannot run.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor

from support import accuracy
from support.accuracy import Quantities
from support.gpu_table import SEQUENCE_KERNELS, STEP_KERNELS, same_bits
from support.op_calls import arguments, registered_ops
from support.poison import poisoned
from support.reference import relative_error, truth
from support.shapes import Case
from xlstm_hip import kernel_info, mlstm_interface, mlstm_step_interface
from xlstm_hip.layers import soft_cap

Check = Callable[[str], None]
CHECKS: list[Check] = []
CASE = Case("execution", 300, 64, 96, batch=2, heads=3, states=True)
HOPPER_CASE = Case(
    "execution, the GPU's own", 330, 128, 256, batch=2, heads=3, states=True
)  # Hopper's kernels where it is one
PACKED = Case("execution, packed", 300, 64, 96, heads=3, states=True, lengths=(17, 200, 83))
TOKEN = Case("execution, step", 1, 64, 96, batch=2, heads=3, states=True)
NAMES = ("q", "k", "v", "i", "f")
STATES = ("c", "n", "m")
PLAIN_STEP = {"exp": "native", "sigmoid": "native_siging"}


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def gpu_only(device: str) -> None:
    if torch.device(device).type != "cuda":
        raise SkipTest("only on a GPU")


def raises(error: type[Exception], pattern: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    try:
        function(*args, **kwargs)
    except error as raised:
        assert re.search(pattern, str(raised)), f"expected {pattern!r}, got {raised}"
    else:
        raise AssertionError(f"no {error.__name__} that says {pattern!r}")


def step_inputs(device: str, dtype: torch.dtype, name: str = TOKEN.name) -> dict[str, Tensor]:
    inputs, _ = accuracy.inputs_on(replace(TOKEN, name=name), dtype, device)
    token = {x: inputs[x][:, :, 0] for x in "qkv"} | {x: inputs[x] for x in "if"}
    return token | {x: inputs[f"{x}_initial"] for x in STATES}


def results(call: Callable[..., Any], inputs: Mapping[str, Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Outputs and gradients in a fixed order, nothing copied: what a graph may capture."""
    h, states = call(**inputs)
    outputs = (h, *states)
    sent = [g.to(x.dtype) for g, x in zip(cotangents, outputs, strict=True)]
    return *outputs, *torch.autograd.grad(outputs, list(inputs.values()), sent)


def named(values: Sequence[Tensor]) -> Quantities:
    return {str(n): x.detach() for n, x in enumerate(values)}


def captured(device: str, work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """The graph of one call of work, and what the call gave. Memory that it takes is NaN at every replay."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with poisoned(), torch.cuda.graph(graph):
        out = work()
    return graph, out


@check
def poison_reaches_the_workspace(device: str) -> None:
    """Every new_empty of an op is followed by a fill: the ops allocate through torch, and so are covered."""
    for op in registered_ops():
        call_arguments = arguments(op, False, True, False, False, torch.float32, device)
        with poisoned(), torch.autograd.profiler.profile() as profile:
            getattr(torch.ops.xlstm_hip, op)(**call_arguments)
        names = [event.name for event in profile.function_events]
        allocated, filled = names.count("aten::new_empty"), names.count("aten::fill_")
        assert allocated >= 2 and filled >= allocated, f"{op}: {allocated} allocated, {filled} filled"


@check
def inference_and_training_agree(device: str) -> None:
    for kernel, dtype, case in itertools.product(
        SEQUENCE_KERNELS, (torch.float32, torch.bfloat16), (CASE, HOPPER_CASE)
    ):
        label = f"{kernel} {dtype} {case.name}"
        inputs, _ = accuracy.inputs_on(case, dtype, device)
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        h, states = accuracy.sequence_call(case, kernel)(**leaves)
        alone = mlstm_interface(**leaves, kernel=kernel)
        with torch.no_grad(), poisoned():
            inferred, last = accuracy.sequence_call(case, kernel)(**inputs)
            inferred_alone = mlstm_interface(**inputs, kernel=kernel)
        same_bits(f"{label}, inference", named((inferred, *last)), named((h, *states)))
        same_bits(f"{label}, h alone", named((inferred_alone, alone)), named((h, h)))
        sent = torch.randn_like(h)
        expected = torch.autograd.grad(h, list(leaves.values()), sent)
        actual = torch.autograd.grad(alone, list(leaves.values()), sent)
        same_bits(f"{label}, gradients of h alone", named(actual), named(expected))


@check
def an_expanded_cotangent(device: str) -> None:
    inputs, _ = accuracy.inputs_on(CASE, torch.bfloat16, device)
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    h = mlstm_interface(**leaves)
    actual = torch.autograd.grad(h.sum(), list(leaves.values()), retain_graph=True)
    expected = torch.autograd.grad(h, list(leaves.values()), torch.ones_like(h))
    same_bits("sum().backward()", named(actual), named(expected))


@check
def autocast(device: str) -> None:
    inputs, _ = accuracy.inputs_on(CASE, torch.bfloat16, device)
    single = {name: x.float() for name, x in inputs.items()}
    narrow = {name: x.to(torch.bfloat16) if name in NAMES else x for name, x in inputs.items()}
    with torch.no_grad():
        expected = mlstm_interface(**narrow)
        with torch.autocast(torch.device(device).type):
            actual = mlstm_interface(**single)
    same_bits("autocast", {"h": actual}, {"h": expected})


@check
def a_step_from_one_projection(device: str) -> None:
    """q, k, v and the gates as slices of one matrix product's result, as a fused projection leaves them."""
    b, nh, dqk, dhv = TOKEN.batch, TOKEN.heads, TOKEN.dqk, TOKEN.dhv
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        states = {x: y for x, y in step_inputs(device, dtype).items() if x in STATES}
        projected = torch.randn(b, nh * (2 * dqk + dhv + 2), generator=torch.Generator().manual_seed(0))
        parts = projected.to(device, dtype).split([nh * n for n in (dqk, dqk, dhv, 1, 1)], dim=-1)
        token = {name: x.unflatten(-1, (nh, -1)) for name, x in zip(NAMES, parts, strict=True)}
        assert not token["k"].is_contiguous()
        apart = {name: x.contiguous() for name, x in token.items()}
        for kernel in STEP_KERNELS:
            with poisoned():
                h, last = mlstm_step_interface(**token, **states, kernel=kernel)
            expected, expected_last = mlstm_step_interface(**apart, **states, kernel=kernel)
            # Unaligned rows take another kernel, which sums in another order.
            expected_results = named((expected, *expected_last))
            for name, x in named((h, *last)).items():
                allowed = 4 * torch.finfo(x.dtype).eps
                assert relative_error(x, expected_results[name]) <= allowed, f"{kernel} {dtype}: {name}"
            copies = {name: x.clone() for name, x in states.items()}
            in_place, _ = mlstm_step_interface(**token, **copies, kernel=kernel, in_place=True)
            same_bits(f"{kernel} {dtype}, in place", named((in_place, *copies.values())), named((h, *last)))


# A tile of each width for the 132 units of an H200 and the 304 of an MI300X, fewer threads than columns among them; a
# last tile that is not full; odd rows, whose kernel is the one for any shape.
SHAPES_OF_ROUNDED_C = ((304, 1, 8, 64), (100, 1, 8, 64), (152, 1, 8, 64), (2, 10, 8, 64), (3, 5, 24, 56), (2, 3, 7, 27))


@check
def a_step_with_c_in_bfloat16(device: str) -> None:
    """The random bits of its rounding are plain torch's, so C is, but for sums between which the bits lie."""
    for kernel, dtype, dims in itertools.product(
        STEP_KERNELS, (torch.float32, torch.bfloat16, torch.float16), SHAPES_OF_ROUNDED_C
    ):
        label, info = f"{kernel} {dtype} {dims}", kernel_info(kernel, "step")
        rng, (batch, heads, dqk, dhv) = torch.Generator().manual_seed(1), dims
        sizes = {"q": (dqk,), "k": (dqk,), "v": (dhv,), "i": (1,), "f": (1,), "c": (dqk, dhv), "n": (dqk,), "m": (1,)}
        x = {name: torch.randn(batch, heads, *size, generator=rng) for name, size in sizes.items()}
        x |= {name: x[name].to(dtype) for name in NAMES} | {"c": x["c"].bfloat16()}
        true_h, (true_c, _, _) = mlstm_step_interface(
            **{name: y.double() for name, y in x.items()}, kernel=PLAIN_STEP[info.gate]
        )
        plain_h, plain = mlstm_step_interface(**x, kernel=PLAIN_STEP[info.gate])
        on_device = {name: y.to(device) for name, y in x.items()}
        copies = {name: on_device[name].clone() for name in STATES}
        with poisoned():
            h, last = mlstm_step_interface(**on_device, kernel=kernel)
            in_place, _ = mlstm_step_interface(**(on_device | copies), kernel=kernel, in_place=True)
        same_bits(f"{label}, in place", named((in_place, *copies.values())), named((h, *last)))
        assert relative_error(h.cpu(), true_h) <= max(
            2 * relative_error(plain_h, true_h), accuracy.FLOOR * torch.finfo(dtype).eps
        ), f"{label}: h"
        for name, a, b in zip("nm", last[1:], plain[1:], strict=True):
            assert a.dtype == torch.float32 and relative_error(a.cpu(), b.double()) <= 1e-6, f"{label}: {name}"
        c = last[0].cpu()
        assert c.dtype == plain[0].dtype == torch.bfloat16
        assert int((c != plain[0]).sum()) <= 1 + c.numel() // 1000, f"{label}: other random bits"
        off = (c.double() - true_c).abs()
        assert bool((off <= true_c.abs() * 2**-7 + 1e-6).all()), f"{label}: none of the two neighbours"


@check
def a_step_caps_its_gates(device: str) -> None:
    """gate_soft_cap against float64, beside the plain kernel on the same inputs; its gradient by autograd."""
    cap = 15.0
    for dtype, kernel in itertools.product((torch.float32, torch.bfloat16, torch.float16), STEP_KERNELS):
        label, info = f"{kernel} {dtype}", kernel_info(kernel, "step")
        x = step_inputs(device, dtype)
        x |= {name: 10 * x[name] for name in "if"}  # far beyond the cap, some of them
        single = {name: x[name].cpu() for name in x}
        wide = {name: y.double() for name, y in single.items()}
        wide |= {name: cap * torch.tanh(wide[name] / cap) for name in "if"}
        tokens, states = ([wide[name] for name in names] for names in (("q", "k", "v"), STATES))
        h, last = truth(*(y[:, :, None] for y in tokens), wide["i"], wide["f"], *states, gate=info.gate)
        plain_h, plain_last = mlstm_step_interface(**single, kernel=PLAIN_STEP[info.gate], gate_soft_cap=cap)
        copies = {name: x[name].clone() for name in STATES}
        with poisoned():
            got_h, got_last = mlstm_step_interface(**x, kernel=kernel, gate_soft_cap=cap)
            in_place, _ = mlstm_step_interface(**(x | copies), kernel=kernel, gate_soft_cap=cap, in_place=True)
        same_bits(f"{label}, in place", named((in_place, *copies.values())), named((got_h, *got_last)))
        expected, plain, actual = ((a, *b) for a, b in ((h[:, :, 0], last), (plain_h, plain_last), (got_h, got_last)))
        for name, e, p, g in zip("hcnm", expected, plain, actual, strict=True):
            plain_error, eps = relative_error(p, e), torch.finfo(p.dtype).eps
            assert plain_error <= 4 * eps, f"plain {dtype}: {name}"  # which caps too
            assert relative_error(g.cpu(), e) <= max(2 * plain_error, accuracy.FLOOR * eps), f"{label}: {name}"
        leaves = {name: y.clone().requires_grad_() for name, y in x.items()}
        h, _ = mlstm_step_interface(**leaves, kernel=kernel, gate_soft_cap=cap)
        capped = leaves | {name: soft_cap(leaves[name].to(x["c"].dtype), cap) for name in "if"}
        apart, _ = mlstm_step_interface(**capped, kernel=kernel)
        gradients = (torch.autograd.grad(y.sum(), list(leaves.values())) for y in (h, apart))
        same_bits(f"{label}, gradients", *map(named, gradients))


# Sequences of one token, of a chunk and one token more, some that begin or end with a chunk, a long one in the midst.
MANY = (*(1,) * 150, 63, 2, 64, 65, 1, 130, *(1, 7, 30) * 16, 64, 3)


@check
def short_sequences_of_a_row(device: str) -> None:
    """Without states, where a GPU walks the row as one sequence, against plain torch, which runs each of them."""

    def run(kernel: str, case: Case, x: Mapping[str, Tensor], dh: Tensor) -> tuple[Tensor, ...]:
        leaves = {name: y.clone().requires_grad_() for name, y in x.items()}
        ends = torch.tensor(case.cu_seqlens, device=dh.device)
        h = mlstm_interface(**leaves, kernel=kernel, cu_seqlens=ends, eps=case.eps)
        return h, *torch.autograd.grad(h, list(leaves.values()), dh.to(h))

    # A CPU runs each of them anyway: there a few do.
    heads, lengths = (2, MANY[145:165]) if device == "cpu" else (12, MANY)
    kinds = (
        ("", torch.float32, (64, 96)),
        ("", torch.bfloat16, (64, 96)),
        ("", torch.bfloat16, (128, 256)),
        ("_siging", torch.bfloat16, (256, 128)),
    )
    for gate, dtype, dims in kinds:
        case = Case(f"execution, joined {dims}", sum(lengths), *dims, heads=heads, lengths=lengths, eps=0.05)
        plain, fused = f"chunkwise--native{gate}_autograd", f"chunkwise--fused{gate}"
        inputs, (dh, *_) = accuracy.inputs_on(case, dtype, device)
        expected = run(plain, case, {name: x.double().cpu() for name, x in inputs.items()}, dh.cpu())
        near, actual = run(plain, case, inputs, dh), run(fused, case, inputs, dh)
        for name, x, y, true in zip(("h", *NAMES), actual, near, expected, strict=True):
            allowed = max(2 * relative_error(y.cpu(), true), accuracy.FLOOR * torch.finfo(dtype).eps)
            error = relative_error(x.cpu(), true)
            assert error <= allowed, f"{fused}, {case.name}, {dtype}: {name} has error {error:.2e}, may {allowed:.2e}"


@check
def a_graph_of_forward_and_backward(device: str) -> None:
    """Captured once, replayed with other data, and for packed sequences with other lengths."""
    gpu_only(device)
    for kernel in SEQUENCE_KERNELS:
        for case, ends in ((CASE, None), (HOPPER_CASE, None), (PACKED, [0, 1, 99, 300])):
            inputs, cotangents = accuracy.inputs_on(case, torch.bfloat16, device)
            leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
            options: dict[str, Any] = {"kernel": kernel, "return_last_states": True}
            if ends is not None:
                options["cu_seqlens"] = torch.tensor(case.cu_seqlens, device=device)
            work = _bound(results, _with(mlstm_interface, options), leaves, cotangents)
            graph, out = captured(device, work)
            other_inputs, _ = accuracy.inputs_on(replace(case, name="other data"), torch.bfloat16, device)
            with torch.no_grad():
                for name, x in other_inputs.items():
                    leaves[name].copy_(x)
                if ends is not None:
                    options["cu_seqlens"].copy_(torch.tensor(ends))
            for replay in ("first", "second"):
                graph.replay()
                torch.cuda.synchronize(device)
                same_bits(f"{kernel}, {case.name}, {replay} replay", named(out), named(work()))


@check
def a_graph_of_a_step_in_place(device: str) -> None:
    gpu_only(device)
    for kernel in STEP_KERNELS:
        buffers = step_inputs(device, torch.bfloat16)
        first = {name: buffers[name].clone() for name in STATES}
        with torch.no_grad():
            graph, (h, _) = captured(
                device, _bound(_with(mlstm_step_interface, {"kernel": kernel, "in_place": True}), **buffers)
            )
            for name in STATES:
                buffers[name].copy_(first[name])
            for token in range(3):
                new = step_inputs(device, torch.bfloat16, f"token {token}") | first
                for name in NAMES:
                    buffers[name].copy_(new[name])
                graph.replay()
                expected, last = mlstm_step_interface(**new, kernel=kernel)
                first = dict(zip(STATES, last, strict=True))
                actual = named((h, *(buffers[name] for name in STATES)))
                same_bits(f"{kernel}, token {token}", actual, named((expected, *last)))


def _with(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    return lambda **inputs: function(**inputs, **options)


def _bound(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: function(*args, **kwargs)


@check
def a_side_stream(device: str) -> None:
    """The inputs arrive late on a stream of their own: a call on another stream would see NaN."""
    gpu_only(device)
    for kernel, case in itertools.product(SEQUENCE_KERNELS, (CASE, HOPPER_CASE)):
        inputs, cotangents = accuracy.inputs_on(case, torch.bfloat16, device)
        expected = accuracy.quantities(accuracy.sequence_call(case, kernel), inputs, cotangents)
        late = {name: torch.full_like(x, torch.nan) for name, x in inputs.items()}
        side = torch.cuda.Stream(device)
        torch.cuda.synchronize(device)
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)  # cycles
            for name, x in inputs.items():
                late[name].copy_(x)
            actual = accuracy.quantities(accuracy.sequence_call(case, kernel), late, cotangents)
        side.synchronize()
        same_bits(f"{kernel}, {case.name}, on a side stream", actual, expected)


@check
def the_second_device(device: str) -> None:
    """While another device is current."""
    gpu_only(device)
    if torch.cuda.device_count() < 2:
        raise SkipTest("one GPU only")
    current = torch.cuda.current_device()
    second = f"cuda:{next(n for n in range(torch.cuda.device_count()) if n != current)}"
    for kernel, dtype, case in itertools.product(
        SEQUENCE_KERNELS, (torch.bfloat16, torch.float32), (CASE, HOPPER_CASE)
    ):
        info = kernel_info(kernel, ("chunkwise", "sequence"))
        inputs, cotangents = accuracy.inputs_on(case, dtype, second)
        with poisoned():
            actual = accuracy.quantities(accuracy.sequence_call(case, kernel), inputs, cotangents)
        assert all(x.device == torch.device(second) for x in actual.values())
        accuracy.check(f"{kernel}, {case.name}, on {second}", accuracy.judge(info, case, dtype, actual, True, second))
    token = step_inputs(second, torch.bfloat16)
    h, last = mlstm_step_interface(**token)
    expected, expected_last = mlstm_step_interface(**step_inputs(device, torch.bfloat16))
    torch.testing.assert_close(h.cpu(), expected.cpu())
    torch.testing.assert_close([x.cpu() for x in last], [x.cpu() for x in expected_last])
    assert torch.cuda.current_device() == current


@check
def offsets_outside_the_row_are_cut_off(device: str) -> None:
    """Nothing reads cu_seqlens on the host; the kernels stay inside the row."""
    gpu_only(device)
    inputs, cotangents = accuracy.inputs_on(PACKED, torch.bfloat16, device)

    def run(ends: list[int]) -> Quantities:
        cu_seqlens = torch.tensor(ends, device=device, dtype=torch.int32)
        call = _with(mlstm_interface, {"return_last_states": True, "cu_seqlens": cu_seqlens})
        return accuracy.quantities(call, inputs, cotangents)

    same_bits("offsets beyond the row", run([-5, 17, 217, 99_999]), run([0, 17, 217, 300]))
    for ends in ([0, 200, 100, 300], [300, 200, 100, 0], [-(1 << 31), 1 << 30, -7, 400]):
        run(ends)  # whatever it gives, it stays inside
    torch.cuda.synchronize(device)


@check
def tensors_of_more_than_2_31_elements(device: str) -> None:
    """The last head's last tokens, which the gates keep from seeing far, are what a short call gives.

    The chunks differ, and so do the roundings; a large eps keeps them small. A wrong address is wrong by all of it.
    """
    gpu_only(device)
    heads, length, dqk, dhv, short = 8, 1 << 20, 256, 512, 8192
    needed = heads * length * (4 * dqk + 4 * dhv + 40) * 2 * 1.2
    if torch.cuda.mem_get_info(device)[0] < needed:
        raise SkipTest(f"needs {needed / 1e9:.0f} GB")
    rng = torch.Generator(device).manual_seed(0)

    def random(*features: int) -> Tensor:
        return torch.randn(1, heads, length, *features, device=device, dtype=torch.bfloat16, generator=rng)

    leaves = [random(dqk), random(dqk), random(dhv), random(), random() + 2]
    dh = random(dhv)
    tails = [x[:, -1:, -short:].contiguous().requires_grad_() for x in leaves]
    h_tail = mlstm_interface(*tails, eps=0.5)
    expected = (h_tail, *torch.autograd.grad(h_tail, tails, dh[:, -1:, -short:].contiguous()))
    leaves = [x.requires_grad_() for x in leaves]
    h = mlstm_interface(*leaves, eps=0.5)
    actual = (h, *torch.autograd.grad(h, leaves, dh))
    for name, x, y in zip(("h", "dq", "dk", "dv", "di", "df"), actual, expected, strict=True):
        end, expected_end = (z[0, -1, -short // 2 :].detach().double() for z in (x, y))
        difference = float((end - expected_end).norm() / expected_end.norm())
        assert difference < 0.05, f"{name}: {difference:.3g} from the short call's"


@check
def opcheck(device: str) -> None:
    kinds = (
        (True, False, False, torch.float32),
        (False, False, True, torch.bfloat16),
        (True, True, False, torch.bfloat16),
        (False, True, True, torch.float16),
    )
    for op in registered_ops():
        for states, packed, bshd, dtype in kinds:
            for sigmoid_gate in (False, True):
                if states or op != "mlstm_backward_states":
                    call_arguments = arguments(op, sigmoid_gate, states, packed, bshd, dtype, device)
                    torch.library.opcheck(getattr(torch.ops.xlstm_hip, op).default, (), call_arguments)


@check
def compiled_in_one_graph(device: str) -> None:
    """Whole graph, dynamic shapes, training and a step in place: the same bits as without the compiler."""
    for kernel in SEQUENCE_KERNELS:
        call = _with(mlstm_interface, {"kernel": kernel, "return_last_states": True})
        torch._dynamo.reset()
        twin = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
        for length in (17, 75):
            case = Case(f"compiled {length}", length, 32, 48, batch=2, states=True)
            inputs, cotangents = accuracy.inputs_on(case, torch.bfloat16, device)
            actual = accuracy.quantities(twin, inputs, cotangents)
            same_bits(f"{kernel} compiled", actual, accuracy.quantities(call, inputs, cotangents))
    for kernel in STEP_KERNELS:
        step = _with(mlstm_step_interface, {"kernel": kernel, "in_place": True})
        torch._dynamo.reset()
        twin = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
        compiled_inputs, eager_inputs = (step_inputs(device, torch.bfloat16) for _ in range(2))
        with torch.no_grad():
            actual, expected = twin(**compiled_inputs)[0], step(**eager_inputs)[0]
        pairs = (
            named((actual, *(compiled_inputs[x] for x in STATES))),
            named((expected, *(eager_inputs[x] for x in STATES))),
        )
        same_bits(f"step {kernel} compiled", *pairs)
    torch._dynamo.reset()


@check
def compiled_inside_a_layer(device: str) -> None:
    """With inductor: projections in, a gated output out."""
    if not any(map(shutil.which, ("cc", "gcc", "g++", "clang"))):
        raise SkipTest("inductor needs a C compiler")

    def layer(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = (x @ w).unflatten(-1, (3, 96)).transpose(1, 2).chunk(3, dim=-1)
        gates = x[..., :3].transpose(1, 2)
        return torch.tanh(mlstm_interface(q, k, v, gates, gates + 1)).sum(1)

    torch._dynamo.reset()
    twin = torch.compile(layer, fullgraph=True)
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(2, 33, 16, generator=rng).to(device)
    w = torch.randn(16, 3 * 96, generator=rng).to(device).requires_grad_()
    actual, expected = twin(x, w), layer(x, w)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    (dw,), (dw_expected,) = (torch.autograd.grad(y.square().sum(), w) for y in (actual, expected))
    torch.testing.assert_close(dw, dw_expected, rtol=1e-3, atol=1e-4)
    torch._dynamo.reset()


@check
def errors(device: str) -> None:
    gpu_only(device)
    inputs, _ = accuracy.inputs_on(replace(CASE, states=False), torch.float32, device)
    wide = {name: x.double() for name, x in inputs.items()}
    raises(TypeError, "^q: .*float32.*bfloat16.*float16.*float64", mlstm_interface, **wide)
    token = {name: x.double() for name, x in step_inputs(device, torch.float32).items()}
    raises(TypeError, "^q: .*float32.*bfloat16.*float16.*float64", mlstm_step_interface, **token)

    raises(ValueError, "^k: .*device cuda", mlstm_interface, **(inputs | {"k": inputs["k"].cpu()}))
    raises(
        ValueError,
        "^v: .*device cpu",
        mlstm_interface,
        **({n: x.cpu() for n, x in inputs.items()} | {"v": inputs["v"]}),
    )
    one = {name: x[:1] for name, x in inputs.items()}
    ends = torch.tensor([0, CASE.length])
    raises(ValueError, "^cu_seqlens: .*device cuda.*cpu", mlstm_interface, **one, cu_seqlens=ends)
    token = step_inputs(device, torch.float32)
    raises(ValueError, "^c: .*device cuda", mlstm_step_interface, **(token | {"c": token["c"].cpu()}))

# SPDX-License-Identifier: Apache-2.0
"""The functions of mlstm_kernels under xlstm_hip.compat: its signatures, and its results for calls by position."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.compat_parts import compat_part
from support.reference import truth

CALLS = compat_part("mlstm_calls")
CONTENTS = compat_part("modules").contents()
TORCH = "mlstm_kernels.torch"
# The functions are public; what lies below the Triton folders' fw.py and bw.py belongs to their kernels.
SOURCES = ("chunkwise/*/fwbw.py", "parallel/[a-z]*/fwbw.py", "recurrent/*.py", "kernel_wrappers.py", "utils.py",
           "chunkwise/native/[fb]w.py", "parallel/native*/[fb]w.py")  # fmt: skip
PARTS_OF_PASSES = (
    "mlstm_chunkwise__recurrent_fw_C",
    "mlstm_chunkwise__parallel_fw_H",
    "mlstm_chunkwise__recurrent_bw_dC",
)
# Relative to what the numbers need in float64, where both are the same formulas.
CLOSE = 1e-12


def installed() -> Path:
    """The real package's folder; its Triton modules cannot be imported everywhere, but they can be read."""
    spec = importlib.util.find_spec("mlstm_kernels")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("mlstm_kernels comes with the test extra")
    return Path(next(iter(spec.submodule_search_locations)), "torch")


def public_functions() -> list[tuple[str, str, ast.FunctionDef]]:
    """(module, name, definition) of every public function in SOURCES."""
    found = []
    for pattern in SOURCES:
        for file in sorted(installed().glob(pattern)):
            module = ".".join(file.relative_to(installed().parent).with_suffix("").parts)
            tree = ast.parse(file.read_text("utf-8"))
            found += [
                (f"mlstm_kernels.{module}", node.name, node)
                for node in tree.body
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
                if node.name not in PARTS_OF_PASSES  # not offered
            ]
    return found


def their_parameters(function: ast.FunctionDef) -> list[tuple[str, Any]]:
    """Names, defaults, and at the end whether further keywords are taken."""
    names, defaults = [argument.arg for argument in function.args.args], function.args.defaults
    assert not function.args.kwonlyargs and not function.args.posonlyargs
    values = [eval(ast.unparse(default), {"torch": torch}) for default in defaults]
    padded = [inspect.Parameter.empty] * (len(names) - len(values)) + values
    return [*zip(names, padded, strict=True), ("**", function.args.kwarg is not None)]


def our_parameters(function: Callable) -> list[tuple[str, Any]]:
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    more = [p.kind for p in parameters if p not in positional]
    assert more in ([], [inspect.Parameter.VAR_KEYWORD])
    return [*((p.name, p.default) for p in positional), ("**", bool(more))]


def test_every_public_function_has_their_signature() -> None:
    compared = []
    for module, name, definition in public_functions():
        function = CONTENTS[module][name]
        expected, actual = their_parameters(definition), our_parameters(function)
        if module.endswith("kernel_wrappers"):  # keywords of sigmoid kernels reach them in ours
            expected, actual = expected[:-1], actual[:-1]
        assert actual == expected, f"{module}.{name}"
        compared.append(name)
    assert {*CALLS.KERNELS, *CALLS.OTHER_CALLS} <= set(compared)


def test_every_getter_returns_their_call() -> None:
    for getter, names in (
        ("get_mlstm_kernel", ("chunkwise--native_custbw", "chunkwise--triton_xl_chunk_siging")),
        ("get_mlstm_sequence_kernel", ("native_sequence__native", "native_sequence__triton")),
        ("get_mlstm_step_kernel", ("native", "triton", "triton_fused")),
    ):
        for name in names:
            assert CALLS.GETTERS[getter](name) in CALLS.KERNELS.values(), name
    registry = CONTENTS[f"{TORCH}.chunkwise"]["registry"]
    kernel = registry["native_custbw"]
    assert kernel.stands_for.__name__ == kernel.__name__ == "mlstm_chunkwise__native_custbw"
    assert registry["fused"] is CALLS.GETTERS["get_mlstm_kernel"]("chunkwise--fused")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sequence(length: int = 32) -> list[Tensor]:
    """q, k, v, i, f"""
    sizes = ((length, 6), (length, 6), (length, 5), (length,), (length,))
    return [random(2, 3, *size, seed=n) + (3 if n == 4 else 0) for n, size in enumerate(sizes)]


def states() -> list[Tensor]:
    return [random(2, 3, *size, seed=n) for n, size in enumerate(((6, 5), (6,), (1,)), 5)]


def token() -> list[Tensor]:
    """q, k, v, i, f, c, n, m"""
    return [x[:, :, 0] if x.dim() == 4 else x[:, :, :1] for x in sequence()] + states()


def real(module: str, name: str) -> Callable:
    pytest.importorskip("mlstm_kernels")
    return getattr(importlib.import_module(f"{TORCH}.{module}"), name)


def assert_same(actual: Any, expected: Any) -> None:
    """(C, n, m) and (C e^a, n e^a, m - a) are the same state."""
    (h, (c, n, m)), (h2, (c2, n2, m2)) = actual, expected
    assert [x.dtype for x in (h, c, n, m)] == [x.dtype for x in (h2, c2, n2, m2)]
    torch.testing.assert_close(h, h2, atol=CLOSE, rtol=CLOSE)
    torch.testing.assert_close(c * m[..., None].exp(), c2 * m2[..., None].exp(), atol=CLOSE, rtol=CLOSE)
    torch.testing.assert_close(n * m.exp(), n2 * m2.exp(), atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("name", CALLS.SHAPES)
def test_every_argument_reaches_the_kernel_by_its_name(name: str) -> None:
    shaped, kernel = CALLS.SHAPES[name]
    received: dict[str, Any] = {}

    def recording(*arguments: Any, **keywords: Any) -> None:
        bound = inspect.signature(kernel).bind(*arguments, **keywords)
        received.update(bound.arguments | bound.arguments.pop("kwargs", {}))

    names = [name for name, _ in our_parameters(CALLS.KERNELS[name])[:-1]]
    # A True asks for what is done anyway.
    values = {
        name: False if name in ("return_last_states", "recompute_states_in_bw") else f"the {name}" for name in names
    }
    shaped(recording)(*values.values())
    assert received | values == received


EPS = 0.25  # large enough to be seen, where another argument is taken for it


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlstm_chunkwise__native_autograd", (EPS, 16)),
        ("mlstm_chunkwise__native_custbw", (EPS, 16, torch.float32)),
    ],
)
@pytest.mark.parametrize("with_states", [False, True])
def test_native_chunkwise_kernels_by_position(name: str, options: tuple, with_states: bool) -> None:
    arguments = (*sequence(), *(states() if with_states else (None, None, None)), True, *options)
    assert_same(CALLS.KERNELS[name](*arguments), real("chunkwise.native", name)(*arguments))


@pytest.mark.parametrize(
    ("module", "name", "options"),
    [
        ("native", "mlstm_parallel__native_autograd", (EPS,)),
        ("native", "mlstm_parallel__native_custbw", (EPS, torch.float32)),
        ("native_stablef", "mlstm_parallel__native_stablef_autograd", (EPS,)),
        ("native_stablef", "mlstm_parallel__native_stablef_custbw", (EPS, torch.float32)),
        ("native_siging", "mlstm_siging_parallel__native_autograd", (EPS, False, True)),
        ("native_siging", "mlstm_siging_parallel__native_autograd", (EPS, True, False)),
        ("native_siging", "mlstm_siging_parallel__native_custbw", (EPS, True, False, torch.float32)),
    ],
)
def test_native_parallel_kernels_by_position(module: str, name: str, options: tuple) -> None:
    """With input gates above 0: below it, m begins at 0 here and without a bound there, so that eps weighs more."""
    q, k, v, i, f = sequence()
    arguments = (q, k, v, i.abs(), f, None, None, None, False, *options)
    actual, expected = CALLS.KERNELS[name](*arguments), real(f"parallel.{module}", name)(*arguments)
    torch.testing.assert_close(actual, expected, atol=CLOSE, rtol=CLOSE)
    # as mlstm_kernels' own backend calls them
    assert torch.equal(CALLS.KERNELS[name](*arguments, chunk_size=16), actual)


def test_native_recurrent_kernels_by_position() -> None:
    name, options = "mlstm_recurrent_sequence__native_fw", (True, EPS, torch.float64)
    arguments = (*sequence(7), *states(), *options)
    assert_same(CALLS.KERNELS[name](*arguments), real("recurrent.native_sequence", name)(*arguments))
    name = "mlstm_recurrent_step__native"
    before = token()
    arguments = (*token(), EPS, torch.float64)
    assert_same(CALLS.KERNELS[name](*arguments), real("recurrent.native_step", name)(*arguments))
    assert all(map(torch.equal, before, arguments))
    q, k, v, i, f, c, n, m = token()
    arguments = (c, n, m, q, k, v, i, f, EPS, torch.float64)
    name = "mlstm_recurrent_step__native_fw"
    assert_same(CALLS.OTHER_CALLS[name](*arguments), real("recurrent.native_step", name)(*arguments))


def equal_each(actual: Any, expected: Any) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert (a is None) == (b is None)
        if isinstance(a, tuple):
            equal_each(a, b)
        elif a is not None:
            torch.testing.assert_close(a, b, atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("qk_scale", [None, 0.2])
def test_chunkwise_passes(with_states: bool, qk_scale: float | None) -> None:
    x, initial = sequence(), states() if with_states else [None, None, None]
    module = f"{TORCH}.chunkwise.native"
    fw, autograd_call = (CONTENTS[f"{module}.fw"][name] for name in ("mlstm_chunkwise_fw", "mlstm_chunkwise"))
    arguments = (*x, *initial, qk_scale, True, True, 16, EPS)
    actual = fw(*arguments)
    equal_each(actual, real("chunkwise.native.fw", "mlstm_chunkwise_fw")(*arguments))
    equal_each(autograd_call(*x, *initial, qk_scale, True, 16, EPS), (actual[0], actual[3]))
    assert torch.equal(autograd_call(*x, *initial, qk_scale, chunk_size=16, eps=EPS), actual[0])
    assert fw(*x)[3:] == (None, None)
    bw, their_bw = CONTENTS[f"{module}.bw"]["mlstm_chunkwise_bw"], real("chunkwise.native.bw", "mlstm_chunkwise_bw")
    dh, dlast = random(2, 3, 32, 5, seed=9), [random(*s.shape, seed=n) for n, s in enumerate(actual[3], 10)]
    call_arguments = (*x, *initial, *actual[4], actual[1], actual[2], dh, None, *dlast[1:], qk_scale, 16, EPS)
    expected = their_bw(*call_arguments)
    equal_each(bw(*call_arguments), expected)
    equal_each(bw(*call_arguments[:8], *[None] * 5, *call_arguments[13:]), expected)
    # Their gradient of f knows nothing of what the last state does to it.
    of_last = (*call_arguments[:14], dlast[0], *call_arguments[15:])
    expected = [*their_bw(*of_last)]
    expected[4] = expected[4] + (dlast[0] * actual[3][0]).sum((-1, -2)).unsqueeze(-1) * torch.sigmoid(-x[4])
    equal_each(bw(*of_last), expected)
    with pytest.raises(
        ValueError, match="vecM_out: expected the values that the forward pass returns for these inputs"
    ):
        bw(*call_arguments[:12], actual[2] + 1, *call_arguments[13:])
    with pytest.raises(TypeError, match="matDeltaH: expected a torch.Tensor, got NoneType"):
        bw(*x)


@pytest.mark.parametrize("module", ["native", "native_stablef"])
def test_parallel_passes(module: str) -> None:
    """Of any input gates: like theirs, they begin without an m."""
    x, dh = sequence(), random(2, 3, 32, 5, seed=9)
    fw = CONTENTS[f"{TORCH}.parallel.{module}.fw"]["mlstm_parallel_fw"]
    bw = CONTENTS[f"{TORCH}.parallel.{module}.bw"]["mlstm_parallel_bw"]
    actual = fw(*x, EPS)
    equal_each(actual, real(f"parallel.{module}.fw", "mlstm_parallel_fw")(*x, EPS))
    arguments = (dh, *x, actual[1], actual[2], EPS)
    equal_each(bw(*arguments), real(f"parallel.{module}.bw", "mlstm_parallel_bw")(*arguments))
    with pytest.raises(ValueError, match="vecN: expected the values that the forward pass returns"):
        bw(dh, *x, actual[1] * 2, actual[2], EPS)


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_sigmoid_parallel_passes(stable: bool, normalize: bool) -> None:
    x, dh = sequence(), random(2, 3, 32, 5, seed=9)
    fw, bw = (CONTENTS[f"{TORCH}.parallel.native_siging.{p}"][f"mlstm_siging_parallel_{p}"] for p in ("fw", "bw"))
    arguments = (*x, EPS, stable, normalize)
    actual = fw(*arguments)
    equal_each(actual, real("parallel.native_siging.fw", "mlstm_siging_parallel_fw")(*arguments))
    arguments = (dh, *x, actual[1], EPS, stable, normalize)
    equal_each(bw(*arguments), real("parallel.native_siging.bw", "mlstm_siging_parallel_bw")(*arguments))
    if not normalize:
        with pytest.raises(ValueError, match="vecN: expected None without normalize"):
            bw(dh, *x, x[3], EPS, stable, normalize)


@pytest.mark.parametrize("name", ["mlstm_recurrent_step__native", "mlstm_recurrent_step__triton"])
def test_dtype_state_is_their_tenth_argument_and_nothing_is_written(name: str) -> None:
    x = [t.float() for t in token()]
    before = [t.clone() for t in x]
    h, (c, n, m) = CALLS.KERNELS[name](*x, 1e-6, torch.bfloat16)
    assert (c.dtype, n.dtype, m.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert all(map(torch.equal, before, x))
    with pytest.raises(TypeError, match="positional arguments"):
        CALLS.KERNELS[name](*x, 1e-6, torch.bfloat16, True)


def test_triton_kernels_by_position(caplog: pytest.LogCaptureFixture) -> None:
    x, initial = sequence(), states()
    expected = truth(*x, *initial, eps=EPS)
    tuning = (32, 16, 16, 16, 8, 8, 1, 1, 1, 1, True, torch.float32)
    for name, options in (
        ("mlstm_chunkwise__limit_chunk", (EPS, 16, torch.float32)),
        ("mlstm_chunkwise__xl_chunk", (EPS, 16, *tuning)),
        ("mlstm_recurrent_sequence__triton_step_fused_fw", (EPS, torch.float64)),
    ):
        assert_same(CALLS.KERNELS[name](*x, *initial, True, *options), expected)
    assert "alone has a use for chunk_size_inter, chunk_size_intra" in caplog.text
    actual = CALLS.KERNELS["mlstm_parallel__limit_headdim"](*x, None, None, None, False, EPS, torch.float32)
    torch.testing.assert_close(actual, truth(*x, eps=EPS)[0], atol=CLOSE, rtol=CLOSE)
    alternate = CALLS.OTHER_CALLS["mlstm_recurrent_sequence__triton_alternate_step_fw"]
    assert_same(alternate(*x, *initial, True, EPS), expected)


def test_the_sigmoid_kernel_has_two_states() -> None:
    x, (c, n, _) = sequence(), states()
    zeros = torch.zeros_like(n[..., :1])
    kernel = CALLS.KERNELS["mlstm_siging_chunkwise__xl_chunk"]
    h, last = truth(*x, c, n, zeros, eps=EPS, gate="sigmoid", normalize=False)
    actual, (c_last, n_last) = kernel(*x, c, n, None, True, EPS, False, 16)
    for x_actual, expected in ((actual, h), (c_last, last[0]), (n_last, last[1])):
        torch.testing.assert_close(x_actual, expected, atol=CLOSE, rtol=CLOSE)
    assert torch.equal(kernel(*x, c, n, zeros, False, EPS, False, 16), actual)
    assert isinstance(kernel(*x), Tensor)


@pytest.mark.parametrize("alternate", [False, True])
def test_triton_steps(alternate: bool, caplog: pytest.LogCaptureFixture) -> None:
    q, k, v, i, f, c, n, m = token()
    step = CALLS.KERNELS["mlstm_recurrent_step__triton"]
    expected = step(q, k, v, i, f, c, n, m, EPS, torch.float64)
    if alternate:
        assert_same(CALLS.OTHER_CALLS["mlstm_recurrent_step__triton_alternate"](q, k, v, i, f, c, n, m, EPS), expected)
    name = f"mlstm_recurrent_step__triton_{'alternate_' if alternate else ''}fw"
    forward = CALLS.OTHER_CALLS[name]
    last = {"dtype_state": torch.float64, "num_warps": 4} if not alternate else {}
    arguments = [torch.empty_like(x) for x in (c, n, m)]
    out = forward(c, n, m, q, k, v, i, f, *arguments, None, EPS, **last)
    assert_same(out, expected)
    assert all(a is b for a, b in zip(out[1], arguments, strict=True))
    assert alternate or "mlstm_recurrent_step__triton_fw" in caplog.text and "num_warps" in caplog.text
    assert_same(forward(c, n, m, 2 * q, k, v, i, f, qk_scale=0.5 * 6**-0.5, eps=EPS, **last), expected)
    with pytest.raises(ValueError, match="matC_new, vecN_new, scaM_new: expected all three or none"):
        forward(c, n, m, q, k, v, i, f, arguments[0])


def test_unknown_keywords_are_errors() -> None:
    """In mlstm_kernels they are without effect."""
    for name in ("mlstm_chunkwise__native_autograd", "mlstm_recurrent_sequence__native_fw"):
        with pytest.raises(TypeError, match="chunksize"):
            CALLS.KERNELS[name](*sequence(), chunksize=16)


def test_the_wrappers_and_the_backend_take_these_functions() -> None:
    """They call the kernel behind one: any length, and a sigmoid kernel with its m."""
    x = sequence(21)
    wrap = CONTENTS[f"{TORCH}.kernel_wrappers"]["wrap_chunkwise__arbitrary_sequence_length"]
    for name, gate in (("mlstm_chunkwise__xl_chunk", "exp"), ("mlstm_siging_chunkwise__xl_chunk", "sigmoid")):
        kernels = [CALLS.KERNELS[name], *(CALLS.KERNELS[f"mlstm_recurrent_{kind}"] for kind in ("sequence__native_fw",
                   "step__native"))]  # fmt: skip
        q, k, v, i, f = x
        assert_same(wrap(*kernels, q, k, v, f, i, eps=EPS, dtype_state=torch.float64), truth(*x, eps=EPS, gate=gate))
    backend = CALLS.mLSTMBackend(CALLS.backend.mLSTMBackendConfig())
    backend.chunkwise_kernel_fn = CALLS.KERNELS["mlstm_chunkwise__native_custbw"]
    h = backend(*x, return_last_states=False)
    torch.testing.assert_close(h, truth(*x)[0], atol=CLOSE, rtol=CLOSE)


def test_the_backend_returns_states_in_inference_whatever_is_asked() -> None:
    module = CONTENTS[f"{TORCH}.backend_module"]
    x = sequence(9)
    for mode in ("inference", "train"):
        backend = module["mLSTMBackend"](module["mLSTMBackendConfig"](mode=mode))
        out = backend(*x, return_last_states=False)
        assert isinstance(out, tuple) is (mode == "inference")
        native = CALLS.backend.mLSTMBackend(module["mLSTMBackendConfig"](mode=mode))
        assert torch.equal(native(*x, return_last_states=False), out[0] if mode == "inference" else out)


def test_a_call_compiles_into_one_graph() -> None:
    for name in ("mlstm_chunkwise__xl_chunk", "mlstm_siging_chunkwise__xl_chunk", "mlstm_parallel__limit_headdim"):
        kernel = CALLS.KERNELS[name]
        compiled = torch.compile(kernel, fullgraph=True, backend="eager")
        x = [t.float() for t in sequence()]
        torch.testing.assert_close(compiled(*x), kernel(*x))


def test_utils(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = CONTENTS[f"{TORCH}.utils"]
    assert utils["dtype2str"](torch.bfloat16) == "bf16"
    with pytest.raises(ValueError, match=r"dtype: expected one of torch.float32, .*, got torch.int8"):
        utils["dtype2str"](torch.int8)
    turned = torch.zeros(2, 3).T
    for decorate, before in ((utils["contiguous"], ("ctx",)), (utils["contiguous_noctx"], ())):
        flags = decorate(lambda *x, y: [t.is_contiguous() for t in (*x, y) if isinstance(t, Tensor)])
        assert flags(*before, turned, y=turned) == [True, True]
    array = utils["to_numpy"](torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
    assert array.dtype == "float64" and array.tolist() == [1, 1]
    assert utils["int_or_none"](torch.tensor(3)) == 3 and utils["tensor_or_none"](2).item() == 2
    assert utils["int_or_none"](None) is utils["tensor_or_none"](None) is None

# SPDX-License-Identifier: Apache-2.0
"""xLSTMLarge beside the official xlstm_large: logits and gradients, states, modes, errors."""

from __future__ import annotations

import logging
import re
import statistics

import pytest
import torch
from torch import nn

from support.peer_models import NATIVE, SMALL, at_every_split, official, relative, small_model, tokens
from xlstm_hip import get_mlstm_kernel, register_mlstm_kernel
from xlstm_hip._core.checks import IO_DTYPES
from xlstm_hip.mlstm import registry
from xlstm_hip.models import config as config_module
from xlstm_hip.models import mlstm_call, xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.models import xlstm_large as model_module

INFERENCE = {"mode": "inference", "return_last_states": True}
FUSED = {"chunkwise_kernel": "chunkwise--fused", "sequence_kernel": "fused", "step_kernel": "fused"}


def gradients(model: nn.Module, x: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    out = model(x)
    logits = out[0] if isinstance(out, tuple) else out
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).to(torch.float32), targets.flatten())
    model.zero_grad()
    loss.backward()
    return {"logits": logits.detach()} | {name: p.grad.clone() for name, p in model.named_parameters()}


def kind(name: str) -> str:
    return re.sub(r"blocks\.\d+", "blocks", name)


@pytest.mark.parametrize(
    "changes", [{}, {"weight_mode": "fused"}, {"use_bias": True}, {"add_out_norm": False}], ids=str
)
def test_logits_and_gradients_are_the_official_ones(changes: dict) -> None:
    """Against float64 the error is at most twice the official model's own in float32: of each draw the worst over
    blocks, and over 24 draws the geometric mean of the ratios, since a single one is decided by its roundings."""
    model = small_model(**changes)
    errors: dict[str, list[tuple[float, float]]] = {}
    for seed in range(24):
        x = tokens(2, 49, seed=seed)
        true = gradients(small_model(dtype=torch.float64, **changes), x[:, :-1], x[:, 1:])
        peer_gradients = gradients(official(model, chunk_size=48), x[:, :-1], x[:, 1:])
        actual = gradients(model, x[:, :-1], x[:, 1:])
        assert actual.keys() == peer_gradients.keys() == true.keys()
        worst: dict[str, tuple[float, float]] = {}
        for name, right in true.items():
            error, their = worst.get(kind(name), (0.0, 0.0))
            worst[kind(name)] = (
                max(error, relative(actual[name], right)),
                max(their, relative(peer_gradients[name], right)),
            )
        for name, pair in worst.items():
            errors.setdefault(name, []).append(pair)
    for name, pairs in errors.items():
        assert statistics.median(their for _, their in pairs) < 1e-3, name  # the truth itself is the official function
        assert statistics.geometric_mean(error / max(their, 1e-6) for error, their in pairs) <= 2, name


def test_bfloat16() -> None:
    x = tokens(2, 48)
    model = small_model(dtype=torch.bfloat16)
    peer = official(model, chunk_size=48)
    with torch.no_grad():
        true = xLSTMLarge(xLSTMLargeConfig(**SMALL)).double()
        true.load_state_dict(model.state_dict())
        right = true(x)
        assert relative(model(x), right) <= 2 * relative(peer(x)[0], right)


def test_states_are_the_official_ones() -> None:
    model, x = small_model(**INFERENCE), tokens(2, 21)
    peer = official(model, **INFERENCE)
    with torch.no_grad():
        _, state = model(x)
        _, peer_state = peer(x)
        for number, layer in state.items():
            for a, b in zip(layer, peer_state[number], strict=True):
                assert relative(a, b) < 1e-5
        next_logits, peer_next_logits = model(x[:, :1], state)[0], peer(x[:, :1], peer_state)[0]
    assert relative(next_logits, peer_next_logits) < 1e-5


@pytest.mark.parametrize(
    "changes", [{}, {"weight_mode": "fused"}, {"chunkwise_kernel": "chunkwise--fused_siging"}], ids=str
)
def test_prefill_then_steps_equals_prefill_at_every_split(changes: dict) -> None:
    model, x = small_model(dtype=torch.float64, **INFERENCE, **changes, inference_state_dtype="float64"), tokens(2, 13)
    with torch.no_grad():
        full, last = model(x)
        for split, at_once, one_by_one, state in at_every_split(model, x):
            assert relative(one_by_one, full) < 1e-12, split
            assert all(relative(a, b) < 1e-12 for n in last for a, b in zip(state[n], last[n], strict=True))
            assert relative(at_once, full) < 1e-12, split


def test_states_without_gradient_are_overwritten_and_with_gradient_are_not() -> None:
    model, x = small_model(**INFERENCE), tokens(1, 6)
    with torch.no_grad():
        _, state = model(x)
        before = {n: layer[0].data_ptr() for n, layer in state.items()}
        for length in (1, 4):
            _, last = model(x[:, :length], state)
            assert {n: layer[0].data_ptr() for n, layer in last.items()} == before
    copies = {n: tuple(s.clone() for s in layer) for n, layer in state.items()}
    logits, last = model(x, state)
    logits.sum().backward()
    for n, layer in state.items():
        assert all(torch.equal(a, b) for a, b in zip(layer, copies[n], strict=True))
        assert last[n][0].data_ptr() != layer[0].data_ptr()


def test_gradients_flow_through_states() -> None:
    """Two halves with the state between them have the gradient of the whole."""
    model, x = small_model(dtype=torch.float64, **INFERENCE), tokens(1, 20)
    grads = []
    for cut in (None, 9):
        model.zero_grad()
        if cut is None:
            logits = model(x)[0]
        else:
            first, state = model(x[:, :cut])
            logits = torch.cat((first, model(x[:, cut:], state)[0]), 1)
        nn.functional.cross_entropy(logits[0, :-1], x[0, 1:]).backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(relative(a, b) < 1e-9 for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("float32", (torch.float32, torch.float32, torch.float32)),
        ("bfloat16", (torch.bfloat16, torch.float32, torch.float32)),
        ("float16", (torch.float16, torch.float16, torch.float32)),
    ],
)
def test_state_dtype(name: str, dtypes: tuple[torch.dtype, ...]) -> None:
    model, x = small_model(**INFERENCE, inference_state_dtype=name), tokens(1, 8)
    with torch.no_grad():
        _, state = model(x)
        assert tuple(s.dtype for s in state[0]) == dtypes
        _, state = model(x[:, :1], state)
        assert tuple(s.dtype for s in state[0]) == dtypes
        _, state = model(x[:, :2], state)
    assert tuple(s.dtype for s in state[0]) == dtypes


@pytest.mark.parametrize("lengths", [(7, 20, 1), (20, 20, 19)])
def test_left_padding_changes_nothing(lengths: tuple[int, ...]) -> None:
    model = small_model(dtype=torch.float64, **INFERENCE)
    x = tokens(len(lengths), 20)
    mask = torch.stack([torch.arange(20) >= 20 - n for n in lengths])
    with torch.no_grad():
        padded, state = model(x.masked_fill(~mask, 0), mask=mask)
        for row, length in enumerate(lengths):
            alone, last = model(x[row : row + 1, -length:])
            assert relative(padded[row : row + 1, -length:], alone) < 1e-12
            for n, layer in last.items():
                assert all(relative(a[row : row + 1], b) < 1e-12 for a, b in zip(state[n], layer, strict=True))


def test_modes() -> None:
    x = tokens(1, 8)
    with torch.no_grad():
        plain = small_model(mode="train")(x)
        assert torch.equal(small_model(mode="train_with_padding")(x), plain)
        logits, state = small_model(mode="train", return_last_states=True)(x)
        assert torch.allclose(logits, plain, atol=1e-4)
        assert sorted(state) == [0, 1, 2]
        assert torch.is_tensor(small_model(mode="inference")(x))
    with pytest.raises(ValueError, match="return_last_states"):
        small_model(mode="train_with_padding", return_last_states=True)


def test_a_kernel_that_takes_multiples_of_chunk_size_alone() -> None:
    def picky(*args, chunk_size, **kwargs):
        assert kwargs["q"].shape[2] % chunk_size == 0
        return get_mlstm_kernel("chunkwise--fused")(*args, chunk_size=chunk_size, **kwargs)

    name = "chunkwise--picky_for_models"
    register_mlstm_kernel(
        name, picky, kind="chunkwise", devices=("cpu",), dtypes=IO_DTYPES, gradient="exact", any_length=False
    )
    try:
        x = tokens(1, 37)
        with torch.no_grad():
            actual, want = small_model(chunkwise_kernel=name, **INFERENCE)(x), small_model(**INFERENCE)(x)
        assert relative(actual[0], want[0]) < 1e-5
    finally:
        registry.unregister_mlstm_kernel(name, "chunkwise")


def test_activation_checkpointing_changes_nothing() -> None:
    model, x = small_model(dtype=torch.float64), tokens(2, 24)
    plain = gradients(model, x[:, :-1], x[:, 1:])
    model.backbone.activation_checkpointing = True
    again = gradients(model, x[:, :-1], x[:, 1:])
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def watch(block: nn.Module, seen: list[torch.Tensor]) -> None:
    block.register_forward_hook(lambda module, args, out: seen.append(out[0].detach()))


@pytest.mark.parametrize("watched", [(1,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_block_that_is_called_has_the_sum_that_a_norm_adds_otherwise(dtype: torch.dtype, watched: tuple) -> None:
    """A block leaves its last addition to the next norm, unless that block or its own has to be called."""
    x = tokens(2, 34)
    model, called = small_model(dtype=dtype), small_model(dtype=dtype)
    seen: list[torch.Tensor] = []
    for number in watched:
        watch(called.backbone.blocks[number], seen)
    want, got = gradients(model, x[:, :-1], x[:, 1:]), gradients(called, x[:, :-1], x[:, 1:])
    assert len(seen) == len(watched) and all(out.shape == (2, 33, model.config.embedding_dim) for out in seen)
    assert want["logits"].equal(got["logits"])
    for name, right in want.items() if dtype == torch.float32 else ():
        assert relative(got[name], right) <= 4e-6, name


def test_select_optimal_kernels(caplog: pytest.LogCaptureFixture) -> None:
    model = small_model(chunkwise_kernel="chunkwise--native_autograd")
    with caplog.at_level(logging.INFO, "xlstm_hip"):
        for length in (8192, 16):
            assert model.select_optimal_kernels(1, length)["chunkwise_kernel"] == "chunkwise--fused"
    assert model.config.chunkwise_kernel == "chunkwise--fused"
    assert [r.message for r in caplog.records] == ["kernels for batch 1, length 8192: chunkwise--fused, fused, fused"]
    with pytest.raises(ValueError, match="batch_size"):
        model.select_optimal_kernels(0, 1)


def test_select_optimal_kernels_keeps_the_gate() -> None:
    model, x = small_model(chunkwise_kernel="chunkwise--native_siging_autograd", step_kernel="native"), tokens(1, 9)
    with torch.no_grad():
        want = model(x)
        chosen = model.select_optimal_kernels(1, 9)
        assert list(chosen.values()) == ["chunkwise--fused_siging", "fused_siging", "fused_siging"]
        assert relative(model(x), want) < 1e-5


def test_auto_kernels_are_chosen_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the shape and device of its tokens; the configuration keeps its "auto"."""
    calls = []

    def chosen(batch_size: int, seq_len: int, head_dim: int, device: torch.device, gate: str) -> dict[str, str]:
        calls.append((batch_size, seq_len, head_dim, str(device), gate))
        return NATIVE if seq_len > 4 else FUSED

    ran = []
    monkeypatch.setattr(config_module, "get_optimal_kernel_config", chosen)
    called = mlstm_call.mlstm_interface
    monkeypatch.setattr(mlstm_call, "mlstm_interface", lambda *x, **y: ran.append(y["kernel"]) or called(*x, **y))
    model, x = small_model(**dict.fromkeys(NATIVE, "auto"), **INFERENCE), tokens(2, 9)
    with torch.no_grad():
        calls.clear()
        logits, state = model(x)
        assert (set(calls), set(ran)) == ({(2, 9, 32, "cpu", "exp")}, {"chunkwise--native_autograd"})
        assert relative(logits, small_model(**INFERENCE)(x)[0]) < 1e-5
        ran.clear()
        model(x[:, :4])
        assert set(ran) == {"chunkwise--fused"}
        calls.clear()
        model(x[:, :1], state)
        assert set(calls) == {(2, 1, 32, "cpu", "exp")}
        assert model._decoded(x[:, 0], state, None) is not None, "which is the decode engine's, as the step is fused"
    assert model.config.chunkwise_kernel == "auto" and model.config.gate == "exp"
    assert small_model(step_kernel="auto", chunkwise_kernel="chunkwise--native_siging_autograd").config.kernels(
        device="cpu"
    )["chunkwise_kernel"] == "chunkwise--native_siging_autograd"  # fmt: skip


def test_auto_kernels_where_the_library_has_none() -> None:
    config = xLSTMLargeConfig(**SMALL, **dict.fromkeys(NATIVE, "auto"))
    assert config.kernels(1, 8, "cpu") == FUSED and config.kernels(1, 8, "mps") == NATIVE
    sigmoid = xLSTMLargeConfig(**SMALL, chunkwise_kernel="chunkwise--native_siging_custbw", step_kernel="auto")
    assert sigmoid.kernels(1, 8, "cpu")["step_kernel"] == "fused_siging"


def test_auto_kernels_compile_into_one_graph() -> None:
    model, x = small_model(**dict.fromkeys(NATIVE, "auto")), tokens(1, 9)
    with torch.no_grad():
        actual = torch.compile(model, fullgraph=True, backend="eager")(x)
        assert relative(actual, model(x)) < 1e-5


def test_options_reach_their_kernel() -> None:
    """heads_per_band, workers and streams are of the queued kernel; others refuse them by name."""
    received: list[dict] = []

    def recording(*args, heads_per_band=None, workers=None, streams=None, **call):
        received.append({"heads_per_band": heads_per_band, "workers": workers, "streams": streams})
        return get_mlstm_kernel("chunkwise--fused")(*args, **call)

    name, facts = "chunkwise--recording_for_models", {"devices": ("cpu",), "dtypes": IO_DTYPES, "gradient": "exact"}
    options = {"heads_per_band": 2, "workers": 3, "streams": 1}
    register_mlstm_kernel(name, recording, kind="chunkwise", options=tuple(options), **facts)
    try:
        model = small_model(chunkwise_kernel=name, **options)
        model(tokens(1, 5))
        assert received == [options] * SMALL["num_blocks"]
        model.config.workers, model.config.streams = 1, None
        model(tokens(1, 5))
        assert received[-1] == {"heads_per_band": 2, "workers": 1, "streams": None}
    finally:
        registry.unregister_mlstm_kernel(name, "chunkwise")
    queued = registry.kernel_info("chunkwise--queued_compiled_steps")
    assert set(options) == set(queued.options)


def test_is_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    assert small_model().is_amd is False
    with torch.device("meta"):
        assert xLSTMLarge(xLSTMLargeConfig(**SMALL)).is_amd is False
    monkeypatch.setattr(xLSTMLarge, "device", torch.device("cuda:1"))
    monkeypatch.setattr(model_module, "is_amd_gpu", lambda device: device.index == 1)
    assert small_model().is_amd is True


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_blocks": 0}, "num_blocks: expected an integer >= 1, got 0"),
        ({"weight_mode": "both"}, "weight_mode: expected one of 'single', 'fused', got 'both'"),
        ({"num_heads": 3}, "qk_dim_factor: expected embedding_dim"),
        ({"chunkwise_kernel": "chunkwise--fusd"}, "Did you mean 'chunkwise--fused'"),
        ({"mode": "eval"}, "mode: expected one of"),
        ({"workers": 2}, r"workers: kernel 'chunkwise--fused' has no such option \(it has .*\), got 2"),
        ({"streams": 2, "chunkwise_kernel": "chunkwise--ray_compiled_steps"}, "streams: kernel 'chunkwise--ray"),
        (
            {"heads_per_band": 0, "chunkwise_kernel": "chunkwise--ray_compiled_steps"},
            "heads_per_band: expected an integ",
        ),
        ({"workers": 2, "chunkwise_kernel": "auto"}, "workers: expected None with chunkwise_kernel='auto', got 2"),
        ({"gate_soft_cap": 0.0}, "gate_soft_cap: expected a number > 0, got 0.0"),
    ],
)
def test_wrong_fields(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        xLSTMLargeConfig(**{**SMALL, **changes})


def test_wrong_calls() -> None:
    model = small_model()
    with pytest.raises(ValueError, match=r"x: expected 2 dimensions \(B, S\), got 1"):
        model(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="mask: expected shape"):
        model(tokens(1, 4), mask=torch.ones(1, 3))
    with pytest.raises(ValueError, match="state: expected blocks 0 to 2, got"):
        model(tokens(1, 4), {})
    with pytest.raises(TypeError, match="x: expected int32 or int64, got torch.float32"):
        model(torch.zeros(1, 4))
    most = SMALL["vocab_size"] - 1
    with pytest.raises(IndexError, match=f"x: expected token ids from 0 to {most}, got 0 to {most + 1}"):
        model(torch.tensor([[0, most + 1]]))
    with pytest.raises(ValueError, match=r"expected 'sample' with temperature=5\.0, got 'greedy'"):
        model.generate(tokens(1, 4), 3, "greedy", temperature=5.0)


@pytest.mark.parametrize("length", [1, 3])
def test_a_state_that_does_not_fit_is_left_as_it_is(length: int) -> None:
    """Of whichever block: what is wrong with the last is told before the first is overwritten."""
    model, x = small_model(mode="inference", return_last_states=True), tokens(2, 9)
    with torch.no_grad():
        _, state = model(x)
    c, n, m = state[2]
    for wrong, words in (
        ((c[:, :, 1:], n, m), r"state\[2\]: c: expected shape"),
        ((c, n[:1], m), r"state\[2\]: n: expected shape"),
        ((c, n, m[..., 0]), r"state\[2\]: m: expected shape"),
        ((c, n, m.long()), r"state\[2\]: m: expected floats on cpu, as the tokens, got int64"),
        ((c, n), r"state\[2\]: expected three tensors \(c, n, m\), got \(Tensor, Tensor\)"),
        ((c, n, None), r"state\[2\]: expected three tensors \(c, n, m\), got \(Tensor, Tensor, NoneType\)"),
    ):
        before = {block: tuple(t.clone() for t in layer) for block, layer in state.items()}
        bad_state = {**state, 2: wrong}
        with torch.no_grad(), pytest.raises((ValueError, TypeError), match=words):
            model.hidden(x[:, :length], bad_state)
        assert all(torch.equal(a, b) for block in before for a, b in zip(before[block], state[block], strict=True))


def test_the_7b_has_its_size() -> None:
    with torch.device("meta"):
        model = xLSTMLarge(xLSTMLargeConfig(embedding_dim=4096, num_heads=8, num_blocks=32, vocab_size=50304))
    assert len(model.state_dict()) == 483
    assert sum(p.numel() for p in model.parameters()) == 6_865_424_896

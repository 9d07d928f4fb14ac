# SPDX-License-Identifier: Apache-2.0
"""The decode engine beside the same model in float64, layer by layer; and when it must not, or not yet, be used."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.engine_calls import (
    calls_for_graphs,
    copied,
    counted,
    in_double,
    layer_by_layer,
    no_worse_than_layers,
    state_after,
    steps,
)
from support.peer_models import relative, small_model, tokens
from xlstm_hip.models import Stream, decode_engine, generate, xLSTMLarge
from xlstm_hip.models.config_files import SpecialTokens
from xlstm_hip.models.quantize import QuantizedLinear, quantize

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEAD = (4, 8, 16)  # NH, DHQK, DHHV


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 7, 9])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_mode", ["single", "fused"])
def test_error(dtype: torch.dtype, batch: int, weight_mode: str) -> None:
    model = small_model(dtype=dtype, weight_mode=weight_mode, use_bias=batch % 2 == 1)
    no_worse_than_layers(model, in_double(model), batch, 4, states=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"embedding_dim": 40, "num_heads": 2, "ffn_round_up_to_multiple_of": 3, "vocab_size": 33},
        {"embedding_dim": 36, "num_heads": 3, "qk_dim_factor": 0.25, "ffn_round_up_to_multiple_of": 7},
        {"gate_soft_cap": None, "output_logit_soft_cap": None, "add_out_norm": False},
        {"embedding_dim": 256, "num_heads": 1, "v_dim_factor": 2.0, "vocab_size": 700},
    ],
    ids=["odd", "thirds", "bare", "wide"],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shapes(changes: dict, dtype: torch.dtype) -> None:
    model = small_model(dtype=dtype, **changes)
    no_worse_than_layers(model, in_double(model), 3, 2, model.config.vocab_size)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_the_same_in_any_company(dtype: torch.dtype, threads: int) -> None:
    model = small_model(dtype=dtype)
    begun, x = state_after(model, tokens(11, 5)), tokens(11, 3, seed=2)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        batch_state = copied(begun)
        batch_logits = steps(model, batch_state, x)
    finally:
        torch.set_num_threads(before)
    for row in (0, 3, 6, 10):
        state = {n: tuple(s[row : row + 1].clone() for s in layer) for n, layer in begun.items()}
        assert torch.equal(steps(model, state, x[row : row + 1])[0], batch_logits[row])
        assert all(torch.equal(a[0], b[row]) for n in state for a, b in zip(state[n], batch_state[n], strict=True))


def test_rows_that_are_masked_keep_their_states() -> None:
    model = small_model()
    begun, x = state_after(model, tokens(4, 5)), tokens(4, 1, seed=2)
    keep = torch.tensor([True, False, True, False])
    all_state, state = copied(begun), copied(begun)
    every = model.step(x[:, 0], all_state)
    with counted() as calls:
        actual = model.step(x[:, 0], state, keep)
    assert calls == [4]
    with torch.no_grad():
        assert torch.equal(model(x, copied(begun), mask=keep[:, None])[:, 0], actual)
    assert torch.equal(actual[keep], every[keep])
    for n, layer in begun.items():
        for new, old, moved in zip(state[n], layer, all_state[n], strict=True):
            assert torch.equal(new[~keep], old[~keep])
            assert torch.equal(new[keep], moved[keep])


def test_forward_and_stream_use_it() -> None:
    model = small_model(dtype=torch.bfloat16, mode="inference", return_last_states=True)
    x = tokens(2, 6)
    with counted() as calls, torch.no_grad():
        _, state = model(x[:, :5])
        logits, same = model(x[:, 5:], state)
        assert logits.shape == (2, 1, 97) and logits.dtype == torch.bfloat16 and same is state
        stream = Stream(model, 2)
        stream.feed(x[:, :5])
        assert torch.equal(stream.feed(x[:, 5:]).bfloat16(), logits[:, 0])
    assert calls == [2, 2]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "top_k": 40, "repetition_penalty": 1.1}])
def test_the_same_text_as_layer_by_layer(options: dict) -> None:
    model = small_model()
    model.special_tokens = SpecialTokens(pad=1)
    prompts = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15]]
    with counted() as calls:
        actual = generate(model, prompts, 24, seed=3, eos=(11, 30), **options)
    assert calls and set(calls) == {4}
    with layer_by_layer():
        want = generate(model, prompts, 24, seed=3, eos=(11, 30), **options)
    assert torch.equal(actual.tokens, want.tokens) and torch.equal(actual.lengths, want.lengths)
    for n, layer in want.state.items():
        assert all(relative(a, b) < 1e-4 for a, b in zip(actual.state[n], layer, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_rows_go_through_the_layers(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's step is theirs, in float32, and overwrites the same states."""
    model = small_model(dtype=dtype)
    begun, x = state_after(model, tokens(3, 5)), tokens(3, 4, seed=2)
    masks = [None, torch.tensor([True, False, True]), None, torch.zeros(3, dtype=torch.bool)]
    monkeypatch.setattr(decode_engine, "MOST_ROWS", 2)
    state, want_state = copied(begun), copied(begun)
    addresses = [s.data_ptr() for layer in state.values() for s in layer]
    for t, mask in enumerate(masks):
        with counted() as calls:
            actual = model.step(x[:, t], state, mask)
        assert calls == [3] and actual.dtype == torch.float32
        with layer_by_layer():
            assert torch.equal(actual, model.step(x[:, t], want_state, mask).float())
        for a, b in zip(state.values(), want_state.values(), strict=True):
            assert all(torch.equal(new, want) for new, want in zip(a, b, strict=True))
    assert addresses == [s.data_ptr() for layer in state.values() for s in layer]
    assert not torch.equal(model.step(x[:2, 0], {n: tuple(s[:2].clone() for s in y) for n, y in begun.items()}), actual)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("step_kernel", ["fused", "native"])
def test_states_of_bfloat16_go_through_the_layers(dtype: torch.dtype, step_kernel: str) -> None:
    """In the engine's step, and in their memory: a graph holds them. Their steps round as the layers' alone do."""
    model = small_model(dtype=dtype, inference_state_dtype="bfloat16", step_kernel=step_kernel)
    begun, x = state_after(model, tokens(3, 5)), tokens(3, 4, seed=2)
    assert {tuple(s.dtype for s in layer) for layer in begun.values()} == {
        (torch.bfloat16, torch.float32, torch.float32)
    }
    state, want_state = copied(begun), copied(begun)
    addresses = [s.data_ptr() for layer in state.values() for s in layer]
    for t, mask in enumerate((None, torch.tensor([True, False, True]), None, torch.zeros(3, dtype=torch.bool))):
        before = copied(state)
        with counted() as calls:
            actual = model.step(x[:, t], state, mask)
        assert calls == ([3] if step_kernel == "fused" else [])
        with layer_by_layer():
            assert torch.equal(actual.float(), model.step(x[:, t], want_state, mask).float())
        for n, layer in state.items():
            assert all(map(torch.equal, layer, want_state[n]))
            for row in range(3):
                stays = mask is not None and not mask[row]
                assert torch.equal(layer[0][row], before[n][0][row]) == stays
    assert addresses == [s.data_ptr() for layer in state.values() for s in layer]
    wide = {n: (c.float(), *n_and_m) for n, (c, *n_and_m) in copied(begun).items()}
    with counted() as calls:  # states of another dtype than the configuration's become its own
        model.step(x[:, 0], wide)
        assert not calls
        model.step(x[:, 1], wide)
    assert wide[0][0].dtype == torch.bfloat16 and calls == ([3] if step_kernel == "fused" else [])


def test_which_rows_go_through_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(**options: Any) -> int:
        model = small_model(**options)
        engine = decode_engine.engine_of(model, model._new_engine)
        return next(rows for rows in range(100) if engine.runs_layers((rows, *HEAD)))

    assert first() == first(dtype=torch.bfloat16) == 65  # a CPU
    model = small_model(dtype=torch.bfloat16)
    engine = decode_engine.engine_of(model, model._new_engine)
    engine._first = (torch.bfloat16, torch.device("cuda"))
    for version, rows in ((None, 9), ("7.2", 65)):
        monkeypatch.setattr(torch.version, "hip", version)
        assert [engine.runs_layers((n, *HEAD)) for n in (rows - 1, rows)] == [False, True]
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setenv("XLSTM_HIP_DECODE_OP_ROWS", "200")  # the user's word is the last
    assert [engine.runs_layers((n, *HEAD)) for n in (200, 201)] == [False, True]
    monkeypatch.setenv("XLSTM_HIP_DECODE_OP_ROWS", "-1")
    with pytest.raises(ValueError, match="XLSTM_HIP_DECODE_OP_ROWS: expected a number of rows, 0 or more, or nothing"):
        engine.runs_layers((1, *HEAD))
    monkeypatch.setenv("XLSTM_HIP_DECODE_OP_ROWS", "")
    quantised = quantize(small_model(dtype=torch.bfloat16), 8, progress=False)[0]
    for mixed, has_kernels, expected in (
        (small_model(), True, False),
        (quantised, False, False),
        (quantised, True, True),
    ):
        engine = mixed._new_engine()
        engine._first = (torch.bfloat16, torch.device("cuda"))
        monkeypatch.setattr(QuantizedLinear, "takes", lambda layer, rows, dtype, has=has_kernels: has)
        assert [engine.runs_layers((n, *HEAD)) for n in (8, 9, 64, 65)] == [False, expected, expected, True]


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Callable]:
    """What would be captured as graphs, which are stood in for by calls made again: a GPU is not asked for."""
    return calls_for_graphs(monkeypatch)


@torch.no_grad()
def layers(model: xLSTMLarge, state: dict, out: Tensor, x: Tensor, keep: Tensor | None) -> None:
    out.copy_(model._stepped_by_layers(x, state, keep))


def test_a_graph_of_a_step(captures: list[Callable]) -> None:
    model = small_model()
    begun, x = state_after(model, tokens(2, 5)), tokens(2, 5, seed=2)
    engine = decode_engine.engine_of(model, model._new_engine)
    numbers = decode_engine.Numbers(4, 1e-6, 15.0, 30.0)
    keep = torch.tensor([True, False])
    for mask, by_layers in itertools.product((None, keep), (False, True)):
        want_state, state = copied(begun), copied(begun)
        states = [s for n in sorted(state) for s in state[n]]
        graph = decode_engine.StepGraph()
        call = functools.partial(engine._call, states=states, numbers=numbers)
        if by_layers:
            call = functools.partial(layers, model, state)
        results = []
        for t in range(5):
            step_mask = mask if mask is None or t != 3 else ~mask
            with layer_by_layer() if by_layers else contextlib.nullcontext():
                want = model.step(x[:, t], want_state, step_mask)
            results.append(graph.step(call, (2, 97), x[:, t], step_mask))
            assert torch.equal(results[-1], want)
        assert not torch.equal(results[0], results[1])  # results are not the graph's memory
        assert all(torch.equal(a, b) for n in state for a, b in zip(state[n], want_state[n], strict=True))
    assert len(captures) == 4


def test_a_graph_of_a_step_with_states_of_bfloat16(captures: list[Callable]) -> None:
    model = small_model(inference_state_dtype="bfloat16")
    begun, x = state_after(model, tokens(2, 5)), tokens(2, 5, seed=2)
    for keep in (None, torch.tensor([True, False])):
        want_state, state, graph = copied(begun), copied(begun), decode_engine.StepGraph()
        for t in range(5):
            want = model.step(x[:, t], want_state, keep)
            with layer_by_layer():
                assert torch.equal(graph.step(functools.partial(layers, model, state), (2, 97), x[:, t], keep), want)
        assert all(torch.equal(a, b) for n in state for a, b in zip(state[n], want_state[n], strict=True))
    assert len(captures) == 2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.9, "top_k": 30, "repetition_penalty": 1.2},
        {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "min_p": 0.02, "stop": [[7, 8], [9]]},
    ],
    ids=str,
)
def test_a_graph_of_a_step_with_its_draw(
    captures: list[Callable], monkeypatch: pytest.MonkeyPatch, options: dict
) -> None:
    """One capture for a whole text, whose replays take nothing but what they hold."""
    model = small_model()
    model.special_tokens = SpecialTokens(pad=1)
    prompts = [[5, 6, 7], [8], [14, 15]]
    want = generate(model, prompts, 30, seed=4, eos=(11, 30), **options)
    keys = []

    def step(self, rows, states, keep, numbers, layers, then):
        key = (then.key, rows.data_ptr(), keep.data_ptr())
        if key not in keys:
            keys.append(key)
        call = functools.partial(self._call, states=states, numbers=numbers)
        return self._graph_of(key).step(call, (3, 97), rows, keep, then)

    monkeypatch.setattr(decode_engine.DecodeEngine, "step", step)
    actual = generate(model, prompts, 30, seed=4, eos=(11, 30), **options)
    assert torch.equal(actual.tokens, want.tokens) and torch.equal(actual.lengths, want.lengths)
    assert len(keys) == len(captures) == 1
    for n, state in want.state.items():
        assert all(torch.equal(a, b) for a, b in zip(actual.state[n], state, strict=True))


def test_how_many_graphs_are_kept() -> None:
    """One, or as many as was asked for, also of an engine that is built again; the used last stay."""
    model = small_model()
    engine = decode_engine.engine_of(model, model._new_engine)
    first = engine._graph_of(("a",))
    assert engine._graph_of(("a",)) is first and engine._graph_of(("b",)) and engine._graph_of(("a",)) is not first
    decode_engine.keep_step_graphs(model, 3)
    graphs = {key: engine._graph_of((key,)) for key in "abc"}
    assert engine._graph_of(("a",)) is graphs["a"] and engine._graph_of(("d",)) is not None
    assert engine._graph_of(("a",)) is graphs["a"] and engine._graph_of(("c",)) is graphs["c"]
    assert engine._graph_of(("b",)) is not graphs["b"]
    decode_engine.drop_engine(model)
    assert decode_engine.engine_of(model, model._new_engine).most_graphs == 3


# ---- weights that change


def moved_in_place(model: xLSTMLarge) -> None:
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)


def loaded(model: xLSTMLarge) -> None:
    model.load_state_dict({name: -x for name, x in model.state_dict().items()})


def assigned(model: xLSTMLarge) -> None:
    model.load_state_dict({name: -x for name, x in model.state_dict().items()}, assign=True)


def new_parameter(model: xLSTMLarge) -> None:
    norm = model.backbone.blocks[1].norm_ffn
    norm.weight = nn.Parameter(-norm.weight.detach())


def new_module(model: xLSTMLarge) -> None:
    layer = model.backbone.blocks[0].mlstm_layer
    layer.v = nn.Linear(128, 128, bias=False)


def new_dtype(model: xLSTMLarge) -> None:
    model.bfloat16()


def trained(model: xLSTMLarge) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.enable_grad():
        model.loss(tokens(2, 8), tokens(2, 8, seed=4)).backward()
    optimizer.step()


def swapped(model: xLSTMLarge) -> None:
    blocks = model.backbone.blocks
    blocks[0], blocks[1] = blocks[1], blocks[0]


def other_backbone(model: xLSTMLarge) -> None:
    model.backbone = small_model(seed=5).backbone


def other_eps(model: xLSTMLarge) -> None:
    for norm in model.backbone.modules():
        if hasattr(norm, "eps"):
            norm.eps = 0.5


@pytest.mark.parametrize(
    "change",
    [
        moved_in_place,
        loaded,
        assigned,
        new_parameter,
        new_module,
        new_dtype,
        trained,
        swapped,
        other_backbone,
        other_eps,
    ],
)
def test_no_weight_is_stale(change) -> None:
    model = small_model()
    begun, x = state_after(model, tokens(1, 5)), tokens(1, 1, seed=2)
    before = model.step(x[:, 0], copied(begun))
    change(model)
    with counted() as calls:
        after = model.step(x[:, 0], copied(begun))
    with layer_by_layer():
        want = model.step(x[:, 0], copied(begun))
    assert calls == [1]
    assert relative(after, want) < (0.05 if change is new_dtype else 1e-5)
    assert relative(after, before) > (1e-4 if change in (new_dtype, trained) else 0.01)


# ---- when it steps aside


def hooked_linear(model: xLSTMLarge) -> None:
    model.backbone.blocks[1].ffn.proj_down.register_forward_hook(lambda module, inputs, output: output * 2)


def hooked_block(model: xLSTMLarge) -> None:
    model.backbone.blocks[1].register_forward_pre_hook(lambda module, inputs: None)


def patched(model: xLSTMLarge) -> None:
    norm = model.backbone.out_norm
    norm.forward = lambda x: x


def hooked_parts(model: xLSTMLarge) -> None:
    block = model.backbone.blocks[1]
    for part in (block.norm_mlstm, block.mlstm_layer.multihead_norm, block.norm_ffn, block.ffn):
        part.register_forward_hook(lambda module, inputs, output: output * 2)


def other_norm(model: xLSTMLarge) -> None:
    model.backbone.blocks[1].norm_ffn = nn.LayerNorm(model.config.embedding_dim)


def wrapped_backbone(model: xLSTMLarge) -> None:
    model.backbone.register_forward_hook(lambda module, inputs, output: (output[0] * 2, output[1]))


class Other(nn.Parameter):
    pass


def other_tensor(model: xLSTMLarge) -> None:
    model.lm_head.weight = Other(model.lm_head.weight.detach())


class Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def other_class(model: xLSTMLarge) -> None:
    model.backbone.blocks[0].mlstm_layer.out_proj.__class__ = Doubling


@pytest.mark.parametrize(
    "change",
    [
        hooked_linear,
        hooked_block,
        patched,
        other_class,
        hooked_parts,
        other_norm,
        wrapped_backbone,
        other_tensor,
        lambda model: model.double(),
        lambda model: setattr(model.config, "step_kernel", "native"),
        lambda model: setattr(model.config, "inference_state_dtype", "float16"),
        lambda model: setattr(model.config, "chunkwise_kernel", "chunkwise--fused_siging"),
    ],
)
@pytest.mark.parametrize("after_a_step", [False, True])
def test_models_for_the_layers_alone(change, after_a_step: bool) -> None:
    model = small_model()
    begun, x = state_after(model, tokens(2, 5)), tokens(2, 1, seed=2)
    if after_a_step:
        model.step(x[:, 0], copied(begun))
    change(model)
    dtype = model.embedding.weight.dtype
    with counted() as calls:
        actual = model.step(x[:, 0], copied(begun, dtype))
    assert not calls and actual.dtype == dtype
    with layer_by_layer():
        assert torch.equal(actual, model.step(x[:, 0], copied(begun, dtype)))


def test_every_part_can_be_watched() -> None:
    model, seen = small_model(mode="inference", return_last_states=True), []
    plain = model(tokens(1, 5))[0].detach()
    for name, part in model.named_modules():
        part.register_forward_hook(lambda module, inputs, output, name=name: seen.append(name))
    assert relative(model(tokens(1, 5))[0].detach(), plain) < 1e-5
    assert set(seen) == {name for name, part in model.named_modules()} - {"backbone.blocks"}


def test_a_default_device_is_not_the_table_s() -> None:
    model = small_model()
    begun, x = state_after(model, tokens(1, 5)), tokens(1, 1, seed=2)
    want = model.step(x[:, 0], copied(begun))
    again = small_model()
    with counted() as calls, torch.device("meta"):
        assert torch.equal(again.step(x[:, 0], copied(begun)), want)
    assert calls == [1]


@pytest.mark.parametrize("wrong", [None, [1], {0: 1, 1: None, 2: None}, {n: (None,) * 3 for n in range(3)}])
def test_states_that_are_none(wrong) -> None:
    with pytest.raises(TypeError, match=r"state(\[0\])?: expected (a dict of|three tensors) \(c, n, m\)"):
        small_model().step(tokens(1, 1)[:, 0], wrong)


def test_calls_for_the_layers_alone() -> None:
    model = small_model()
    begun, x = state_after(model, tokens(2, 5)), tokens(2, 2, seed=2)
    with counted() as calls:
        model(x[:, :1], copied(begun))  # wants gradients
        with torch.no_grad():
            model(x, copied(begun))  # two tokens
            transposed = {n: (c.mT.contiguous().mT, *n_and_m) for n, (c, *n_and_m) in copied(begun).items()}
            model.step(x[:, 0], transposed)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                model.step(x[:, 0], copied(begun))
    assert not calls

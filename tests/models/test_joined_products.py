# SPDX-License-Identifier: Apache-2.0
"""Linear layers of one input as one product in training: the same numbers, and every module that must run by itself."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from support.peer_models import relative, small_model, tokens
from xlstm_hip.models import joined_products, xLSTMLarge


def passes(model: xLSTMLarge, seed: int = 0, autocast: bool = False) -> dict[str, Tensor]:
    """Logits and the gradients of all weights that have one."""
    x = tokens(2, 34, seed=seed)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(x[:, :-1])
    model.zero_grad()
    nn.functional.cross_entropy(logits.flatten(0, 1).to(torch.float64), x[:, 1:].flatten()).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach()} | gradients


def separately(model: xLSTMLarge) -> xLSTMLarge:
    """The same model with each product by itself: a module with a hook has to be called."""
    for name, module in model.named_modules():
        if name.endswith((".q", ".igate_preact", ".proj_up_gate")):
            module.register_forward_hook(lambda module, args, output: None)
    return model


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[int]]:
    """The output features of each linear product of a call."""

    def of(call: Callable[[], object]) -> list[int]:
        found: list[int] = []
        linear = nn.functional.linear

        def counted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            found.append(weight.shape[0])
            return linear(x, weight, bias)

        with monkeypatch.context() as patch:
            patch.setattr(nn.functional, "linear", counted)
            call()
        return found

    return of


@pytest.mark.parametrize("changes", [{}, {"use_bias": True}], ids=str)
def test_the_numbers_of_separate_products(changes: dict) -> None:
    actual = passes(small_model(dtype=torch.float64, **changes))
    right = passes(separately(small_model(dtype=torch.float64, **changes)))
    assert actual.keys() == right.keys()
    assert {name: x for name in right if (x := relative(actual[name], right[name])) > 1e-12} == {}


def test_five_products_a_block(products) -> None:
    model = small_model()
    config, layer, ffn = model.config, model.backbone.blocks[0].mlstm_layer, model.backbone.blocks[0].ffn
    one = [2 * config.qk_dim + 2 * config.v_dim, 2 * config.num_heads, config.embedding_dim]
    block = [*one, 2 * config.ffn_dim, config.embedding_dim]
    assert products(lambda: model(tokens(1, 8))) == [*block * config.num_blocks, config.vocab_size]
    apart = [layer.q, layer.k, layer.v, layer.ogate_preact, layer.igate_preact, layer.fgate_preact]
    apart += [layer.out_proj, ffn.proj_up_gate, ffn.proj_up, ffn.proj_down]
    with torch.no_grad():  # nothing to add up, and weights would be copied in each call
        found = products(lambda: model(tokens(1, 8)))
    assert sorted(found[: len(apart)]) == sorted(x.out_features for x in apart)


def test_autocast_is_as_exact_as_separate_products() -> None:
    """Both against float64: over 12 draws the geometric mean of the errors' ratios is at most twice that of separate
    products, in logits and in the gradient of each weight."""
    ratios: dict[str, list[float]] = {}
    for seed in range(12):
        right = passes(small_model(dtype=torch.float64), seed)
        actual, apart = passes(small_model(), seed, True), passes(separately(small_model()), seed, True)
        for name, truth in right.items():
            errors = relative(actual[name], truth), relative(apart[name], truth)
            ratios.setdefault(name, []).append(errors[0] / errors[1])
    assert {name: r for name, x in ratios.items() if (r := statistics.geometric_mean(x)) > 2} == {}


def test_norms_have_the_dtype_of_products_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a module that others see reads them."""
    model, seen = small_model(), []
    linear = nn.functional.linear

    def watched(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(x.dtype)
        return linear(x, weight, bias)

    monkeypatch.setattr(nn.functional, "linear", watched)
    passes(model, autocast=True)
    assert set(seen[:-1]) == {torch.bfloat16}  # the head reads the last norm, a module of its own
    seen.clear()
    model.backbone.blocks[0].mlstm_layer.register_forward_hook(lambda module, args, output: seen.append(args[0].dtype))
    passes(model, autocast=True)
    assert seen[:2] == [torch.float32] * 2 and torch.float32 in seen[2:4] and torch.bfloat16 in seen


def test_a_frozen_weight_gets_no_gradient() -> None:
    model, right = small_model(dtype=torch.float64), passes(small_model(dtype=torch.float64))
    frozen = "backbone.blocks.0.mlstm_layer.k.weight"
    model.get_parameter(frozen).requires_grad_(False)
    actual = passes(model)
    assert right.keys() - actual.keys() == {frozen}
    assert all(relative(x, right[name]) < 1e-12 for name, x in actual.items())


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.register_forward_hook(lambda module, args, output: 2 * output),
        lambda x: x.register_full_backward_hook(lambda module, dx, dy: (2 * dx[0],)),
        lambda x: setattr(x, "forward", lambda y: 2 * nn.functional.linear(y, x.weight)),
        lambda x: setattr(x, "__class__", Doubled),
        lambda x: nn.utils.parametrize.register_parametrization(x, "weight", nn.ReLU(), unsafe=True),
    ],
    ids=["hook", "backward hook", "other forward", "subclass", "parametrization"],
)
def test_what_must_be_called_is_called(change: Callable[[nn.Linear], object], products) -> None:
    model = small_model(dtype=torch.float64)
    before = passes(model)
    layer = model.backbone.blocks[0].mlstm_layer
    change(layer.v)
    assert not joined_products.may_join(layer.q, layer.k, layer.v)
    after = passes(model)
    name = "backbone.blocks.0.norm_mlstm.weight"
    assert relative(after[name], before[name]) > 1e-6
    assert layer.v.out_features in products(lambda: model(tokens(1, 8)))

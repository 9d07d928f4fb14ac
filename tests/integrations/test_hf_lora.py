# SPDX-License-Identifier: Apache-2.0
"""Unmerged LoRA adapters of peft stay on the decode engine, which notices every change of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.peer_models import hf_model, relative, small_model, tokens

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
from xlstm_hip.integrations import hf  # noqa: E402
from xlstm_hip.models import decode_engine  # noqa: E402

LINEAR = ["q", "k", "v", "ogate_preact", "out_proj", "proj_up", "proj_up_gate", "proj_down"]


def adapted(model: nn.Module, name: str = "default", **changes: Any) -> Any:
    """The model with adapters that matter: B is not zero, as it is at the beginning of training."""
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": LINEAR, **changes})
    if isinstance(model, peft.PeftModel):
        model.add_adapter(name, config)
    else:
        model = peft.get_peft_model(model, config, adapter_name=name)
    rng = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for path, x in model.named_parameters():
            if f"lora_A.{name}" in path or f"lora_B.{name}" in path:
                x.copy_(torch.randn(x.shape, generator=rng) * 0.05)
    return model.eval()


def true_and_tolerance(model: nn.Module, x: Tensor) -> tuple[Tensor, float]:
    """The last token's logits in float64, and twice the error of the layers in the model's dtype."""
    with torch.no_grad():
        true = copy.deepcopy(model).double()(input_ids=x).logits[:, -1]
        return true, 2 * relative(model(input_ids=x).logits[:, -1], true) + 1e-6


def last_token(model: Any, x: Tensor) -> Tensor:
    """The logits of x's last token, made by one step after the others."""
    with torch.no_grad():
        begun = model(input_ids=x[:, :-1], use_cache=True)
        return model(input_ids=x[:, -1:], cache_params=getattr(begun, hf.CACHE), use_cache=True).logits[:, 0]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one in each step of the decode engine."""
    calls: list[int] = []
    original = decode_engine.DecodeEngine.step
    monkeypatch.setattr(decode_engine.DecodeEngine, "step", lambda *arguments: calls.append(1) or original(*arguments))
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_engine_has_the_sum(dtype: torch.dtype, steps: list[int]) -> None:
    model = adapted(hf.accelerate(hf_model(dtype)))
    x = tokens(3, 9)
    actual = last_token(model, x)
    assert len(steps) == 1 and hf.status(model.base_model.model).adapted == 8 * 3
    true, tolerance = true_and_tolerance(model, x)
    assert relative(actual, true) <= tolerance
    with torch.no_grad(), model.disable_adapter():
        assert relative(model(input_ids=x).logits[:, -1], true) > 3 * tolerance  # the adapters matter


def test_every_change_is_noticed(steps: list[int]) -> None:
    model = adapted(adapted(hf.accelerate(hf_model())), "second", r=2)
    x, outputs = tokens(2, 7), []

    def check(label: str) -> None:
        actual, (true, tolerance) = last_token(model, x), true_and_tolerance(model, x)
        assert relative(actual, true) <= tolerance, label
        assert all(relative(actual, before) > 1e-3 for before in outputs), label
        outputs.append(actual)

    check("the first adapter")
    model.set_adapter("second")
    check("another one")
    weight = model.base_model.model.backbone.blocks[1].mlstm_layer.q.lora_A["second"].weight
    with torch.no_grad():
        weight.mul_(3)
    check("trained in place")
    model.base_model.model.backbone.blocks[0].ffn.proj_up.scaling["second"] = 5.0
    check("scaled")
    with torch.no_grad():
        model.base_model.model.backbone.blocks[2].ffn.proj_down.base_layer.weight.mul_(0.5)
    check("the weight below")
    with model.disable_adapter():
        check("disabled")
    outputs.pop(-2)
    model.merge_adapter()
    check("merged")
    outputs.pop()
    model.unmerge_adapter()
    check("no longer merged")
    assert len(steps) == 8


@pytest.mark.parametrize(
    "changes, training, reason",
    [
        ({"use_dora": True}, False, "the LoRA variant Dora"),
        ({"lora_dropout": 0.5}, True, "LoRA dropout in training mode"),
    ],
)
def test_other_adapters_run_layer_by_layer(
    changes: dict[str, Any], training: bool, reason: str, steps: list[int]
) -> None:
    model = adapted(hf.accelerate(hf_model()), **changes).train(training)
    status = hf.status(model.base_model.model)
    assert reason in str(status) and not status.fast and reason in str(status.no_engine)
    x = tokens(2, 5)
    actual = last_token(model, x)
    assert not steps
    if not training:
        true, tolerance = true_and_tolerance(model, x)
        assert relative(actual, true) <= tolerance


def test_a_hook_inside_an_adapter_is_called(steps: list[int]) -> None:
    model, called = adapted(hf.accelerate(hf_model())), []
    layer = model.base_model.model.backbone.blocks[0].mlstm_layer.q
    last_token(model, tokens(2, 5))
    for part in (layer, layer.base_layer, layer.lora_A["default"], layer.lora_B["default"]):
        handle = part.register_forward_hook(lambda *arguments: called.append(1))
        last_token(model, tokens(2, 5))
        handle.remove()
    assert len(called) == 8 and len(steps) == 1


def test_our_own_model(steps: list[int]) -> None:
    model = small_model(return_last_states=True)
    peft.inject_adapter_in_model(peft.LoraConfig(r=4, target_modules=LINEAR), model)
    with torch.no_grad():
        for path, x in model.named_parameters():
            if "lora_B" in path:
                x.fill_(0.05)
        x = tokens(2, 6)
        true = copy.deepcopy(model).double()(x)[0][:, -1]
        _, state = model(x[:, :-1])
        assert relative(model.step(x[:, -1], state), true) <= 2 * relative(model(x)[0][:, -1], true)
    assert len(steps) == 1 and model.status().adapted == 8 * 3


def test_restore_frees_the_weights() -> None:
    model = adapted(hf.accelerate(hf_model()))
    last_token(model, tokens(1, 3))
    backbone = model.base_model.model.backbone
    assert backbone in decode_engine._ENGINES
    hf.restore(model.base_model.model)
    assert backbone not in decode_engine._ENGINES

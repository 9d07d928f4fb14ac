# SPDX-License-Identifier: Apache-2.0
"""Unmerged LoRA adapters of peft in front of the decode engine, which reads one matrix per linear layer.

The engine gets W + sum of scaling * B A of the active adapters, formed in float32 and rounded to W's dtype, as peft's
merge rounds it. The model keeps W, A and B, and adapters can still be trained, switched and disabled: every change is
noticed and the sum is formed again. The adapted matrices take their memory twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def is_lora(layer: nn.Module) -> bool:
    """Whether this is peft's plain LoRA of a linear layer. Its module is compared by name: peft need not be there."""
    return type(layer).__module__ == "peft.tuners.lora.layer" and type(layer).__name__ == "Linear"


def _active(layer: Any) -> list[str]:
    """The adapters whose product forward adds to the linear layer's."""
    if layer.disable_adapters or layer.merged:
        return []
    return [name for name in layer.active_adapters if name in layer.lora_A]


def why_not(layer: Any) -> str | None:
    """Why a matrix cannot stand for the adapted layer; None if it can."""
    if type(layer.base_layer) is not nn.Linear:
        return f"LoRA of a {type(layer.base_layer).__name__}"
    if layer.disable_adapters and layer.merged:
        return "merged LoRA adapters that are disabled"
    for name in _active(layer):
        if layer.lora_variant.get(name) is not None:
            return f"the LoRA variant {type(layer.lora_variant[name]).__name__}"
        if layer.lora_B[name].bias is not None:
            return "LoRA with a bias"
        if layer.training and getattr(layer.lora_dropout[name], "p", 0.0):
            return "LoRA dropout in training mode"
    return None


def parts(layer: Any) -> Iterable[nn.Module]:
    """The modules that forward calls, each of which may have hooks."""
    yield layer.base_layer
    for name in _active(layer):
        yield from (layer.lora_dropout[name], layer.lora_A[name], layer.lora_B[name])


def fingerprint(layer: Any) -> tuple:
    """Differs after any change of what weight_of returns, in place or not. Asked in every step of the engine."""
    modules = layer._modules  # an attribute of a module is looked up there last, which takes ten times as long
    base = modules["base_layer"]._parameters["weight"]
    values = [layer.training, layer.disable_adapters, layer.merged, id(base), base._version]
    of_a, of_b = modules["lora_A"]._modules, modules["lora_B"]._modules
    for name in layer.active_adapters:
        if name in of_a:
            a, b = of_a[name]._parameters["weight"], of_b[name]._parameters["weight"]
            values += [name, layer.scaling[name], id(a), a._version, id(b), b._version]
    return tuple(values)


@torch.no_grad()
def weight_of(layer: Any) -> Tensor:
    """The matrix that the layer multiplies by: the base's own where no adapter is active."""
    base = layer.base_layer.weight
    active = _active(layer)
    if not active:
        return base
    total = base.detach().float()
    for name in active:
        a, b = layer.lora_A[name].weight.float(), layer.lora_B[name].weight.float()
        total = torch.addmm(total, b, a, alpha=layer.scaling[name])
    return total.to(base.dtype)

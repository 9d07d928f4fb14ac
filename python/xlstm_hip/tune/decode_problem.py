# SPDX-License-Identifier: Apache-2.0
"""The decode step as a problem to tune: one token of each row through a small model, by the decode engine's op or by
the model's layers. A plan has the one choice `path`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._core.plans import DTYPES, Plan, trying
from ..models import xLSTMLarge, xLSTMLargeConfig
from ..models.config_files import HF_KERNELS
from ..models.language_model import State
from ..models.quantize import FLOAT8, QuantizedLinear, quantize

BLOCKS, VOCAB, PROMPT = 2, 8192, 4  # of the model; tokens before the step
GATES_STD = 2.0  # gates that depend on their input, as trained ones do


@torch.no_grad()
def tensors(dtype: str, batch: int, heads: int, dqk: int, dhv: int, device: str, seed: int) -> dict[str, Any]:
    """A model, one token of each row, and float32 states from which the step goes on; dtype: of its weights."""
    config = xLSTMLargeConfig(heads * dhv, heads, BLOCKS, VOCAB, qk_dim_factor=dqk / dhv, mode="inference")
    model = xLSTMLarge(config)
    draw = torch.Generator().manual_seed(seed)
    for name, x in model.named_parameters():
        if x.dim() == 2:
            x.normal_(std=(GATES_STD if "gate_preact" in name else 1.0) / x.shape[1] ** 0.5, generator=draw)
        elif "weight" not in name:
            x.normal_(mean=3.0 if "fgate" in name else 0.0, generator=draw)
    model = model.to(device, getattr(torch, dtype) if dtype in DTYPES else torch.bfloat16).eval()
    if dtype.startswith("int"):
        quantize(model, int(dtype.removeprefix("int")), progress=False)
    elif dtype in FLOAT8:
        quantize(model, format=dtype, progress=False)
    tokens = torch.randint(VOCAB, (batch, PROMPT + 1), generator=draw).to(device)
    _, state = twin(model, torch.float64).hidden(tokens[:, :PROMPT], keep_state=True)
    return {"model": model, "tokens": tokens[:, PROMPT].contiguous(), "state": of_dtype(state, torch.float32)}


def twin(model: xLSTMLarge, dtype: torch.dtype) -> xLSTMLarge:
    """The model by plain torch, with the numbers that its weights stand for."""
    weights = {name: x for name, x in model.state_dict().items() if not name.endswith((".scales", ".offsets"))}
    for name, layer in model.named_modules():
        if isinstance(layer, QuantizedLinear):
            del weights[f"{name}.qweight"]
            weights[f"{name}.weight"] = layer.widened(torch.float32)
    kernels: dict[str, Any] = dict(HF_KERNELS)
    plain = xLSTMLarge(replace(model.config, **kernels)).to(model.device, dtype)
    plain.load_state_dict(weights)
    return plain.eval()


def of_dtype(state: State, dtype: torch.dtype) -> State:
    return {n: tuple(x.to(dtype, copy=True) for x in layer) for n, layer in state.items()}  # type: ignore[misc]


def call_of(x: dict[str, Any], plan: Plan) -> Callable[[], tuple[Tensor, ...]]:
    """A step, from the problem's state the first time and on from there after that. Its model is one of its own, with
    the same weights, so that each plan has its own graph on a GPU."""
    model, tokens, state = copy.copy(x["model"]), x["tokens"], of_dtype(x["state"], torch.float32)

    def step() -> tuple[Tensor, ...]:
        with trying("decode_step", plan):
            return model.step(tokens, state), state[BLOCKS - 1][0]

    return step


def plain(x: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Logits and the last block's C by plain torch in a dtype."""
    wide = torch.promote_types(dtype, torch.float32)
    state = of_dtype(x["state"], wide)
    logits = twin(x["model"], dtype).step(x["tokens"], state)
    return logits, state[BLOCKS - 1][0]

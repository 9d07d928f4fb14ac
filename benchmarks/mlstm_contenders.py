# SPDX-License-Identifier: Apache-2.0
"""Ours and the peers' mLSTM kernels under one signature, with the reason where one cannot be had."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import xlstm_hip
from xlstm_hip.bench.mlstm import EPS, SEQUENCE_INPUTS, STATES, Cell

OURS, OFFICIAL, HUGGING_FACE = "xlstm_hip", "mlstm_kernels", "transformers"
Function = Callable[..., Any]


@dataclass(frozen=True)
class Contender:
    name: str
    side: str
    step: bool
    make: Callable[[], Function]  # raises LookupError with the reason where the kernel is not to be had


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LookupError(f"{name.partition('.')[0]} is not installed") from error


def _official(name: str) -> Function:
    kernel = _module("mlstm_kernels.torch").get_mlstm_kernel(name)
    return lambda q, k, v, i, f, chunk_size: kernel(
        q, k, v, i, f, eps=EPS, chunk_size=chunk_size, autocast_kernel_dtype=q.dtype
    )


def _official_step() -> Function:
    kernel = _module("mlstm_kernels.torch").get_mlstm_step_kernel("native")
    return lambda q, k, v, i, f, c, n, m: kernel(q, k, v, i, f, c, n, m, eps=EPS, dtype_state=torch.float32)


def _hugging_face(name: str) -> Function:
    module = _module("transformers.models.xlstm.modeling_xlstm")
    if not hasattr(module, name):
        raise LookupError("transformers has no kernels of its own where the xlstm package is installed")
    return getattr(module, name)


def _hugging_face_chunkwise() -> Function:
    kernel = _hugging_face("mlstm_chunkwise_native_autograd")
    return lambda q, k, v, i, f, chunk_size: kernel(q, k, v, i, f, eps=EPS, chunk_size=chunk_size)


def _hugging_face_step() -> Function:
    kernel = _hugging_face("mlstm_recurrent_step_native")
    return lambda q, k, v, i, f, c, n, m: kernel(q, k, v, i, f, c, n, m, eps=EPS, dtype_state=torch.float32)


def _ours() -> Function:
    return lambda q, k, v, i, f, chunk_size: xlstm_hip.mlstm_interface(
        q, k, v, i, f, eps=EPS, chunk_size=chunk_size, kernel="chunkwise--fused"
    )


def _our_step(in_place: bool) -> Callable[[], Function]:
    return lambda: (
        lambda q, k, v, i, f, c, n, m: xlstm_hip.mlstm_step_interface(
            q, k, v, i, f, c, n, m, eps=EPS, kernel="fused", in_place=in_place
        )
    )


CONTENDERS = (
    Contender("chunkwise--fused", OURS, False, _ours),
    Contender("chunkwise--native_autograd", OFFICIAL, False, lambda: _official("chunkwise--native_autograd")),
    Contender("chunkwise--native_custbw", OFFICIAL, False, lambda: _official("chunkwise--native_custbw")),
    Contender("HF chunkwise native", HUGGING_FACE, False, _hugging_face_chunkwise),
    Contender("step fused", OURS, True, _our_step(in_place=False)),
    Contender("step fused, in place", OURS, True, _our_step(in_place=True)),
    Contender("step native", OFFICIAL, True, _official_step),
    Contender("HF step native", HUGGING_FACE, True, _hugging_face_step),
)


def contenders_for(cell: Cell) -> list[Contender]:
    return [x for x in CONTENDERS if x.step == (cell.work == "step")]


def by_name(name: str) -> Contender:
    known = {x.name: x for x in CONTENDERS}
    if name not in known:
        raise ValueError(f"kernel: expected one of {', '.join(known)}, got {name!r}")
    return known[name]


def results_of(cell: Cell, function: Function, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """One run of the cell's work: h, and the gradients or the next c. The inputs stay as they are."""
    if cell.work == "step":
        with torch.no_grad():
            h, states = function(**{name: x.clone() for name, x in inputs.items()})
        return {"h": h, "c": states[0]}
    leaves = [inputs[name].detach() for name in SEQUENCE_INPUTS]
    if cell.work == "forward":
        with torch.no_grad():
            return {"h": function(*leaves, chunk_size=cell.chunk_size)}
    leaves = [x.requires_grad_() for x in leaves]
    h = function(*leaves, chunk_size=cell.chunk_size)
    gradients = torch.autograd.grad(h, leaves, inputs["dh"])
    return {"h": h.detach(), **{f"d{name}": g for name, g in zip(SEQUENCE_INPUTS, gradients, strict=True)}}


def call_for(cell: Cell, function: Function, inputs: dict[str, Tensor]) -> Callable[[], Any]:
    """What is timed. A step hands its states on to the next one, as in decoding."""
    if cell.work != "step":
        return lambda: results_of(cell, function, inputs)
    token = [inputs[name] for name in SEQUENCE_INPUTS]
    states = [inputs[name].clone() for name in STATES]

    def step() -> None:
        with torch.no_grad():
            states[:] = function(*token, *states)[1]

    return step

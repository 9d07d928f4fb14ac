# SPDX-License-Identifier: Apache-2.0
"""Ours and others' mLSTM under one signature: (cell, inputs) to a call that gives h and gradients, or h and c."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..mlstm.interface import mlstm_interface, mlstm_step_interface
from ..mlstm.triton_peers import beyond_reach
from .mlstm import EPS, SEQUENCE_INPUTS, STATES, Cell
from .registry import FLA, HUGGING_FACE, OFFICIAL, PLAIN, XLSTM_HIP, Call, Implementation, Prepare, Tensors
from .schedules import common_schedule

GPU, CPU = ("cuda",), ("cpu",)
COMMON = "ours, common schedule"


def differentiated(cell: Cell, inputs: Tensors, forward: Callable[..., Tensor]) -> Call:
    """The call as a user writes it, with autograd where the work has a backward pass."""
    tensors = [inputs[name].detach() for name in SEQUENCE_INPUTS]
    if cell.work == "forward":

        def inference() -> Tensors:
            with torch.no_grad():
                return {"h": forward(*tensors)}

        return inference
    leaves = [x.requires_grad_() for x in tensors]
    dh = inputs["dh"]

    def training() -> Tensors:
        h = forward(*leaves)
        gradients = torch.autograd.grad(h, leaves, dh)
        return {"h": h.detach()} | {f"d{name}": g for name, g in zip(SEQUENCE_INPUTS, gradients, strict=True)}

    return training


def fused(cell: Cell, inputs: Tensors) -> Call:
    from ..mlstm.kernels import mlstm_chunkwise_fused

    def forward(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Any:
        return mlstm_chunkwise_fused(q, k, v, i, f, eps=EPS, chunk_size=cell.chunk_size)

    return differentiated(cell, inputs, forward)


def on_every_gpu(prepare: Prepare) -> Prepare:
    """The same calls with the kernels that every GPU has, also where the one at hand has its own."""

    def prepare_common(cell: Cell, inputs: Tensors) -> Call:
        call = prepare(cell, inputs)

        def common() -> Tensors:
            with common_schedule():
                return call()

        return common

    return prepare_common


def _our_ops(cell: Cell, inputs: Tensors) -> Call:
    from .._core.ops import OPS

    arguments = (*(inputs[name] for name in SEQUENCE_INPUTS), None, None, None, None)

    def call() -> Tensors:
        h, l = OPS.mlstm_chunkwise(*arguments, False, True, EPS, cell.chunk_size, False)
        if cell.work == "forward":
            return {"h": h}
        last = (None, None, None)
        gradients = OPS.mlstm_backward(
            *arguments, h, l, inputs["dh"], *last, False, True, True, EPS, cell.chunk_size, False
        )
        return {"h": h} | {f"d{name}": g for name, g in zip(SEQUENCE_INPUTS, gradients, strict=True)}

    return call


def by_kernel(name: str) -> Prepare:
    """Any kernel of the package's registry, for sequences."""

    def prepare(cell: Cell, inputs: Tensors) -> Call:
        def forward(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Any:
            return mlstm_interface(q, k, v, i, f, eps=EPS, chunk_size=cell.chunk_size, kernel=name)

        return differentiated(cell, inputs, forward)

    return prepare


def by_step_kernel(name: str) -> Prepare:
    def kernel(**arguments: Any) -> Any:
        return mlstm_step_interface(**arguments, kernel=name)

    return lambda cell, inputs: _step(kernel, inputs)


def beyond_triton(cell: Cell, chunk_size: int | None = None) -> str:
    """The reason why mlstm_kernels' chunkwise Triton kernels must not be tried at this cell."""
    length = chunk_size or cell.chunk_size
    beyond = beyond_reach(cell.batch, cell.heads, cell.tokens, cell.dqk, cell.dhv, length)
    return "its states of all chunks are beyond its 32-bit offsets" if beyond else ""


def official(name: str, chunk_size: int | None = None) -> Prepare:
    """chunk_size: the one that the kernel is at its best with; None: the cell's."""

    def prepare(cell: Cell, inputs: Tensors) -> Call:
        kernel = importlib.import_module("mlstm_kernels.torch").get_mlstm_kernel(name)
        length = chunk_size or cell.chunk_size

        def forward(*x: Tensor) -> Tensor:
            arguments = dict(zip(SEQUENCE_INPUTS, x, strict=True))
            return kernel(**arguments, eps=EPS, chunk_size=length, autocast_kernel_dtype=x[0].dtype)

        return differentiated(cell, inputs, forward)

    return prepare


def _from_transformers(name: str) -> Callable[..., Any]:
    module = importlib.import_module("transformers.models.xlstm.modeling_xlstm")
    if not hasattr(module, name):
        raise LookupError("transformers has no kernels of its own where the xlstm package is installed")
    return getattr(module, name)


def _hugging_face(name: str) -> Prepare:
    def prepare(cell: Cell, inputs: Tensors) -> Call:
        kernel = _from_transformers(name)
        return differentiated(cell, inputs, lambda *x: kernel(*x, eps=EPS, chunk_size=cell.chunk_size))

    return prepare


def _hugging_face_step(cell: Cell, inputs: Tensors) -> Call:
    return _step(_from_transformers("mlstm_recurrent_step_native"), inputs, dtype_state=torch.float32)


def _fla(cell: Cell, inputs: Tensors) -> Call:
    """The same arithmetic without a normaliser and an input gate, in FLA's layout (B, S, NH, D)."""
    chunk_simple_gla = importlib.import_module("fla.ops.simple_gla").chunk_simple_gla
    q, k, v = (inputs[name].transpose(1, 2).contiguous() for name in "qkv")
    g = F.logsigmoid(inputs["f"].float()).transpose(1, 2).contiguous()
    leaves = [x.requires_grad_(cell.work == "forward+backward") for x in (q, k, v, g)]
    dh = inputs["dh"].transpose(1, 2).contiguous() if "dh" in inputs else None

    def call() -> Tensors:
        with torch.set_grad_enabled(dh is not None):
            h, _ = chunk_simple_gla(*leaves, scale=cell.dqk**-0.5)
        if dh is not None:
            torch.autograd.grad(h, leaves, dh)
        return {"h": h}

    return call


def _step(kernel: Callable[..., Any], inputs: Tensors, **options: Any) -> Call:
    arguments = {name: inputs[name] for name in (*SEQUENCE_INPUTS, *STATES)}

    def call() -> Tensors:
        with torch.no_grad():
            h, (c, _, _) = kernel(**arguments, eps=EPS, **options)
        return {"h": h, "c": c}

    return call


def _our_step(in_place: bool) -> Prepare:
    def prepare(cell: Cell, inputs: Tensors) -> Call:
        from ..mlstm.kernels import mlstm_step_fused

        copies = {name: x.clone() if in_place and name in STATES else x for name, x in inputs.items()}
        return _step(mlstm_step_fused, copies, in_place=in_place)

    return prepare


def _official_step(name: str) -> Prepare:
    def prepare(cell: Cell, inputs: Tensors) -> Call:
        kernel = importlib.import_module("mlstm_kernels.torch").get_mlstm_step_kernel(name)
        return _step(kernel, inputs, dtype_state=torch.float32)

    return prepare


_SEQUENCE = Implementation("ours", XLSTM_HIP, fused)
_STEP, _STEP_IN_PLACE = (
    Implementation("ours", XLSTM_HIP, _our_step(in_place=False)),
    Implementation("ours, in place", XLSTM_HIP, _our_step(in_place=True)),
)
_CPU_PEERS = (
    Implementation("native_autograd", OFFICIAL, official("chunkwise--native_autograd"), CPU),
    Implementation("native_custbw", OFFICIAL, official("chunkwise--native_custbw"), CPU),
    Implementation("transformers", HUGGING_FACE, _hugging_face("mlstm_chunkwise_native_autograd")),
)
_CPU_STEP_PEERS = (
    Implementation("native step", OFFICIAL, _official_step("native"), CPU),
    Implementation("transformers", HUGGING_FACE, _hugging_face_step),
)
# The implementations that the benchmarks of benchmarks/ compare on a GPU and on the CPU.
GPU_SEQUENCES = (
    _SEQUENCE,
    Implementation("ours, raw ops", XLSTM_HIP, _our_ops),
    Implementation(COMMON, XLSTM_HIP, on_every_gpu(fused), GPU),
    Implementation(
        "xl_chunk 128",
        OFFICIAL,
        official("chunkwise--triton_xl_chunk", 128),
        GPU,
        triton=True,
        llvm_opt=False,
        beyond=partial(beyond_triton, chunk_size=128),
    ),
    Implementation(
        "limit_chunk 64",
        OFFICIAL,
        official("chunkwise--triton_limit_chunk", 64),
        GPU,
        triton=True,
        beyond=partial(beyond_triton, chunk_size=64),
    ),
    Implementation("FLA simple_gla", FLA, _fla, GPU, triton=True, exact=False),
)
GPU_STEPS = (
    _STEP_IN_PLACE,
    _STEP,
    Implementation("triton step", OFFICIAL, _official_step("triton"), GPU, triton=True),
)
CPU_SEQUENCES = (_SEQUENCE, *_CPU_PEERS)
CPU_STEPS = (_STEP, _STEP_IN_PLACE, *_CPU_STEP_PEERS)
# And xlstm-hip bench.
SEQUENCES = (
    *GPU_SEQUENCES,
    Implementation("plain torch", PLAIN, by_kernel("chunkwise--native_autograd")),
    *_CPU_PEERS,
)
STEPS = (*GPU_STEPS, Implementation("plain torch", PLAIN, by_step_kernel("native")), *_CPU_STEP_PEERS)

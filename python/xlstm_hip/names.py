# SPDX-License-Identifier: Apache-2.0
"""The built-in kernel names: one table, one line each, the aliases, and which kernel is which one's sigmoid
twin.

A row says where the function lives as "module:name" below this package; nothing is imported until a name is
looked up.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from .checks import GPU_DTYPES, IO_DTYPES
from .peers import XL_CHUNK_TUNING, peers_usable
from .registry import KernelInfo

ANY = ("*",)
COMPILED_DEVICES = ("cpu", "cuda", "mps")


@dataclass(frozen=True)
class Builtin:
    kind: str
    name: str
    target: str  # "module:function"
    devices: tuple[str, ...] = ANY
    op: str = ""  # for a kernel of the op library: the op, which knows its devices
    dtypes: tuple[torch.dtype, ...] = IO_DTYPES
    gradient: str = "exact"
    gate: str = "exp"
    options: tuple[str, ...] = ()
    note: str = ""
    stands_in: str = ""  # a Triton name: the fused kernel that takes its calls where mlstm_kernels cannot
    states: bool = True
    gpu_dtypes: tuple[torch.dtype, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name

    @property
    def module(self) -> str:
        return f"{__package__}.{self.target.partition(':')[0]}"

    def load(self) -> KernelInfo:
        facts, devices, note = self, self.devices, self.note
        if self.stands_in:
            fused = BUILTIN["chunkwise" if self.kind == "parallel" else self.kind, self.stands_in]
            if peers_usable():
                devices = tuple(dict.fromkeys((*self.devices, *fused.load().devices)))
                note = f"mlstm_kernels' own on a GPU, elsewhere {self.stands_in}"
            else:
                facts, devices, note = fused, fused.load().devices, f"here it is {self.stands_in}"
        elif self.op:
            from . import ops

            devices = ops.devices_with_kernels(self.op)
        return KernelInfo(
            name=self.name,
            kind=self.kind,
            function=getattr(importlib.import_module(self.module), self.target.partition(":")[2]),
            devices=devices,
            dtypes=facts.dtypes,
            gradient=facts.gradient,
            gate=self.gate,
            states=facts.states,
            options=facts.options,
            note=note,
            gpu_dtypes=facts.gpu_dtypes if "cuda" in devices else (),
        )


def _fused(kind: str, name: str) -> Builtin:
    options: tuple[str, ...] = ("normalizer_grad", "cu_seqlens", "layout")
    if kind == "step":
        options = ("in_place", "autocast_kernel_dtype")
    gate = "exp"
    if name.endswith("_siging"):
        gate, options = "sigmoid", ("normalize", *options)
    target = f"fused:mlstm_{kind}_{name.removeprefix('chunkwise--')}"
    return Builtin(
        kind, name, target, op=f"mlstm_{kind}", gate=gate, options=options, note="C++, one call", gpu_dtypes=GPU_DTYPES
    )


def _native(kind: str, name: str, function: str, *more: str, note: str = "plain torch") -> Builtin:
    own = {"step": ("in_place",), "sequence": ()}.get(kind, ("normalizer_grad",))
    gate, options = "exp", (*own, *more)
    if "siging" in name:
        gate, options = "sigmoid", ("normalize", *options)
    return Builtin(kind, name, f"reference:mlstm_{function}", gate=gate, options=options, note=note)


def _compiled(kind: str, name: str, function: str, *options: str, **facts: Any) -> Builtin:
    facts = {"devices": COMPILED_DEVICES, "note": "torch.compile"} | facts
    return Builtin(kind, name, f"compiled:mlstm_{function}", options=options, **facts)


def _triton(
    kind: str, name: str, function: str, stands_in: str, gradient: str = "no normaliser", **facts: Any
) -> Builtin:
    return Builtin(
        kind,
        name,
        f"peers:{function}",
        ("cuda",),
        dtypes=GPU_DTYPES,
        gradient=gradient,
        stands_in=stands_in,
        **facts,
    )


_ROWS = (
    _fused("chunkwise", "chunkwise--fused"),
    _fused("chunkwise", "chunkwise--fused_siging"),
    _native("chunkwise", "chunkwise--native_autograd", "chunkwise__native_autograd"),
    _native("chunkwise", "chunkwise--native_custbw", "chunkwise__native_custbw"),
    _native("chunkwise", "chunkwise--native_siging_autograd", "siging_chunkwise__native_autograd"),
    _native("chunkwise", "chunkwise--native_siging_custbw", "siging_chunkwise__native_custbw"),
    _compiled("chunkwise", "chunkwise--native_compiled_autograd", "chunkwise__native_compiled_autograd"),
    _compiled("chunkwise", "chunkwise--queued_compiled_steps", "chunkwise__queued_compiled_steps",
              "heads_per_band", "workers", "streams", note="torch.compile, bands on threads"),
    _compiled("chunkwise", "chunkwise--ray_compiled_steps", "chunkwise__ray_compiled_steps",
              "heads_per_band", "workers", devices=("cpu",), note="torch.compile, bands on Ray actors"),
    _triton("chunkwise", "chunkwise--triton_limit_chunk", "limit_chunk", "chunkwise--fused"),
    _triton("chunkwise", "chunkwise--triton_xl_chunk", "xl_chunk", "chunkwise--fused",
            options=XL_CHUNK_TUNING),
    _triton("chunkwise", "chunkwise--triton_xl_chunk_siging", "xl_chunk_siging", "chunkwise--fused_siging",
            gate="sigmoid", options=("normalize", *XL_CHUNK_TUNING)),
    _native("parallel", "parallel--native_autograd", "parallel__native_autograd"),
    _native("parallel", "parallel--native_custbw", "parallel__native_custbw"),
    _native("parallel", "parallel--native_stablef_autograd", "parallel__native_stablef_autograd"),
    _native("parallel", "parallel--native_stablef_custbw", "parallel__native_stablef_custbw"),
    _native("parallel", "parallel--native_siging_autograd", "siging_parallel__native_autograd",
            "stable_fgate"),
    _native("parallel", "parallel--native_siging_custbw", "siging_parallel__native_custbw",
            "stable_fgate"),
    _triton("parallel", "parallel--triton_limit_headdim", "limit_headdim", "chunkwise--fused",
            states=False),
    _fused("sequence", "fused"),
    _fused("sequence", "fused_siging"),
    _native("sequence", "native_sequence__native", "recurrent_sequence__native_fw",
            note="plain torch, a loop"),
    _native("sequence", "native_sequence__native_siging", "siging_recurrent_sequence__native_fw",
            note="plain torch, a loop"),
    _compiled("sequence", "native_sequence__metal", "recurrent_sequence__metal", devices=("mps",),
              dtypes=GPU_DTYPES, note="torch.compile, a loop in float32"),
    _triton("sequence", "native_sequence__triton", "sequence", "fused", gradient="none"),
    _fused("step", "fused"),
    _fused("step", "fused_siging"),
    _native("step", "native", "recurrent_step__native"),
    _native("step", "native_siging", "siging_recurrent_step__native"),
    _compiled("step", "metal", "recurrent_step__metal", devices=("mps",), dtypes=GPU_DTYPES,
              note="torch.compile, float32"),
    _triton("step", "triton", "step", "fused", gradient="none"),
)  # fmt: skip
BUILTIN = {row.key: row for row in _ROWS}

# Names of mlstm_kernels 1, still found in configuration files.
ALIASES = {
    ("step", "triton_fused"): "triton",
    ("sequence", "native_sequence__triton_step_fused"): "native_sequence__triton",
}

# The kernel that does for the sigmoid input gate what the other does for the exponential one.
SIGMOID_TWINS = {
    ("chunkwise", "chunkwise--fused"): "chunkwise--fused_siging",
    ("chunkwise", "chunkwise--native_autograd"): "chunkwise--native_siging_autograd",
    ("chunkwise", "chunkwise--native_custbw"): "chunkwise--native_siging_custbw",
    ("chunkwise", "chunkwise--triton_limit_chunk"): "chunkwise--triton_xl_chunk_siging",
    ("chunkwise", "chunkwise--triton_xl_chunk"): "chunkwise--triton_xl_chunk_siging",
    ("parallel", "parallel--native_autograd"): "parallel--native_siging_autograd",
    ("parallel", "parallel--native_custbw"): "parallel--native_siging_custbw",
    ("parallel", "parallel--native_stablef_autograd"): "parallel--native_siging_autograd",
    ("parallel", "parallel--native_stablef_custbw"): "parallel--native_siging_custbw",
    ("sequence", "fused"): "fused_siging",
    ("sequence", "native_sequence__native"): "native_sequence__native_siging",
    ("sequence", "native_sequence__triton"): "fused_siging",
    ("step", "fused"): "fused_siging",
    ("step", "native"): "native_siging",
    ("step", "triton"): "fused_siging",
}

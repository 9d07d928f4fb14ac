# SPDX-License-Identifier: Apache-2.0
"""The built-in kernels: one table with one row each, their aliases, and the sigmoid counterpart of each kernel.

Importing this module fills the registry. It also imports the kernel functions, which takes milliseconds; a look-up then
reads two dicts, and torch.compile can trace it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .. import reference
from .._core import ops
from .._core.checks import GPU_DTYPES, IO_DTYPES
from . import compiled, kernels, triton_peers
from .registry import KernelInfo, add_builtins
from .triton_peers import XL_CHUNK_TUNING, peers_usable

COMPILED_DEVICES = ("cpu", "cuda", "mps")


@dataclass(frozen=True)
class Builtin:
    info: KernelInfo
    stand_in: KernelInfo | None = None  # a Triton name: its facts where the fused kernel takes all its calls

    def current_info(self) -> KernelInfo:
        """The kernel that the name means in this process; importing xlstm_hip.compat may change it."""
        return self.info if self.stand_in is None or peers_usable() else self.stand_in


def _fused(kind: str, name: str) -> Builtin:
    options: tuple[str, ...] = ("normalizer_grad", "cu_seqlens", "layout", "plan", "backward_plan")
    if kind == "sequence":
        options = ("dtype_state", *options)
    if kind == "step":
        options = ("dtype_state", "in_place", "gate_soft_cap", "autocast_kernel_dtype", "plan")
    gate = "exp"
    if name.endswith("_siging"):
        gate, options = "sigmoid", ("normalize", *options)
    function = getattr(kernels, f"mlstm_{kind}_{name.removeprefix('chunkwise--')}")
    devices = ops.devices_with_kernels(f"mlstm_{kind}")
    facts = KernelInfo(name, kind, function, devices, IO_DTYPES, "exact", gate, options=options, note="C++, one call")
    return Builtin(replace(facts, gpu_dtypes=GPU_DTYPES if "cuda" in devices else ()))


def _native(kind: str, name: str, function: Callable, *more: str, note: str = "plain torch") -> Builtin:
    base_options = {"step": ("dtype_state", "in_place", "gate_soft_cap"), "sequence": ("dtype_state",)}.get(
        kind, ("normalizer_grad",)
    )
    gate, options = "exp", (*base_options, *more)
    if "siging" in name:
        gate, options = "sigmoid", ("normalize", *options)
    return Builtin(KernelInfo(name, kind, function, ("*",), IO_DTYPES, "exact", gate, options=options, note=note))


def _compiled(kind: str, name: str, function: Callable, *options: str, **facts: Any) -> Builtin:
    facts = {"devices": COMPILED_DEVICES, "dtypes": IO_DTYPES, "note": "torch.compile"} | facts
    return Builtin(KernelInfo(name, kind, function, gradient="exact", options=options, **facts))


def _triton(
    kind: str, name: str, function: Callable, stand_in: Builtin, gradient: str = "no normaliser", **facts: Any
) -> Builtin:
    replacement = stand_in.info
    return Builtin(
        KernelInfo(
            name,
            kind,
            function,
            devices=tuple(dict.fromkeys(("cuda", *replacement.devices))),
            dtypes=GPU_DTYPES,
            gradient=gradient,
            gate=replacement.gate,
            note=f"mlstm_kernels' own on a GPU, elsewhere {replacement.name}",
            **facts,
        ),
        replace(replacement, name=name, kind=kind, function=function, note=f"here it is {replacement.name}"),
    )


CHUNKWISE, CHUNKWISE_SIGING = (_fused("chunkwise", f"chunkwise--{name}") for name in ("fused", "fused_siging"))
SEQUENCE, STEP = _fused("sequence", "fused"), _fused("step", "fused")

_ROWS = (
    CHUNKWISE,
    CHUNKWISE_SIGING,
    _native("chunkwise", "chunkwise--native_autograd", reference.mlstm_chunkwise__native_autograd),
    _native("chunkwise", "chunkwise--native_custbw", reference.mlstm_chunkwise__native_custbw),
    _native("chunkwise", "chunkwise--native_siging_autograd", reference.mlstm_siging_chunkwise__native_autograd),
    _native("chunkwise", "chunkwise--native_siging_custbw", reference.mlstm_siging_chunkwise__native_custbw),
    _compiled("chunkwise", "chunkwise--native_compiled_autograd", compiled.mlstm_chunkwise__native_compiled_autograd),
    _compiled("chunkwise", "chunkwise--queued_compiled_steps", compiled.mlstm_chunkwise__queued_compiled_steps,
              "heads_per_band", "workers", "streams", note="torch.compile, bands on threads"),
    _compiled("chunkwise", "chunkwise--ray_compiled_steps", compiled.mlstm_chunkwise__ray_compiled_steps,
              "heads_per_band", "workers", devices=("cpu",), note="torch.compile, bands on Ray actors"),
    _triton("chunkwise", "chunkwise--triton_limit_chunk", triton_peers.limit_chunk, CHUNKWISE),
    _triton("chunkwise", "chunkwise--triton_xl_chunk", triton_peers.xl_chunk, CHUNKWISE,
            options=XL_CHUNK_TUNING),
    _triton("chunkwise", "chunkwise--triton_xl_chunk_siging", triton_peers.xl_chunk_siging, CHUNKWISE_SIGING,
            options=("normalize", *XL_CHUNK_TUNING)),
    _native("parallel", "parallel--native_autograd", reference.mlstm_parallel__native_autograd),
    _native("parallel", "parallel--native_custbw", reference.mlstm_parallel__native_custbw),
    _native("parallel", "parallel--native_stablef_autograd", reference.mlstm_parallel__native_stablef_autograd),
    _native("parallel", "parallel--native_stablef_custbw", reference.mlstm_parallel__native_stablef_custbw),
    _native("parallel", "parallel--native_siging_autograd", reference.mlstm_siging_parallel__native_autograd,
            "stable_fgate"),
    _native("parallel", "parallel--native_siging_custbw", reference.mlstm_siging_parallel__native_custbw,
            "stable_fgate"),
    _triton("parallel", "parallel--triton_limit_headdim", triton_peers.limit_headdim, CHUNKWISE,
            states=False),
    SEQUENCE,
    _fused("sequence", "fused_siging"),
    _native("sequence", "native_sequence__native", reference.mlstm_recurrent_sequence__native_fw,
            note="plain torch, a loop"),
    _native("sequence", "native_sequence__native_siging", reference.mlstm_siging_recurrent_sequence__native_fw,
            note="plain torch, a loop"),
    _compiled("sequence", "native_sequence__metal", compiled.mlstm_recurrent_sequence__metal, devices=("mps",),
              dtypes=GPU_DTYPES, note="torch.compile, a loop in float32"),
    _triton("sequence", "native_sequence__triton", triton_peers.sequence, SEQUENCE, gradient="none"),
    STEP,
    _fused("step", "fused_siging"),
    _native("step", "native", reference.mlstm_recurrent_step__native),
    _native("step", "native_siging", reference.mlstm_siging_recurrent_step__native),
    _compiled("step", "metal", compiled.mlstm_recurrent_step__metal, devices=("mps",), dtypes=GPU_DTYPES,
              note="torch.compile, float32"),
    _triton("step", "triton", triton_peers.step, STEP, gradient="none"),
)  # fmt: skip
BUILTIN = {(row.info.kind, row.info.name): row for row in _ROWS}

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

add_builtins({key: row.current_info for key, row in BUILTIN.items()}, ALIASES, SIGMOID_TWINS)

# SPDX-License-Identifier: Apache-2.0
"""Logs of calls and plans, and named profiler ranges around the ops (variables: environment.py).

If none is asked for, the ops in ops.py are torch's own overloads, and nothing here is called.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._version import __version__
from .device import device_facts
from .environment import logs_of, ranges_of
from .native import native
from .plan_text import plan_lines, plan_of_call

logger = logging.getLogger("xlstm_hip")
_LOGS = logs_of(os.environ.get("XLSTM_HIP_LOGS", ""))
DISPATCH, PLAN, BUILD = (name in _LOGS for name in ("dispatch", "plan", "build"))
RANGES = ranges_of(os.environ.get("XLSTM_HIP_RANGES", ""))
if RANGES and torch.version.cuda is None and torch.version.hip is None:
    raise RuntimeError(
        f"XLSTM_HIP_RANGES: expected 0 or nothing: only torch's GPU builds have ranges, and this is torch "
        f"{torch.__version__}; torch's own profiler has every op's name without them"
    )
_SHOWN = 3  # tensors of a call that a line shows

if _LOGS:
    _handler = logging.StreamHandler(sys.stderr)
    _handler.setFormatter(logging.Formatter("[xlstm_hip] %(message)s"))
    logger.addHandler(_handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # or an application that logs to stderr too would have each line twice


def say_built() -> None:
    """Logs the line of XLSTM_HIP_LOGS=build, when the package is imported."""
    built = native()
    if built is None:
        logger.info("build: %s, without the module _native", __version__)
        return
    facts = built.build_facts()
    gpu = f"{facts['gpu']} {' '.join(facts['gpu_archs'])}" if facts["gpu_archs"] else "no GPU kernels"
    text = "build: %s (%s), %s, torch %s; %s; CPU kernels: %s here"
    logger.info(text, __version__, facts["git_sha"] or "no git", facts["compiler"], torch.__version__, gpu,
                built.cpu_isa())  # fmt: skip


def chosen(name: str, kernel: str, tensors: dict[str, Tensor | None]) -> None:
    """Logs a line of XLSTM_HIP_LOGS=dispatch. Callers check DISPATCH first."""
    if not torch.compiler.is_compiling():
        logger.info("dispatch: %s: %s; %s", name, kernel, _described(tensors))


def _described(tensors: dict[str, Any]) -> str:
    present = {name: x for name, x in tensors.items() if isinstance(x, Tensor)}
    if not present:
        return "no tensors"
    first = next(iter(present.values()))
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in list(present.items())[:_SHOWN])
    return f"{shapes}; {str(first.dtype).removeprefix('torch.')} on {first.device}"


def _kernel_on(device: torch.device) -> str:
    if device.type == "cpu":
        built = native()
        return f"C++, {built.cpu_isa()}" if built else "C++"
    return f"GPU kernel, {device_facts(device).arch}" if device.type == "cuda" else str(device)


class _Watched:
    """An op that logs its calls. torch.compile sees the op itself."""

    def __init__(self, name: str, op: Any) -> None:
        self.name, self.op = name, op
        self.arguments = {argument.name: argument.default_value for argument in op._schema.arguments}

    def __call__(self, *values: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.op(*values, **named)
        arguments = self.arguments | dict(zip(self.arguments, values, strict=False)) | named
        first = next(x for x in arguments.values() if isinstance(x, Tensor))
        if DISPATCH:
            chosen(self.name, _kernel_on(first.device), arguments)
        if PLAN:
            _say_plan(self.name, arguments)
        if not RANGES:
            return self.op(*values, **named)
        torch.cuda.nvtx.range_push(f"xlstm_hip::{self.name}")  # in a ROCm torch it is roctx
        try:
            return self.op(*values, **named)
        finally:
            torch.cuda.nvtx.range_pop()


def _say_plan(name: str, arguments: dict[str, Any]) -> None:
    plan = plan_of_call(name, arguments)
    for line in plan_lines(plan) if plan else ():
        logger.info("plan: %s: %s", name, line)


class _Calls:
    """The ops of a library as attributes, all set at the start: torch.compile never sees one being added."""

    def __init__(self, calls: dict[str, Callable[..., Any]]) -> None:
        vars(self).update(calls)


def watched(ops: Any) -> Any:
    """The ops by their only overload, which saves torch a look-up per call. They log calls if that is asked for."""
    known = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    overloads = {name: getattr(ops, name).default for space, _, name in known if space == ops.name}
    if DISPATCH or PLAN or RANGES:
        return _Calls({name: _Watched(name, op) for name, op in overloads.items()})
    return _Calls(overloads)

# SPDX-License-Identifier: Apache-2.0
"""Ours and the peers' mLSTM on a GPU under one signature, and a trial run that tells which peers a process survives.

A peer's compiler may end the process where a kernel does not suit it. So every Triton peer is tried at a small shape
in a process of its own first; what that process did not live through is not run, and reported with its last words.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from xlstm_hip.bench.mlstm import EPS, SEQUENCE_INPUTS, STATES, Cell

OURS, OFFICIAL, FLA = "xlstm_hip", "mlstm_kernels", "FLA"
WORKS = ("forward", "forward+backward")
TRIAL_SECONDS = 240
Inputs = dict[str, Tensor]
Results = dict[str, Tensor]
Call = Callable[[], Any]
LLVM = "DISABLE_LLVM_OPT"
os.environ.setdefault(LLVM, "1")  # before Triton is imported; see `compiling`


@dataclass(frozen=True)
class Contender:
    name: str
    side: str
    works: tuple[str, ...]
    prepare: Callable[[Cell, Inputs], Call]  # the work on these inputs, which gives its results by name
    triton: bool = False
    llvm_opt: bool = True  # False: Triton 3.6 ends the process on an assertion with LLVM's optimiser on
    exact: bool = True  # False: another function than the mLSTM, timed for its arithmetic


def make_inputs(cell: Cell, device: torch.device, seed: int = 0) -> Inputs:
    """As mlstm_problem.make_inputs, made on the device. A step's states are float32."""
    rng = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, generator=rng, device=device, dtype=dtype)

    lead = (cell.batch, cell.heads)
    rows = lead if cell.work == "step" else (*lead, cell.tokens)
    gates = (*lead, 1) if cell.work == "step" else rows
    made = {"q": normal(*rows, cell.dqk), "k": normal(*rows, cell.dqk), "v": normal(*rows, cell.dhv)}
    made |= {"i": normal(*gates), "f": normal(*gates) + 3}
    if cell.work == "step":
        made |= {"c": normal(*lead, cell.dqk, cell.dhv, dtype=torch.float32), "m": torch.zeros(*lead, 1, device=device)}
        made["n"] = normal(*lead, cell.dqk, dtype=torch.float32)
    if cell.work == "forward+backward":
        made["dh"] = normal(*rows, cell.dhv)
    return made


def _differentiated(cell: Cell, inputs: Inputs, forward: Callable[..., Tensor]) -> Call:
    """What a user writes: the call, and autograd where the work has a backward."""
    tensors = [inputs[name].detach() for name in SEQUENCE_INPUTS]
    if cell.work == "forward":

        def inference() -> Results:
            with torch.no_grad():
                return {"h": forward(*tensors)}

        return inference
    leaves = [x.requires_grad_() for x in tensors]
    dh = inputs["dh"]

    def training() -> Results:
        h = forward(*leaves)
        gradients = torch.autograd.grad(h, leaves, dh)
        return {"h": h.detach()} | {f"d{name}": g for name, g in zip(SEQUENCE_INPUTS, gradients, strict=True)}

    return training


def _ours(cell: Cell, inputs: Inputs) -> Call:
    from xlstm_hip.fused import mlstm_chunkwise_fused

    return _differentiated(
        cell,
        inputs,
        lambda *x: mlstm_chunkwise_fused(*x, eps=EPS, chunk_size=cell.chunk_size),  # type: ignore[misc]
    )


def _our_ops(cell: Cell, inputs: Inputs) -> Call:
    from xlstm_hip.ops import OPS

    given = (*(inputs[name] for name in SEQUENCE_INPUTS), None, None, None, None)

    def call() -> Results:
        h, l = OPS.mlstm_chunkwise(*given, False, True, EPS, cell.chunk_size, False)
        if cell.work == "forward":
            return {"h": h}
        last = (None, None, None)
        gradients = OPS.mlstm_backward(
            *given, h, l, inputs["dh"], *last, False, True, True, EPS, cell.chunk_size, False
        )
        return {"h": h} | {f"d{name}": g for name, g in zip(SEQUENCE_INPUTS, gradients, strict=True)}

    return call


def _official(name: str, chunk_size: int) -> Callable[[Cell, Inputs], Call]:
    def prepare(cell: Cell, inputs: Inputs) -> Call:
        kernel = importlib.import_module("mlstm_kernels.torch").get_mlstm_kernel(name)

        def forward(*x: Tensor) -> Tensor:
            own = dict(zip(SEQUENCE_INPUTS, x, strict=True))
            return kernel(**own, eps=EPS, chunk_size=chunk_size, autocast_kernel_dtype=x[0].dtype)

        return _differentiated(cell, inputs, forward)

    return prepare


def _fla(cell: Cell, inputs: Inputs) -> Call:
    """The same arithmetic without a normaliser and an input gate, in FLA's layout (B, S, NH, D)."""
    chunk_simple_gla = importlib.import_module("fla.ops.simple_gla").chunk_simple_gla
    q, k, v = (inputs[name].transpose(1, 2).contiguous() for name in "qkv")
    g = F.logsigmoid(inputs["f"].float()).transpose(1, 2).contiguous()
    leaves = [x.requires_grad_(cell.work == "forward+backward") for x in (q, k, v, g)]
    dh = inputs["dh"].transpose(1, 2).contiguous() if "dh" in inputs else None

    def call() -> Results:
        with torch.set_grad_enabled(dh is not None):
            h, _ = chunk_simple_gla(*leaves, scale=cell.dqk**-0.5)
        if dh is not None:
            torch.autograd.grad(h, leaves, dh)
        return {"h": h}

    return call


def _step(kernel: Callable[..., Any], inputs: Inputs, **options: Any) -> Call:
    given = {name: inputs[name] for name in (*SEQUENCE_INPUTS, *STATES)}

    def call() -> Results:
        with torch.no_grad():
            h, (c, _, _) = kernel(**given, eps=EPS, **options)
        return {"h": h, "c": c}

    return call


def _our_step(in_place: bool) -> Callable[[Cell, Inputs], Call]:
    def prepare(cell: Cell, inputs: Inputs) -> Call:
        from xlstm_hip.fused import mlstm_step_fused

        own = {name: x.clone() if in_place and name in STATES else x for name, x in inputs.items()}
        return _step(mlstm_step_fused, own, in_place=in_place)

    return prepare


def _official_step(cell: Cell, inputs: Inputs) -> Call:
    kernel = importlib.import_module("mlstm_kernels.torch").get_mlstm_step_kernel("triton")
    return _step(kernel, inputs, dtype_state=torch.float32)


CONTENDERS = (
    Contender("ours", OURS, WORKS, _ours),
    Contender("ours, raw ops", OURS, WORKS, _our_ops),
    Contender(
        "xl_chunk 128", OFFICIAL, WORKS, _official("chunkwise--triton_xl_chunk", 128), triton=True, llvm_opt=False
    ),
    Contender("limit_chunk 64", OFFICIAL, WORKS, _official("chunkwise--triton_limit_chunk", 64), triton=True),
    Contender("FLA simple_gla", FLA, WORKS, _fla, triton=True, exact=False),
    Contender("ours, in place", OURS, ("step",), _our_step(in_place=True)),
    Contender("ours", OURS, ("step",), _our_step(in_place=False)),
    Contender("triton step", OFFICIAL, ("step",), _official_step, triton=True),
)


def contenders_for(work: str) -> list[Contender]:
    return [x for x in CONTENDERS if work in x.works]


@contextlib.contextmanager
def compiling(contender: Contender) -> Iterator[None]:
    """Triton asks the environment at each compilation: only the kernel that needs it goes without LLVM's optimiser."""
    before = os.environ.get(LLVM)
    if contender.triton and contender.llvm_opt:
        os.environ.pop(LLVM, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[LLVM] = before


# ---- the trial


def trial(name: str, device: str) -> None:
    """In a process of its own: each work once, and a word for each that ended."""
    (contender,) = (x for x in CONTENDERS if x.triton and x.name == name)
    for work in contender.works:
        cell = Cell(work, "bf16", 1, 2, 1 if work == "step" else 256, 256, 512, 64)
        with compiling(contender):
            try:
                contender.prepare(cell, make_inputs(cell, torch.device(device)))()
                torch.cuda.synchronize()
            except Exception as error:  # it lives: the benchmark itself meets and reports this
                print(f"{work}: {type(error).__name__}", file=sys.stderr)
        print(f"done {work}", flush=True)


def not_survived(command: list[str], environment: dict[str, str]) -> dict[tuple[str, str], str]:
    """(name, work) of the Triton peers that end a process, with its last words. All are tried at once."""
    running = {
        x: subprocess.Popen(
            [*command, "--try", x.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for x in CONTENDERS
        if x.triton
    }
    lost = {}
    for contender, process in running.items():
        try:
            out, err = process.communicate(timeout=TRIAL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += f"\nno end in {TRIAL_SECONDS} s"
        words = [line for line in err.splitlines() if line.strip()] or ["no words"]
        why = next((line for line in words if "Assert" in line or "assert" in line), words[-1])
        for work in contender.works:
            if f"done {work}" not in out:
                lost[contender.name, work] = f"its trial ended with {process.returncode}: {why.strip()[:300]}"
    return lost


def add_peers(folder: Path | None) -> None:
    if folder is not None:
        sys.path.append(str(folder.resolve()))

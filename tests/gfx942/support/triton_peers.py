# SPDX-License-Identifier: Apache-2.0
"""Other projects' Triton kernels, through their own Python functions, on tensors of the CPU: Triton compiles what is
launched for gfx942, and the interpreter runs it. In a process of its own, since Triton changes what torch does:

    python triton_peers.py NAME INPUTS.pt OUTPUTS.pt       with PYTHONPATH as environment() has it
    python triton_peers.py NAME INPUTS.pt OUTPUTS.pt TIMED.json INSTRUCTIONS TRIED
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import builds
import device
import wheels
from tensors import array

if TYPE_CHECKING:
    from call_time import KernelTime

WHEELS = Path(__file__).with_name("triton_wheels.txt")
FOLDER = builds.BUILD / "triton"
PARTS = FOLDER / hashlib.sha256(WHEELS.read_bytes()).hexdigest()[:12]
# Triton finds its backends by its dist-info.
MEMBERS = (r"triton/(?!backends/nvidia/(bin|lib|include)/).*", r"triton-[^/]+\.dist-info/.*", r"fla/.*")
NO_LDS = "bytes of LDS"  # is in the error
TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}


# ---- in the process of the tests


def ensure_triton() -> None:
    """Downloads and unpacks the wheels, once for each triton_wheels.txt. wheels.NotDownloaded where pip cannot."""
    wheels.make_once(PARTS, lambda folder: wheels.unpack(WHEELS, folder, MEMBERS))


def environment() -> dict[str, str]:
    """Every check is a warning: the outputs have them."""
    path = os.pathsep.join([str(PARTS), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(FOLDER / "cache"), "GFX942_CHECKS": "all=warn"}


def call(name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the function below gives, and under "checks" the names of those that complained."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        made = Path(folder, "outputs.pt")
        _run(name, inputs, Path(folder), made)
        return torch.load(made)


def predicted(name: str, inputs: Mapping[str, Any], instructions: int, tried: int) -> list[KernelTime]:
    """How long the function's kernels would take (clock/call_time.py), the longest first. instructions: of waves, a
    launch; tried: of a tuned kernel so many configurations are tried, spread over its list, and the fastest counts."""
    from call_time import KernelTime

    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        timed = Path(folder, "timed.json")
        _run(name, inputs, Path(folder), Path(folder, "outputs.pt"), timed, instructions, tried)
        return [KernelTime.read(x) for x in json.loads(timed.read_text())]


def _run(name: str, inputs: Mapping[str, Any], folder: Path, *rest: Path | int) -> None:
    given = folder / "inputs.pt"
    torch.save(dict(inputs), given)
    command = [sys.executable, __file__, name, str(given), *map(str, rest)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.strip()[-2000:]}")


# ---- in a process of its own


class Timed:
    """What launches are predicted to take, where they are timed."""

    def __init__(self, instructions: int, tried: int) -> None:
        self.instructions, self.tried = instructions, tried
        self.kernels: list[KernelTime] = []

    def launch(self, call: Callable[[], None]) -> None:
        import call_time

        self.kernels += call_time.predicted(call, self.instructions, lambda names: names)

    def fastest(self, tuner: Any, *arguments: Any, **named: Any) -> None:
        """Autotuner.run, with predicted times."""
        before, best = self.kernels, None
        for config in spread(tuner.configs, self.tried):
            self.kernels = []
            try:
                tuner.fn.run(*arguments, **named, **config.all_kwargs())
            except device.HipError as error:
                if NO_LDS not in str(error):
                    raise
                continue
            if best is None or _sum(self.kernels) < _sum(best):
                best = self.kernels
        self.kernels = before
        if best is None:
            return first_that_fits(tuner, *arguments, **named)
        self.kernels += best


def _sum(kernels: Sequence[KernelTime]) -> float:
    return sum(x.microseconds for x in kernels)


def spread(rows: Sequence[Any], count: int) -> list[Any]:
    """So many of them, evenly, the first and the last among them."""
    if count >= len(rows):
        return list(rows)
    return [rows[k * (len(rows) - 1) // max(1, count - 1)] for k in range(count)]


def launch(timed: Timed | None, function: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """JITFunction.run: what is constant, the types of the others, and what Triton would find of their values."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {key: named.pop(key) for key in ("num_warps", "num_stages", "num_ctas") if key in named}
    bound = {p.name: p.default for p in function.params}
    bound |= dict(zip(bound, arguments, strict=False)) | named
    signature, constants, attributes, passed = {}, {}, {}, []
    for n, parameter in enumerate(function.params):
        x = bound[parameter.name]
        if parameter.is_constexpr or x is None:
            signature[parameter.name], constants[(n,)] = "constexpr", x
            continue
        signature[parameter.name] = TYPES[x.dtype] if isinstance(x, Tensor) else {int: "i32", float: "fp32"}[type(x)]
        if isinstance(x, Tensor) or (isinstance(x, int) and x % 16 == 0):
            attributes[(n,)] = [["tt.divisibility", 16]]
        passed.append(array(x.detach()) if isinstance(x, Tensor) else x)
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("hip", "gfx942", 64), options=options)
    found = compiled.metadata
    with device.Module(bytes(compiled.asm["hsaco"])) as module:
        kernel = module.kernel(found.name)
        explicit = [a for a in kernel.arguments if not a.kind.startswith("hidden_")]
        scratch = [0] * (len(explicit) - len(passed))  # pointers that these kernels do not use
        size = grid(bound) if callable(grid) else grid
        run = functools.partial(
            module.launch, found.name, size, 64 * found.num_warps, [*passed, *scratch], found.shared
        )
        if timed:
            timed.launch(run)
        else:
            run()


def first_that_fits(tuner: Any, *arguments: Any, **named: Any) -> None:
    """Autotuner.run: nothing is timed; the first configuration whose LDS the chip has."""
    for config in tuner.configs:
        try:
            return tuner.fn.run(*arguments, **named, **config.all_kwargs())
        except device.HipError as error:
            if NO_LDS not in str(error):
                raise
    raise RuntimeError(f"no configuration of {tuner.base_fn.__name__} fits")


def xl_chunk(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, eps: float) -> dict[str, Tensor]:
    """mlstm_kernels' chunkwise--triton_xl_chunk, forward: (B, NH, S, D)."""
    from mlstm_kernels.torch.chunkwise.triton_xl_chunk.fw import mlstm_chunkwise_fw

    return {"h": mlstm_chunkwise_fw(q, k, v, i, f, chunk_size=128, eps=eps)[0]}


def limit_chunk(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, eps: float) -> dict[str, Tensor]:
    """mlstm_kernels' chunkwise--triton_limit_chunk, forward."""
    from mlstm_kernels.torch.chunkwise.triton_limit_chunk.fw import mlstm_chunkwise_fw

    return {"h": mlstm_chunkwise_fw(q, k, v, i, f, CHUNK_SIZE=64, EPS=eps)[0]}


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> dict[str, Tensor]:
    """fla's causal attention, forward: (B, S, H, D) -> out, and log2 of the sums as (B, S, H)."""
    from fla.ops.attn.parallel import parallel_attn_fwd

    out, lse = parallel_attn_fwd(q, k, v, None, None, scale)
    return {"out": out, "lse": lse}


def simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> dict[str, Tensor]:
    """fla's linear attention with a gate for each token, forward: (B, S, H, D), the gates' logarithms (B, S, H)."""
    from fla.ops.simple_gla import chunk_simple_gla

    return {"out": chunk_simple_gla(q, k, v, g)[0]}


# Forward with backward and a step, whose times are predicted.


def xl_chunk_training(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, chunk: int, backward: bool) -> dict:
    """mlstm_kernels' chunkwise--triton_xl_chunk as its users call it; without what torch does between the kernels."""
    from mlstm_kernels.torch.chunkwise.triton_xl_chunk import mlstm_chunkwise__xl_chunk

    leaves = [x.requires_grad_(backward) for x in (q, k, v, i, f)]
    h = mlstm_chunkwise__xl_chunk(*leaves, chunk_size=chunk, autocast_kernel_dtype=q.dtype)
    if backward:
        h.backward(torch.ones_like(h))
    return {"h": h.detach()}


def simple_gla_training(q: Tensor, k: Tensor, v: Tensor, g: Tensor, backward: bool) -> dict[str, Tensor]:
    from fla.ops.simple_gla import chunk_simple_gla

    out = chunk_simple_gla(*(x.requires_grad_(backward) for x in (q, k, v, g)))[0]
    if backward:
        out.backward(torch.ones_like(out))
    return {"out": out.detach()}


def attention_backward(q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, lse: Tensor, scale: float) -> dict[str, Tensor]:
    """fla's causal attention, backward: (B, S, H, D), lse (B, S, H); the output is taken to be d_out."""
    from fla.ops.attn.parallel import parallel_attn_bwd

    dq, dk, dv = parallel_attn_bwd(q, k, v, d_out, None, lse, d_out, scale=scale)[:3]
    return {"dq": dq, "dk": dk, "dv": dv}


def step(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, c: Tensor, n: Tensor, m: Tensor) -> dict[str, Tensor]:
    """mlstm_kernels' triton step: (B, NH, D), gates (B, NH, 1), states in float32."""
    from mlstm_kernels.torch.recurrent.triton_step import mlstm_recurrent_step__triton

    return {"h": mlstm_recurrent_step__triton(q, k, v, i, f, c, n, m)[0]}


CALLS: dict[str, Callable[..., dict[str, Tensor]]] = {
    f.__name__: f
    for f in (
        *(xl_chunk, limit_chunk, attention, simple_gla),
        *(xl_chunk_training, simple_gla_training, attention_backward, step),
    )
}


def main(name: str, given: str, made: str, timed_file: str = "", instructions: str = "", tried: str = "") -> None:
    import torch._dynamo.config
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    torch._dynamo.config.disable = True  # the peers compile their gates
    timed = Timed(int(instructions), int(tried)) if timed_file else None
    tuned = timed.fastest if timed else first_that_fits
    JITFunction.run = lambda function, *arguments, **named: launch(timed, function, *arguments, **named)
    Autotuner.run = lambda tuner, *arguments, **named: tuned(tuner, *arguments, **named)
    outputs = CALLS[name](**torch.load(given))
    if timed:
        import call_time

        Path(timed_file).write_text(json.dumps([asdict(x) for x in call_time.joined(timed.kernels)]))
        return
    found = {w["check"] for w in device.described("gfx942_warnings_json")}
    torch.save({**outputs, "checks": found}, made)


if __name__ == "__main__":
    main(*sys.argv[1:])

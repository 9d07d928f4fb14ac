# SPDX-License-Identifier: Apache-2.0
"""The problem to tune: one op at one shape on one device, with its tensors, calls and float64 results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._core.checks import GPU_DTYPES, by_name, one_of, positive_int
from .._core.index_tensors import Pages, SequenceBounds
from .._core.ops import OPS as KERNELS
from .._core.ops import devices_with_kernels
from .._core.plans import (
    AS_PLANNED,
    BANDS,
    CLASSES,
    FUSED,
    SHIPPED,
    WEIGHTS,
    Plan,
    arch_of,
    class_of,
    read_table,
    same_call,
    trying,
)  # fmt: skip
from ..attention import flash_attn_func, flash_mla_with_kvcache
from ..attention.ops import BackwardCut, Options
from ..mlstm.interface import mlstm_interface, mlstm_step_interface
from ..reference.attention import attention
from . import decode_problem

OPS = tuple(CLASSES)
DTYPES = by_name(GPU_DTYPES)
EPS, CHUNK = 1e-6, 64
ATTENTION = ("attention_forward", "attention_backward", "mla_decode")
ONLY_ATTENTION = ("heads_k", "queries", "causal")

Results = tuple[Tensor, ...]
Inputs = dict[str, Any]  # tensors, by the names that the calls have for them


class WrongResult(Exception):
    """The result of a plan is further from the truth than it may be."""


@dataclass(frozen=True)
class Problem:
    """heads_k: 0 is heads; queries: 0 is length. Both, and causal, are attention's alone; a step has no length."""

    op: str
    device: str = "cpu"
    dtype: str = "bfloat16"
    batch: int = 1
    heads: int = 8
    length: int = 2048
    dqk: int = 256
    dhv: int = 512
    heads_k: int = 0
    queries: int = 0
    causal: bool = False

    def __post_init__(self) -> None:
        one_of("op", self.op, OPS)
        one_of("dtype", self.dtype, (*DTYPES, *(WEIGHTS if self.op == "decode_step" else ())))
        for name in ("batch", "heads", "length", "dqk", "dhv"):
            positive_int(name, getattr(self, name))
        try:
            kind = torch.device(self.device).type
        except RuntimeError:
            raise ValueError(f"device: expected cpu, cuda or cuda:N, got {self.device!r}") from None
        op = {"mla_decode": "attention_forward", "decode_step": "decode_step_"}.get(self.op, self.op)
        one_of("device", kind, devices_with_kernels(op))
        if kind == "cuda" and self.arithmetic not in GPU_DTYPES:
            raise ValueError(f"dtype: expected one of the GPU's, got {self.dtype!r}")
        for name in ONLY_ATTENTION:
            value = getattr(self, name)
            if value and self.op not in ATTENTION:
                raise ValueError(f"{name}: expected none for {self.op}, got {value}")
            if isinstance(value, int) and value < 0:
                raise ValueError(f"{name}: expected >= 0, got {value}")
        if self.op == "mla_decode" and self.dhv > self.dqk:
            raise ValueError(
                f"dhv: expected at most dqk = {self.dqk} for mla_decode, whose values are the first features of its "
                f"keys, got {self.dhv}"
            )
        if self.heads_k and self.heads % self.heads_k:
            raise ValueError(f"heads_k: expected a divisor of the {self.heads} heads, got {self.heads_k}")

    @property
    def on(self) -> torch.device:
        return torch.device(self.device)

    @property
    def arithmetic(self) -> torch.dtype:
        """Of what is not weights."""
        return DTYPES.get(self.dtype, torch.bfloat16)

    @property
    def arch(self) -> str:
        return arch_of(self.on.type, self.on.index)

    def shape_class(self) -> dict[str, Any]:
        sizes = asdict(self) | {"heads_k": self.heads_k or self.heads, "queries": self.queries or self.length}
        return class_of(sizes.pop("op"), **sizes)

    def shipped(self) -> Plan:
        """The plan that an installation without a table of its own has."""
        call = {"op": self.op, "arch": self.arch, "class": self.shape_class()}
        return next((one["plan"] for one in read_table(SHIPPED) if same_call(one, call)), AS_PLANNED)

    def tensors(self, seed: int = 0) -> Inputs:
        """The same on every machine. Forget gates are open, input gates about zero, as trained models have them."""
        if self.op == "decode_step":
            return decode_problem.tensors(self.dtype, self.batch, self.heads, self.dqk, self.dhv, self.device, seed)
        generator = torch.Generator().manual_seed(seed)
        dtype = DTYPES[self.dtype]

        def normal(*shape: int, to: torch.dtype = dtype) -> Tensor:
            return torch.randn(shape, generator=generator).to(to).to(self.device)

        b, nh, s, dqk, dhv = self.batch, self.heads, self.length, self.dqk, self.dhv
        if self.op in ATTENTION:
            rows, kv = (b, self.queries or s, nh), (b, s, self.heads_k or nh)
            if self.op == "mla_decode":
                return {"q": normal(*rows, dqk), "k_cache": normal(*kv, dqk)}
            out = {"q": normal(*rows, dqk), "k": normal(*kv, dqk), "v": normal(*kv, dhv)}
            return out | ({"dout": normal(*rows, dhv)} if self.op == "attention_backward" else {})
        tokens = (b, nh) if self.op == "mlstm_step" else (b, nh, s)
        gates = (b, nh, 1) if self.op == "mlstm_step" else tokens
        out = {"q": normal(*tokens, dqk), "k": normal(*tokens, dqk), "v": normal(*tokens, dhv)}
        out |= {"i": normal(*gates), "f": 3 + normal(*gates)}
        if self.op == "mlstm_step":
            wide = torch.float32
            out |= {"c": normal(b, nh, dqk, dhv, to=wide), "n": normal(b, nh, dqk, to=wide)}
            out["m"] = normal(b, nh, 1, to=wide)
        if self.op == "mlstm_backward":
            out["dh"] = normal(*tokens, dhv)
        return out


def call_of(problem: Problem, x: Inputs, plan: Plan) -> Callable[[], Results]:
    """One call of the op that is cut up as `plan` says, and by nothing else: what it leaves out is csrc/'s."""
    if problem.op == "decode_step":
        return decode_problem.call_of(x, plan)
    if problem.op == "attention_forward":
        return lambda: _attended(x, problem.causal, plan)
    if problem.op == "attention_backward":
        return _attention_backward_call(x, problem.causal, plan)
    if problem.op == "mla_decode":
        q, cache = x["q"], x["k_cache"]
        used = torch.full(q.shape[:1], problem.length, dtype=torch.int32, device=q.device)
        return lambda: flash_mla_with_kvcache(q, cache, None, used, problem.dhv, causal=problem.causal, plan=plan)[:1]
    options = {name: value for name, value in plan.items() if name != "kernel"}
    if problem.op == "mlstm_backward":
        return _backward_call(x, options)
    kernel = plan.get("kernel")
    is_fused = kernel in (None, FUSED.get(problem.op))
    more: dict[str, Any] = {"plan": options} if is_fused else {}
    if problem.op == "mlstm_step":
        return lambda: _flat(mlstm_step_interface(**x, eps=EPS, kernel=kernel, **more))
    if problem.op == "mlstm_sequence":
        return lambda: _flat(mlstm_interface(**x, return_last_states=True, eps=EPS, kernel="fused", plan=options))
    size = CHUNK if is_fused else options.get("chunk_size") or CHUNK
    more |= {name: options[name] for name in BANDS if options.get(name)}
    return lambda: _flat(mlstm_interface(**x, return_last_states=True, eps=EPS, chunk_size=size, kernel=kernel, **more))


def _attended(x: Inputs, causal: bool, plan: Plan) -> Results:
    with trying("attention_forward", plan):
        return (flash_attn_func(**x, causal=causal),)


def _attention_backward_call(x: Inputs, causal: bool, plan: Plan) -> Callable[[], Results]:
    q, k, v = (x[name] for name in "qkv")
    options = Options(q.shape[1], k.shape[1], q.shape[-1] ** -0.5, -1, 0 if causal else -1, 0.0, 0.0, 0)
    no_rules = (None, None, None)  # slopes, sink, dropout
    out, lse = KERNELS.attention_forward(q, k, v, *SequenceBounds(), *Pages(), *no_rules, *options, 0, True)
    arguments = (q, k, v, out, lse, x["dout"], None, *SequenceBounds(), *no_rules, *options[:-1], *BackwardCut(**plan))
    return lambda: tuple(KERNELS.attention_backward(*arguments)[:3])


def _flat(outputs: Any) -> Results:
    h, states = outputs
    return h, *states


def _backward_call(x: Inputs, plan: Plan) -> Callable[[], Results]:
    inputs = (*(x[name] for name in "qkvif"), None, None, None, None)
    h, l = KERNELS.mlstm_chunkwise(*inputs, False, True, EPS, CHUNK, False)
    cut = (plan.get("segments", 0), plan.get("walk_chunk", 0))
    chunk = plan.get("chunk_size") or CHUNK
    return lambda: tuple(
        KERNELS.mlstm_backward(
            *inputs, h, l, x["dh"], None, None, None, False, True, True, EPS, chunk, False, *cut
        )
    )  # fmt: skip


def plain(problem: Problem, x: Inputs, dtype: torch.dtype) -> Results:
    """The same results by plain torch in a dtype; in float64 they are the truth."""
    if problem.op == "decode_step":
        return decode_problem.plain(x, dtype)
    wide = torch.promote_types(dtype, torch.float32)
    x = {name: y.to(wide if name in ("c", "n", "m") else dtype) for name, y in x.items()}
    if problem.op == "mla_decode":
        k = x.pop("k_cache")
        x |= {"k": k, "v": k[..., : problem.dhv]}
    if problem.op in ("attention_forward", "mla_decode"):
        out, *_ = attention(**x, causal=problem.causal)
        return (out,)
    if problem.op == "attention_backward":
        return _gradients(lambda **leaves: attention(**leaves, causal=problem.causal)[0], x, "dout")
    if problem.op == "mlstm_step":
        return _flat(mlstm_step_interface(**x, eps=EPS, kernel="native"))
    if problem.op == "mlstm_sequence":
        return _flat(mlstm_interface(**x, return_last_states=True, eps=EPS, kernel="native_sequence__native"))
    kernel = "chunkwise--native_autograd"
    if problem.op == "mlstm_chunkwise":
        return _flat(mlstm_interface(**x, return_last_states=True, eps=EPS, chunk_size=CHUNK, kernel=kernel))
    return _gradients(partial(mlstm_interface, eps=EPS, chunk_size=CHUNK, kernel=kernel), x, "dh")


def _gradients(function: Callable[..., Any], x: Inputs, sent: str) -> Results:
    """The gradients of all inputs but `sent`, which is the gradient that the result gets."""
    leaves = {name: y.detach().requires_grad_() for name, y in x.items() if name != sent}
    return torch.autograd.grad(function(**leaves), list(leaves.values()), x[sent])


def error(result: Tensor, truth: Tensor) -> float:
    """Relative, in the 2-norm."""
    return float((result.double() - truth).norm() / truth.norm().clamp_min(1e-300))


class Judged:
    """A problem's tensors and their truth, which every plan is held to: twice plain torch's error in the same dtype."""

    def __init__(self, problem: Problem, seed: int = 0) -> None:
        self.problem = problem
        self.inputs = problem.tensors(seed)
        self.truth = plain(problem, self.inputs, torch.float64)
        dtype = problem.arithmetic
        least = torch.finfo(dtype).eps
        same = plain(problem, self.inputs, dtype)
        self.tolerances = [2 * max(error(a, b), least) for a, b in zip(same, self.truth, strict=True)]

    def call(self, plan: Plan) -> Callable[[], Results]:
        return call_of(self.problem, self.inputs, plan)

    def errors(self, results: Results) -> list[float]:
        return [error(x, truth) for x, truth in zip(results, self.truth, strict=True)]

    def check(self, results: Results) -> float:
        """The largest error as a share of what is allowed; more than that is a WrongResult."""
        worst = 0.0
        for n, (off, allowed) in enumerate(zip(self.errors(results), self.tolerances, strict=True)):
            share = off / allowed
            if not share <= 1:
                raise WrongResult(f"result {n}: error {off:.2g}, allowed are {allowed:.2g}")
            worst = max(worst, share)
        return worst

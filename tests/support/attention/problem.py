# SPDX-License-Identifier: Apache-2.0
"""One case of attention: its inputs, the truth about them, and the public call in whatever layout it has."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from support.attention import truth
from xlstm_hip import attention
from xlstm_hip.reference import attention as plain

EPS = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
ORDERS = (1, 2, 3, 4)
FLOOR = 2  # roundings of the result, where plain torch is exact by luck
POISON = float("nan")
TINY = 1e-30


@dataclass(frozen=True)
class Case:
    dtype: torch.dtype = torch.float32
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (32, 32)
    lengths: tuple[tuple[int, int], ...] = ((37, 70), (37, 70))  # queries and keys in use, of each sequence
    layout: str = "dense"  # dense, strided, packed
    scale: float | None = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    alibi: str = ""  # "", "h", "bh"
    sink: bool = False
    dropout_p: float = 0.0
    leftpad: bool = False  # keys are given more room, before and behind: NaN there
    unused: bool = False
    block_size: int | None = None
    backward_plan: tuple[tuple[str, int], ...] = ()

    @property
    def pads(self) -> list[int]:
        return [(3 * b + 2) * self.leftpad for b in range(len(self.lengths))]

    @property
    def capacity(self) -> list[int]:
        """Keys that each sequence has memory for."""
        used = [pad + keys for pad, (_, keys) in zip(self.pads, self.lengths, strict=True)]
        if self.layout == "packed":
            return [n + (5 + b) * self.unused for b, n in enumerate(used)]
        return [max(used) + 5 * self.unused] * len(used)


Leaves = dict[str, Tensor]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@functools.cache
def values(case: Case) -> Leaves:
    """Of the case, in float64 but as its dtype has them; per sequence "q0", "k0", "v0" and cotangents, and "sink"."""
    g = generator(len(case.lengths) + case.dims[0])
    tensors: Leaves = {}

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(case.dtype).double()

    (hq, hk), (d, dv) = case.heads, case.dims
    for b, (queries, keys) in enumerate(case.lengths):
        tensors |= {f"q{b}": draw(queries, hq, d), f"k{b}": draw(keys, hk, d), f"v{b}": draw(keys, hk, dv)}
        tensors |= {f"dout{b}": draw(queries, hq, dv), f"dlse{b}": draw(hq, queries).float().double()}
    if case.sink:
        tensors["sink"] = draw(hq)
    return tensors


def slopes(case: Case) -> Tensor | None:
    hq, batch = case.heads[0], len(case.lengths)
    of_batch = torch.rand(batch, hq, generator=generator(3)) / 4
    return {"": None, "h": of_batch[0], "bh": of_batch}[case.alibi]


SEED = 5


def rng_state(device: str) -> Tensor:
    """The state from which the next call with dropout draws after torch.manual_seed(SEED)."""
    torch.manual_seed(SEED)
    return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=device).cpu()


def rules(case: Case, sink: Tensor | None, drawn: Tensor | None) -> truth.Rules:
    scale = case.dims[0] ** -0.5 if case.scale is None else case.scale
    return truth.Rules(scale, case.causal, case.window, case.softcap, slopes(case), sink, case.dropout_p, drawn)


Results = dict[str, Tensor]


def gathered(
    case: Case, outs: list[Tensor], lses: list[Tensor], leaves: Leaves, backward: bool = True, order: int = 0
) -> Results:
    """Everything in one tensor per quantity: outputs and the gradients of the leaves."""
    gathered_results = {"out": torch.cat([x.flatten() for x in outs]), "lse": torch.cat([x.flatten() for x in lses])}
    if backward:
        gathered_results |= gradients(case, outs, lses, leaves, order)
    return {n: x.detach().cpu().double() for n, x in gathered_results.items()}


def gradients(case: Case, outs: list[Tensor], lses: list[Tensor], leaves: Leaves, order: int = 0) -> Results:
    cotangents = {name: x.to(outs[0].device) for name, x in values(case).items()}
    sent = [reordered(cotangents[f"dout{b}"], order).to(out.dtype) for b, out in enumerate(outs)]
    seen = [lse.isfinite() for lse in lses]
    sent += [
        torch.where(s, cotangents[f"dlse{b}"].to(lse.dtype), 0)
        for b, (lse, s) in enumerate(zip(lses, seen, strict=True))
    ]
    names = list(leaves)
    found = torch.autograd.grad([*outs, *lses], [leaves[n] for n in names], sent, allow_unused=True)
    by_name = {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(names, found, strict=True)}
    by_kind = {}
    for kind in "qkv":
        parts = [by_name[n].flatten() for n in names if n[0] == kind]
        by_kind[f"d{kind}"] = torch.cat(parts)
    if "sink" in by_name:
        by_kind["dsink"] = by_name["sink"]
    return by_kind


def leaves_of(case: Case, dtype: torch.dtype, device: str = "cpu") -> Leaves:
    return {n: x.to(dtype).to(device).requires_grad_() for n, x in values(case).items() if n[0] in "qkvs"}


@functools.cache
def true_results(case: Case, device: str = "cpu") -> Results:
    """device: that of the call, for what dropout draws there."""
    leaves = leaves_of(case, torch.float64)
    sequences = [(leaves[f"q{b}"], leaves[f"k{b}"], leaves[f"v{b}"]) for b in range(len(case.lengths))]
    outputs = truth.attention(sequences, rules(case, leaves.get("sink"), rng_state(device)))
    results = gathered(case, [x[0] for x in outputs], [x[1] for x in outputs], leaves)
    results["probs"] = torch.cat([x[2].flatten() for x in outputs]).detach()
    return results


def reordered(x: Tensor, order: int) -> Tensor:
    """Another order of the features, which changes the roundings and nothing else; order 0 keeps it."""
    if not order:
        return x
    features = torch.randperm(x.shape[-1], generator=generator(order))
    return x.detach()[..., features].requires_grad_(x.requires_grad)


@functools.cache
def plain_results(case: Case, dtype: torch.dtype, device: str = "cpu", order: int = 0) -> Results:
    """The plain reference, each sequence on its own. What has features has them in that order."""
    leaves = {name: x if name == "sink" else reordered(x, order) for name, x in leaves_of(case, dtype).items()}
    drawn = rng_state(device)
    outs, lses, weights = [], [], []
    for b in range(len(case.lengths)):
        q, k, v = (leaves[f"{kind}{b}"][None] for kind in "qkv")
        of = slopes(case)
        # A sequence's mask is that of its place in the batch: the rows before it are made and left out.
        out, lse, softmax = plain.attention(
            *(x.expand(b + 1, *x.shape[1:]) for x in (q, k, v)), dropout_p=case.dropout_p, softmax_scale=case.scale,
            causal=case.causal, window_size=case.window, softcap=case.softcap,
            alibi_slopes=of[b].expand(b + 1, -1) if case.alibi == "bh" else of, sink=leaves.get("sink"),
            rng_state=drawn,
        )  # fmt: skip
        outs.append(out[b])
        lses.append(lse[b])
        weights.append(softmax[b].detach().flatten().double())
    return gathered(case, outs, lses, leaves, order=order) | {"probs": torch.cat(weights)}


def padded(x: Tensor, before: int, behind: int) -> Tensor:
    """(K, H, D) with poison around it."""
    return torch.nn.functional.pad(x, (0, 0, 0, 0, before, behind), value=POISON)


def arguments(case: Case) -> dict[str, Any]:
    return {
        "dropout_p": case.dropout_p, "softmax_scale": case.scale, "causal": case.causal, "window_size": case.window,
        "softcap": case.softcap, "alibi_slopes": slopes(case), "block_size": case.block_size,
        "backward_plan": dict(case.backward_plan) or None,
    }  # fmt: skip


def our_results(case: Case, device: str = "cpu", backward: bool = True) -> Results:
    leaves = leaves_of(case, case.dtype, device)
    options = arguments(case)
    if case.alibi:
        options["alibi_slopes"] = options["alibi_slopes"].to(device)
    if case.sink:
        options["sink"] = leaves["sink"]
    batch = range(len(case.lengths))
    q = [leaves[f"q{b}"] for b in batch]
    kv = [
        [
            padded(leaves[f"{kind}{b}"], case.pads[b], case.capacity[b] - case.pads[b] - case.lengths[b][1])
            for b in batch
        ]
        for kind in "kv"
    ]
    if case.leftpad:
        options["leftpad_k"] = torch.tensor(case.pads, dtype=torch.int32, device=device)
    if case.unused or (case.layout != "packed" and len({n for _, n in case.lengths}) > 1) or case.leftpad:
        used = [p + n for p, (_, n) in zip(case.pads, case.lengths, strict=True)]
        options["seqused_k"] = torch.tensor(used, device=device)
    torch.manual_seed(SEED)
    if case.layout == "packed":
        ends_q = torch.tensor([0, *(n for n, _ in case.lengths)]).cumsum(0).to(device)
        ends_k = torch.tensor([0, *case.capacity]).cumsum(0).to(device)
        longest = max(n for n, _ in case.lengths), max(case.capacity)
        out, lse, weights = attention.flash_attn_varlen_func(
            torch.cat(q), *(torch.cat(x) for x in kv), ends_q, ends_k, *longest, **options, return_attn_probs=True
        )
        outs, lses = [], []
        for b in batch:
            outs.append(out[ends_q[b] : ends_q[b + 1]])
            lses.append(lse[:, ends_q[b] : ends_q[b + 1]])
    else:
        tensors = [torch.stack(x) for x in (q, *kv)]
        if case.layout == "strided":
            tensors = [torch.nn.functional.pad(x, (0, 8, 0, 1, 0, 3), value=POISON)[:, :-3, :-1, :-8] for x in tensors]
        out, lse, weights = attention.flash_attn_func(*tensors, **options, return_attn_probs=True)
        outs, lses = list(out), list(lse)
    results = gathered(case, outs, lses, leaves, backward)
    if case.dropout_p:
        of = [weights[b, :, : case.lengths[b][0], case.pads[b] : case.pads[b] + case.lengths[b][1]] for b in batch]
        results["probs"] = torch.cat([x.flatten() for x in of]).cpu().double()
    return results


def errors(actual: Results, true: Results) -> dict[str, float]:
    """Relative by norm, and by the largest difference; infinities must be the same."""
    found = {}
    for name, x in actual.items():
        expected = true[name]
        assert torch.equal(x.isinf(), expected.isinf()), f"{name}: other infinities than the truth"
        x, expected = (y.nan_to_num(nan=POISON, posinf=0) for y in (x, expected))
        difference = x - expected
        found[f"{name} norm"] = float(difference.norm()) / max(float(expected.norm()), TINY)
        if x.numel():
            found[f"{name} max"] = float(difference.abs().max()) / max(float(expected.abs().max()), TINY)
    return found


def check(case: Case, actual: Results | None = None, device: str = "cpu") -> None:
    """Fails where an error is above twice that of plain torch, or no number.

    dsink is one number a head: so few that one run of plain torch can be exact by luck. There it is the worst of some
    orders of the features.
    """
    true = true_results(case, device)
    measured = errors(our_results(case) if actual is None else actual, true)
    allowed = errors(plain_results(case, case.dtype, device), true)
    if "dsink norm" in measured:
        draws = [errors({"dsink": plain_results(case, case.dtype, device, order)["dsink"]}, true) for order in ORDERS]
        allowed |= {name: max(allowed[name], *(x[name] for x in draws)) for name in draws[0]}
    eps = EPS[case.dtype]
    # In float64 the truth itself is rounded as much, and plain torch's error is one draw of the same size.
    times, least = (4, 4 * FLOOR) if case.dtype == torch.float64 else (2, FLOOR)
    over = {}
    for name, error in measured.items():
        of_wide = name.startswith(("lse", "dsink"))
        floor = least * (min(eps, EPS[torch.float32]) if of_wide else eps)
        limit = times * allowed.get(name, 0.0) + floor
        if not error <= limit:
            over[name] = f"{name}: error {error:.3g}, allowed {limit:.3g}"
    assert not over, f"{case}\n  " + "\n  ".join(over.values())


def variant(case: Case, **changes: Any) -> Case:
    return replace(case, **changes)

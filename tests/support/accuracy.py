# SPDX-License-Identifier: Apache-2.0
"""How far a kernel may be from the truth: twice as far as plain torch of the same dtype is, on the same inputs.

Plain torch is one run of chunkwise--native_autograd, on the same inputs. One run is one draw from what rounding can do,
and says too little where few draws decide:

- where the normaliser cancels (`cancels`): l is then small beside the terms it is the sum of, and the errors of all
  of h and of the gradients are those of one or two tokens' l. Two equally good kernels differ by more than twice.
- for the largest difference, which is one number's.
- in a case of fewer than MANY tokens, and for states and their gradients, which the few tokens next to them decide.
- in float64, where nothing is wider: the plain chunkwise kernel sums the gates of each pair of tokens on its own,
  and the others take differences of sums.
- for kernels that go token by token, which round at every token.

There, and for the plain kernels themselves, the plain error is the worst of several runs: of the chunkwise, the
parallel and the token-by-token kernel, and of several orders of the features, which change the roundings and nothing
else. In the half dtypes the rounding of operands outweighs all that, and it is one run but for the plain kernels.

The only other thing that allows an error is a floor (see `_floors`): a plain kernel can be exact by luck.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from support.reference import TINY, max_error, outputs_and_gradients, relative_error, truth
from support.shapes import HALF, Case, make
from xlstm_hip import KernelInfo, mlstm_interface, mlstm_step_interface

PLAIN = {"exp": "chunkwise--native_autograd", "sigmoid": "chunkwise--native_siging_autograd"}
PLAIN_PARALLEL = {"exp": "parallel--native_autograd", "sigmoid": "parallel--native_siging_autograd"}
PLAIN_LOOP = {"exp": "native_sequence__native", "sigmoid": "native_sequence__native_siging"}
PLAIN_CHUNKS = (16, 32, 64, 128)
CANCELLED = 8
MANY = 64
ONE_RUN = {f"{name} norm" for name in ("h", "dq", "dk", "dv", "di", "df")}
LONGEST_PARALLEL = 2049  # it keeps S x S weights
LONGEST_LOOP = 4096  # it keeps the state of every token

METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"norm": relative_error, "max": max_error}
FLOOR = 2  # units of eps(dtype): one rounding of the result, and one of what it was computed from
# The error that rounding both operands adds to a product, root mean square, in eps of the product: one is off by eps /
# sqrt(12) of the power of two below it, which is eps / sqrt(24) of itself; and there are two.
OPERANDS = 12**-0.5
Quantities = dict[str, Tensor]  # h c n m dq dk dv di df dc_initial dn_initial dm_initial
Errors = dict[str, float]  # by quantity and metric: "dq norm"


@dataclass
class Measured:
    errors: Errors
    tolerances: Errors
    one_run: Errors  # what twice a single run of plain torch would allow, for the report
    ratios: Errors = field(init=False)

    def __post_init__(self) -> None:
        self.ratios = {name: error / self.tolerances[name] for name, error in self.errors.items()}

    @property
    def worst(self) -> str:
        return max(self.ratios, key=lambda name: math.inf if math.isnan(self.ratios[name]) else self.ratios[name])


def check(label: str, measured: Measured) -> None:
    """Fails where an error is above its tolerance, or no number."""
    over = {name: ratio for name, ratio in measured.ratios.items() if not ratio <= 1}
    lines = (
        f"{n}: error {measured.errors[n]:.3g}, allowed {measured.tolerances[n]:.3g}, {over[n]:.2f} times" for n in over
    )
    assert not over, f"{label}\n  " + "\n  ".join(lines)


# ---- running a case


def quantities(
    function: Callable[..., Any], inputs: Mapping[str, Tensor], cotangents: Sequence[Tensor], **options: Any
) -> Quantities:
    outputs, gradients = outputs_and_gradients(function, inputs, cotangents, **options)
    return outputs | {f"d{name}": g for name, g in gradients.items()}


def _with_gaps(x: Tensor) -> Tensor:
    """The same values with unused memory between heads and rows, as slices of one fused projection have."""
    return F.pad(x, (0, 3, 0, 2))[..., :-2, :-3] if x.dim() == 4 else F.pad(x, (0, 1, 0, 2))[..., :-2, :-1]


def sequence_call(case: Case, kernel: str, **options: Any) -> Callable[..., Any]:
    """The public call of this case, as a function of contiguous (B, NH, S, ...) inputs."""

    def function(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **states: Tensor) -> Any:
        tensors = [q, k, v, i, f]
        arguments = dict(options)
        if case.layout == "bshd":
            tensors = [x.transpose(1, 2).contiguous() for x in tensors]
            arguments["layout"] = "bshd"
        elif case.layout == "strided":
            tensors = [_with_gaps(x) for x in tensors]
        if case.cu_seqlens:
            arguments["cu_seqlens"] = torch.tensor(case.cu_seqlens, dtype=torch.int32, device=q.device)
        if not case.normalizer_grad:
            arguments["normalizer_grad"] = False
        h, last = mlstm_interface(
            *tensors, **states, return_last_states=True, eps=case.eps, chunk_size=case.chunk, kernel=kernel, **arguments
        )
        return (h.transpose(1, 2) if case.layout == "bshd" else h), last

    return function


def step_call(case: Case, kernel: str, **options: Any) -> Callable[..., Any]:
    """The same for a step kernel: a case of one token with states."""

    def function(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **states: Tensor) -> Any:
        token = (x[:, :, 0] for x in (q, k, v))
        h, last = mlstm_step_interface(*token, i, f, *states.values(), eps=case.eps, kernel=kernel, **options)
        return h[:, :, None], last

    return function


def errors_of(actual: Quantities, expected: Quantities) -> Errors:
    return {f"{name} {m}": metric(actual[name], expected[name]) for name in expected for m, metric in METRICS.items()}


# ---- what is allowed


def inputs_on(case: Case, dtype: torch.dtype, device: str) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """The case's inputs and cotangents: the same values on every device."""
    inputs, cotangents = make(case, dtype)
    return {name: x.to(device) for name, x in inputs.items()}, tuple(x.to(device) for x in cotangents)


@functools.lru_cache(maxsize=8)
def _truth(case: Case, half: bool, gate: str, normalize: bool, device: str) -> Quantities:
    inputs, cotangents = inputs_on(case, torch.bfloat16 if half else torch.float32, device)
    wide = {name: x.double() for name, x in inputs.items()}
    options = {"eps": case.eps, "gate": gate, "normalize": normalize, "normalizer_grad": case.normalizer_grad}
    return quantities(truth, wide, [x.double() for x in cotangents], cu_seqlens=case.cu_seqlens, **options)


def true_values(case: Case, dtype: torch.dtype, gate: str, normalize: bool = True, device: str = "cpu") -> Quantities:
    """Computed once for the dtypes whose inputs have the same values."""
    return _truth(case, case.same_values or dtype in HALF, gate, normalize, device)


def _reordered(case: Case, seed: int) -> Callable[[str, Tensor], Tensor]:
    """Another order of the features, for a tensor by name. Seed 0 keeps the order."""
    rng = torch.Generator().manual_seed(seed)
    keys, values = torch.randperm(case.dqk, generator=rng), torch.randperm(case.dhv, generator=rng)
    if seed == 0:
        keys, values = torch.arange(case.dqk), torch.arange(case.dhv)

    def reorder(name: str, x: Tensor) -> Tensor:
        base = name.removesuffix("_initial")
        base = base[1:] if base.startswith("d") else base
        if base == "c":
            return x[..., keys, :][..., values]
        return x[..., keys] if base in "qkn" else x[..., values] if base in "vh" else x

    return reorder


def _plain_runs(case: Case, gate: str, all_plain: bool) -> Iterator[tuple[Case, str, int, dict[str, Any]]]:
    """(case, kernel, order of the features, options) of each run; the first is the reference itself."""
    yield case, PLAIN[gate], 0, {}
    if not all_plain:
        return
    for seed, chunk in enumerate(PLAIN_CHUNKS * (1 if case.long else 2), start=1):
        yield dataclasses.replace(case, chunk=chunk), PLAIN[gate], seed, {}
    for seed in range(2 if case.long else 4):
        if case.length <= LONGEST_PARALLEL and not (case.long and seed):
            yield case, PLAIN_PARALLEL[gate], seed, {"stable_fgate": False} if gate == "sigmoid" else {}
        if case.normalizer_grad and case.length <= LONGEST_LOOP:
            yield case, PLAIN_LOOP[gate], seed, {}


@functools.lru_cache(maxsize=64)
def cancels(case: Case, gate: str) -> bool:
    """Whether some token's normaliser is less than a CANCELLED-th of the sum of its terms' magnitudes.

    The relative error of h is that ratio times the roundings of a term. With the sigmoid gate the normaliser is 1 at
    least, and the terms are no larger than their keys.
    """
    if gate == "sigmoid":
        return False
    inputs, _ = make(case, torch.float32)
    x = {name: value.double() for name, value in inputs.items()}
    scale = case.dqk**-0.5
    for j, (begin, end) in enumerate(_parts(case)):
        row = slice(j, j + 1) if case.lengths else slice(None)
        q, k = (x[name][..., begin:end, :] for name in "qk")
        forgotten = F.logsigmoid(x["f"][..., begin:end]).cumsum(-1)  # (B, NH, S)
        m_initial = x["m_initial"][row] if case.states else torch.zeros_like(forgotten[..., :1])
        weight = forgotten[..., :, None] - forgotten[..., None, :] + x["i"][..., None, begin:end]
        weight = weight.masked_fill(torch.ones_like(weight, dtype=torch.bool).triu(1), -math.inf)
        m = torch.maximum(weight.amax(-1), forgotten + m_initial)
        terms = scale * (q @ k.transpose(-1, -2)) * torch.exp(weight - m[..., None])  # (B, NH, S, S)
        l, size = terms.sum(-1), terms.abs().sum(-1)
        if case.states:
            carried = scale * (q @ x["n_initial"][row, ..., None])[..., 0] * torch.exp(forgotten + m_initial - m)
            l, size = l + carried, size + carried.abs()
        normaliser = torch.maximum(l.abs(), torch.exp(-m)) + case.eps
        if bool((size > CANCELLED * normaliser).any()):
            return True
    return False


@functools.lru_cache(maxsize=16)
def tolerances(
    case: Case,
    dtype: torch.dtype,
    gate: str,
    normalize: bool = True,
    plain_itself: bool = False,
    chunkwise: bool = True,
    device: str = "cpu",
) -> tuple[Errors, Errors]:
    """The tolerances, and the tolerances that one run of plain torch would give. Plain torch runs on the same
    device."""
    inputs, cotangents = inputs_on(case, dtype, device)
    expected = true_values(case, dtype, gate, normalize, device)
    all_plain = dtype not in HALF or plain_itself
    runs = []
    for variant, kernel, seed, options in _plain_runs(case, gate, all_plain):
        if not normalize:
            options["normalize"] = False
        reorder = _reordered(case, seed)
        moved = {name: reorder(name, x) for name, x in inputs.items()}
        sent = [reorder(name, x) for name, x in zip("hcnm", cotangents, strict=True)]
        actual = quantities(sequence_call(variant, kernel, **options), moved, sent)
        runs.append(errors_of(actual, {name: reorder(name, x) for name, x in expected.items()}))
    floors = _floors(case, dtype, gate, all_plain, inputs, cotangents, expected)
    many_tokens = inputs["i"].numel() >= MANY
    one_run_says = dtype == torch.float32 and chunkwise and not plain_itself and many_tokens and not cancels(case, gate)
    decide = {name: runs[:1] if one_run_says and name in ONE_RUN else runs for name in runs[0]}
    ulps = FLOOR * torch.finfo(dtype).eps
    # In float64 the exponents of the weights, sums of a chunk's gates, are rounded like all else. The plain chunkwise
    # kernel sums each on its own and loses less there. (For other dtypes every kernel makes them in float64.)
    exponents = 1 + _largest_exponent(case, inputs) if dtype == torch.float64 else 1.0
    return (
        {n: exponents * max(floors[n], *(2 * run[n] for run in decide[n])) for n in runs[0]},
        {n: max(ulps, 2 * e) for n, e in runs[0].items()},
    )


def _parts(case: Case) -> list[tuple[int, int]]:
    ends = case.cu_seqlens or [0, case.length]
    return list(zip(ends[:-1], ends[1:], strict=True))


def _floors(
    case: Case,
    dtype: torch.dtype,
    gate: str,
    all_plain: bool,
    inputs: Mapping[str, Tensor],
    cotangents: Sequence[Tensor],
    true: Quantities,
) -> Errors:
    """FLOOR units in the last place of the result; or what the sums behind it round off, where that is more.

    - A sum of K terms, one after the other, rounds K times, which adds up to about sqrt(K) half units. Sums are
      float32 at least.
    - df, di and dm_initial are sums that all but vanish where a token forgets wholly: the roundings of their terms do
      not. The terms are float32 at least too; only plain torch rounds them to q's dtype.
    - In the half dtypes the terms of di and dm_initial are products whose operands were rounded to q's dtype, each by
      itself. What that adds up to is the root of the sum of their squares; twice as much is allowed, as of all errors.
    """
    eps, wide_eps = torch.finfo(dtype).eps, torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    eps_of_terms = eps if all_plain else wide_eps
    longest_sum = max(case.dqk, case.dhv, min(case.chunk, case.length))
    floor = max(FLOOR * eps, wide_eps / 2 * longest_sum**0.5)
    floors = {f"{name} {metric}": floor for name in true for metric in METRICS}
    rounded_off = [(FLOOR * eps_of_terms, _summed_terms(case, gate, inputs, cotangents, true))]
    if dtype in HALF:
        rounded_off.append((2 * OPERANDS * eps, _spread_of_terms(case, gate, inputs, true)))
    for units, sizes in rounded_off:
        for name, terms in sizes.items():
            for metric, size in (("norm", torch.linalg.vector_norm), ("max", torch.amax)):
                ratio = float(size(terms) / size(true[name].abs()).clamp(min=TINY))
                key = f"{name} {metric}"
                floors[key] = max(floors[key], units * ratio)
    return floors


def _largest_exponent(case: Case, inputs: Mapping[str, Tensor]) -> float:
    log_forget = -F.logsigmoid(inputs["f"].double())
    chunks = ((t, min(t + case.chunk, end)) for begin, end in _parts(case) for t in range(begin, end, case.chunk))
    forgotten = max(float(log_forget[..., begin:end].sum(-1).max()) for begin, end in chunks)
    return forgotten + float(inputs["i"].abs().max())


def _spread_of_terms(case: Case, gate: str, inputs: Mapping[str, Tensor], true: Quantities) -> Quantities:
    """The roots of the sums of the squares of the terms of di and dm_initial that are products (see _summed_terms)."""
    x = {name: value.double() for name, value in inputs.items()}
    of_k = torch.linalg.vector_norm(x["k"] * true["dk"], dim=-1)
    spread = {"di": of_k * torch.sigmoid(-x["i"]) if gate == "sigmoid" else of_k}
    if case.states:
        of_c = torch.linalg.vector_norm(x["c_initial"] * true["dc_initial"], dim=(-1, -2))
        of_n = torch.linalg.vector_norm(x["n_initial"] * true["dn_initial"], dim=-1)
        spread["dm_initial"] = torch.hypot(of_c, of_n)[..., None]
    return spread


def _summed_terms(
    case: Case, gate: str, inputs: Mapping[str, Tensor], cotangents: Sequence[Tensor], true: Quantities
) -> Quantities:
    """The sums of the magnitudes of the terms that df, di and dm_initial are sums of.

    di_t = k_t dk_t + what reaches the last m, if token t set it      (exp gate; else k_t dk_t sigmoid(-i_t))
    df_t = sigmoid(-f_t) (sum over s >= t of q_s dq_s - k_s dk_s, + <dc, c> + <dn, n> of the last states)
    dm_initial = <dc, c> + <dn, n> of the initial states + what reaches the last m = dm - <dc, c> - <dn, n>
    """
    x = {name: value.double() for name, value in inputs.items()}
    _, dc, dn, dm = (value.double() for value in cotangents)
    k_dk = (x["k"] * true["dk"]).abs().sum(-1)  # (B, NH, S)
    both = (x["q"] * true["dq"]).abs().sum(-1) + k_dk
    last = (dc * true["c"]).abs().sum((-1, -2)) + (dn * true["n"]).abs().sum(-1)  # (N, NH)
    to_m = last + dm[..., 0].abs()
    later, set_m = [], []
    for j, (begin, end) in enumerate(_parts(case)):
        row = slice(j, j + 1) if case.lengths else slice(None)
        later.append(both[..., begin:end].flip(-1).cumsum(-1).flip(-1) + last[row, :, None])
        forget = F.logsigmoid(x["f"][..., begin:end])
        weight = (
            x["i"][..., begin:end] + forget.flip(-1).cumsum(-1).flip(-1) - forget
        )  # of each token in the last state
        set_m.append(to_m[row, :, None] * (weight == weight.amax(-1, keepdim=True)))
    summed = {"df": torch.cat(later, dim=-1) * torch.sigmoid(-x["f"])}
    summed["di"] = k_dk * torch.sigmoid(-x["i"]) if gate == "sigmoid" else k_dk + torch.cat(set_m, dim=-1)
    if case.states:
        first = (x["c_initial"] * true["dc_initial"]).abs().sum((-1, -2))
        first = first + (x["n_initial"] * true["dn_initial"]).abs().sum(-1)
        summed["dm_initial"] = (first + to_m)[..., None]
    return summed


def call_of(info: KernelInfo, case: Case, normalize: bool = True) -> Callable[..., Any]:
    options = {} if normalize else {"normalize": False}
    return (step_call if info.kind == "step" else sequence_call)(case, info.name, **options)


def judge(
    info: KernelInfo, case: Case, dtype: torch.dtype, actual: Quantities, normalize: bool = True, device: str = "cpu"
) -> Measured:
    """The errors of what a kernel gave for the case's inputs."""
    errors = errors_of(actual, true_values(case, dtype, info.gate, normalize, device))
    plain_itself, chunkwise = ".reference." in info.function.__module__, info.kind == "chunkwise"
    return Measured(errors, *tolerances(case, dtype, info.gate, normalize, plain_itself, chunkwise, device))


def measure(info: KernelInfo, case: Case, dtype: torch.dtype, normalize: bool = True) -> Measured:
    inputs, cotangents = make(case, dtype)
    return judge(info, case, dtype, quantities(call_of(info, case, normalize), inputs, cotangents), normalize)

# SPDX-License-Identifier: Apache-2.0
"""The mLSTM problems that are timed: shapes, inputs, operation counts, and the float64 truth of their results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .registry import DTYPES, relative_error

EPS = 1e-6
QUADRATIC_LENGTH = 8192  # longer ones take too much memory
SEQUENCE_INPUTS = ("q", "k", "v", "i", "f")
STATES = ("c", "n", "m")


@dataclass(frozen=True)
class Cell:
    """One line of the result: a work at a shape and dtype, done by several kernels."""

    work: str  # "forward", "forward+backward" or "step"
    dtype: str
    batch: int
    heads: int
    tokens: int  # S; 1 for the step
    dqk: int
    dhv: int
    chunk_size: int

    @property
    def title(self) -> str:
        return f"{self.work} {self.dtype} {self.size}"

    @property
    def size(self) -> str:
        return f"B{self.batch}" if self.work == "step" else f"S{self.tokens}"

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the sequences of a row, which do not see each other."""
        return (self.tokens,)

    @property
    def flops(self) -> float:
        return self.flops_in_chunks(self.chunk_size)

    def flops_in_chunks(self, length: int) -> float:
        """The flops of the matrix products that the definition needs; a backward pass needs twice those of the forward.

        Per token: into the state and out of it, and half a chunk of scores. Recomputation in a kernel does not count.
        """
        if self.work == "step":
            return 4.0 * self.batch * self.heads * self.dqk * self.dhv
        per_token = 4 * self.dqk * self.dhv + (self.dqk + self.dhv) * length
        forward = float(self.batch * self.heads * self.tokens * per_token)
        return 3 * forward if self.work == "forward+backward" else forward

    @property
    def bytes(self) -> int:
        """That must be read and written: inputs and results once; in a backward pass q, k, v, h, dh are read again."""
        if self.work == "step":
            return 2 * self.state_bytes + self._token_bytes * (2 * self.dqk + 2 * self.dhv)
        forward = self._token_bytes * (2 * self.dqk + 2 * self.dhv + 2)
        both = forward + self._token_bytes * (4 * self.dqk + 4 * self.dhv + 4)
        return both if self.work == "forward+backward" else forward

    @property
    def _token_bytes(self) -> int:
        """The bytes of one feature of all tokens."""
        return self.batch * self.heads * self.tokens * DTYPES[self.dtype].itemsize

    @property
    def state_bytes(self) -> int:
        """The bytes of c, n and m, all heads, in float32."""
        return 4 * self.batch * self.heads * (self.dqk * self.dhv + self.dqk + 1)

    @property
    def result_bytes(self) -> int:
        """The bytes of h, and of the gradients of q, k, v, i and f where the work has them."""
        gradients = 2 * self.dqk + self.dhv + 2 if self.work == "forward+backward" else 0
        return self._token_bytes * (self.dhv + gradients)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "size": self.size, "gflop": self.flops / 1e9}


def make_inputs(cell: Cell, device: torch.device | str = "cpu", seed: int = 0) -> dict[str, Tensor]:
    """q, k, v, i, f; for a step float32 states c, n, m; for a backward pass dh. Most gates forget little."""
    rng = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype = DTYPES[cell.dtype]) -> Tensor:
        return torch.randn(*shape, generator=rng, device=device, dtype=dtype)

    lead = (cell.batch, cell.heads)
    rows = lead if cell.work == "step" else (*lead, cell.tokens)
    gates = (*lead, 1) if cell.work == "step" else rows
    inputs = {"q": normal(*rows, cell.dqk), "k": normal(*rows, cell.dqk), "v": normal(*rows, cell.dhv)}
    inputs |= {"i": normal(*gates), "f": normal(*gates) + 3}
    if cell.work == "step":
        inputs |= {
            "c": normal(*lead, cell.dqk, cell.dhv, dtype=torch.float32),
            "m": torch.zeros(*lead, 1, device=device),
        }
        inputs["n"] = normal(*lead, cell.dqk, dtype=torch.float32)
    if cell.work == "forward+backward":
        inputs["dh"] = normal(*rows, cell.dhv)
    return inputs


def head_truth(
    q: Tensor,  # (S, DHQK)
    k: Tensor,  # (S, DHQK)
    v: Tensor,  # (S, DHHV)
    i: Tensor,  # (S)
    f: Tensor,  # (S)
) -> Tensor:
    """h (S, DHHV) of one head from zero states, in the quadratic form: short, exact, and quick at the timed lengths."""
    log_decay = F.logsigmoid(f).cumsum(0)
    log_weight = log_decay[:, None] - log_decay[None, :] + i[None, :]
    later = torch.ones_like(log_weight, dtype=torch.bool).triu(1)
    log_weight = log_weight.masked_fill(later, -torch.inf)
    m = torch.maximum(log_weight.amax(1), log_decay)  # the zero state has m = 0
    weight = torch.exp(log_weight - m[:, None]) * (q @ k.T) * q.shape[-1] ** -0.5
    return weight @ v / (torch.maximum(weight.sum(1).abs(), torch.exp(-m)) + EPS)[:, None]


def long_head_truth(
    q: Tensor,  # (S, DHQK)
    k: Tensor,  # (S, DHQK)
    v: Tensor,  # (S, DHHV)
    i: Tensor,  # (S)
    f: Tensor,  # (S)
) -> Tensor:
    """As head_truth, by the plain chunkwise kernel: the quadratic form would not fit."""
    from ..reference import mlstm_chunkwise__native_autograd

    q, k, v, i, f = (x[None, None] for x in (q, k, v, i, f))
    h = mlstm_chunkwise__native_autograd(q, k, v, i, f, eps=EPS, autocast_kernel_dtype=torch.float64)
    assert isinstance(h, Tensor)
    return h[0, 0]


def step_truth(
    q: Tensor,  # (B, NH, DHQK)
    k: Tensor,  # (B, NH, DHQK)
    v: Tensor,  # (B, NH, DHHV)
    i: Tensor,  # (B, NH, 1)
    f: Tensor,  # (B, NH, 1)
    c: Tensor,  # (B, NH, DHQK, DHHV)
    n: Tensor,  # (B, NH, DHQK)
    m: Tensor,  # (B, NH, 1)
) -> tuple[Tensor, Tensor]:
    """h (B, NH, DHHV) and the next c."""
    decayed = F.logsigmoid(f) + m
    m_next = torch.maximum(decayed, i)
    forget, enter = torch.exp(decayed - m_next), torch.exp(i - m_next)
    c_next = forget[..., None] * c + enter[..., None] * k[..., :, None] * v[..., None, :]
    n_next = forget * n + enter * k
    q = q * q.shape[-1] ** -0.5
    size = (q * n_next).sum(-1, keepdim=True).abs()
    h = (q[..., :, None] * c_next).sum(-2) / (torch.maximum(size, torch.exp(-m_next)) + EPS)
    return h, c_next


def true_results(cell: Cell, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The float64 results that errors_of compares with: a step's h and c; the h and gradients of a sequence's last
    head."""
    if cell.work == "step":
        return dict(zip(("h", "c"), step_truth(**{name: x.double() for name, x in inputs.items()}), strict=True))
    with_gradients = cell.work == "forward+backward"
    leaves = {name: inputs[name][-1, -1].double().requires_grad_(with_gradients) for name in SEQUENCE_INPUTS}
    parts = zip(*(x.split(cell.lengths) for x in leaves.values()), strict=True)
    h = torch.cat([head_truth(*x) if x[0].shape[0] <= QUADRATIC_LENGTH else long_head_truth(*x) for x in parts])
    if not with_gradients:
        return {"h": h}
    gradients = torch.autograd.grad(h, list(leaves.values()), inputs["dh"][-1, -1].double())
    return {"h": h.detach()} | {f"d{name}": g for name, g in zip(leaves, gradients, strict=True)}


def errors_of(cell: Cell, results: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    """||x - truth|| / ||truth|| of each result; of a sequence's, the last head counts."""
    compared = {name: x if cell.work == "step" else x[-1, -1] for name, x in results.items()}
    return {name: relative_error(x.detach(), truth[name]) for name, x in compared.items()}

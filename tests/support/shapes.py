# SPDX-License-Identifier: Apache-2.0
"""The table of shapes: what every mLSTM kernel is tried on, and the inputs that go with a row."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

STATES = ("c_initial", "n_initial", "m_initial")
HALF = (torch.bfloat16, torch.float16)

# Gate pre-activations i, f of shape (B, NH, S) from two standard normal tensors of that shape.
GATES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "usual": lambda i, f: (2 * i, 2 * f + 2),
    "from -60 to 60": lambda i, f: (60 * i.erf(), 60 * f.erf()),
    "forget everything": lambda i, f: (i, f - 60),
    "forget nothing": lambda i, f: (i, f + 60),
    "enter nothing": lambda i, f: (i - 60, f + 2),
    "enter everything": lambda i, f: (i + 60, f + 2),
    "forget some wholly": lambda i, f: (i, torch.where(f > 0.7, -60.0, 60.0)),
}


@dataclass(frozen=True)
class Case:
    name: str
    length: int  # S
    dqk: int = 16
    dhv: int = 16
    batch: int = 1
    heads: int = 2
    chunk: int = 64
    states: bool = False  # initial states are given
    gates: str = "usual"
    lengths: tuple[int, ...] = ()  # of the sequences packed in one row
    layout: str = "contiguous"  # "bshd": the API's; "strided": rows and heads with gaps between
    wide_gates: bool = True  # i, f in float32 beside half-precision q, k, v
    normalizer_grad: bool = True
    eps: float = 1e-6
    long: bool = False  # too long for the kernels that are a Python loop or keep S x S weights

    @property
    def cu_seqlens(self) -> list[int] | None:
        ends = [0]
        for n in self.lengths:
            ends.append(ends[-1] + n)
        return ends if self.lengths else None

    @property
    def same_values(self) -> bool:
        """Inputs that half dtypes can hold, for every dtype: one truth does for all."""
        return self.long

    @property
    def sequences(self) -> int:
        return len(self.lengths) or self.batch


CASES = (
    Case("1 token", 1),
    Case("1 token, states", 1, 24, 33, states=True),
    Case("2 tokens, states", 2, 8, 17, batch=2, states=True),
    Case("15 tokens, chunks of 16", 15, 24, 48, chunk=16),
    Case("16 tokens, one chunk", 16, 48, 24, chunk=16, states=True),
    Case("17 tokens, a tail of 1", 17, 33, 17, chunk=16, states=True),
    Case("17 tokens, chunks of 1", 17, 16, 8, chunk=1, states=True),
    Case("63 tokens, chunks of 7", 63, 17, 33, chunk=7, states=True),
    Case("64 tokens", 64, 64, 64, states=True),
    Case("65 tokens", 65, 96, 96),
    Case("65 tokens, half gates", 65, 64, 96, states=True, wide_gates=False),
    Case("127 tokens, chunks of 32", 127, 24, 24, batch=2, heads=3, chunk=32, states=True),
    Case("128 tokens, chunks of 128", 128, 48, 96, chunk=128),
    Case("129 tokens, one long chunk", 129, 33, 48, chunk=1024, states=True),
    Case("129 tokens, large eps", 129, 16, 16, states=True, eps=0.25),
    Case("150 tokens, rows of 8 bytes", 150, 92, 46, states=True),  # 23 x 8 bytes: q in bfloat16, v in float32
    Case("257 tokens", 257, 32, 64, states=True),
    Case("head dims of 256 and 512", 40, 256, 512, heads=1, chunk=16, states=True),
    Case("head dims of 512 and 1", 33, 512, 1, heads=1, chunk=16, states=True),
    Case("head dims of 1 and 24", 33, 1, 24, chunk=16, states=True),
    Case("1000 tokens", 1000, 24, 16, states=True, long=True),
    Case("2049 tokens", 2049, 16, 24, heads=1, states=True, long=True),
    Case("2049 tokens, chunks of 256", 2049, 16, 16, heads=1, chunk=256, long=True),
    Case("packed", 131, 24, 17, chunk=16, lengths=(1, 64, 2, 47, 17)),
    Case("packed, states", 97, 33, 48, chunk=32, lengths=(31, 33, 1, 32), states=True),
    Case("packed, bshd", 70, 16, 16, chunk=16, lengths=(16, 54), states=True, layout="bshd"),
    Case("bshd", 75, 48, 24, batch=2, heads=3, chunk=32, states=True, layout="bshd"),
    Case("strided", 75, 24, 48, batch=2, heads=3, chunk=32, states=True, layout="strided"),
    Case("gates from -60 to 60", 150, gates="from -60 to 60", states=True),
    Case("gates from -60 to 60, chunks of 16", 150, 24, 33, chunk=16, gates="from -60 to 60"),
    Case("forgets everything", 80, gates="forget everything", states=True, chunk=32),
    Case("forgets nothing", 200, gates="forget nothing", states=True),
    Case("forgets some tokens wholly", 130, gates="forget some wholly", states=True),
    Case("enters nothing", 80, gates="enter nothing", states=True, chunk=32),
    Case("enters everything", 80, gates="enter everything", states=True, chunk=32),
    Case("4096 tokens without forgetting", 4096, 8, 8, heads=1, gates="forget nothing", long=True),
    Case("8192 tokens, nothing forgotten", 8192, gates="forget nothing", states=True, long=True, eps=0.05),
    Case("the peers' gradient", 75, 24, 16, chunk=32, states=True, normalizer_grad=False),
    Case("the peers' gradient, no states", 75, 24, 16, chunk=32, normalizer_grad=False),
)
STEP_CASES = (
    Case("step", 1, 24, 33, batch=2, heads=3, states=True),
    Case("step, one head of 1 and 1", 1, 1, 1, heads=1, states=True),
    Case("step, 256 and 512", 1, 256, 512, heads=2, states=True),
    Case("step, half gates", 1, 64, 96, states=True, wide_gates=False),
    Case("step, large eps", 1, 17, 16, states=True, eps=0.25),
    *(Case(f"step, {gates}", 1, 48, 24, batch=2, heads=4, states=True, gates=gates) for gates in GATES),
)
BY_NAME = {case.name: case for case in (*CASES, *STEP_CASES)}
WITHOUT_NORMALISER = tuple(case for case in CASES if not case.long and case.states and case.normalizer_grad)[::3]
FEW = tuple(BY_NAME[name] for name in ("65 tokens", "17 tokens, a tail of 1", "forgets nothing"))

# ---- for GPUs: all the above, and what their plans tell apart: classes of head dims, segments, more blocks than units

_GPU_DIMS = (
    *((256, 512), (512, 512), (128, 128), (64, 64), (16, 32), (512, 256), (256, 128), (128, 256)),
    *((257, 96), (96, 257), (24, 48), (48, 96), (96, 24), (65, 129), (511, 33), (33, 511), (7, 512)),
    *((513, 64), (64, 513), (600, 1000)),
)
_GPU_ONES = ((7, 1), (1, 7))
_MIDDLING = Case("", 300, 64, 128, batch=2, heads=3, states=True)
_LONG = Case("", 4097, 64, 96, heads=1, states=True, long=True, eps=0.05)  # one head: the sequence is cut into segments
# eps keeps the normaliser from zero, which one feature alone often meets: there good kernels differ too. There are many
# heads for dm_initial, one number a head that is left of terms ten thousand times its size: with two of them it is luck
# whether twice plain torch's error is much or nothing.
_HOPPER_CASE = Case("", 330, 128, 256, batch=4, heads=8, states=True, eps=0.05)
_BY_DIMS = Case("", 100, batch=4, heads=8, chunk=32, states=True, eps=0.05)
GPU_CASES = (
    replace(_MIDDLING, name="300 tokens"),
    replace(_MIDDLING, name="300 tokens, bshd", layout="bshd"),
    replace(_MIDDLING, name="300 tokens, strided", layout="strided"),
    replace(_MIDDLING, name="300 tokens, strided, odd dims", dqk=33, dhv=57, layout="strided"),
    replace(_MIDDLING, name="300 tokens, half gates, no states", wide_gates=False, states=False),
    Case("packed, many", 700, 64, 96, lengths=(*(1,) * 20, 300, 1, 200, 64, 63, 52), states=True),
    Case("packed, many, bshd", 700, 128, 64, lengths=(17, 1, 431, 251), layout="bshd"),
    *(replace(_BY_DIMS, name=f"100 tokens, head dims of {a} and {b}", dqk=a, dhv=b) for a, b in _GPU_DIMS),
    *(replace(_BY_DIMS, name=f"100 tokens, head dims of {a} and {b}", dqk=a, dhv=b, eps=0.5) for a, b in _GPU_ONES),
    # Hopper's own schedule: from two chunks on, of head dims from 128, whole or not.
    replace(_HOPPER_CASE, name="330 tokens"),
    replace(_HOPPER_CASE, name="330 tokens, 256 and 512", dqk=256, dhv=512),
    replace(_HOPPER_CASE, name="129 tokens, 512 and 256", length=129, dqk=512, dhv=256),
    replace(_HOPPER_CASE, name="200 tokens, 136 and 200, bshd", length=200, dqk=136, dhv=200, layout="bshd"),
    replace(_HOPPER_CASE, name="330 tokens, the peers' gradient", normalizer_grad=False),
    *(replace(_HOPPER_CASE, name=f"330 tokens, {gates}", gates=gates) for gates in tuple(GATES)[1:]),
    Case("many heads", 150, 64, 64, batch=4, heads=40, states=True),
    replace(_LONG, name="4097 tokens"),
    replace(_LONG, name="4097 tokens, packed", lengths=(1, 2000, 63, 2033)),
    Case("8192 tokens", 8192, 128, 256, heads=1, states=True, long=True, eps=0.05),
    Case("8192 tokens, 256 and 512", 8192, 256, 512, heads=1, long=True, eps=0.05),
    Case("8192 tokens without forgetting", 8192, 64, 64, gates="forget nothing", states=True, long=True, eps=0.05),
    replace(_LONG, name="4097 tokens, gates from -60 to 60", gates="from -60 to 60"),
    replace(_LONG, name="4097 tokens, some forgotten wholly", gates="forget some wholly"),
    replace(_LONG, name="4097 tokens, the peers' gradient", normalizer_grad=False),
)
GPU_STEP_CASES = (
    Case("step, 256 and 512, batch of 8", 1, 256, 512, batch=8, heads=8, states=True),
    Case("step, 600 and 513", 1, 600, 513, heads=1, states=True),
    Case("step, many heads", 1, 64, 128, batch=16, heads=40, states=True),
)


def make(case: Case, dtype: torch.dtype) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """Inputs by name, and cotangents of h, c, n, m. float32 and float64 get the same values, and so do both halves."""
    rng = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    wide = torch.promote_types(dtype, torch.float32)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    def narrow(x: Tensor) -> Tensor:
        if dtype in HALF or case.same_values:  # values that both half dtypes can hold
            return x.to(torch.float16).to(torch.bfloat16).to(torch.float16).to(dtype)
        return x.float().to(dtype)

    b, nh, s, dqk, dhv, n = case.batch, case.heads, case.length, case.dqk, case.dhv, case.sequences
    q, k, v = random(b, nh, s, dqk), random(b, nh, s, dqk), random(b, nh, s, dhv)
    i, f = GATES[case.gates](random(b, nh, s), random(b, nh, s))
    inputs = {"q": narrow(q), "k": narrow(k), "v": narrow(v)}
    gates = {"i": i.float().to(wide), "f": f.float().to(wide)} if case.wide_gates else {"i": narrow(i), "f": narrow(f)}
    inputs |= gates
    shapes = ((n, nh, dqk, dhv), (n, nh, dqk), (n, nh, 1))
    if case.states:
        inputs |= {name: random(*shape).float().to(wide) for name, shape in zip(STATES, shapes, strict=True)}
    dh = narrow(random(b, nh, s, dhv))
    return inputs, (dh, *(random(*shape).float().to(wide) for shape in shapes))

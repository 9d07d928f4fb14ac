# SPDX-License-Identifier: Apache-2.0
"""The calls of docs/amd_time.md: this package's, and those of others that do the same work with gfx942 code of their
own. Each is predicted kernel by kernel."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import aiter
import call_time
import device
import moonmath
import roofline
import triton_peers
from call_time import INSTRUCTIONS, INSTRUCTIONS_OF_UNEVEN_PARTS, KernelTime
from tensors import drawn

TRIED = 2  # configurations of a tuned Triton kernel
ROUNDINGS = ("rtne", "rtna", "rtz")  # of probabilities to bfloat16: to nearest even, away from zero, towards zero
PEAK_FLOPS = roofline.HZ * roofline.CUS * roofline.SIMDS * 2 * 16**3 / call_time.PRODUCT_CYCLES
MLA_DIM, MLA_VALUES, PAGE = 576, 512, 64
MLA_SCALE = 192**-0.5

Predict = Callable[[], list[KernelTime]]


@dataclass(frozen=True)
class Peer:
    name: str
    variants: dict[str, Predict]
    code: str  # of which version


@dataclass(frozen=True)
class Comparison:
    group: str
    title: str
    flops: float
    moved: float  # bytes: each input and result once
    ours: Predict
    peers: tuple[Peer, ...]

    @property
    def by_bytes(self) -> bool:
        """Whether the bytes need longer than the products, at an MI300X's peaks."""
        return self.moved / roofline.MEMORY > self.flops / PEAK_FLOPS


def of_this_package(call: Callable[[], object], instructions: int = INSTRUCTIONS, **options: Any) -> list[KernelTime]:
    from rooflines import demangled

    return call_time.predicted(call, instructions, demangled, **options)


def of_others(call: Callable[[], object]) -> list[KernelTime]:
    """Code that the checks complain of (test_aiter.py says what of)."""
    with device.warn("all"):
        return of_this_package(call)


# ---- the mLSTM


def mlstm_inputs(batch: int, heads: int, tokens: int, dqk: int, dhv: int) -> dict[str, Tensor]:
    sizes = {"q": (dqk,), "k": (dqk,), "v": (dhv,), "i": (), "f": ()}
    found = {name: drawn(batch, heads, tokens, *d, seed=n) for n, (name, d) in enumerate(sizes.items())}
    return found | {"f": found["f"] + 3}


def mlstm(batch: int, heads: int, tokens: int, dqk: int, dhv: int, backward: bool) -> Comparison:
    from xlstm_hip.bench.mlstm import Cell

    work = "forward+backward" if backward else "forward"
    cell = Cell(work, "bf16", batch, heads, tokens, dqk, dhv, 64)
    inputs = functools.partial(mlstm_inputs, batch, heads, tokens, dqk, dhv)

    def ours() -> list[KernelTime]:
        from xlstm_hip import mlstm_interface

        tensors = [x.to("cuda").requires_grad_(backward) for x in inputs().values()]

        def call() -> None:
            h = mlstm_interface(*tensors)
            if backward:
                h.backward(torch.ones_like(h))

        return of_this_package(call)

    def xl_chunk() -> list[KernelTime]:
        given = inputs() | {"chunk": 128, "backward": backward}
        return triton_peers.predicted("xl_chunk_training", given, INSTRUCTIONS, TRIED)

    def simple_gla() -> list[KernelTime]:
        given = inputs()
        tensors = {name: given[name].transpose(1, 2).contiguous() for name in "qkv"}
        g = torch.nn.functional.logsigmoid(given["f"].float()).transpose(1, 2).contiguous()
        named = {**tensors, "g": g, "backward": backward}
        return triton_peers.predicted("simple_gla_training", named, INSTRUCTIONS, TRIED)

    peers = (
        Peer("TFLA", {"xl_chunk": xl_chunk}, mlstm_kernels()),
        Peer("FLA", {"simple_gla": simple_gla}, triton_code()),
    )
    title = f"mLSTM {work.replace('+', ' + ')}, B{batch} NH{heads} S{tokens}, {dqk}/{dhv}"
    return Comparison("mLSTM", title, cell.flops, cell.bytes, ours, peers)


def mlstm_step(batch: int, heads: int, dqk: int, dhv: int) -> Comparison:
    from xlstm_hip.bench.mlstm import Cell

    cell = Cell("step", "bf16", batch, heads, 1, dqk, dhv, 64)

    def inputs() -> list[Tensor]:
        sizes = [(dqk,), (dqk,), (dhv,), (1,), (1,)]
        return [drawn(batch, heads, *d, seed=n) for n, d in enumerate(sizes)]

    def states() -> list[Tensor]:
        return [drawn(batch, heads, *d, dtype=torch.float32) for d in ((dqk, dhv), (dqk,), (1,))]

    def ours() -> list[KernelTime]:
        from xlstm_hip import mlstm_step_interface

        tensors = [x.to("cuda") for x in (*inputs(), *states())]
        return of_this_package(lambda: mlstm_step_interface(*tensors, in_place=True))

    def step() -> list[KernelTime]:
        named = dict(zip(("q", "k", "v", "i", "f", "c", "n", "m"), (*inputs(), *states()), strict=True))
        return triton_peers.predicted("step", named, INSTRUCTIONS, TRIED)

    peers = (Peer("TFLA", {"triton step": step}, mlstm_kernels()),)
    title = f"mLSTM step, B{batch} NH{heads}, {dqk}/{dhv}"
    return Comparison("mLSTM step", title, cell.flops, cell.bytes, ours, peers)


# ---- attention


@dataclass(frozen=True)
class Heads:
    """Of self-attention: sequences, heads of queries and of keys, tokens, features."""

    batch: int
    queries: int
    keys: int
    tokens: int
    dim: int
    causal: bool

    def draw(self, heads: int, seed: int) -> Tensor:
        return drawn(self.batch, self.tokens, heads, self.dim, seed=seed)

    def inputs(self) -> list[Tensor]:
        return [self.draw(heads, seed) for seed, heads in enumerate((self.queries, self.keys, self.keys))]

    @property
    def title(self) -> str:
        heads = f"H{self.queries}" if self.queries == self.keys else f"H{self.queries}/{self.keys}"
        return f"{'causal' if self.causal else 'full'}, B{self.batch} {heads} S{self.tokens}, head dim {self.dim}"


def last_round_cut_short(kernels: list[KernelTime]) -> list[KernelTime]:
    """moonmath's host splits the keys of a last round that does not fill the chip; calibrate.py takes it so, too."""

    def share(k: KernelTime) -> float:
        rounds = k.workgroups / roofline.CUS
        return max(1.0, rounds) / math.ceil(rounds) if k.counts.products else 1.0

    return [replace(k, microseconds=round(share(k) * k.microseconds, 3)) for k in kernels]


def variant(heads: Heads, rounding: str) -> str:
    return f"causal_{rounding}" if heads.causal else rounding


def attention_forward(*shape: int, causal: bool) -> Comparison:
    from xlstm_hip.bench.attention import Cell

    h = Heads(*shape, causal)
    scale = h.dim**-0.5

    def ours() -> list[KernelTime]:
        from xlstm_hip.attention import flash_attn_func

        q, k, v = (x.to("cuda") for x in h.inputs())
        return of_this_package(lambda: flash_attn_func(q, k, v, causal=h.causal))

    def of_aiter(rounding: str) -> list[KernelTime]:
        q, k, v = h.inputs()
        return of_others(lambda: aiter.forward(variant(h, rounding), q, k, v, scale))

    def of_moonmath(rounding: str) -> list[KernelTime]:
        q, k, v = (x.transpose(1, 2).contiguous() for x in h.inputs())
        return last_round_cut_short(of_others(lambda: moonmath.forward(rounding, q, k, v)))

    def of_fla() -> list[KernelTime]:
        named = dict(zip("qkv", h.inputs(), strict=True)) | {"scale": scale}
        return triton_peers.predicted("attention", named, INSTRUCTIONS, TRIED)

    peers: list[Peer] = []
    if h.dim == 128:
        peers.append(Peer("AITER", {r: functools.partial(of_aiter, r) for r in ROUNDINGS}, aiter_code()))
    if h.dim == 128 and not h.causal and h.queries == h.keys and moonmath.folder():
        peers.append(Peer("moonmath", {r: functools.partial(of_moonmath, r) for r in ROUNDINGS}, moonmath_code()))
    if h.causal:
        peers.append(Peer("FLA", {"parallel_attn": of_fla}, triton_code()))
    cell = Cell("forward", "bf16", *shape[:3], h.tokens, h.dim, causal)
    title = f"attention forward, {h.title}"
    return Comparison("attention, forward", title, cell.flops, cell.bytes, ours, tuple(peers))


def attention_backward(*shape: int, causal: bool) -> Comparison:
    from xlstm_hip.bench.attention import Cell

    h = Heads(*shape, causal)
    scale = h.dim**-0.5

    def ours() -> list[KernelTime]:
        import timing
        from xlstm_hip.attention import flash_attn_func

        tensors = [x.to("cuda").requires_grad_() for x in h.inputs()]
        with timing.recording(1):  # what backward needs of it is there, whatever its values
            out = flash_attn_func(*tensors, causal=h.causal)
        d_out = h.draw(h.queries, 3).to("cuda")
        instructions = INSTRUCTIONS if h.causal else INSTRUCTIONS_OF_UNEVEN_PARTS
        return of_this_package(lambda: out.backward(d_out), instructions)

    def of_aiter(accumulator: str, rounding: str) -> list[KernelTime]:
        lse, delta = (torch.ones(h.batch, h.queries, h.tokens) for _ in range(2))
        tensors = (*h.inputs(), h.draw(h.queries, 3), lse, delta)
        return of_others(lambda: aiter.backward(accumulator, rounding, h.causal, *tensors, scale))

    def of_fla() -> list[KernelTime]:
        named = dict(zip("qkv", h.inputs(), strict=True)) | {"d_out": h.draw(h.queries, 3), "scale": scale}
        named["lse"] = torch.ones(h.batch, h.tokens, h.queries)
        return triton_peers.predicted("attention_backward", named, INSTRUCTIONS, TRIED)

    peers: list[Peer] = []
    if h.dim == 128 and h.queries == h.keys:
        runs = {f"{a} {r}": functools.partial(of_aiter, a, r) for a in ("a32", "a16") for r in ROUNDINGS}
        peers.append(Peer("AITER", runs, aiter_code()))
    if h.causal:
        peers.append(Peer("FLA", {"parallel_attn": of_fla}, triton_code()))
    cell = Cell("backward", "bf16", *shape[:3], h.tokens, h.dim, causal)
    title = f"attention backward, {h.title}"
    return Comparison("attention, backward", title, cell.flops, cell.bytes, ours, tuple(peers))


def mla(
    batch: int, keys: int, heads: int, dtype: torch.dtype = torch.bfloat16, queries: torch.dtype = torch.bfloat16
) -> Comparison:
    """Each sequence has pages of its own. dtype: of the cache; AITER's q has it, too. queries: our q's dtype."""
    size = torch.empty(0, dtype=dtype).element_size()

    def ours() -> list[KernelTime]:
        from xlstm_hip.attention import flash_mla_with_kvcache

        pages = batch * keys // PAGE
        cache = drawn(pages, PAGE, 1, MLA_DIM, dtype=dtype).to("cuda")
        table = torch.arange(pages).int().reshape(batch, -1).to("cuda")
        q, used = drawn(batch, 1, heads, MLA_DIM, dtype=queries).to("cuda"), torch.full((batch,), keys).int().to("cuda")
        call = lambda: flash_mla_with_kvcache(q, cache, table, used, MLA_VALUES)  # noqa: E731
        return of_this_package(call, INSTRUCTIONS_OF_UNEVEN_PARTS)

    def of_aiter(splits: int) -> list[KernelTime]:
        q, kv = drawn(batch, heads, MLA_DIM, dtype=dtype), drawn(batch * keys, 1, 1, MLA_DIM, dtype=dtype)
        pages = torch.arange(batch * keys).int()
        return of_others(lambda: aiter.mla_decode(q, kv, pages, [keys] * batch, splits, MLA_SCALE))

    runs = {f"{n} part{'s' * (n > 1)}": functools.partial(of_aiter, n) for n in (1, 4, 8)}
    flops = 2.0 * batch * heads * keys * (MLA_DIM + MLA_VALUES)
    moved = batch * (size * keys * MLA_DIM + 2 * heads * (MLA_DIM + MLA_VALUES))
    of_8_bits = "" if size == 2 else ", cache of 8 bits" if queries == torch.bfloat16 else ", cache and q of 8 bits"
    title = f"MLA decoding, B{batch} H{heads}, {keys} keys{of_8_bits}"
    peers = (Peer("AITER", runs, aiter_code()),) if size == 2 or heads == 128 else ()
    return Comparison("MLA decoding", title, flops, moved, ours, peers)


# ---- all of them


MLSTM_SHAPES = (
    (8, 8, 2048, 256, 512),
    (1, 8, 8192, 256, 512),
    (1, 8, 512, 256, 512),
    (8, 8, 2048, 128, 256),
    (8, 4, 2048, 64, 128),
)
FORWARD_SHAPES: Sequence[tuple[tuple[int, ...], bool]] = (
    ((8, 16, 16, 1024, 128), True),
    ((2, 16, 16, 4096, 128), False),
    ((2, 16, 16, 4096, 128), True),
    ((1, 16, 16, 16384, 128), False),
    ((1, 16, 16, 16384, 128), True),
    ((1, 32, 8, 8192, 128), True),
    ((1, 16, 16, 8192, 64), True),
    ((2, 16, 16, 4096, 64), False),
    ((1, 32, 8, 8192, 64), True),
    ((1, 16, 16, 8192, 256), True),
    ((2, 16, 16, 4096, 256), False),
)
BACKWARD_SHAPES: Sequence[tuple[tuple[int, ...], bool]] = (
    ((8, 16, 16, 1024, 128), True),
    ((2, 16, 16, 4096, 128), False),
    ((2, 16, 16, 4096, 128), True),
    ((1, 16, 16, 16384, 128), True),
    ((1, 32, 8, 8192, 128), True),
    ((1, 16, 16, 8192, 64), True),
    ((1, 16, 16, 8192, 256), True),
)


@dataclass(frozen=True)
class Token:
    """A step of xLSTM-7B: each sequence's next token."""

    batch: int
    bits: int  # of a weight: 8, 4, or 0 for bfloat16
    one_launch: bool = False

    @property
    def title(self) -> str:
        form = f"int{self.bits}" if self.bits else "bf16"
        return f"a token of xLSTM-7B, B{self.batch}, {form}{', one launch' if self.one_launch else ''}"

    @property
    def moved(self) -> float:
        """Bytes: each weight once, the states read and written."""
        from xlstm_hip.bench.models import WRITTEN, Cell

        weights = Cell("write", "bf16", "7b", self.batch, 0).bytes_of(f"ours int{self.bits}" if self.bits else "ours")
        return weights / WRITTEN + 2 * self.batch * BLOCKS * 4 * 8 * (256 * 512 + 256 + 1)

    def predict(self) -> list[KernelTime]:
        """One block with all words, and 31 times what a second block adds. Weights come from HBM: no cache holds them
        from one step to the next."""
        from roofline_shapes import STEP_WORDS, model_step

        def of(blocks: int, words: int) -> list[KernelTime]:
            return of_this_package(lambda: model_step(self.batch, self.bits, blocks, words), warm=False)

        with schedule("persistent" if self.one_launch else "auto"):
            one, two = of(1, STEP_WORDS), of(2, STEP_WORDS)
            found = call_time.combined([(1, of(1, WORDS)), (BLOCKS - 1, two), (1 - BLOCKS, one)])
        if self.one_launch:
            longest = found[0]
            found[0] = replace(longest, microseconds=round(longest.microseconds + BLOCKS * HAND_OVERS * HAND_OVER, 3))
        return found


@contextmanager
def schedule(name: str) -> Iterator[None]:
    before = os.environ.get("XLSTM_HIP_GPU_SCHEDULE")
    os.environ["XLSTM_HIP_GPU_SCHEDULE"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["XLSTM_HIP_GPU_SCHEDULE"]
        else:
            os.environ["XLSTM_HIP_GPU_SCHEDULE"] = before


BLOCKS, WORDS = 32, 50304
# In one launch values pass from one workgroup to another so often in a block of the model, and take so many
# microseconds each: a store to the Infinity Cache, and half of that again until the next look. When a launch is
# recorded, all mailboxes are full.
HAND_OVERS, HAND_OVER = 7, 0.47
TOKENS = (
    *(Token(batch, 0) for batch in (1, 8, 64)),
    *(Token(batch, bits) for bits in (8, 4) for batch in (1, 8)),
    *(Token(1, bits, one_launch=True) for bits in (0, 8, 4)),
)


def comparisons() -> list[Comparison]:
    return [
        *(mlstm(*shape, backward) for shape in MLSTM_SHAPES for backward in (False, True)),
        *(mlstm_step(batch, 8, 256, 512) for batch in (1, 8, 64)),
        *(attention_forward(*shape, causal=causal) for shape, causal in FORWARD_SHAPES),
        *(attention_backward(*shape, causal=causal) for shape, causal in BACKWARD_SHAPES),
        *(mla(64, 8192, heads, dtype) for dtype in (torch.bfloat16, torch.float8_e4m3fnuz) for heads in (16, 128)),
        *(mla(64, 8192, heads, torch.float8_e4m3fnuz, torch.float8_e4m3fnuz) for heads in (16, 128)),
    ]


def speed_calls() -> list[Callable[[], object]]:
    """Of one kernel each."""
    from xlstm_hip.attention import flash_attn_func
    from xlstm_hip.layers import rms_norm

    q, k, v = (x.to("cuda") for x in Heads(1, 16, 16, 4096, 128, False).inputs())
    x = drawn(16384, 4096).to("cuda")
    weight = drawn(4096).to("cuda")
    return [lambda: flash_attn_func(q, k, v), lambda: rms_norm(x, weight)]


# ---- what a peer's code is


def ensure_peers() -> None:
    """wheels.NotDownloaded where pip cannot get AITER or Triton."""
    aiter.ensure_code()
    triton_peers.ensure_triton()


def _hash(*texts: bytes) -> str:
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


def triton_code() -> str:
    return _hash(triton_peers.WHEELS.read_bytes(), str(TRIED).encode())


def mlstm_kernels() -> str:
    return _hash(triton_code().encode(), importlib.metadata.version("mlstm_kernels").encode())


def aiter_code() -> str:
    return _hash(aiter.WHEEL.read_bytes())


def moonmath_code() -> str:
    folder = moonmath.folder()
    return _hash((folder / "csrc/attention_kernel.hip").read_bytes()) if folder else ""

# SPDX-License-Identifier: Apache-2.0
"""Rows of decoding's tables of arguments, how one is run on a device and held to the truth: caches with NaN wherever
there is no key, page tables whose unused entries are out of range. Nothing here needs pytest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from support.attention import truth
from support.attention.pairs import pairwise
from support.attention.problem import EPS, FLOOR, generator
from xlstm_hip import attention
from xlstm_hip.reference import attention as plain

POISON = float("nan")
BEFORE = (70, 3, 129)  # keys in the cache of each of three sequences
CAPACITY = 160

VALUES: dict[str, list[Any]] = {
    "dtype": [torch.float32, torch.bfloat16, torch.float16, torch.float64],
    "heads": [(4, 4), (8, 2), (6, 1)],
    "dims": [(32, 32), (64, 48)],
    "queries": [1, 5],
    "new": [0, 1, 7],
    "rotary": ["", "interleaved", "halves"],
    "rotary_dim": [8, 32],
    "cache": ["rows", "batch_idx", "page 1", "page 16", "page 100", "page 256"],
    "leftpad": [False, True],
    "causal": [False, True],
    "window": [(-1, -1), (40, 2)],
    "softcap": [0.0, 3.0],
    "alibi": [False, True],
    "sink": [False, True],
    "num_splits": [0, 1, 3],
    "block_size": [None, 32],
}
ROWS = pairwise(VALUES, lambda row: True, tries=30)

# Caches in floats of 8 bits. descale: none, one number, or one of each sequence and key head.
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
FLOAT8_VALUES = {name: values for name, values in VALUES.items() if name != "rotary_dim"} | {
    "rotary_dim": [8], "stored": list(FLOAT8), "descale": ["", "one", "each"],
}  # fmt: skip
FLOAT8_ROWS = pairwise(FLOAT8_VALUES, lambda row: True, tries=30)


def float8_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """torch's conversion, and the largest number for what is beyond it."""
    largest = torch.finfo(dtype).max
    return x.float().masked_fill(x.isinf(), torch.nan).clamp(-largest, largest).to(dtype)


def float8_error(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """How far the nearest float of 8 bits may be from x: half a unit in its last place."""
    return (x.abs() / 16).maximum(scale * torch.finfo(dtype).smallest_normal / 16)


class Problem:
    """Tensors of one row of the table, in float64 as its dtype has them, and what the cache must hold afterwards."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        g = generator(1)
        (hq, hk), (d, dv) = row["heads"], row["dims"]

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64).to(row["dtype"]).double()

        batch = len(BEFORE)
        self.q = draw(batch, row["queries"], hq, d)
        self.new = (draw(batch, row["new"], hk, d), draw(batch, row["new"], hk, dv))
        self.old = [(draw(n, hk, d), draw(n, hk, dv)) for n in BEFORE]
        self.stored: torch.dtype | None = row.get("stored")
        shapes = {"": (), "one": (1,), "each": (batch, hk)}
        self.descales = [
            torch.rand(*shape, generator=g) / 8 + 1 / 64 if (shape := shapes[row.get("descale", "")]) else None
            for _ in range(2)
        ]
        if self.stored is not None:
            self.old = [tuple(self.as_stored(x, j, b) for j, x in enumerate(xs)) for b, xs in enumerate(self.old)]
        self.sink = draw(hq) if row["sink"] else None
        self.slopes = torch.rand(hq, generator=g) / 4 if row["alibi"] else None
        self.pads = [b * (b < n) for b, n in enumerate(BEFORE)] if row["leftpad"] else [0] * batch
        angles = torch.rand(CAPACITY, row["rotary_dim"] // 2, generator=g, dtype=torch.float64) * 6
        self.cos, self.sin = (x.to(row["dtype"]).double() for x in (angles.cos(), angles.sin()))

    def scale(self, which: int, b: int) -> Tensor:
        """(H_k, 1): what 1 in a sequence's keys (0) or values (1) stands for."""
        x, heads = self.descales[which], self.row["heads"][1]
        return (torch.ones(heads) if x is None else x.expand(len(BEFORE), heads)[b]).double()[:, None]

    def in_cache(self, x: Tensor, which: int, b: int) -> Tensor:
        return x.to(self.row["dtype"]) if self.stored is None else float8_of(x / self.scale(which, b), self.stored)

    def as_stored(self, x: Tensor, which: int, b: int) -> Tensor:
        return self.in_cache(x, which, b).double() * self.scale(which, b)

    def rotated(self, x: Tensor, start: int, same: bool) -> Tensor:
        if not self.row["rotary"]:
            return x
        positions = torch.full((x.shape[0],), start) if same else torch.arange(start, start + x.shape[0])
        return truth.rotated(x, self.cos[positions], self.sin[positions], self.row["rotary"] == "interleaved")

    def sequences(
        self, dtype: torch.dtype, appended: list[tuple[Tensor, Tensor]] | None = None
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The tensors that attention sees, rotated in float64 and rounded to the dtype. appended: the new keys and
        values where they are not these, because the cache has floats of 8 bits."""
        sequences = []
        unordered = not self.row["causal"] and self.row["window"] == (-1, -1)
        for b, (k, v) in enumerate(self.old):
            q = self.rotated(self.q[b], BEFORE[b], unordered)
            new = (self.rotated(self.new[0][b], BEFORE[b], False), self.new[1][b]) if appended is None else appended[b]
            k, v = (torch.cat([x, y])[self.pads[b] :] for x, y in zip((k, v), new, strict=True))
            sequences.append(tuple(x.to(dtype) for x in (q, k, v)))
        return sequences  # type: ignore[return-value]

    def caches(self) -> tuple[list[Tensor], dict[str, Any], list[Tensor]]:
        """The caches with NaN wherever there is no key, the arguments that say where keys are, and a view of each
        sequence's keys."""
        kind, dtype = self.row["cache"], self.stored or self.row["dtype"]
        batch, shapes = len(BEFORE), [(x.shape[-2], x.shape[-1]) for x in self.old[0]]
        if kind.startswith("page"):
            size = int(kind.split()[1])
            per = -(-CAPACITY // size)
            caches = [torch.full((batch * per + 3, size, *s), POISON).to(dtype) for s in shapes]
            table = (torch.randperm(batch * per, generator=generator(2)) + 2).reshape(batch, per)
            for b in range(batch):
                for t, page in [(t, table[b, t // size]) for t in range(BEFORE[b])]:
                    for j, (cache, x) in enumerate(zip(caches, self.old[b], strict=True)):
                        cache[page, t % size] = self.in_cache(x[t], j, b)
                used = -(-(BEFORE[b] + self.row["new"]) // size)
                table[b, used:] = 10**6 * (-1) ** b  # never read
            return caches, {"block_table": table.int()}, [table]
        rows = torch.tensor([4, 0, 2]) if kind == "batch_idx" else torch.arange(batch)
        caches = [torch.full((5 if kind == "batch_idx" else batch, CAPACITY, *s), POISON).to(dtype) for s in shapes]
        for b in range(batch):
            for j, (cache, x) in enumerate(zip(caches, self.old[b], strict=True)):
                cache[rows[b], : BEFORE[b]] = self.in_cache(x, j, b)
        return caches, {"cache_batch_idx": rows.int()} if kind == "batch_idx" else {}, [rows]

    def new_slots(self, b: int, table: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Where the cache has a sequence's new keys. table: the third result of caches()."""
        slots = torch.arange(BEFORE[b], BEFORE[b] + self.row["new"])
        return (table[b, slots // size], slots % size) if table.dim() == 2 else (table[b].expand(len(slots)), slots)

    def appended(self, k_cache: Tensor, v_cache: Tensor, table: Tensor) -> list[tuple[Tensor, Tensor]] | None:
        """What a cache in floats of 8 bits has of the new keys and values."""
        if self.stored is None:
            return None
        each = []
        for b in range(len(BEFORE)):
            at = self.new_slots(b, table, k_cache.shape[1])
            pair = [x.float()[at].double() * self.scale(j, b) for j, x in enumerate((k_cache, v_cache))]
            each.append((pair[0], pair[1]))
        return each

    def rules(self) -> truth.Rules:
        row = self.row
        sink = self.sink
        return truth.Rules(row["dims"][0] ** -0.5, row["causal"], row["window"], row["softcap"], self.slopes, sink)


def close(actual: list[Tensor], true: list[Tensor], near: list[Tensor], eps: float, label: str) -> None:
    x, y, z = (torch.cat([t.double().flatten() for t in ts]) for ts in (actual, true, near))
    assert torch.equal(x.isinf(), y.isinf()), label
    x, y, z = (t.nan_to_num(nan=POISON, posinf=0) for t in (x, y, z))
    error, allowed = float((x - y).norm()), 2 * float((z - y).norm()) + FLOOR * eps * float(y.norm())
    assert error <= allowed, f"{label}: error {error:.3g}, allowed {allowed:.3g}"


def run_row(row: dict[str, Any], device: str = "cpu") -> None:
    """Raises where a result is not what it should be. A GPU is asked twice, for the same bits."""
    problem, dtype = Problem(row), row["dtype"]
    caches, arguments, (table,) = problem.caches()
    if row["new"]:
        arguments |= {"k": problem.new[0].to(dtype), "v": problem.new[1].to(dtype)}
    if row["rotary"]:
        arguments |= {"rotary_cos": problem.cos.to(dtype), "rotary_sin": problem.sin.to(dtype)}
    if row["leftpad"]:
        arguments["cache_leftpad"] = torch.tensor(problem.pads, dtype=torch.int32)
    sink = None if problem.sink is None else problem.sink.to(dtype)
    arguments |= {"alibi_slopes": problem.slopes, "sink": sink, "cache_seqlens": torch.tensor(BEFORE)}
    arguments |= dict(zip(("k_descale", "v_descale"), problem.descales, strict=True))
    arguments = {name: None if x is None else x.to(device) for name, x in arguments.items()}
    arguments |= {name: row[name] for name in ("causal", "softcap", "num_splits")}
    if row["rotary"]:
        arguments["rotary_interleaved"] = row["rotary"] == "interleaved"
    if device == "cpu":  # a GPU's kernels have one size each: gpu_rows.py
        arguments["block_size"] = row["block_size"]
    q, caches = problem.q.to(dtype).to(device), [x.to(device) for x in caches]
    results = [
        attention.flash_attn_with_kvcache(q, *caches, window_size=row["window"], return_softmax_lse=True, **arguments)
        for _ in range(1 if device == "cpu" else 2)
    ]
    same = all(torch.equal(x.cpu(), y.cpu()) for x, y in zip(results[0], results[-1], strict=True))
    assert same, "other bits the second time"
    (out, lse), (k_cache, v_cache) = ([x.cpu() for x in xs] for xs in (results[0], caches))
    appended = problem.appended(k_cache, v_cache, table)
    true = truth.attention(problem.sequences(torch.float64, appended), problem.rules())
    near = []
    for q, k, v in problem.sequences(dtype, appended):
        near.append(
            plain.attention(
                q[None], k[None], v[None], causal=row["causal"], window_size=row["window"], softcap=row["softcap"],
                alibi_slopes=problem.slopes, sink=None if problem.sink is None else problem.sink.to(dtype),
            )
        )  # fmt: skip
    eps = EPS[dtype] * (1 if dtype != torch.float64 else 2)
    close(list(out), [x[0] for x in true], [x[0] for x in near], eps, "out")
    close(list(lse), [x[1] for x in true], [x[1] for x in near], max(eps, 0), "lse")
    if row["new"]:
        for b, start in enumerate(BEFORE):
            expected_k, expected_v = problem.rotated(problem.new[0][b], start, False), problem.new[1][b]
            at = problem.new_slots(b, table, k_cache.shape[1])
            if problem.stored is None:
                torch.testing.assert_close(k_cache[at].double(), expected_k, atol=2 * eps, rtol=2 * eps)
                assert torch.equal(v_cache[at].double(), expected_v)
                continue
            k, v = appended[b]
            allowed = float8_error(expected_k, problem.scale(0, b), problem.stored)
            assert ((k - expected_k).abs() <= allowed * (1 + 32 * eps) + 2 * eps * expected_k.abs()).all()
            # A quotient in float that lies on the border between two floats of 8 bits may take either.
            assert ((v - problem.as_stored(expected_v, 1, b)) != 0).double().mean() < 0.01
            assert (
                (v - expected_v).abs() <= float8_error(expected_v, problem.scale(1, b), problem.stored) * 1.001
            ).all()
        assert int((~k_cache.float().isnan()).sum()) == (sum(BEFORE) + 3 * row["new"]) * k_cache[0, 0].numel()


# ---- MLA

MLA: dict[str, list[Any]] = {
    "dtype": [torch.float32, torch.bfloat16, torch.float16],
    "heads": [8, 16, 128],
    "queries": [1, 3],
    "features": [576, 512],
    "page": [0, 1, 24, 64],
    "causal": [False, True],
    "schedule": ["none", "older", "newer"],
    "sink": [False, True],
}
MLA_ROWS = pairwise(MLA, lambda row: True, tries=30)
FLOAT8_MLA_ROWS = pairwise(
    MLA | {"schedule": ["none"], "stored": list(FLOAT8), "descale": ["", "one", "each"]}, lambda row: True, tries=30
)


def of_rounded_weights(q: Tensor, k: Tensor, dv: int, causal: bool, lse: Tensor, dtype: torch.dtype) -> Tensor:
    """out (queries, heads, dv) with softmax's weights rounded to a float8, a row's largest to 2^5 times itself, in
    OCP's format, which has twice the range, to 2^6 times."""
    unit = 64 if dtype == torch.float8_e4m3fn else 32
    scores = torch.einsum("qhf,kf->hqk", q, k[:, 0]) * q.shape[-1] ** -0.5
    if causal:
        last = torch.arange(len(k) - len(q), len(k))
        scores = scores.masked_fill(torch.arange(len(k)) > last[:, None], -torch.inf)
    largest = scores.amax(-1, keepdim=True) if len(k) else lse[..., None]
    weights = (unit * (scores - largest).exp()).nan_to_num(0).to(dtype).double() / unit
    out = torch.einsum("hqk,kf->qhf", weights * (largest - lse[..., None]).exp(), k[:, 0, :dv])
    return out.nan_to_num(0)


def run_mla(row: dict[str, Any], device: str = "cpu") -> None:
    """Raises where a result is not what it should be. queries_too: q has the cache's float8, too. multiplied: kernels
    multiply it as it is."""
    g = generator(4)
    dtype, lengths, dv = row["dtype"], (100, 0, 65), 512
    batch = len(lengths)
    q = torch.randn(batch, row["queries"], row["heads"], row["features"], generator=g).to(dtype)
    keys = [torch.randn(n, 1, row["features"], generator=g).to(dtype) for n in lengths]
    of_cache, descale, units = dtype, None, torch.ones(batch)
    if "stored" in row:
        of_cache, shape = row["stored"], {"": (), "one": (1,), "each": (batch, 1)}[row["descale"]]
        descale = torch.rand(*shape, generator=g) / 8 + 1 / 64 if shape else None
        units = units if descale is None else descale.flatten().expand(batch)
        keys = [float8_of(x / scale, of_cache) for x, scale in zip(keys, units, strict=True)]
    wide_q, of_queries = q.double(), None
    if row.get("queries_too"):
        of_queries = None if descale is None else torch.full_like(descale, 1 / 32)
        unit = 1.0 if descale is None else 1 / 32
        q = float8_of(q / unit, of_cache)
        wide_q = q.double() * unit
    if row["page"]:
        per = -(-128 // row["page"])
        table = torch.randperm(batch * per, generator=g).reshape(batch, per)
        cache = torch.full((batch * per, row["page"], 1, row["features"]), POISON).to(of_cache)
        for b, n in enumerate(lengths):
            for t in range(n):
                cache[table[b, t // row["page"]], t % row["page"]] = keys[b][t]
            table[b, -(-n // row["page"]) :] = -7
        table = table.int()
    else:
        table, cache = None, torch.full((batch, 128, 1, row["features"]), POISON).to(of_cache)
        for b, n in enumerate(lengths):
            cache[b, :n] = keys[b]
    used = torch.tensor(lengths, dtype=torch.int32)
    schedule: tuple[Any, ...] = ()
    if row["schedule"] == "older":
        schedule = attention.get_mla_metadata(used.to(device), row["queries"] * row["heads"], 1)
        assert schedule[0].shape[1] == 8 and schedule[1].tolist()[-1] == schedule[0].shape[0]
    elif row["schedule"] == "newer":
        schedule = attention.get_mla_metadata()
    sink = torch.randn(row["heads"], generator=g).double() if row["sink"] else None
    on_device = [None if x is None else x.to(device) for x in (q, cache, table, used)]
    sinks = None if sink is None else sink.float().to(device)
    more = {} if descale is None else {"k_descale": descale.to(device)}
    if of_queries is not None:
        more["q_descale"] = of_queries.to(device)
    results = [
        attention.flash_mla_with_kvcache(*on_device, dv, *schedule, causal=row["causal"], attn_sink=sinks, **more)  # type: ignore[arg-type]
        for _ in range(1 if device == "cpu" else 2)
    ]
    out, lse = (x.cpu() for x in results[0])
    assert torch.equal(out, results[-1][0].cpu()), "other bits the second time"
    assert out.shape == (batch, row["queries"], row["heads"], dv) and lse.dtype == torch.float32
    rules = truth.Rules(row["features"] ** -0.5, row["causal"], sink=None if sink is None else sink.float().double())
    rules.lse_with_sink = False
    if "stored" in row:
        wide_keys = [x.double() * scale.double() for x, scale in zip(keys, units, strict=True)]
        keys = [x.to(dtype) for x in wide_keys]
    else:
        wide_keys = [x.double() for x in keys]
    true = truth.attention([(wide_q[b], wide_keys[b], wide_keys[b][..., :dv]) for b in range(batch)], rules)
    near = [
        plain.attention(
            wide_q[b : b + 1].to(dtype), keys[b][None], keys[b][None, ..., :dv], causal=row["causal"],
            sink=None if sink is None else sink.to(dtype),
        )
        for b in range(batch)
    ]  # fmt: skip
    if row.get("multiplied"):  # weights have 8 bits, too
        near = [
            (of_rounded_weights(wide_q[b], wide_keys[b], dv, row["causal"], lse, of_cache), lse)
            for b, lse in enumerate(x[1] for x in true)
        ]
    eps = EPS[dtype]
    close(list(out), [x[0] for x in true], [x[0] for x in near], eps, "out")
    close(list(lse), [x[1] for x in true], [x[1] for x in true], EPS[torch.float32] * 4, "lse")


# ---- what a GPU is asked beside the rows that it shares with the CPU: every class of head dims with and without what
# bends scores, in one tile and in several; MLA with more rows than a block has.

GPU_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
CLASSES = ((64, 64), (128, 128), (96, 72), (192, 128), (256, 256), (200, 136))


def gpu_rows() -> list[dict[str, Any]]:
    rows = [row for row in ROWS if row["dtype"] in GPU_DTYPES]
    defaults = dict.fromkeys(VALUES) | {"heads": (8, 2), "queries": 1, "new": 0, "rotary": "", "rotary_dim": 32}
    defaults |= {"leftpad": False, "window": (-1, -1), "softcap": 0.0, "alibi": False, "sink": False}
    for dims in CLASSES:
        for dtype in GPU_DTYPES:
            row = defaults | {"dims": dims, "dtype": dtype}
            rows.append(row | {"causal": False, "cache": "page 16", "num_splits": 0})
            modified = {"softcap": 3.0, "alibi": True, "sink": True, "causal": True, "queries": 5}
            rows.append(row | modified | {"cache": "rows", "num_splits": 2})
    # Head dims that are no whole pieces, and keys of few and of many rows.
    rows += [row | {"dims": (36, 20)} for row in rows[:4]]
    return rows


def gpu_mla_rows() -> list[dict[str, Any]]:
    rows = [row for row in MLA_ROWS if row["dtype"] in GPU_DTYPES[:2]]
    each = {"page": 0, "causal": True, "schedule": "none", "sink": True}
    for dtype in GPU_DTYPES[:2]:
        for features in (512, 576):
            for heads, queries in ((8, 1), (32, 1), (32, 3), (20, 7)):
                row = {"dtype": dtype, "features": features, "heads": heads, "queries": queries}
                rows.append(each | row)
    return rows


def gpu_float8_rows() -> list[dict[str, Any]]:
    """Caches in float8: the table's rows, every class of head dims, more rows than decode takes, rows of odd sizes."""
    rows = [row for row in FLOAT8_ROWS if row["dtype"] in GPU_DTYPES[:2]]
    defaults = dict.fromkeys(VALUES) | {"heads": (8, 2), "queries": 1, "new": 2, "rotary": "", "rotary_dim": 8}
    defaults |= {"leftpad": False, "window": (-1, -1), "softcap": 0.0, "alibi": False, "sink": False}
    defaults |= {"causal": True, "cache": "page 16", "num_splits": 0, "descale": "each"}
    modified = {"softcap": 3.0, "alibi": True, "sink": True, "queries": 5, "cache": "rows", "num_splits": 2}
    for dims in (*CLASSES[:2], *CLASSES[3:5], (36, 20)):
        for stored in FLOAT8:
            for dtype in GPU_DTYPES[:2]:
                row = defaults | {"dims": dims, "dtype": dtype, "stored": stored}
                rows += [row, row | modified, row | {"queries": 40}]
                rows.append(row | modified | {"queries": 40, "num_splits": 0})
    return rows


def products_mla_rows() -> list[dict[str, Any]]:
    """Queries in the cache's float8: every kernel, with every kind of descale, sinks, masks, pages and schedules."""
    each: dict[str, Any] = {"dtype": torch.bfloat16, "queries_too": True}
    kinds = [
        {"page": 0, "causal": True, "schedule": "none", "sink": True, "descale": "each"},
        {"page": 24, "causal": False, "schedule": "newer", "sink": False, "descale": "one"},
        {"page": 64, "causal": False, "schedule": "older", "sink": True, "descale": ""},
    ]
    sizes = [(features, heads) for features in (512, 576) for heads in ((8, 1), (32, 1), (32, 3), (20, 7))]
    return [
        each | kinds[(n + k) % 3] | {"stored": stored, "features": features, "heads": heads, "queries": queries}
        for k, stored in enumerate(FLOAT8)
        for n, (features, (heads, queries)) in enumerate(sizes)
    ]


def gpu_float8_mla_rows() -> list[dict[str, Any]]:
    """The table's rows, and every kernel: of 16, 64 and 128 rows, of both numbers of features."""
    rows = [row for row in FLOAT8_MLA_ROWS if row["dtype"] in GPU_DTYPES[:2]]
    each = {"page": 0, "causal": True, "schedule": "none", "sink": True, "descale": "each"}
    for dtype in GPU_DTYPES[:2]:
        for stored in FLOAT8:
            for features in (512, 576):
                for heads, queries in ((8, 1), (32, 1), (32, 3), (20, 7)):
                    row = {"dtype": dtype, "features": features, "heads": heads, "queries": queries}
                    rows.append(each | row | {"stored": stored})
    return rows


def refuse_and_keep_the_cache(device: str) -> None:
    """A call that only a GPU's plan refuses is refused before the cache is written."""
    for d, block_size, words in ((64, 256, "block_size: expected"), (264, None, "head dims of at most 256")):
        q, k = torch.randn(2, 1, 2, d).bfloat16().to(device), torch.randn(2, 1, 1, d).bfloat16().to(device)
        cache = torch.zeros(2, 40, 1, d).bfloat16().to(device)
        with pytest.raises(RuntimeError, match=words):
            attention.flash_attn_with_kvcache(q, cache, cache.clone(), k, k, cache_seqlens=3, block_size=block_size)
        assert not cache.cpu().any(), words
        if block_size:
            attention.flash_attn_with_kvcache(q, cache, cache.clone(), k, k, cache_seqlens=3)
            assert cache.cpu()[:, 3].any() and not cache.cpu()[:, 4:].any()


def nan_goes_on(device: str) -> None:
    """A NaN in a query, or in a key of one part of several, is in what sees it, out and lse, and in nothing else."""
    q, k, v = torch.randn(1, 1, 4, 64), torch.randn(1, 2048, 2, 64), torch.randn(1, 2048, 2, 64)
    q, k, v = (x.bfloat16().to(device) for x in (q, k, v))
    latent = torch.randn(1, 1024, 1, 576).bfloat16().to(device)
    lengths = torch.tensor([1024], dtype=torch.int32).to(device)

    def heads(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return attention.flash_attn_with_kvcache(q, k, v, num_splits=4, return_softmax_lse=True)

    def mla(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return attention.flash_mla_with_kvcache(
            q, k, None, lengths, 512, *attention.get_mla_metadata(lengths, q.shape[2], 1)
        )

    for call, of_keys, queries in ((heads, k, [4]), (mla, latent, [16, 128])):
        for count in queries:
            of_queries = torch.randn(1, 1, count, of_keys.shape[-1]).bfloat16().to(device)
            sound, sound_lse = (x.cpu() for x in call(of_queries, of_keys))
            spoilt = of_queries.clone()
            spoilt[0, 0, 1, 3] = torch.nan
            out, lse = (x.cpu() for x in call(spoilt, of_keys))
            other_heads = [h for h in range(count) if h != 1]
            assert out[:, :, 1].isnan().all() and lse[0, 1].isnan().all(), "a query's NaN is lost"
            assert torch.equal(out[:, :, other_heads], sound[:, :, other_heads]) and torch.equal(
                lse[:, other_heads], sound_lse[:, other_heads]
            )
            keys = of_keys.clone()
            keys[0, 700, 0] = torch.nan
            out, lse = (x.cpu() for x in call(of_queries, keys))
            sees = slice(0, count // of_keys.shape[2])
            assert out[:, :, sees].isnan().all() and lse[:, sees].isnan().all(), "a key's NaN is lost"
            assert out[:, :, sees.stop :].isfinite().all()

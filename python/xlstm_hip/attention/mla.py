# SPDX-License-Identifier: Apache-2.0
"""MLA decode with both published interfaces of FlashMLA: absorbed queries and one latent key, whose first columns are
the value.

The schedule is a number of split-KV parts per sequence. The older interface returns it as tensors like FlashMLA's,
one row per part; the newer as an object that the first call fills. The additional argument `plan` is keyword-only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._core.checks import FLOAT8_DTYPES, shape_text
from .._core.device import device_facts
from .._core.environment import plain_torch_forced
from .._core.index_tensors import Pages, SequenceBounds
from .._core.native import native
from .._core.plans import AS_PLANNED, Plan, check_plan
from . import checks
from .ops import Descales, Options, forward_only, ops_for, tabled_plan

SCHEDULE_COLUMNS = 8  # begin and end (sequence, block), first split, as FlashMLA lays them out; three are unused
_BLOCK = 64  # keys that a schedule counts in


@dataclass
class FlashMLASchedMeta:
    """The schedule of the newer interface. It is created empty, filled by the first call, and valid for calls of those
    shapes.
    """

    shapes: tuple[Any, ...] | None = None
    splits: int = 0


def _splits(device: torch.device, batch: int, heads_k: int, rows: int, keys: int) -> int:
    built = native()
    if built is None:  # as in a library made for Hugging Face's kernels: the library's own plan is the same one
        return 0
    if device.type == "cpu":
        return built.plan_attention_cpu(batch, heads_k, rows, keys, torch.get_num_threads())["splits"]
    facts = device_facts(device)
    plan = built.plan_mla_gpu(facts.arch, facts.compute_units, facts.lds_bytes, batch, heads_k, max(1, rows), keys)
    return min(plan["splits"], checks.MOST_SPLITS)


def get_mla_metadata(
    cache_seqlens: Tensor | None = None,  # (B)
    num_q_tokens_per_head_k: int | None = None,  # S_q * H_q / H_k
    num_heads_k: int | None = None,
    num_heads_q: int | None = None,
    is_fp8_kvcache: bool = False,
    topk: int | None = None,
) -> tuple[Any, Tensor | None]:
    """Without arguments (FlashMLASchedMeta(), None). With cache_seqlens and the two counts after it the older pair:
    tile_scheduler_metadata (parts, 8) and num_splits (B + 1), how many parts come before each sequence's. num_heads_q
    must fit the two counts, and changes no schedule."""
    checks.no_kernel(is_fp8_kvcache=is_fp8_kvcache, topk=topk)
    if cache_seqlens is None:
        for name, x in (
            ("num_q_tokens_per_head_k", num_q_tokens_per_head_k),
            ("num_heads_k", num_heads_k),
            ("num_heads_q", num_heads_q),
        ):
            if x is not None:
                raise ValueError(f"{name}: expected cache_seqlens beside it")
        return FlashMLASchedMeta(), None
    checks.is_tensor("cache_seqlens", cache_seqlens)
    if cache_seqlens.dim() != 1 or cache_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cache_seqlens: expected an integer tensor (B), got {shape_text(cache_seqlens)}")
    for name, x in (("num_q_tokens_per_head_k", num_q_tokens_per_head_k), ("num_heads_k", num_heads_k)):
        if isinstance(x, bool) or not isinstance(x, int) or x < 1:
            raise ValueError(f"{name}: expected an integer >= 1, got {x!r}")
    assert num_q_tokens_per_head_k is not None and num_heads_k is not None
    wrong = isinstance(num_heads_q, bool) or not isinstance(num_heads_q, int) or num_heads_q < 1
    if num_heads_q is not None and (wrong or num_heads_q % num_heads_k):
        raise ValueError(f"num_heads_q: expected a multiple of num_heads_k = {num_heads_k}, got {num_heads_q!r}")
    if num_heads_q is not None and num_q_tokens_per_head_k % (num_heads_q // num_heads_k):
        raise ValueError(
            f"num_q_tokens_per_head_k: expected a multiple of num_heads_q / num_heads_k = "
            f"{num_heads_q // num_heads_k}, got {num_q_tokens_per_head_k}"
        )
    batch, lengths = cache_seqlens.shape[0], cache_seqlens.to(torch.int32)
    longest = int(lengths.max()) if batch and cache_seqlens.device.type == "cpu" else 1 << 20
    splits = max(1, _splits(lengths.device, batch, num_heads_k, num_q_tokens_per_head_k, longest)) if batch else 1
    return _schedule(lengths, splits)


def _schedule(lengths: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """tile_scheduler_metadata and num_splits of the older interface, with equally many parts per sequence."""
    batch = lengths.shape[0]
    blocks = ((lengths + _BLOCK - 1) // _BLOCK)[:, None]
    part = torch.arange(splits + 1, dtype=torch.int32, device=lengths.device)
    edges = blocks * part // splits  # (B, splits + 1)
    sequence = torch.arange(batch, dtype=torch.int32, device=lengths.device)[:, None].expand(batch, splits)
    columns = [sequence, edges[:, :-1], sequence, edges[:, 1:], part[:-1].expand(batch, splits)]
    columns += [torch.zeros_like(sequence)] * (SCHEDULE_COLUMNS - len(columns))
    first = torch.arange(batch + 1, dtype=torch.int32, device=lengths.device) * splits
    return torch.stack(columns, dim=-1).reshape(batch * splits, SCHEDULE_COLUMNS).to(torch.int32), first


@forward_only("flash_mla_with_kvcache")
def flash_mla_with_kvcache(
    q: Tensor,  # (B, S_q, H_q, D): D is 576, 512 and 64 for the position, or 512
    k_cache: Tensor,  # (pages, page size, H_k, D), or (B, S, H_k, D) where block_table is None
    block_table: Tensor | None,  # (B, pages of a sequence)
    cache_seqlens: Tensor,  # (B)
    head_dim_v: int,  # the columns of k_cache that are the value: 512
    tile_scheduler_metadata: Any = None,
    num_splits: Tensor | None = None,  # (B + 1), with the older metadata
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: Tensor | None = None,
    attn_sink: Tensor | None = None,  # (H_q): scales out, and leaves lse alone
    extra_k_cache: Tensor | None = None,
    extra_indices_in_kvcache: Tensor | None = None,
    topk_length: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    *,
    plan: Plan | None = None,
    k_descale: Tensor | None = None,  # of a cache in float8: one element or (B, H_k), float32
    q_descale: Tensor | None = None,  # of queries in float8, likewise
) -> tuple[Tensor, Tensor]:
    """Returns out (B, S_q, H_q, head_dim_v) and softmax_lse (B, H_q, S_q), +infinity for a sequence without keys.

    The shapes of an older schedule's tensors say how the keys are split. On a CPU their values are compared with those
    of get_mla_metadata for these cache_seqlens; on a GPU they are not read, because the host would have to wait. Pages
    may have any size. Sums over parts of the keys are kept in float32, float64 with float64.

    k_cache may be float8_e4m3fn or float8_e4m3fnuz, each number times k_descale, in keys and values alike.
    q may have the cache's float8, each number times q_descale; out is bfloat16 then. Where the GPU multiplies that
    format, on CDNA3 and CDNA4, softmax's weights are rounded to it, too, by 2^-4 at the most; elsewhere q is widened.
    is_fp8_kvcache is for FlashMLA's layout, of scales beside the numbers, for which there is no kernel.

    plan: how the call is cut up (docs/tuning.md), in the place of a schedule: a mapping of splits and, on a CPU,
    block_size.
    """
    if plan is not None:
        plan = check_plan("plan", "mla_decode", plan)
        if tile_scheduler_metadata is not None:
            raise ValueError("plan: expected None beside tile_scheduler_metadata, which says how the keys are cut up")
    checks.no_kernel(
        is_fp8_kvcache=is_fp8_kvcache, indices=indices, extra_k_cache=extra_k_cache,
        extra_indices_in_kvcache=extra_indices_in_kvcache, topk_length=topk_length, extra_topk_length=extra_topk_length,
    )  # fmt: skip
    q = checks.heads("q", q, 4, "(B, S, H, D)", float8=True)
    batch, queries, heads_q, features = q.shape
    meaning = "(B, S, H, D), block_table being None" if block_table is None else "(pages, page size, H, D)"
    if checks.heads("k_cache", k_cache, 4, meaning, q, float8=True) is not k_cache:
        raise ValueError(
            f"k_cache: expected the last dimension to be contiguous, got strides {tuple(k_cache.stride())}"
        )
    if q.dtype in FLOAT8_DTYPES and k_cache.dtype != q.dtype:
        raise TypeError(f"k_cache: expected {q.dtype} as q has, got {k_cache.dtype}")
    if isinstance(head_dim_v, bool) or not isinstance(head_dim_v, int) or not 1 <= head_dim_v <= features:
        raise ValueError(f"head_dim_v: expected an integer from 1 to q's head dim {features}, got {head_dim_v!r}")
    values = k_cache[..., :head_dim_v]
    checks.keys_and_values(q, k_cache, values, "k_cache", "k_cache")
    if block_table is None and k_cache.shape[0] != batch:
        raise ValueError(f"k_cache: expected batch size {batch} as q has, or block_table, got {shape_text(k_cache)}")
    table = checks.indices("block_table", block_table, q, (batch, None), f"(B, pages) = ({batch}, pages)")
    checks.is_tensor("cache_seqlens", cache_seqlens)
    used = checks.indices("cache_seqlens", cache_seqlens, q, (batch,), f"(B) = ({batch},)")
    assert used is not None
    heads_k, scale = k_cache.shape[2], checks.descale("k_descale", k_descale, k_cache, batch)
    of_scores = _descale_of_scores(q, q_descale, k_cache, scale)
    if q.dtype in FLOAT8_DTYPES and not _multiplies(q, head_dim_v):
        q = q.to(torch.bfloat16)
    keys = k_cache.shape[1] * (1 if table is None else table.shape[1])
    checks.lengths_fit("cache_seqlens", used, keys, table is not None)
    shapes = (batch, queries, heads_q, heads_k, features, head_dim_v, keys, q.dtype, q.device)
    _, right = checks.window((-1, -1), checks.flag("causal", causal))
    options = Options(queries, 0, checks.scale_of(softmax_scale, features), -1, right, 0.0, 0.0, 0)
    if plan is None:  # the older schedule is made before shapes are known, and has what a table would say
        older = isinstance(tile_scheduler_metadata, Tensor)
        plan = AS_PLANNED if older else tabled_plan("mla_decode", q, heads_k, keys, head_dim_v, options)
    splits = _scheduled_splits(tile_scheduler_metadata, num_splits, shapes, q, used, plan.get("splits", 0))
    options = options._replace(block_size=plan.get("block_size", 0))
    out, lse = ops_for(q).attention_forward(
        q, k_cache, values, *SequenceBounds(seqused_k=used), *Pages(table), None,
        checks.sinks("attn_sink", attn_sink, q), None, *options, splits, False, *Descales(of_scores, scale),
    )  # fmt: skip
    return out, lse


def _descale_of_scores(q: Tensor, q_descale: Tensor | None, k_cache: Tensor, k_descale: Tensor | None) -> Tensor | None:
    if q_descale is None:
        return k_descale
    if q.dtype not in FLOAT8_DTYPES:
        raise ValueError(f"q_descale: expected None with q of {q.dtype}; it is for float8_e4m3fn and _e4m3fnuz")
    of_queries = checks.descale("q_descale", q_descale, k_cache, q.shape[0])
    return of_queries if of_queries is None or k_descale is None else of_queries * k_descale


def _multiplies(q: Tensor, head_dim_v: int) -> bool:
    """Whether there is a kernel for queries in float8."""
    built = native()
    if built is None or q.device.type == "cpu" or plain_torch_forced():
        return False
    format_of_arch = built.mla_float8_products(device_facts(q.device).arch, q.shape[-1], head_dim_v)
    return str(q.dtype) == f"torch.{format_of_arch}"


def _scheduled_splits(
    metadata: Any, num_splits: Any, shapes: tuple[Any, ...], q: Tensor, lengths: Tensor, planned: int
) -> int:
    """planned: what a call without a schedule, or the first one with a new schedule, has; 0 leaves it to csrc/."""
    batch, queries, heads_q, heads_k, _, _, keys, *_ = shapes
    if metadata is None or isinstance(metadata, FlashMLASchedMeta):
        if num_splits is not None:
            raise ValueError("num_splits: expected None without the older tile_scheduler_metadata (parts, 8)")
        if metadata is None:
            return planned
        if metadata.shapes is None:
            metadata.shapes = shapes
            rows = queries * heads_q // heads_k
            metadata.splits = planned or _splits(shapes[-1], max(1, batch), heads_k, rows, keys)
        elif metadata.shapes != shapes:
            raise ValueError(
                f"tile_scheduler_metadata: expected one for these shapes {shapes}, got one that a call with "
                f"{metadata.shapes} filled in; make a new one with get_mla_metadata()"
            )
        return metadata.splits
    checks.is_tensor("tile_scheduler_metadata", metadata)
    parts = metadata.shape[0] if metadata.dim() == 2 and metadata.shape[1] == SCHEDULE_COLUMNS else 0
    if parts < 1 or parts % max(1, batch):
        raise ValueError(
            "tile_scheduler_metadata: expected the result of get_mla_metadata for these cache_seqlens, "
            f"got shape {shape_text(metadata)} for {batch} sequences"
        )
    checks.is_tensor("num_splits", num_splits)
    if tuple(num_splits.shape) != (batch + 1,):
        raise ValueError(f"num_splits: expected shape (B + 1) = ({batch + 1},), got {shape_text(num_splits)}")
    splits = parts // max(1, batch)
    schedule = {"tile_scheduler_metadata": metadata, "num_splits": num_splits}
    for name, x in schedule.items():
        if x.dtype != torch.int32:
            raise TypeError(f"{name}: expected torch.int32, got {x.dtype}")
        checks.on_device(name, x, q)
    if checks.readable(lengths):
        for (name, x), expected in zip(schedule.items(), _schedule(lengths, splits), strict=True):
            if not torch.equal(x, expected):
                raise ValueError(
                    f"{name}: expected the result of get_mla_metadata for these cache_seqlens, got other values"
                )
    return splits

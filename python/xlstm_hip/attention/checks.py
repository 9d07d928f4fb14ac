# SPDX-License-Identifier: Apache-2.0
"""Argument checks of attention. Errors name the argument, what was expected and what was given."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

from .._core.checks import FLOAT8_DTYPES, IO_DTYPES, accumulate_dtype, has_integers, is_tensor, shape_text
from .._core.index_tensors import lengths_within, offsets_fit
from .._core.ops import devices_with_kernels

BLOCK_SIZES = (32, 64, 128, 256)  # as csrc/attention/cpu/plan.h has them
MOST_SPLITS = 256
DEVICES = devices_with_kernels("attention_forward")
_INTEGERS = (int, torch.SymInt)
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def finite(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not -math.inf < value < math.inf:
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return value


def dropout(value: Any, name: str = "dropout_p") -> float:
    """p is rounded to steps of 2^-16 (csrc/attention/rules.h). A p that would round to 0 or 1 is an error."""
    p = finite(name, value)
    if not 0 <= p < 1:
        raise ValueError(f"{name}: expected 0 <= p < 1, got {value!r}")
    if p and not 2**-17 <= p < 1 - 2**-17:
        raise ValueError(
            f"{name}: expected 0 or 2**-17 <= p < 1 - 2**-17, as it is taken in steps of 2**-16, got {value!r}"
        )
    return p


def scale_of(value: Any, head_dim: int) -> float:
    return head_dim**-0.5 if value is None else finite("softmax_scale", value)


def cap(value: Any) -> float:
    if finite("softcap", value) < 0:
        raise ValueError(f"softcap: expected a number >= 0 (0: none), got {value!r}")
    return float(value)


def window(value: Any, causal: bool) -> tuple[int, int]:
    """(left, right), -1 without an end; causal closes the right side."""
    sides = _window_sides(value)
    if sides is None:
        raise ValueError(f"window_size: expected (left, right), integers >= -1, got {value!r}")
    return sides[0], 0 if causal else sides[1]


def _window_sides(value: Any) -> tuple[int, int] | None:
    """The two integers of a pair, a tensor or an array; None for anything else."""
    try:
        left, right = value
        if isinstance(left, bool) or isinstance(right, bool):
            return None
        sides = operator.index(left), operator.index(right)
    except (TypeError, ValueError):
        return None
    return sides if min(sides) >= -1 else None


def block(value: Any) -> int:
    if value is None:
        return 0
    if value not in BLOCK_SIZES:
        raise ValueError(f"block_size: expected one of {', '.join(map(str, BLOCK_SIZES))}, got {value!r}")
    return int(value)


def length(name: str, value: Any) -> int:
    """A count of tokens; a tensor of one number is read."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_floating_point():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, _INTEGERS) or value < 0:
        raise ValueError(f"{name}: expected an integer >= 0, got {value!r}")
    return value  # type: ignore[return-value]


def heads(
    name: str, x: Any, rank: int, meaning: str, like: Tensor | None = None, float8: bool = False
) -> Tensor:  # fmt: skip
    """A tensor of tokens by heads by features: rank, dtype, device; the features contiguous, by a copy if need be.
    float8: whether it may be of floats of 8 bits."""
    is_tensor(name, x)
    if x.dim() != rank:
        raise ValueError(f"{name}: expected {rank} dimensions {meaning}, got {x.dim()}: {shape_text(x)}")
    if x.shape[-1] < 1 or x.shape[-2] < 1:
        raise ValueError(f"{name}: expected at least one head and one feature, got {shape_text(x)}")
    if like is None:
        if x.dtype not in IO_DTYPES and not (float8 and x.dtype in FLOAT8_DTYPES):
            others = ", float8_e4m3fn or float8_e4m3fnuz" if float8 else ""
            raise TypeError(f"{name}: expected float32, bfloat16, float16 or float64{others}, got {x.dtype}")
        if x.device.type not in DEVICES:
            raise ValueError(
                f"{name}: expected device {' or '.join(DEVICES)}, for which there are kernels, got {x.device}"
            )
    else:
        if x.dtype != like.dtype and not (float8 and x.dtype in FLOAT8_DTYPES):
            others = "; it may also be float8_e4m3fn or float8_e4m3fnuz" if float8 else ""
            raise TypeError(f"{name}: expected {like.dtype} as q has, got {x.dtype}{others}")
        on_device(name, x, like)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def on_device(name: str, x: Tensor, like: Tensor) -> Tensor:
    if x.device != like.device:
        raise ValueError(f"{name}: expected device {like.device} as q has, got {x.device}")
    return x


def key_heads(name: str, x: Tensor, q: Tensor) -> None:
    if q.shape[-2] % x.shape[-2]:
        raise ValueError(
            f"{name}: expected heads that divide q's {q.shape[-2]}, each for as many query heads, got {x.shape[-2]}"
        )


def keys_and_values(q: Tensor, k: Tensor, v: Tensor, k_name: str = "k", v_name: str = "v") -> None:
    key_heads(k_name, k, q)
    if v.dtype != k.dtype:
        raise TypeError(f"{v_name}: expected {k.dtype} as {k_name} has, got {v.dtype}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"{k_name}: expected head dim {q.shape[-1]} as q has, got {shape_text(k)}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"{v_name}: expected shape {shape_text(k)} as {k_name} has but for the head dim, got {shape_text(v)}"
        )


def indices(name: str, x: Any, q: Tensor, shape: tuple[int | None, ...], meaning: str) -> Tensor | None:
    """An integer tensor as contiguous int32; None in a shape stands for any size."""
    if x is None:
        return None
    has_integers(name, x)
    if x.dim() != len(shape) or any(size is not None and x.shape[j] != size for j, size in enumerate(shape)):
        raise ValueError(f"{name}: expected shape {meaning}, got {shape_text(x)}")
    on_device(name, x, q)
    return x.to(torch.int32).contiguous()


def offsets(name: str, x: Any, q: Tensor, batch: int | None = None) -> Tensor:
    is_tensor(name, x)
    if x.dim() != 1 or x.shape[0] < 2 or (batch is not None and x.shape[0] != batch + 1):
        sequences = "B" if batch is None else str(batch)
        raise ValueError(f"{name}: expected shape ({sequences} + 1), offsets from 0 up, got {shape_text(x)}")
    checked = indices(name, x, q, (None,), "(B + 1)")
    assert checked is not None
    return checked


def readable(x: Tensor | None) -> bool:
    """Whether values can be read without a device sync: on the CPU, outside a graph."""
    return x is not None and x.device.type == "cpu" and not torch.compiler.is_compiling() and x.numel() > 0


class CacheRoomError(ValueError, RuntimeError):
    """Keys beyond the cache. FlashAttention-2 raises a RuntimeError, in which it names block_table."""


def lengths_fit(name: str, x: Tensor | None, most: int, paged: bool = False) -> None:
    """Values of 0 to most, where they can be read."""
    if x is None or not readable(x):
        return
    limit = "for which block_table has pages" if paged else "for which the cache has room"
    for value in (int(x.min()), int(x.max())):
        if not 0 <= value <= most:
            raise CacheRoomError(f"{name}: expected 0 to {most}, {limit}, got {value}")


def pages_fit(table: Tensor | None, used: Tensor, cache: Tensor) -> None:
    """Pages that the cache has, where they can be read and hold keys in use; other entries may be anything."""
    if table is None or not readable(table):
        return
    pages, size = cache.shape[:2]
    in_use = table[torch.arange(table.shape[1]) * size < used[:, None]]
    wrong = in_use[(in_use < 0) | (in_use >= pages)]
    if wrong.numel():
        raise ValueError(f"block_table: expected 0 to {pages - 1}, got {int(wrong[0])}")


def paged_keys_fit(cu_seqlens_k: Tensor, max_seqlen_k: int, seqused_k: Tensor | None) -> None:
    """Checks offsets as the ops do, where the host can read them: with pages an op gets lengths only."""
    if readable(cu_seqlens_k):
        lengths = offsets_fit("cu_seqlens_k", cu_seqlens_k, max_seqlen_k)
        if seqused_k is not None:
            lengths_within("seqused_k", seqused_k, lengths)


def slopes(x: Any, q: Tensor, batch: int) -> Tensor | None:
    if x is None:
        return None
    is_tensor("alibi_slopes", x)
    if x.shape != (q.shape[-2],) and x.shape != (batch, q.shape[-2]):
        raise ValueError(
            f"alibi_slopes: expected shape (H) = ({q.shape[-2]},) or (B, H) = ({batch}, {q.shape[-2]}), "
            f"got {shape_text(x)}"
        )
    if x.dtype != torch.float32:
        raise TypeError(f"alibi_slopes: expected float32, got {x.dtype}")
    if x.requires_grad:
        raise ValueError("alibi_slopes: expected no gradient to be needed; they get none, as in FlashAttention-2")
    return on_device("alibi_slopes", x, q).contiguous()


def sinks(name: str, x: Any, q: Tensor) -> Tensor | None:
    if x is None:
        return None
    is_tensor(name, x)
    if x.shape != (q.shape[-2],):
        raise ValueError(f"{name}: expected shape (H) = ({q.shape[-2]},), got {shape_text(x)}")
    if x.dtype not in IO_DTYPES:
        raise TypeError(f"{name}: expected a floating dtype, got {x.dtype}")
    return on_device(name, x, q).to(accumulate_dtype(q.dtype)).contiguous()


def splits(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_SPLITS:
        raise ValueError(f"num_splits: expected 0 (the library chooses) to {MOST_SPLITS}, got {value!r}")
    return value


def descale(name: str, x: Any, k: Tensor, batch: int) -> Tensor | None:
    """What 1 in keys or values of 8 bits stands for: one number, or one of each sequence and key head."""
    if x is None:
        return None
    is_tensor(name, x)
    if k.dtype not in FLOAT8_DTYPES:
        raise ValueError(
            f"{name}: expected None with keys and values of {k.dtype}; it is for float8_e4m3fn and _e4m3fnuz"
        )
    each = (batch, k.shape[-2])
    if x.shape != each and not (x.numel() == 1 and x.dim() <= 1):
        raise ValueError(f"{name}: expected one element or shape (B, H_k) = {each}, got {shape_text(x)}")
    if x.dtype != torch.float32:
        raise TypeError(f"{name}: expected float32, got {x.dtype}")
    if x.requires_grad:
        raise ValueError(f"{name}: expected no gradient to be needed; it gets none")
    return on_device(name, x, k)


def no_kernel(**unsupported: Any) -> None:
    """Refuses arguments of other libraries that nothing here answers."""
    for name, x in unsupported.items():
        if x is not None and x is not False:
            raise NotImplementedError(f"{name}: expected {'False' if x is True else 'None'}; there is no kernel for it")

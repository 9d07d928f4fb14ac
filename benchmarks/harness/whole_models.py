# SPDX-License-Identifier: Apache-2.0
"""Checks of whole models beside their times: the same texts, the memory that writing takes, loading."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xlstm_hip.bench.machine import Machine
from xlstm_hip.bench.memory import MemoryUnknown, growth_of
from xlstm_hip.bench.models import BITS, IMPLEMENTATIONS, after, errors_of
from xlstm_hip.bench.operators import MODEL_EXACT
from xlstm_hip.bench.readers import Reader
from xlstm_hip.bench.registry import PLAIN, XLSTM_HIP
from xlstm_hip.models import load_pretrained, xLSTMLarge

# By their names here, where ours are the package's.
CONTENDERS = {x.name.replace("ours", XLSTM_HIP): x for x in IMPLEMENTATIONS if x.provider != PLAIN}
PROMPT = 16  # tokens that are read before a text is held to the truth, or written


def bits_of(name: str) -> int:
    return BITS.get(CONTENDERS[name].name, 0)


def check(
    found: Mapping[str, Reader], plain: Callable[[int], xLSTMLarge], x: Tensor, dtype: str
) -> dict[str, dict[str, float]]:
    """How far each is from the plain kernels' model of its own weights, and the limit; ours are within it.

    plain: of bits, or of 0, of weights as they are.
    """
    limit = MODEL_EXACT[dtype]
    texts: dict[str, Tensor] = {}
    rows: dict[str, dict[str, float]] = {}
    for bits, names in itertools.groupby(sorted(found, key=bits_of), bits_of):
        model = plain(bits)
        true = after(model, {"tokens": x})
        for name in names:
            read = found[name](x)
            texts[name] = read.write(PROMPT)
            errors = errors_of(model, true, read.logits, texts[name])
            if name.startswith(XLSTM_HIP) and not max(errors.values()) <= limit:
                off = ", ".join(f"{error:.3g} ({part})" for part, error in errors.items())
                raise SystemExit(f"{name}: errors {off}, expected at most {limit}")
            rows[name] = errors | {"limit": limit}
    for name in found:
        if dtype == "fp32" and not bits_of(name) and not torch.equal(texts[name], texts[XLSTM_HIP]):
            raise SystemExit(f"{name} writes otherwise than {XLSTM_HIP}")
    return {name: rows[name] for name in found}


def memory_over_length(model: Reader, x: Tensor, lengths: Iterable[int], machine: Machine) -> list[dict[str, Any]]:
    """The peak memory of writing so many tokens, beyond the model."""
    rows: list[dict[str, Any]] = []
    for length in lengths:
        row: dict[str, Any] = {"length": length}
        try:
            call = lambda length=length: model(x).write(length)  # noqa: E731
            row["bytes"] = machine.peak_bytes(call) if machine.gpu else growth_of(call)
        except MemoryUnknown as reason:
            row["missing"] = str(reason)
        rows.append(row)
    return rows


def loading(folder: Path, device: str) -> dict[str, Any]:
    """Seconds of the second of two goes each: what is in the page cache is so for both."""
    files = sorted(folder.glob("*.safetensors"))
    buffer = bytearray(16 << 20)

    def read() -> None:
        for file in files:
            with open(file, "rb", buffering=0) as opened:
                while opened.readinto(buffer):
                    pass

    seconds = {}
    for name, call in (("read", read), ("load", lambda: load_pretrained(folder, "auto", device, progress=False))):
        call()
        began = time.perf_counter()
        call()
        seconds[name] = time.perf_counter() - began
        gc.collect()
    return {"bytes": sum(file.stat().st_size for file in files), **seconds, "share": seconds["read"] / seconds["load"]}

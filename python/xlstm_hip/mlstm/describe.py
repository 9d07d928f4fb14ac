# SPDX-License-Identifier: Apache-2.0
"""describe(): a table of this installation and its kernels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

import torch

from .._core import ops
from .._core.device import DeviceFacts, default_device, device_facts
from .._core.extras import is_installed
from .._core.native import native
from .._version import __version__
from .registry import KernelInfo, all_kernels

COLUMNS = ("kernel", "kind", "gate", "devices", "dtypes", "gradient", "states", "note")
DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}
PLAIN_GAP = "  "


def describe(file: TextIO | None = None) -> None:
    """Prints the facts of this machine and every registered kernel, to `file` or standard output."""
    out = sys.stdout if file is None else file
    for label, text in _header():
        print(f"{label + ':':<13}{text}", file=out)
    print(file=out)
    rows = [_row(info) for info in all_kernels()]
    if is_installed("rich"):
        _print_rich(rows, out)
    else:
        _print_plain(rows, out)


def _header() -> list[tuple[str, str]]:
    gpu = default_device()
    return [
        ("xlstm_hip", __version__),
        ("torch", torch.__version__),
        ("op library", _op_library()),
        ("CPU kernels", _cpu_instruction_set()),
        ("GPU kernels", _gpu_kernels()),
        ("CPU", _device_text(device_facts("cpu"))),
        ("GPU", "none" if gpu.type == "cpu" else _device_text(device_facts(gpu))),
    ]


def _op_library() -> str:
    built = sorted(Path(__file__).parents[1].glob("_xlstm_hip_ops*"))
    return str(built[0]) if built else "not built"


def _cpu_instruction_set() -> str:
    built = native()
    return built.cpu_isa() if built else "not built"


def _gpu_kernels() -> str:
    """The GPU kernels of the op library, with or without a GPU here. _native knows which chips they were built for."""
    built = native()
    facts = built.build_facts() if built else {"gpu": "", "gpu_archs": (), "gpu_note": ""}
    if "cuda" in ops.devices_with_kernels():
        return f"{facts['gpu'] if facts['gpu_archs'] else 'built'} {' '.join(facts['gpu_archs'])}".rstrip()
    return "none" + (f": {facts['gpu_note']}" if facts["gpu_note"] else "")


def _device_text(facts: DeviceFacts) -> str:
    units = {"amd": "CUs", "nvidia": "SMs"}.get(facts.kind, "cores")
    parts = [facts.name, facts.arch, f"{facts.compute_units} {units}"]
    if facts.lds_bytes:
        parts += [f"{facts.lds_bytes >> 10} KB LDS", f"wave {facts.wave_size}"]
    if facts.memory_bytes:
        parts.append(f"{facts.memory_bytes / (1 << 30):.0f} GB")
    if facts.is_experimental:
        parts.append("experimental: machine code never executed")
    return ", ".join(parts)


def _dtype_text(info: KernelInfo, dtype: torch.dtype) -> str:
    text = DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))
    return text if dtype in info.dtypes_on("cuda") else f"{text}(cpu)"


def _row(info: KernelInfo) -> tuple[str, ...]:
    return (
        info.name,
        info.kind,
        info.gate,
        "any" if "*" in info.devices else " ".join(info.devices),
        " ".join(_dtype_text(info, dtype) for dtype in info.dtypes),
        info.gradient,
        "yes" if info.states else "no",
        info.note,
    )


def _print_rich(rows: list[tuple[str, ...]], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, len(PLAIN_GAP), 0, 0), pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # As wide as its contents wherever it goes: folded into 80 columns it can neither be read nor grepped.
    Console(file=out, width=sum(_widths(rows)) + len(PLAIN_GAP) * len(COLUMNS)).print(table)


def _print_plain(rows: list[tuple[str, ...]], out: TextIO) -> None:
    widths = _widths(rows)
    for line in (COLUMNS, *rows):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(PLAIN_GAP.join(cells).rstrip(), file=out)


def _widths(rows: list[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]

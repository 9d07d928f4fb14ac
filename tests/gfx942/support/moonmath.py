# SPDX-License-Identifier: Apache-2.0
"""moonmath-ai/amd-kernels (MIT): attention for MI300X in HIP, not on PyPI. MOONMATH_AMD_KERNELS names the folder of a
clone of https://github.com/moonmath-ai/amd-kernels; its kernels are compiled here with the options of its setup.py, and
called as its host code calls them."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path

import torch
from torch import Tensor

import builds
import device
from tensors import array

FLAGS = ("-std=c++17", "-ffast-math", "-fno-math-errno", "-mllvm", "-amdgpu-early-inline-all=true", "-w")
# Older HIP has no such header. Of it the kernels use the type alone, as two bytes.
BF16_HEADER = "#pragma once\nstruct __hip_bfloat16 {\n  unsigned short bits;\n};\n"
# v_transpose_kernel_16x16<false> and attention_forward<false, false, false>
TURN = "_ZN12_GLOBAL__N_124v_transpose_kernel_16x16ILb0EEEvPK14__hip_bfloat16PS1_ii"
ATTEND = "_ZN12_GLOBAL__N_117attention_forwardILb0ELb0ELb0EEEvPK14__hip_bfloat16S3_S3_PS1_iifiPKsPsS6_fiPfiiPKi"
QUERIES, KEYS = 384, 64  # of a workgroup, of a block


def folder() -> Path | None:
    named = os.environ.get("MOONMATH_AMD_KERNELS")
    return Path(named) if named else None


@functools.cache
def module(rounding: str) -> device.Module:
    sources = folder()
    assert sources
    text = (sources / "csrc/attention_kernel.hip").read_text()
    stand_in = builds.BUILD / "moonmath/hip/hip_bf16.h"
    stand_in.parent.mkdir(parents=True, exist_ok=True)
    stand_in.write_text(BF16_HEADER)
    includes = (f"-I{sources / 'csrc'}", f"-isystem{stand_in.parents[1]}")
    flags = (*FLAGS, f"-DBF16_ROUND={rounding.upper()}", *includes)
    return device.Module(builds.compile_hip(text, *flags))


def _launch(rounding: str, kernel: str, grid: tuple[int, int], threads: int, arguments: list) -> None:
    module(rounding).launch(kernel, grid, threads, [array(x) if isinstance(x, Tensor) else x for x in arguments])


def forward(rounding: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(B, H, S, 128) in bfloat16, as many heads of keys as of queries; the scale is 128**-0.5."""
    batch, heads, queries, dim = q.shape
    keys = k.shape[2]
    blocks = -(-keys // KEYS)
    turned = torch.full((batch * heads, blocks * KEYS * dim), torch.nan, dtype=q.dtype)
    _launch(rounding, TURN, (batch * heads * blocks, 1), 256, [v, turned, keys, heads])
    out = torch.full_like(q, torch.nan)
    arguments = [q, k, turned, out, queries, keys, math.log2(math.e) * dim**-0.5, heads]
    unused = [0, 0, 0, 0.0, 0, 0, 0, 0, 0]  # lists of blocks to skip, and parts of the keys
    grid = (-(-queries // QUERIES), batch * heads)
    _launch(rounding, ATTEND, grid, 512, arguments + unused)
    return out

# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip plan: how an mLSTM call would be cut up, on a device that need not be here."""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from ..describe import native
from ..plan_text import plan_lines
from .common import add_command, at_least, refuse_given

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GPU_DEFAULTS: dict[str, Any] = {"dqk": 256, "dhv": 512, "dtype": "bfloat16", "walk_chunk": 0}  # head dims of xLSTM-7B
CPU_OPTIONS = ("chunk_size", "threads")


def add(commands: Any) -> None:
    command = add_command(commands, "plan", run, "Show how an mLSTM call is cut up, on a device that need not be here.")
    command.add_argument("--device", default="cpu", help="cpu, or a GPU's name; `list` prints them (default: cpu)")
    command.add_argument("--batch", metavar="N", type=at_least(1), default=1, help="sequences (default: 1)")
    command.add_argument("--heads", metavar="N", type=at_least(1), default=8, help="(default: 8, as xLSTM-7B has)")
    command.add_argument(
        "--length", metavar="N", type=at_least(1), default=8192, help="tokens of the longest (default: 8192)"
    )
    command.add_argument(
        "--segments", metavar="N", type=at_least(0), default=0, help="of a sequence (default: 0, as fits)"
    )
    gpu = command.add_argument_group("on a GPU")
    gpu.add_argument("--dqk", metavar="N", type=at_least(1), help="head dim of q and k (default: 256)")
    gpu.add_argument("--dhv", metavar="N", type=at_least(1), help="head dim of v and h (default: 512)")
    gpu.add_argument("--dtype", choices=ELEMENT_BYTES, help="(default: bfloat16)")
    gpu.add_argument("--walk-chunk", metavar="N", type=at_least(0), help="tokens of a chunk (default: 0, as fits)")
    cpu = command.add_argument_group("on the CPU")
    cpu.add_argument("--chunk-size", metavar="N", type=at_least(1), help="(default: 64)")
    cpu.add_argument("--threads", metavar="N", type=at_least(1), help="(default: one per core)")
    command.add_argument("--json", action="store_true", help="print JSON")


def run(given: argparse.Namespace) -> int:
    built = native()
    if built is None:
        raise ImportError("the module _native was not built: install the package with pip")
    devices = {facts["name"]: facts for facts in built.known_devices()}
    if given.device == "list":
        print("\n".join(("cpu", *devices)))
        return 0
    if given.device == "cpu":
        refuse_given(given, GPU_DEFAULTS, "none on a CPU")
        threads = given.threads or torch.get_num_threads()
        cut = built.plan_mlstm_cpu(
            given.batch, given.heads, given.length, given.chunk_size or 64, threads, given.segments
        )
    else:
        named = {name.lower(): name for name in devices}
        if given.device.lower() not in named:
            raise ValueError(f"--device: expected one of cpu, {', '.join(devices)}, got {given.device!r}")
        refuse_given(given, CPU_OPTIONS, "none on a GPU")
        shape = {name: getattr(given, name) or default for name, default in GPU_DEFAULTS.items()}
        cut = built.plan_mlstm_gpu(
            named[given.device.lower()], given.batch, given.heads, given.length, shape["dqk"], shape["dhv"],
            ELEMENT_BYTES[shape["dtype"]], shape["walk_chunk"], given.segments, panels=shape["dtype"] == "bfloat16",
        )  # fmt: skip
    if given.json:
        print(json.dumps(cut))
        return 0
    print("\n".join(plan_lines(cut)))
    return 0

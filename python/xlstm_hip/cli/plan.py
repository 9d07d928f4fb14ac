# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip plan: how an mLSTM call would be cut up, on a device that need not be here."""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from ..describe import native
from ..plan_text import plan_lines
from .common import add_command, at_least

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def add(commands: Any) -> None:
    command = add_command(commands, "plan", run, "Show how an mLSTM call is cut up, on a device that need not be here.")
    command.add_argument("--device", default="cpu", help="cpu, or a GPU's name; `list` prints them (default: cpu)")
    command.add_argument("--batch", metavar="N", type=at_least(1), default=1, help="sequences (default: 1)")
    command.add_argument(
        "--heads", metavar="N", type=at_least(1), default=8, help="(default: 8, as the next three xLSTM-7B's)"
    )
    command.add_argument(
        "--length", metavar="N", type=at_least(1), default=8192, help="tokens of the longest (default: 8192)"
    )
    command.add_argument("--dqk", metavar="N", type=at_least(1), default=256, help="head dim of q and k (default: 256)")
    command.add_argument("--dhv", metavar="N", type=at_least(1), default=512, help="head dim of v and h (default: 512)")
    command.add_argument("--dtype", choices=ELEMENT_BYTES, default="bfloat16", help="(default: bfloat16)")
    command.add_argument("--chunk-size", metavar="N", type=at_least(1), default=64, help="on the CPU (default: 64)")
    command.add_argument(
        "--segments", metavar="N", type=at_least(0), default=0, help="of a sequence (default: 0, as fits)"
    )
    command.add_argument(
        "--walk-chunk",
        metavar="N",
        type=at_least(0),
        default=0,
        help="tokens of a chunk on a GPU (default: 0, as fits)",
    )
    command.add_argument("--threads", metavar="N", type=at_least(1), help="on the CPU (default: one per core)")
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
        if given.walk_chunk:
            raise ValueError(
                f"--walk-chunk: expected none on a CPU, whose chunks are --chunk-size, got {given.walk_chunk}"
            )
        threads = given.threads or torch.get_num_threads()
        cut = built.plan_mlstm_cpu(given.batch, given.heads, given.length, given.chunk_size, threads, given.segments)
    else:
        named = {name.lower(): name for name in devices}
        if given.device.lower() not in named:
            raise ValueError(f"--device: expected one of cpu, {', '.join(devices)}, got {given.device!r}")
        cut = built.plan_mlstm_gpu(
            named[given.device.lower()], given.batch, given.heads, given.length, given.dqk, given.dhv,
            ELEMENT_BYTES[given.dtype], given.walk_chunk, given.segments, panels=given.dtype == "bfloat16",
        )  # fmt: skip
    if given.json:
        print(json.dumps(cut))
        return 0
    print("\n".join(plan_lines(cut)))
    return 0

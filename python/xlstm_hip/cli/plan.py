# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip plan: prints launch configurations, for any known device."""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from .._core.native import native
from .._core.plan_text import (
    MLA_DIMS,
    AttentionCall,
    Gpu,
    Plan,
    attention_backward_cpu,
    attention_backward_gpu,
    attention_cpu,
    attention_gpu,
    mla_gpu,
    plan_lines,
)
from .common import add_command, at_least, refuse_options

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
OPS = ("mlstm", "attention", "mla")
# Defaults of options that only some ops have; argparse leaves them None when not given. The head dims are those of
# xLSTM-7B, of common attention models and of MLA.
DEFAULTS: dict[str, dict[str, Any]] = {
    "mlstm": {"dqk": 256, "dhv": 512, "segments": 0},
    "attention": {"dqk": 128, "dhv": 128, "heads_k": None, "queries": None, "block_size": 0, "splits": 0},
    "mla": {"dqk": 576, "dhv": 512, "heads_k": 1, "queries": 1, "splits": 0},
}
OF_SOME_OPS = sorted({name for names in DEFAULTS.values() for name in names})
GPU_OPTIONS = ("dtype", "walk_chunk")
CPU_OPTIONS = ("chunk_size", "threads")
OF_THE_MLSTM = ("walk_chunk", "chunk_size")


def add(commands: Any) -> None:
    text = "Print the launch configuration of an mLSTM or attention call. The device does not have to be present."
    command = add_command(commands, "plan", run, text)
    command.add_argument("--op", choices=OPS, default="mlstm", help="(default: mlstm)")
    command.add_argument(
        "--device", default="cpu", help="cpu or the name of a GPU; `list` prints the names (default: cpu)"
    )
    command.add_argument("--batch", metavar="N", type=at_least(1), default=1, help="sequences (default: 1)")
    command.add_argument(
        "--heads", metavar="N", type=at_least(1), default=8, help="query heads (default: 8, as in xLSTM-7B)"
    )
    command.add_argument(
        "--length",
        metavar="N",
        type=at_least(1),
        default=8192,
        help="tokens of the longest sequence; for attention, keys (default: 8192)",
    )
    command.add_argument(
        "--dqk", metavar="N", type=at_least(1), help="head dim of q and k (default: mlstm 256, attention 128, mla 576)"
    )
    command.add_argument(
        "--dhv", metavar="N", type=at_least(1), help="head dim of v and h (default: mlstm 512, attention 128, mla 512)"
    )
    mlstm = command.add_argument_group("mlstm")
    mlstm.add_argument(
        "--segments", metavar="N", type=at_least(0), help="segments of a sequence (default: 0, automatic)"
    )
    attention = command.add_argument_group("attention and mla")
    attention.add_argument(
        "--heads-k", metavar="N", type=at_least(1), help="key and value heads (default: as --heads; mla 1)"
    )
    attention.add_argument(
        "--queries", metavar="N", type=at_least(1), help="query tokens (default: as --length; mla 1)"
    )
    attention.add_argument(
        "--block-size", metavar="N", type=at_least(0), help="keys per tile in the forward pass (default: 0, automatic)"
    )
    attention.add_argument(
        "--splits", metavar="N", type=at_least(0), help="split-KV: parts of the keys (default: 0, automatic)"
    )
    gpu = command.add_argument_group("GPU")
    gpu.add_argument("--dtype", choices=ELEMENT_BYTES, help="(default: bfloat16)")
    gpu.add_argument(
        "--walk-chunk", metavar="N", type=at_least(0), help="mlstm: tokens per chunk (default: 0, automatic)"
    )
    cpu = command.add_argument_group("CPU")
    cpu.add_argument("--chunk-size", metavar="N", type=at_least(1), help="mlstm: tokens per chunk (default: 64)")
    cpu.add_argument("--threads", metavar="N", type=at_least(1), help="(default: one per core)")
    command.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    built = native()
    if built is None:
        raise ImportError("the module _native is missing: install the package with pip")
    devices = {facts["name"]: facts for facts in built.known_devices()}
    if args.device == "list":
        print("\n".join(("cpu", *devices)))
        return 0
    named = {name.lower(): facts for name, facts in devices.items()}
    on_cpu = args.device == "cpu"
    if not on_cpu and args.device.lower() not in named:
        raise ValueError(f"--device: expected one of cpu, {', '.join(devices)}, got {args.device!r}")
    refuse_options(args, GPU_OPTIONS if on_cpu else CPU_OPTIONS, f"none on a {'CPU' if on_cpu else 'GPU'}")
    defaults = DEFAULTS[args.op]
    refuse_options(args, [name for name in OF_SOME_OPS if name not in defaults], f"none with --op {args.op}")
    if args.op != "mlstm":
        refuse_options(args, OF_THE_MLSTM, f"none with --op {args.op}")
    sizes = {
        name: default if getattr(args, name) is None else getattr(args, name) for name, default in defaults.items()
    }
    gpu = None
    if not on_cpu:
        facts = named[args.device.lower()]
        gpu = facts["arch"], facts["compute_units"], facts["lds_bytes"]
    plans = [_mlstm(built, args, sizes, gpu)] if args.op == "mlstm" else _attention(built, args, sizes, gpu)
    if args.json:
        print(json.dumps(plans[0] if len(plans) == 1 else {"forward": plans[0], "backward": plans[1]}))
        return 0
    for plan in plans:
        print("\n".join(plan_lines(plan)))
    return 0


def _mlstm(built: Any, args: argparse.Namespace, sizes: dict[str, Any], gpu: Gpu | None) -> Plan:
    if gpu is None:
        refuse_options(args, ("dqk", "dhv"), "none on a CPU")
        threads = args.threads or torch.get_num_threads()
        return built.plan_mlstm_cpu(
            args.batch, args.heads, args.length, args.chunk_size or 64, threads, sizes["segments"]
        )
    dtype = args.dtype or "bfloat16"
    return built.plan_mlstm_gpu(
        gpu, args.batch, args.heads, args.length, sizes["dqk"], sizes["dhv"], ELEMENT_BYTES[dtype],
        args.walk_chunk or 0, sizes["segments"], panels=dtype == "bfloat16", stateless=True,
    )  # fmt: skip


def _attention(built: Any, args: argparse.Namespace, sizes: dict[str, Any], gpu: Gpu | None) -> list[Plan]:
    """The plans of the forward pass and, except for mla, of the backward pass."""
    heads_k = sizes["heads_k"] or args.heads
    if args.heads % heads_k:
        raise ValueError(f"--heads-k: expected a divisor of --heads {args.heads}, got {heads_k}")
    if args.op == "mla" and (sizes["dqk"], sizes["dhv"]) not in MLA_DIMS:
        raise ValueError(f"--dqk, --dhv: expected one of {MLA_DIMS} with --op mla, got {sizes['dqk']}, {sizes['dhv']}")
    if args.op == "mla" and ELEMENT_BYTES[args.dtype or "bfloat16"] != 2:
        raise ValueError(f"--dtype: expected bfloat16 or float16 with --op mla, got {args.dtype!r}")
    call = AttentionCall(
        args.batch, args.heads, heads_k, sizes["queries"] or args.length, args.length, sizes["dqk"], sizes["dhv"],
        ELEMENT_BYTES[args.dtype or "bfloat16"], sizes.get("block_size", 0), sizes["splits"],
    )  # fmt: skip
    if gpu is None:
        refuse_options(args, ("dqk", "dhv"), "none on a CPU")
        threads = args.threads or torch.get_num_threads()
        forward = attention_cpu(built, call, threads)
        backward_call = call._replace(block_size=0)  # --block-size applies to the forward pass only
        return [forward] if args.op == "mla" else [forward, attention_backward_cpu(built, backward_call, threads)]
    if args.op == "mla":
        return [mla_gpu(built, gpu, call)]
    return [attention_gpu(built, gpu, call), attention_backward_gpu(built, gpu, call)]

# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip convert: rewrites a checkpoint with other tensor names, another dtype, or fused weights."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..models import SpecialTokens, load_pretrained, save_pretrained
from ..models.checkpoint import SCHEMES
from ..models.config_files import YAML_FILE, read_scheme
from ..models.hub import checkpoint_folder
from .common import (
    DTYPES,
    add_command,
    add_shard_size,
    add_source_and_target,
    check_target,
    copy_tokenizer,
    megabytes,
    shard_bytes,
)


def add(commands: Any) -> None:
    text = "Convert a checkpoint to another naming scheme or dtype, or to fused or single weights."
    command = add_command(commands, "convert", run, text)
    add_source_and_target(command)
    command.add_argument(
        "--scheme",
        choices=SCHEMES,
        default="hf",
        help="tensor and file names of transformers or xlstm_large (default: hf)",
    )
    command.add_argument(
        "--weights",
        choices=("single", "fused"),
        default="single",
        help="fused: projections joined into one weight (default: single)",
    )
    command.add_argument("--dtype", choices=DTYPES, help="(default: unchanged)")
    add_shard_size(command)


def run(args: argparse.Namespace) -> int:
    check_target(args.target)
    most = shard_bytes(args)
    source = checkpoint_folder("source", args.source, revision=args.revision)
    if args.dtype is not None and read_scheme(source) is not None:
        raise ValueError(f"--dtype: expected none for quantised weights, which stay as they are, got {args.dtype}")
    model = load_pretrained(source, args.dtype)
    save_pretrained(model, args.target, args.scheme, args.weights, most)
    copy_tokenizer(source, args.target)
    if args.scheme == "xlstm_large" and model.special_tokens != SpecialTokens():
        print(
            f"note: {YAML_FILE} cannot store special tokens: {model.special_tokens} of {args.source} are dropped",
            file=sys.stderr,
        )
    scheme = "" if model.quantization is None else f" of {model.quantization.bits} bits"
    print(f"{args.target}: {model.num_parameters()} weights{scheme}, {megabytes(args.target):.1f} MB")
    return 0

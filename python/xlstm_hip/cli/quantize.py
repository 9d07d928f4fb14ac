# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip quantize: writes a checkpoint with 8-bit or 4-bit weights and reports the error."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from ..models import load_pretrained, save_pretrained
from ..models.checkpoint import check_scheme
from ..models.config_files import JSON_FILE
from ..models.evaluation import log_probabilities
from ..models.hub import TOKENIZER_FILES, checkpoint_folder
from ..models.quantize import BITS, FORMATS, GATES, GROUP_SIZES, SCALE_DTYPES, SINGLE_NAMES, TensorError, quantize
from ..models.shards import INDEX
from ..models.tokenizer import load_tokenizer
from .common import (
    add_command,
    add_shard_size,
    add_source_and_target,
    check_target,
    copy_tokenizer,
    megabytes,
    read_text,
    shard_bytes,
)

EXAMPLES = """examples:
  xlstm-hip quantize models/xlstm-7b models/xlstm-7b-int4 --bits 4
  xlstm-hip quantize models/demo demo-fp8 --format float8_e4m3fn
  xlstm-hip quantize models/demo demo-int8 --bits 8 --report errors.json --text book.txt   # perplexity before and after

Only xlstm_hip reads the result: generate and eval take it like any other checkpoint.
"""
WORST = 5  # weights that are printed, those with the largest errors


def add(commands: Any) -> None:
    text = "Quantise the weights of a checkpoint to 8 or 4 bits."
    command = add_command(commands, "quantize", run, text, EXAMPLES)
    add_source_and_target(command)
    command.add_argument("--bits", type=int, choices=BITS, default=8, help="per weight (default: 8)")
    command.add_argument(
        "--format", choices=FORMATS, default="int",
        help="of a weight; floats have 8 bits and no offsets (default: int)",
    )  # fmt: skip
    command.add_argument(
        "--group-size", type=int, choices=GROUP_SIZES, default=64, help="weights that share a scale (default: 64)"
    )
    kind = command.add_mutually_exclusive_group()
    kind.add_argument(
        "--symmetric",
        action="store_true",
        default=None,
        help="symmetric quantisation, without zero points (default with 8 bits)",
    )
    kind.add_argument(
        "--offsets", dest="symmetric", action="store_false", default=None,
        help="asymmetric quantisation: an offset for each scale (default with 4 bits)",
    )  # fmt: skip
    command.add_argument(
        "--scales", choices=SCALE_DTYPES, default="float16", help="dtype of scales and offsets (default: float16)"
    )
    command.add_argument(
        "--skip", metavar="NAME", nargs="*", choices=SINGLE_NAMES, default=GATES,
        help=f"layers to leave unquantised, of {', '.join(SINGLE_NAMES)} (default: {' '.join(GATES)})",
    )  # fmt: skip
    command.add_argument("--report", metavar="FILE", type=Path, help="write the error of every weight as JSON")
    command.add_argument(
        "--text", metavar="FILE", type=Path, help="measure the perplexity of this text before and after"
    )
    add_shard_size(command)


def run(args: argparse.Namespace) -> int:
    check_target(args.target)
    most = shard_bytes(args)
    if args.report is not None:
        check_report(args.report, args.target)
    texts = None if args.text is None else [read_text("--text", args.text)]
    source = checkpoint_folder("source", args.source, revision=args.revision)
    model = load_pretrained(source)
    check_scheme(model, "hf")

    def log_probability() -> float:
        total, count = log_probabilities(model, load_tokenizer(source, model.config.vocab_size), texts or [])
        if not count:
            raise ValueError(f"--text: expected at least two tokens in {args.text}")
        return total / count

    before = None if texts is None else log_probability()
    model, errors = quantize(
        model, args.bits, args.group_size,
        symmetric=args.symmetric, scale_dtype=args.scales, skip=tuple(args.skip), format=args.format,
    )  # fmt: skip
    after = None if texts is None else log_probability()
    save_pretrained(model, args.target, max_shard_bytes=most)
    copy_tokenizer(source, args.target)
    print_errors(errors)
    report: dict[str, Any] = {"scheme": vars(model.quantization), "weights": [error._asdict() for error in errors]}
    if before is not None and after is not None:
        report |= {"perplexity_before": math.exp(-before), "perplexity_after": math.exp(-after)}
        print(
            f"perplexity {math.exp(-before):.4f} -> {math.exp(-after):.4f} ({100 * math.expm1(before - after):+.2f}%)"
        )
    if args.report is not None:
        args.report.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{args.target}: {megabytes(args.target):.1f} MB; {args.source} has {megabytes(source):.1f}")
    return 0


def check_report(file: Path, target: Path) -> None:
    """Raises unless the report can be written; its folder may be the new checkpoint's."""
    in_target = file.parent.resolve() == target.resolve()
    if file.is_dir() or not (file.parent.is_dir() or in_target):
        raise ValueError(f"--report: expected a file in an existing folder, got {str(file)!r}")
    if in_target and (file.name in (JSON_FILE, INDEX, *TOKENIZER_FILES) or file.suffix == ".safetensors"):
        raise ValueError(f"--report: expected a file that is not part of the checkpoint, got {str(file)!r}")


def print_errors(errors: list[TensorError]) -> None:
    if not errors:
        print("every layer was skipped: no weight is quantised")
        return
    before, after = (sum(getattr(error, name) for error in errors) for name in ("bytes_before", "bytes_after"))
    mean = math.sqrt(sum(error.relative**2 for error in errors) / len(errors))
    print(f"{len(errors)} weights, {before / 1e6:.1f} -> {after / 1e6:.1f} MB, relative error {mean:.4f}; the worst:")
    for error in sorted(errors, key=lambda error: -error.relative)[:WORST]:
        print(f"  {error.name:<48} {error.relative:.4f}, at most {error.largest:.2g}")

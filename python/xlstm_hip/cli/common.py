# SPDX-License-Identifier: Apache-2.0
"""Options and checks shared by the subcommands."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import torch

from .._core.checks import GPU_DTYPES, by_name
from .._core.device import default_device, device_facts
from ..models import load_pretrained, xLSTMLarge
from ..models.config import KERNEL_OPTIONS
from ..models.config_files import read_scheme
from ..models.hub import EXAMPLE, TOKENIZER_FILES, checkpoint_folder

DTYPES = by_name(GPU_DTYPES)
CHECKPOINT = f"folder of a checkpoint, or a model of the Hugging Face hub such as {EXAMPLE}"  # for help texts


class WrongArguments(ValueError):
    """Arguments that exclude each other. Raised before any file is opened."""


class Parser(argparse.ArgumentParser):
    """Reports an error in one line that points to --help, and takes no abbreviated options: a new option would change
    what they mean.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


def read_text(option: str, file: Path | None) -> str:
    """The text of a file, or of stdin."""
    where = "stdin" if file is None else str(file)
    if file is None and sys.stdin is None:
        raise ValueError(f"{option}: expected text in stdin, which is closed")
    if file is None and sys.stdin.isatty():
        print("reading the text from the terminal; Ctrl-D ends it", file=sys.stderr)
    try:
        return (sys.stdin.buffer.read() if file is None else file.read_bytes()).decode("utf-8")
    except OSError as error:
        raise OSError(f"{option}: {error.strerror}: {where!r}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{option}: expected UTF-8 in {where}, got byte {error.object[error.start]:#04x}") from None


def at_least(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    digits = len(str(most))  # int() refuses numbers of thousands of digits

    def parse(text: str) -> int:
        if text.isdecimal() and len(text) <= digits and least <= int(text) <= most:
            return int(text)
        above = f" up to {most}" if text.isdecimal() and len(text) >= digits else ""
        raise argparse.ArgumentTypeError(f"expected a whole number >= {least}{above}, got {text!r}")

    return parse


def device_name(text: str) -> str:
    try:
        kind = torch.device(text).type
    except RuntimeError:
        kind = ""
    if kind != "cuda" and text != "cpu":
        raise argparse.ArgumentTypeError(f"expected cpu, cuda or cuda:N, got {text!r}")
    return text


def json_file(text: str) -> Path:
    if Path(text).suffix != ".json" or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"expected a file name that ends in .json, got {text!r}")
    return Path(text)


def check_out(out: Path) -> None:
    """Raises, before anything is measured, unless results can be written to `out`."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise ValueError(f"--out: {str(out)!r} cannot be written: {error.strerror}") from None


def number(expected: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return parse


NOT_NEGATIVE = number("a finite number >= 0", lambda x: 0 <= x < math.inf)
POSITIVE = number("a finite number above 0", lambda x: 0 < x < math.inf)


def add_command(commands: Any, name: str, run: Callable, text: str, examples: str = "") -> argparse.ArgumentParser:
    command = commands.add_parser(
        name, help=text, description=text, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.set_defaults(run=run)
    return command


def refuse_options(args: argparse.Namespace, names: Iterable[str], expected: str) -> None:
    """Raises if an option was given that would have no effect. Their defaults are None."""
    for name in names:
        value = getattr(args, name)
        if value is not None:
            raise WrongArguments(f"--{name.replace('_', '-')}: expected {expected}, got {value!r}")


def add_source_and_target(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", help=CHECKPOINT)
    command.add_argument("target", type=Path, help="folder to write, new or empty")
    add_revision(command)


def add_revision(command: argparse._ActionsContainer) -> None:
    command.add_argument(
        "--revision", metavar="NAME", help="branch, tag or commit of a model of the hub (default: main)"
    )


def check_target(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"target: expected a new or empty folder, got {str(target)!r}")


def add_shard_size(command: argparse.ArgumentParser) -> None:
    size = number("a number above 0, up to 1e6", lambda x: 0 < x <= 1e6)
    command.add_argument("--shard-gb", metavar="GB", type=size, default=5.0, help="maximum size of a file (default: 5)")


def shard_bytes(args: argparse.Namespace) -> int:
    return max(1, int(args.shard_gb * 1e9))


def copy_tokenizer(source: Path, target: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, target / name)


def megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


KERNEL_FIELDS = ("chunkwise_kernel", "sequence_kernel", "step_kernel", "chunk_size", *KERNEL_OPTIONS)  # of the model
MODEL_OPTIONS = ("dtype", "device", "weights", "threads", "revision", *KERNEL_FIELDS)


def add_model_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--dtype",
        choices=("auto", *DTYPES),
        help="dtype of the weights; auto: as in the checkpoint (default: auto, but bfloat16 for float32 on a GPU)",
    )
    command.add_argument(
        "--device",
        type=device_name,
        help="cpu, cuda, cuda:1, ... (default: the GPU if this build has kernels for it, else cpu)",
    )
    command.add_argument(
        "--weights",
        choices=("single", "fused"),
        help="fused: projections joined into one weight (default: fused, unless its parts are quantised differently)",
    )
    command.add_argument("--threads", metavar="N", type=at_least(1), help="CPU threads (default: one per core)")
    add_revision(command)
    kernels = command.add_argument_group("kernels", "Names as in xlstm_hip.get_available_mlstm_kernels().")
    for kind, use in (("chunkwise", "of prompts"), ("sequence", "of short sequences"), ("step", "of single tokens")):
        text = f'kernel {use}, or "auto" (default: the best for the device)'
        kernels.add_argument(f"--{kind}-kernel", metavar="NAME", help=text)
    kernels.add_argument("--chunk-size", metavar="N", type=at_least(1), help="tokens per chunk; changes speed alone")
    of_queued = "of the queued and Ray kernels"
    for option, text in (
        ("heads-per-band", f"{of_queued}: heads that a worker has at a time"),
        ("workers", f"{of_queued}: how many there are"),
        ("streams", "of the queued kernels on a GPU: streams that the bands are dealt to"),
    ):
        kernels.add_argument(f"--{option}", metavar="N", type=at_least(1), help=text)


def default_device_name() -> str:
    from .._core.ops import devices_with_kernels

    device = default_device()
    return str(device) if device.type in devices_with_kernels() else "cpu"


def _seen_device(name: str) -> str:
    try:
        device_facts(name)
    except (AssertionError, RuntimeError, ValueError) as reason:  # torch raises a different one for each mistake
        raise ValueError(
            f"--device: expected a device that torch sees, such as cpu or cuda:1, got {name!r}"
        ) from reason
    return name


def load(name: str, folder: Path, args: argparse.Namespace) -> xLSTMLarge:
    """Loads the model given by the argument `name` with the options of add_model_options."""
    checkpoint_folder(name, folder)
    if args.threads:
        torch.set_num_threads(args.threads)
    device = default_device_name() if args.device is None else _seen_device(args.device)
    changes = {field: getattr(args, field) for field in KERNEL_FIELDS if getattr(args, field) is not None}
    return load_pretrained(folder, args.dtype, device, args.weights or _default_weights(folder), **changes)


def _default_weights(folder: Path) -> str:
    scheme = read_scheme(folder)
    return "fused" if scheme is None or scheme.fits_fused else "single"

# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel of any gfx942 code object on this machine, and says what it did.

python tests/gfx942/run.py kernel.co                                     lists its kernels
python tests/gfx942/run.py kernel.co --kernel twice --grid 4 --block 256 --arg 'f32[1024]=random' --arg 1024
python tests/gfx942/run.py --checks                                      lists the checks that may be warnings
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = "tests/gfx942"
sys.path[:0] = [str(ROOT / x) for x in ("build_backend", "tests/amd", f"{HERE}/support", f"{HERE}/roofline")]

import numpy as np  # noqa: E402

TYPES = {
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
}
BUFFER = re.compile(r"(\w+)\[([\d,x ]+)\](?:=(.+))?$")


class BadArgument(ValueError):
    """In words for the command line."""


def buffer(text: str, random: np.random.Generator) -> np.ndarray | None:
    """f32[1024]=random, i32[4,8]=range, f16[64]=0.5, f32[64]=values.npy; None where the text is no buffer."""
    found = BUFFER.match(text)
    if not found:
        return None
    if found[1] not in TYPES:
        raise BadArgument(f"--arg {text}: expected one of {', '.join(TYPES)}, got {found[1]}")
    dtype, shape = TYPES[found[1]], tuple(int(n) for n in re.split(r"[,x ]+", found[2].strip()))
    fill = found[3] or "0"
    if fill == "random":
        if dtype.kind == "f":
            return random.standard_normal(shape).astype(dtype)
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if fill == "range":
        return np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    if fill.endswith(".npy"):
        values = np.load(fill)
        if values.dtype != dtype or values.shape != shape:
            raise BadArgument(f"--arg {text}: {fill} holds {values.dtype} {values.shape}")
        return np.ascontiguousarray(values)
    try:
        return np.full(shape, float(fill) if dtype.kind == "f" else int(fill, 0), dtype)
    except (ValueError, OverflowError):
        raise BadArgument(f"--arg {text}: expected random, range, a .npy file or a number after '='") from None


def argument(text: str, random: np.random.Generator) -> Any:
    found = buffer(text, random)
    if found is not None:
        return found
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise BadArgument(f"--arg {text}: expected a number, or a buffer such as f32[1024]=random") from None


def extent(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(n) for n in re.split("[,x]", text))
    except ValueError:
        sizes = ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"expected 1 to 3 numbers such as 4 or 4,2, got {text}")
    return sizes


def listing(kernels: list[Any]) -> str:
    lines = []
    for k in kernels:
        explicit = [a for a in k.arguments if not a.kind.startswith("hidden_")]
        lines.append(f"{k.name}: {k.vgprs} VGPRs, {k.agprs} of them acc, {k.sgprs} SGPRs, LDS {k.lds_bytes}")
        lines += [f"  argument {n}: {a.kind}, {a.size} bytes" for n, a in enumerate(explicit)]
    return "\n".join(lines)


def checks() -> str:
    import device

    return "\n".join(f"{c.name}: {c.mode}\n  {c.finds}\n  as a warning: {c.otherwise}" for c in device.checks())


def report(name: str, buffers: dict[str, np.ndarray]) -> str:
    import device
    import roofline

    (counted,) = (c for c in device.counters() if c.kernel.name == name)
    row = roofline.row_of(counted, name)
    by_class = ", ".join(
        f"{count} {unit}" for unit, count in sorted(row.executed.items(), key=lambda x: -x[1]) if count
    )
    lines = [f"executed: {row.instructions} wave instructions: {by_class}", "", roofline.markdown([row])]
    with np.printoptions(threshold=8, edgeitems=3, precision=6):
        lines += [f"{label}: {values}" for label, values in buffers.items()]
    return "\n".join(lines)


def launch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", help="which one to run")
    parser.add_argument("--grid", type=extent, default=(1,), help="workgroups")
    parser.add_argument("--block", type=extent, default=(64,), help="threads of one")
    parser.add_argument("--lds", type=int, default=0, help="dynamic LDS in bytes")
    parser.add_argument("--arg", action="append", default=[], metavar="ARG", help="a number or f32[1024]=random")
    parser.add_argument("--seed", type=int, default=0)


def code_and_values(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[bytes, list[Any]]:
    try:
        random = np.random.default_rng(options.seed)
        values = [argument(text, random) for text in options.arg]
        return options.file.read_bytes(), values
    except (BadArgument, OSError) as error:
        parser.error(str(error))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="a code object for gfx942")
    parser.add_argument("--checks", action="store_true", help="lists the checks that GFX942_CHECKS names")
    launch_options(parser)
    parser.add_argument("--save", type=Path, help="writes the buffers to this .npz")
    options = parser.parse_args(arguments)
    if options.checks:
        print(checks())
        return 0
    if not options.file:
        parser.error("expected a code object")
    code, values = code_and_values(parser, options)

    import device

    try:
        module = device.Module(code)
        if not options.kernel:
            print(listing(device.kernels()))
            return 0
        module.launch(options.kernel, options.grid, options.block, values, options.lds)
    except (device.HipError, TypeError) as error:
        print(error, file=sys.stderr)
        return 1
    buffers = {f"argument {n}": value for n, value in enumerate(values) if isinstance(value, np.ndarray)}
    print(report(options.kernel, buffers))
    if options.save:
        np.savez(options.save, **{label.replace(" ", "_"): value for label, value in buffers.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

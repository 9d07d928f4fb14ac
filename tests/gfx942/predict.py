# SPDX-License-Identifier: Apache-2.0
"""How long a kernel would take on an MI300X (GFX942_CHIP=gfx90a, gfx950: on an MI250X's die, an MI355X), and what it
would wait for: predicted by a model, not measured.

python tests/gfx942/predict.py kernel.co                                  lists its kernels
python tests/gfx942/predict.py kernel.co --kernel twice --grid 4 --block 256 --arg 'f32[1024]=random' --arg 1024
python tests/gfx942/predict.py kernel.hip --kernel twice ...              of HIP source, with its source lines
python tests/gfx942/predict.py --call 'forward, B1 H16 S4096'             calls of docs/amd_roofline.md, by title
python tests/gfx942/predict.py --call 'forward, B1 H16 S4096' --lines     with source lines
python tests/gfx942/predict.py --diff before.json after.json              of what --save wrote with two builds
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import run  # first: it says where the other modules are

sys.path[:0] = [str(run.ROOT / x) for x in ("tests", "tests/gfx942/clock")]

import device  # noqa: E402
import source_lines  # noqa: E402
import time_report  # noqa: E402
import timing  # noqa: E402

STRETCHES = 200_000  # of waves' time, for the picture and the trace


def parser_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="a code object for gfx942, or HIP source that ends in .hip")
    run.launch_options(parser)
    parser.add_argument("--call", help="of the package: what is in the title of a table of docs/amd_roofline.md")
    parser.add_argument("--lines", action="store_true", help="of --call: compiles its kernels again with line tables")
    parser.add_argument("--diff", nargs=2, type=Path, metavar="JSON")
    parser.add_argument("--mhz", type=float, default=0, help="of the compute units; else what power leaves them")
    parser.add_argument("--cold", action="store_true", help="the first call: nothing is in the Infinity Cache")
    parser.add_argument("--instructions", type=int, default=timing.INSTRUCTIONS, help="of waves to simulate, a launch")
    parser.add_argument("--save", type=Path, help="writes what was predicted, for --diff")
    parser.add_argument("--picture", type=Path, help="writes what a compute unit's waves do, of the longest launch")
    parser.add_argument("--trace", type=Path, help="writes this launch for ui.perfetto.dev")
    return parser


def call_of(parser: argparse.ArgumentParser, text: str) -> Callable[[], object]:
    import emulated_torch

    emulated_torch.import_package()
    from roofline_shapes import SHAPES

    found = [shape for shape in SHAPES if text in shape.title]
    if len(found) != 1:
        titles = "\n  ".join(shape.title for shape in found or SHAPES)
        parser.error(f"--call {text}: expected what is in one title, got {len(found)} of\n  {titles}")
    return found[0].run


def launch_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Callable[[], object] | None:
    """What to predict; nothing where kernels are listed."""
    if options.call:
        return call_of(parser, options.call)
    if not options.file:
        parser.error("expected a code object, --call or --diff")
    if options.lines:
        parser.error(f"--lines: expected --call; compile {options.file} with {source_lines.FLAG}, as .hip files are")
    code, values = run.code_and_values(parser, options)
    if options.file.suffix == ".hip":
        code = device.compile_hip(code.decode(), source_lines.FLAG)
    module = device.Module(code)
    if not options.kernel:
        print(run.listing(device.kernels()))
        return None
    return lambda: module.launch(options.kernel, options.grid, options.block, values, options.lds)


def report(options: argparse.Namespace, launches: list[timing.Launch]) -> None:
    from rooflines import demangled

    names = demangled([x.kernel for x in launches])
    print(f"Predicted by tests/gfx942/clock with the constants of {timing.CHIP.name}; nothing was measured.")
    for launch, name in zip(launches, names, strict=True):
        print(time_report.text_of(launch, name))
    if len(launches) > 1:
        print(f"all {len(launches)} launches: predicted {sum(x.microseconds for x in launches) / 1000:.4f} ms")
    longest = max(launches, key=lambda x: x.microseconds)
    if options.save:
        time_report.write(options.save, launches)
    if options.picture:
        time_report.picture(options.picture, longest)
    if options.trace:
        options.trace.write_text(json.dumps(time_report.perfetto(longest)), encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = parser_of()
    options = parser.parse_args(arguments)
    try:
        if options.diff:
            print(time_report.difference(*(time_report.read(path) for path in options.diff)))
            return 0
        call = launch_of(parser, options)
        if call is None:
            return 0
        trace = STRETCHES if options.picture or options.trace else 0
        launches = timing.predict(call, options.instructions, mhz=options.mhz, warm=not options.cold, trace=trace)
        if options.lines:
            launches = source_lines.with_lines(launches, source_lines.of_package)
    except (device.HipError, OSError, TypeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    report(options, launches)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

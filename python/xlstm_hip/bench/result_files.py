# SPDX-License-Identifier: Apache-2.0
"""What a benchmark leaves behind: its results as JSON, and beside them a table and a picture."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..whole_files import write_whole

Results = dict[str, Any]


@contextmanager
def keeps_what_there_is() -> Iterator[None]:
    """A run that is ended inside, by Ctrl-C or SIGTERM, goes on behind it, to write what it has measured."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print("ended early: what has been measured is written", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)


def save(results: Results, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, json.dumps(results, indent=1) + "\n")


def report(
    results: Results, out: Path, markdown: Callable[[Results], str], draw: Callable[[Results, Path], None]
) -> None:
    """Beside the JSON. Without matplotlib the picture can be drawn later, from that alone."""
    text = markdown(results)
    write_whole(out.with_suffix(".md"), text)
    print(text)
    if importlib.util.find_spec("matplotlib") is None:
        print(f"written: {out}, {out.with_suffix('.md').name}; no picture: there is no matplotlib here")
        return
    draw(results, out.with_suffix(".png"))
    print(f"written: {out}, {out.with_suffix('.md').name}, {out.with_suffix('.png').name}")


def write(
    results: Results, out: Path, markdown: Callable[[Results], str], draw: Callable[[Results, Path], None]
) -> None:
    save(results, out)
    report(results, out, markdown, draw)


def redraw(draw: Callable[[Results, Path], None]) -> None:
    """The picture once more: the command line names the JSON and, where it is not to lie beside it, the picture."""
    source = Path(sys.argv[1])
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".png")
    draw(json.loads(source.read_text()), target)
    print(target)

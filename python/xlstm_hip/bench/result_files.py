# SPDX-License-Identifier: Apache-2.0
"""The files of a benchmark: its results as JSON, a table and pictures."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._core.atomic_files import write_atomically
from .._core.extras import is_installed, not_installed

Results = dict[str, Any]
Draw = Callable[[Results, Path], list[Path]]  # pictures beside a result file


@contextmanager
def keeps_partial_results() -> Iterator[None]:
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
    write_atomically(out, json.dumps(results, indent=1) + "\n")


def report(results: Results, out: Path, markdown: Callable[[Results], str], draw: Draw) -> None:
    """Beside the JSON. Without matplotlib pictures can be drawn later, from that alone."""
    text = markdown(results)
    write_atomically(out.with_suffix(".md"), text)
    print(text)
    if not is_installed("matplotlib"):
        print(f"written: {out}, {out.with_suffix('.md')}; {not_installed('matplotlib', 'drawing pictures')}")
        return
    print(f"written: {', '.join(map(str, (out, out.with_suffix('.md'), *draw(results, out))))}")


def read(file: Path, benchmark: str) -> Results:
    try:
        results = json.loads(file.read_text())
    except OSError as error:
        raise ValueError(f"{str(file)!r} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{str(file)!r} is not JSON: {error}") from None
    if not isinstance(results, dict) or results.get("benchmark") != benchmark:
        raise ValueError(f"expected a result file of {benchmark}, got {str(file)!r}")
    return results


def redraw(file: Path, benchmark: str, markdown: Callable[[Results], str], draw: Draw) -> None:
    """Table and pictures once more, for an option of that name."""
    try:
        report(read(file, benchmark), file, markdown, draw)
    except ValueError as error:
        raise ValueError(f"--redraw: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"--redraw: expected a whole result file, got {str(file)!r}: {reason}") from error

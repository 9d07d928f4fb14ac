# SPDX-License-Identifier: Apache-2.0
"""Progress of something long: a bar where rich and a terminal are there, else a line now and then."""

from __future__ import annotations

import importlib.util
import sys
import time
from types import TracebackType

QUIET_SECONDS = 5.0  # between lines; what takes less prints nothing


class Progress:
    """total: units of work; unit: what one is called. Writes to stderr, so that output can be piped."""

    def __init__(self, what: str, total: float, unit: str = "", enabled: bool = True) -> None:
        self._what, self._total, self._unit, self._enabled = what, total, unit, enabled
        self._done, self._note = 0.0, ""
        self._began = self._told = time.monotonic()
        self._bar = None
        if enabled and sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
            from rich import progress
            from rich.console import Console

            columns = (
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TaskProgressColumn(),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[note]}"),
            )
            self._bar = progress.Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(what, total=total, note="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._enabled and self._told > self._began:
            self._line("done" if kind is None else "stopped")

    def advance(self, amount: float = 1, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        if self._bar is not None:
            self._bar.update(self._task, advance=amount, note=self._note)
        elif self._enabled and time.monotonic() - self._told >= QUIET_SECONDS:
            self._told = time.monotonic()
            total = f"{self._total:,}" if isinstance(self._total, int) else f"{self._total:.3g}"
            self._line(f"{100 * self._done / self._total:3.0f}% of {total} {self._unit}".rstrip())

    def _line(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        parts = (f"{self._what}: {text}", f"{seconds:.0f} s", self._note)
        print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)

# SPDX-License-Identifier: Apache-2.0
"""Progress on stderr: a bar if rich is installed and stderr is a terminal, else lines."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from .extras import is_installed

QUIET_SECONDS = 5.0  # between lines; what takes less prints nothing


def _bar() -> Any:
    """A progress bar of rich, or None without rich or a terminal."""
    if not sys.stderr.isatty() or not is_installed("rich"):
        return None
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
    )
    return progress.Progress(*columns, console=Console(stderr=True))


class Progress:
    """Progress of one task, with a line every few seconds. total: units of work; unit: name of a unit."""

    def __init__(self, title: str, total: float, unit: str = "", enabled: bool = True) -> None:
        self._title, self._total, self._unit, self._enabled = title, total, unit, enabled
        self._done, self._note = 0.0, ""
        self._began = self._last_line = time.monotonic()
        self._bar = _bar() if enabled else None
        if self._bar is not None:
            self._task = self._bar.add_task(title, total=total, note="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._enabled and self._last_line > self._began:
            self._line("done" if kind is None else "stopped")

    def advance(self, amount: float = 1, note: str = "") -> None:
        self._done += amount
        self._note = note or self._note
        if self._bar is not None:
            self._bar.update(self._task, advance=amount, note=self._note)
        elif self._enabled and time.monotonic() - self._last_line >= QUIET_SECONDS:
            self._last_line = time.monotonic()
            total = f"{self._total:,}" if isinstance(self._total, int) else f"{self._total:.3g}"
            self._line(f"{100 * self._done / self._total:3.0f}% of {total} {self._unit}".rstrip())

    def _line(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        parts = (f"{self._title}: {text}", f"{seconds:.0f} s", self._note)
        print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)


class Tasks:
    """Progress of several consecutive tasks, with a line when each begins."""

    def __init__(self, total: int) -> None:
        self._total, self._begun = total, 0
        self._bar = _bar()
        if self._bar is not None:
            self._task = self._bar.add_task("", total=total, note="")

    def __enter__(self) -> Tasks:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, title: str) -> None:
        """Begins the next task; the previous one is done."""
        if self._bar is not None:
            self._bar.update(self._task, description=title, completed=self._begun)
        self._begun += 1
        if self._bar is None:
            print(f"[{self._begun}/{self._total}] {title}", file=sys.stderr, flush=True)

    def advance(self, fraction: float = 1) -> None:
        """Adds to the finished fraction of the current task."""
        if self._bar is not None:
            self._bar.advance(self._task, fraction)

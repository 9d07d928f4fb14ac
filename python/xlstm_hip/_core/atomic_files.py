# SPDX-License-Identifier: Apache-2.0
"""Files that are never half-written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path, permissions: int = 0o666) -> Iterator[Path]:
    """A file beside `path` to write to, which then takes its place; after an error it is removed. Its permissions are
    those of these that the umask allows.

    A reader of `path` sees either the old or the new contents, never a part.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.touch(permissions)
        mode = beside.stat().st_mode  # some libraries change it
        yield beside
        beside.chmod(mode)
        with beside.open("rb+") as written:
            os.fsync(written.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader sees either the old or the new contents, never a part."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def append_atomically(path: Path, text: str) -> None:
    """Appends a text to a file, or, after an error, nothing of it."""
    left = memoryview(text.encode("utf-8"))
    with path.open("ab", buffering=0) as out:
        size = out.tell()
        try:
            while left:
                left = left[out.write(left) :]
            os.fsync(out.fileno())
        except BaseException:
            out.truncate(size)
            raise

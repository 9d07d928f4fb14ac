# SPDX-License-Identifier: Apache-2.0
"""Reads safetensors files one tensor at a time, directly into the destination memory.

The safetensors library maps a file into memory, and every page read counts as resident while the file is open. Here a
tensor is read with read(), so loading needs no memory of the file's size. A truncated file, or one with a duplicate
tensor name, is reported by name before anything is read.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .mapping import CheckpointError, listed

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I8": torch.int8, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
}  # fmt: skip
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LONGEST_HEADER = 100 << 20  # as the format has it
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class Stored:
    """The place of a tensor in a file."""

    file: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int  # in the file

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def row_bytes(self, columns: tuple[int, int] | None = None) -> int:
        """Of a row, or of some columns of it."""
        width = math.prod(self.shape[1:]) if columns is None else columns[1] - columns[0]
        return width * self.dtype.itemsize

    def read_into(self, memory: Tensor, row: int = 0, columns: tuple[int, int] | None = None) -> None:
        """Fills memory (CPU, contiguous, of the stored dtype) with the tensor's rows from `row` on, or with some
        columns of them, and reads nothing else.
        """
        bytes_of: Any = memory.reshape(-1).view(torch.uint8).numpy()
        view, each = memoryview(bytes_of), self.row_bytes(columns)
        with open(self.file, "rb", buffering=0) as file:
            if columns is None:
                self._read(file, view, row * each)
                return
            skip = row * self.row_bytes() + columns[0] * self.dtype.itemsize
            for n in range(len(view) // each if each else 0):
                self._read(file, view[n * each : (n + 1) * each], skip + n * self.row_bytes())

    def _read(self, file: io.FileIO, view: memoryview, skip: int) -> None:
        file.seek(self.offset + skip)
        done = 0
        while done < len(view):
            count = file.readinto(view[done:])
            if not count:
                raise CheckpointError(f"{self.file}: {self.name} is cut off after {skip + done} of {self.bytes} bytes")
            done += count


def _no_doubles(file: Path) -> Any:
    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        doubled = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
        if doubled:
            raise CheckpointError(f"{file}: named twice: {listed(doubled)}")
        return dict(pairs)

    return collect


def read_header(file: Path) -> dict[str, Stored]:
    size = os.path.getsize(file)
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or length > LONGEST_HEADER or 8 + length > size:
            raise CheckpointError(f"{file}: cut off, or no safetensors file: its header does not fit in {size} bytes")
        try:
            header = json.loads(opened.read(length), object_pairs_hook=_no_doubles(file))
        except CheckpointError:
            raise
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{file}: its header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: its header is no JSON object, but of type {type(header).__name__}")
    header.pop("__metadata__", None)
    tensors = {name: _stored(file, name, entry, 8 + length) for name, entry in header.items()}
    for x in tensors.values():
        if x.offset + x.bytes > size:
            raise CheckpointError(f"{file}: {x.name} is cut off: it ends at byte {x.offset + x.bytes} of {size}")
    _check_order(file, tensors, 8 + length, size)
    return tensors


def _check_order(file: Path, tensors: dict[str, Stored], begin: int, size: int) -> None:
    """Checks that tensors follow one another, as the format requires: no overlaps, none inside the header."""
    before = "the header"
    for x in sorted(tensors.values(), key=lambda x: (x.offset, x.bytes)):
        if x.offset != begin:
            raise CheckpointError(
                f"{file}: {x.name}: expected its bytes to begin at {begin}, where those of {before} end, got {x.offset}"
            )
        before, begin = x.name, x.offset + x.bytes
    if begin != size:
        raise CheckpointError(f"{file}: expected its last tensor to end at byte {size}, the file's end, got {begin}")


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(x) is int and x >= 0 for x in values)


def _stored(file: Path, name: str, entry: Any, start: int) -> Stored:
    try:
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError):
        raise CheckpointError(f"{file}: {name}: expected dtype, shape and data_offsets, got {entry!r}") from None
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{file}: {name}: expected one of {', '.join(DTYPES)}, got {dtype}")
    if not _are_sizes(shape):
        raise CheckpointError(f"{file}: {name}: expected a shape of integers >= 0, got {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{file}: {name}: expected data_offsets of two integers >= 0, got {offsets!r}")
    shape, (begin, end) = tuple(shape), offsets
    stored = Stored(file, name, DTYPES[dtype], shape, start + begin)
    if end - begin != stored.bytes:
        raise CheckpointError(f"{file}: {name}: {shape} of {dtype} is {stored.bytes} bytes, got {end - begin}")
    return stored


def find_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint: in one file, in shards with an index, or in xlstm_large's numbered shards."""
    files, index = list(_files(folder)), folder / INDEX
    tensors: dict[str, Stored] = {}
    for file in files:
        for name, stored in read_header(file).items():
            if name in tensors:
                raise CheckpointError(f"{name}: stored twice, in {tensors[name].file.name} and {file.name}")
            tensors[name] = stored
    if index.exists() and not (folder / SINGLE).exists():
        _check_index(index, tensors)
    return tensors


def _index(file: Path) -> dict[str, str]:
    try:
        file_of = dict(json.loads(file.read_text("utf-8"), object_pairs_hook=_no_doubles(file))["weight_map"])
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: expected a JSON object with a weight_map: {error}") from None
    for name, holder in file_of.items():
        if not isinstance(holder, str):
            raise CheckpointError(f"{file}: {name}: expected the name of a shard, got {holder!r}")
    return file_of


def _check_index(file: Path, tensors: dict[str, Stored]) -> None:
    file_of = _index(file)
    wrong = {name for name, holder in file_of.items() if name not in tensors or tensors[name].file.name != holder}
    if wrong:
        raise CheckpointError(f"{file.name}: not in the shard that it names: {listed(wrong)}")
    unlisted = tensors.keys() - file_of.keys()
    if unlisted:
        raise CheckpointError(f"{file.name}: in a shard but not in the index: {listed(unlisted)}")


def _files(folder: Path) -> Iterator[Path]:
    if (folder / SINGLE).exists():
        yield folder / SINGLE
        return
    if (folder / INDEX).exists():
        for name in sorted(set(_index(folder / INDEX).values())):
            if not (folder / name).exists():
                raise CheckpointError(f"{folder}: the shard {name} of {INDEX} is missing")
            yield folder / name
        return
    numbered = {int(p.stem.removeprefix("model_")): p for p in folder.glob("model_*.safetensors") if _is_numbered(p)}
    if not numbered:
        pickles = [p.name for pattern in PICKLES for p in folder.glob(pattern)]
        hint = f"; {listed(pickles)} is a pickle, which can run code when it is read" if pickles else ""
        raise CheckpointError(f"{folder}: expected {SINGLE}, {INDEX} or model_0.safetensors{hint}")
    missing = set(range(max(numbered))) - numbered.keys()
    if missing:
        raise CheckpointError(f"{folder}: missing: {listed(f'model_{n}.safetensors' for n in missing)}")
    yield from (numbered[n] for n in sorted(numbered))


def checkpoint_files(folder: Path) -> set[str]:
    """The file names of a checkpoint's weights in a folder. Other files with similar names are not included."""
    names = {SINGLE, INDEX}
    if (folder / INDEX).exists():
        with contextlib.suppress(CheckpointError):  # an index that cannot be read names nothing
            names |= {name for name in _index(folder / INDEX).values() if Path(name).name == name}
    names |= set(takewhile(lambda name: (folder / name).exists(), map("model_{}.safetensors".format, count())))
    return {name for name in names if (folder / name).exists()}


def _is_numbered(file: Path) -> bool:
    return file.stem.removeprefix("model_").isdecimal()

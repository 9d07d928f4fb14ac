# SPDX-License-Identifier: Apache-2.0
"""Runs kernels for gfx942 on this machine, from Python:

source = '#include <hip/hip_runtime.h>\\nextern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
module = Module(compile_hip(source))
x = np.arange(64, dtype=np.float32)
module.launch("twice", grid=1, block=64, args=(x,))  # x is now twice what it was
counters()[0].instructions
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import builds
from builds import assemble, compile_hip

__all__ = ["Fault", "HipError", "Module", "assemble", "compile_hip", "counters", "hip", "operations", "reset_counters"]

LAUNCH_FAILURE = 719  # hipErrorLaunchFailure
Extent = int | Sequence[int]


class HipError(RuntimeError):
    """A call of HIP failed."""


class Fault(HipError):
    """A kernel did what it must not, or an instruction is not implemented."""


@functools.cache
def library() -> ctypes.CDLL:
    """Loaded for everyone: libraries that need a libamdhip64.so.5 take this one."""
    loaded = ctypes.CDLL(str(builds.interpreter()), mode=ctypes.RTLD_GLOBAL)
    loaded.gfx942_schedule.restype = ctypes.c_uint64
    for name in ("hipGetErrorString", "hipGetErrorName", "gfx942_last_fault", "gfx942_counters_json"):
        getattr(loaded, name).restype = ctypes.c_char_p
    texts = (
        "device_json",
        "kernel_json",
        "lines_json",
        "kernels_json",
        "operations",
        "checks_json",
        "warnings_json",
        "recordings_json",
        "time_json",
    )
    for name in texts:
        getattr(loaded, f"gfx942_{name}").restype = ctypes.c_char_p
    return loaded


def hip(name: str, *args: Any) -> None:
    """Calls a function of HIP; an error is raised with its text."""
    status = getattr(library(), name)(*args)
    if status:
        library().hipGetLastError()  # as it is raised here, nobody else should find it
        raise _error(name, status)


def _error(name: str, status: int) -> HipError:
    text = library().hipGetErrorString(status).decode()
    return (Fault if status == LAUNCH_FAILURE else HipError)(f"{name}: {text}")


def described(name: str, *args: Any) -> Any:
    """What one of the interpreter's own functions says, from its JSON."""
    text = getattr(library(), name)(*args)
    if text is None:
        raise _error(name, library().hipGetLastError())
    return json.loads(text)


def set_sample(every: int) -> None:
    """Run only each so many-th workgroup: for counters alone, as results are then incomplete."""
    library().gfx942_set_sample(every)


@contextlib.contextmanager
def schedule(seed: int) -> Iterator[None]:
    """Meanwhile the waves of every launch take turns (interpreter/schedule.h), the same ones with the same seed."""
    if not 0 < seed < 1 << 64:
        raise ValueError(f"seed: expected a whole number from 1 to 2^64 - 1, got {seed}")
    before = library().gfx942_schedule()
    library().gfx942_set_schedule(ctypes.c_uint64(seed))
    try:
        yield
    finally:
        library().gfx942_set_schedule(ctypes.c_uint64(before))


def set_recording(wave_instructions: int) -> None:
    """From now on launches run as many workgroups as make about so many wave instructions, and what these do is
    recorded to be timed; 0 ends it."""
    library().gfx942_set_recording(ctypes.c_uint64(wave_instructions))


def forget_recordings() -> None:
    library().gfx942_forget_recordings()


def recordings() -> list[dict[str, Any]]:
    """The launches that were recorded, with the words of interpreter/events.h."""
    return described("gfx942_recordings_json")


def properties() -> dict[str, Any]:
    return described("gfx942_device_json")


def operations() -> list[str]:
    """The mnemonics that are implemented."""
    return library().gfx942_operations().decode().split()


# ---- checks


@dataclass(frozen=True)
class Check:
    """What the interpreter finds wrong although it could go on."""

    name: str
    finds: str
    otherwise: str  # how the run goes on where it is a warning
    mode: str  # error or warn


@dataclass(frozen=True)
class Warning:
    """What a check found at one place of a kernel, where it is a warning."""

    check: str
    times: int
    text: str  # of the first time


def checks() -> list[Check]:
    return [Check(**x) for x in described("gfx942_checks_json")]


@contextlib.contextmanager
def warn(*names: str) -> Iterator[list[Warning]]:
    """These checks are warnings meanwhile, then as they were before. The list is filled at the end."""
    before = checks()
    found: list[Warning] = []
    library().gfx942_reset_warnings()
    try:
        for name in names:
            hip("gfx942_set_check", name.encode(), b"warn")
        yield found
    finally:
        found += [Warning(**x) for x in described("gfx942_warnings_json")]
        for check in before:
            hip("gfx942_set_check", check.name.encode(), check.mode.encode())


# ---- kernels


@dataclass(frozen=True)
class Argument:
    kind: str  # by_value, global_buffer, hidden_...
    offset: int
    size: int


@dataclass(frozen=True)
class Kernel:
    """What a code object says of a kernel."""

    name: str
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    most_threads: int
    kernarg_bytes: int
    instructions_in_code: int
    arguments: tuple[Argument, ...]

    @classmethod
    def of(cls, found: dict[str, Any]) -> Kernel:
        return cls(**found | {"arguments": tuple(Argument(**x) for x in found["arguments"])})


def kernels() -> list[Kernel]:
    """Of every code object that is loaded."""
    return [Kernel.of(x) for x in described("gfx942_kernels_json")]


class Module:
    """A loaded code object. Its counters go with it, when it is closed."""

    def __init__(self, code: bytes) -> None:
        self._handle = ctypes.c_void_p()
        hip("hipModuleLoadData", ctypes.byref(self._handle), code)

    def close(self) -> None:
        hip("hipModuleUnload", self._handle)

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _function(self, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        hip("hipModuleGetFunction", ctypes.byref(function), self._handle, name.encode())
        return function

    def kernel(self, name: str) -> Kernel:
        return Kernel.of(described("gfx942_kernel_json", self._function(name)))

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Of each of a kernel's instructions its offset, text and source line, empty where the code has none."""
        return described("gfx942_lines_json", self._function(name))

    def launch(self, name: str, grid: Extent, block: Extent, args: Sequence[Any] = (), lds: int = 0) -> None:
        """Grid is in blocks, lds the dynamic part. Arrays are what the kernel sees and changes, exactly as long as
        they are; numbers become what the parameter's size says, bytes and NumPy scalars are taken as they are."""
        segment = bytearray(self.kernel(name).kernarg_bytes)
        for a, x in self._given(name, args):
            segment[a.offset : a.offset + a.size] = x
        self.launch_block(name, grid, block, bytes(segment), _arrays(args), lds)

    def launch_cooperative(
        self, name: str, grid: Extent, block: Extent, args: Sequence[Any] = (), lds: int = 0
    ) -> None:
        """The same, of a grid that the chip holds at once: all workgroups are there from the start."""
        buffers = [ctypes.create_string_buffer(x, len(x)) for _, x in self._given(name, args)]
        each = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        with _reachable(_arrays(args)):
            hip(
                "hipModuleLaunchCooperativeKernel", self._function(name), *_three(grid), *_three(block), lds, None, each
            )

    def _given(self, name: str, args: Sequence[Any]) -> list[tuple[Argument, bytes]]:
        """What each explicit argument is, in bytes."""
        explicit = [a for a in self.kernel(name).arguments if not a.kind.startswith("hidden_")]
        if len(explicit) != len(args):
            raise TypeError(f"{name}: expected {len(explicit)} arguments, got {len(args)}")
        return [(a, _bytes_of(x, a.size)) for a, x in zip(explicit, args, strict=True)]

    def launch_block(
        self, name: str, grid: Extent, block: Extent, segment: bytes, arrays: Sequence[np.ndarray] = (), lds: int = 0
    ) -> None:
        """The explicit arguments as bytes, laid out as the kernel wants them. `arrays`: what the pointers among them
        reach."""
        size = ctypes.c_size_t(len(segment))
        buffer = ctypes.create_string_buffer(segment, len(segment))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
        with _reachable(arrays):
            hip("hipModuleLaunchKernel", self._function(name), *_three(grid), *_three(block), lds, None, None, extra)


def _three(extent: Extent) -> tuple[int, int, int]:
    sizes = (extent,) if isinstance(extent, int) else tuple(extent)
    x, y, z = sizes + (1,) * (3 - len(sizes))
    return x, y, z


def _bytes_of(x: Any, size: int) -> bytes:
    if isinstance(x, np.ndarray):
        x = x.ctypes.data
    if isinstance(x, int):
        return (x % (1 << 8 * size)).to_bytes(size, "little")
    if isinstance(x, float):
        return struct.pack({2: "e", 4: "f", 8: "d"}[size], x)
    found = x if isinstance(x, bytes) else x.tobytes()
    if len(found) != size:
        raise TypeError(f"expected an argument of {size} bytes, got {len(found)}")
    return found


def _arrays(args: Sequence[Any]) -> list[np.ndarray]:
    return [x for x in args if isinstance(x, np.ndarray)]


@contextlib.contextmanager
def _reachable(arrays: Sequence[np.ndarray]) -> Iterator[None]:
    """Meanwhile kernels may touch the arrays' memory."""
    ranges = _ranges(arrays)
    for begin, end in ranges:
        library().gfx942_register_memory(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin))
    try:
        yield
    finally:
        for begin, _ in ranges:
            library().gfx942_unregister_memory(ctypes.c_void_p(begin))


def _ranges(arrays: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """The memory of the arrays; views of one array become one range."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(np.lib.array_utils.byte_bounds(x) for x in arrays if x.size):
        if found and begin < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


# ---- counters


@dataclass(frozen=True)
class Instruction:
    """Sums over all waves of all launches. Cycles are those that its unit is taken for one wave."""

    offset: int
    mnemonic: str
    text: str
    unit: str
    cycles: int
    executed: int
    lanes: int
    lds_cycles: int
    lds_ideal_cycles: int
    bytes: int
    lines: int  # of 128 bytes of memory


@dataclass(frozen=True)
class Shape:
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_lds: int
    launches: int


@dataclass(frozen=True)
class Counters:
    kernel: Kernel
    launches: int
    workgroups: int
    waves: int
    shapes: tuple[Shape, ...]
    instructions: tuple[Instruction, ...]


def counters(part: str = "", instructions: bool = True) -> list[Counters]:
    """Of the kernels that were launched since the last reset and have that part in their names. Without instructions,
    which are many and take long, each has none."""
    found = []
    for x in described("gfx942_counters_json", part.encode(), int(instructions)):
        shapes = tuple(
            Shape(tuple(s["grid"]), tuple(s["block"]), s["dynamic_lds"], s["launches"]) for s in x.pop("shapes")
        )
        instructions = tuple(Instruction(**i) for i in x.pop("instructions"))
        totals = {name: x.pop(name) for name in ("launches", "workgroups", "waves")}
        found.append(Counters(Kernel.of(x), **totals, shapes=shapes, instructions=instructions))
    return found


def reset_counters() -> None:
    library().gfx942_reset_counters()

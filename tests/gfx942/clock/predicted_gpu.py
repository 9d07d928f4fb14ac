# SPDX-License-Identifier: Apache-2.0
"""A GPU for benchmarks/mi300x whose kernels the interpreter executes and the clock times: its formulas must then give
the clock's constants back."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace
from types import SimpleNamespace

import builds
import device
import timing
from mi300x.gpu import HERE, Gpu, Launch

HEADER = '#include "microbenchmark.h"\n'


class PredictedGpu(Gpu):
    scale = 1

    def __init__(self, instructions: int, **other: float) -> None:
        """instructions: of waves, a launch; a workgroup that is begun runs to its end. other: constants of another
        chip."""
        p = device.properties()
        facts = SimpleNamespace(kind="amd", arch=p["arch"], compute_units=p["compute_units"])
        super().__init__(facts, str(builds.interpreter()), [])
        self.instructions = instructions
        self.chip = timing.constants(**other)
        self._maps: list[mmap.mmap] = []

    def load(self, file: str) -> bytes:
        text, header = ((HERE / name).read_text(encoding="utf-8") for name in (file, "microbenchmark.h"))
        assert HEADER in text, file
        return builds.compile_hip(text.replace(HEADER, header.replace("#pragma once\n", "")))

    def allocate(self, size: int) -> int:
        """Pages come with the first access."""
        self._maps.append(mmap.mmap(-1, size))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._maps[-1]))
        device.library().gfx942_register_memory(ctypes.c_void_p(address), ctypes.c_size_t(size))
        self._allocated.append(address)
        return address

    def release(self) -> None:
        for address in self._allocated:
            device.library().gfx942_unregister_memory(ctypes.c_void_p(address))
        self._allocated.clear()
        self._maps.clear()

    def microseconds(self, file: str, kernel: str, how: Launch) -> float:
        self.function(file, kernel)
        with timing.recording(self.instructions):
            self.launch(file, kernel, replace(how, times=1))
        (found,) = timing.timed(warm=not how.cold, chip=self.chip)
        device.forget_recordings()
        return how.times * found.microseconds

# SPDX-License-Identifier: Apache-2.0
"""A GPU as the microbenchmarks need it: a compiler for it, and the HIP runtime or the CUDA driver by ctypes."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from xlstm_hip._core.device import DeviceFacts

HERE = Path(__file__).parent
WAVE = 64  # threads; on an NVIDIA GPU two warps
SHOTS = 3  # the shortest counts, since a disturbance makes a launch longer
FLUSHED_BYTES = 512 << 20  # twice the largest cache


class CannotRun(RuntimeError):
    """This machine lacks a compiler or a runtime."""


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched; its argument block is Arguments of microbenchmark.h."""

    grid: int = 1
    waves: int = 1
    rounds: int = 0
    memory: int = 0  # an address
    other: int = 0
    lds: int = 0  # bytes beside what the kernel declares
    cold: bool = False  # the caches are emptied before it
    times: int = 1  # launches, one after the other


class Arguments(ctypes.Structure):
    _fields_ = [("memory", ctypes.c_void_p), ("rounds", ctypes.c_uint32), ("other", ctypes.c_uint32)]


# ---- compilers


# By kind of GPU: its compiler, the variable that names another, the one that names a root, and where it is usually.
COMPILERS = {
    "amd": ("hipcc", "HIPCXX", "ROCM_PATH", "/opt/rocm"),
    "nvidia": ("nvcc", "CUDACXX", "CUDA_HOME", "/usr/local/cuda"),
}


def _compiler(name: str, variable: str, root: str, usual: str) -> str:
    folders = [f"{x}/bin" for x in (os.environ.get(root), usual) if x]
    if named := os.environ.get(variable):
        if found := shutil.which(named):
            return found
        raise CannotRun(f"{variable}: expected a compiler, got {named!r}")
    if found := shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *folders])):
        return found
    raise CannotRun(f"no {name} was found ({variable}, PATH, {root}, {usual})")


def compile_command(kind: str, arch: str) -> list[str]:
    """Of device code alone, without the source and -o."""
    compiler = _compiler(*COMPILERS[kind])
    if kind == "amd":
        only = ["--offload-device-only", "--no-gpu-bundle-output"]
        return [compiler, "-x", "hip", f"--offload-arch={arch}", *only, "-O3"]
    return [compiler, "-x", "cu", f"-arch={arch}", "-cubin", "-O3", "-std=c++17"]


def compiled(command: list[str], source: Path) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "code"
        done = subprocess.run(
            [*command, str(source), "-o", str(code)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{source.name} does not compile: {' '.join(command)}\n{done.stdout}")
        return code.read_bytes()


# ---- runtimes

# What both runtimes call alike, but for the prefix; here HIP's name, then CUDA's where it is another.
FUNCTIONS = {
    "Init": "",
    "Malloc": "MemAlloc_v2",
    "Free": "MemFree_v2",
    "MemcpyHtoD": "MemcpyHtoD_v2",
    "MemcpyDtoH": "MemcpyDtoH_v2",
    "MemsetD32": "MemsetD32_v2",
    "ModuleLoadData": "",
    "ModuleGetFunction": "",
    "ModuleLaunchKernel": "LaunchKernel",
    "EventCreateWithFlags": "EventCreate",
    "EventRecord": "",
    "EventSynchronize": "",
    "EventElapsedTime": "",
    "DeviceSynchronize": "CtxSynchronize",
    "DeviceGetAttribute": "",
}
CLOCK_RATE = {"hip": 5, "cu": 13}  # the attribute, in kHz


def _loaded_hip() -> str:
    """The runtime that torch has loaded: a second one would have other devices."""
    from xlstm_hip.cli.doctor import RUNTIMES

    maps = Path("/proc/self/maps").read_text()
    found = re.search(rf"/\S*{RUNTIMES['HIP']}", maps)
    path = found[0] if found else ctypes.util.find_library("amdhip64")
    if path is None:
        raise CannotRun("no HIP runtime: expected a torch for ROCm, which loads libamdhip64")
    return path


def _runtime(library: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(library)
    except OSError as error:
        raise CannotRun(f"no runtime of the GPU: {error}") from None


class Gpu:
    """The first device."""

    scale = 256  # times as many rounds as a model needs, whose clock is exact

    def __init__(self, facts: DeviceFacts, library: str | None = None, command: list[str] | None = None) -> None:
        self.facts, self.units = facts, facts.compute_units
        self._prefix = "hip" if facts.kind == "amd" else "cu"
        self._command = compile_command(facts.kind, facts.arch) if command is None else command
        self._library = _runtime(library or (_loaded_hip() if facts.kind == "amd" else "libcuda.so.1"))
        self._modules: dict[str, ctypes.c_void_p] = {}
        self._functions: dict[tuple[str, str], ctypes.c_void_p] = {}
        self._call("Init", 0)
        if facts.kind == "nvidia":
            self._take_torchs_context()
        self._events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self._events:
            self._call("EventCreateWithFlags", ctypes.byref(event), 0)
        self._flushed = 0
        self._allocated: list[int] = []

    def _take_torchs_context(self) -> None:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._checked("cuDeviceGet", ctypes.byref(device), 0)
        self._checked("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._checked("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: object) -> None:
        other = FUNCTIONS[name]
        self._checked(self._prefix + (other if other and self._prefix == "cu" else name), *arguments)

    def _checked(self, name: str, *arguments: object) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise RuntimeError(f"{name}: {self._text_of(status)}")

    def _text_of(self, status: int) -> str:
        if self._prefix == "hip":
            function = self._library.hipGetErrorString
            function.restype = ctypes.c_char_p
            return function(status).decode()
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        return (text.value or b"unknown error").decode()

    def reported_mhz(self) -> float:
        """The highest clock, as the runtime has it."""
        khz = ctypes.c_int()
        self._call("DeviceGetAttribute", ctypes.byref(khz), CLOCK_RATE[self._prefix], 0)
        return khz.value / 1000

    # ---- memory

    def allocate(self, size: int) -> int:
        address = ctypes.c_void_p()
        self._call("Malloc", ctypes.byref(address), ctypes.c_size_t(size))
        assert address.value
        self._allocated.append(address.value)
        return address.value

    def release(self) -> None:
        """All memory."""
        self._flushed = 0
        while self._allocated:
            self._call("Free", ctypes.c_void_p(self._allocated.pop()))

    def upload(self, words: np.ndarray) -> int:
        address = self.allocate(words.nbytes)
        self._call(
            "MemcpyHtoD", ctypes.c_void_p(address), words.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(words.nbytes)
        )
        return address

    def download(self, address: int, count: int) -> np.ndarray:
        words = np.zeros(count, np.uint32)
        self._call(
            "MemcpyDtoH", words.ctypes.data_as(ctypes.c_void_p), ctypes.c_void_p(address), ctypes.c_size_t(words.nbytes)
        )
        return words

    def empty_caches(self) -> None:
        if not self._flushed:
            self._flushed = self.allocate(FLUSHED_BYTES)
        self._call("MemsetD32", ctypes.c_void_p(self._flushed), 0, ctypes.c_size_t(FLUSHED_BYTES // 4))

    # ---- kernels

    def load(self, file: str) -> bytes:
        return compiled(self._command, HERE / file)

    def function(self, file: str, kernel: str) -> ctypes.c_void_p:
        if (file, kernel) not in self._functions:
            if file not in self._modules:
                module = ctypes.c_void_p()
                self._call("ModuleLoadData", ctypes.byref(module), self.load(file))
                self._modules[file] = module
            function = ctypes.c_void_p()
            self._call("ModuleGetFunction", ctypes.byref(function), self._modules[file], kernel.encode())
            self._functions[file, kernel] = function
        return self._functions[file, kernel]

    def launch(self, file: str, kernel: str, how: Launch) -> None:
        block = Arguments(how.memory, how.rounds, how.other)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        shape = (how.grid, 1, 1, WAVE * how.waves, 1, 1, how.lds)
        function = self.function(file, kernel)
        for _ in range(how.times):
            self._call("ModuleLaunchKernel", function, *shape, None, arguments, None)

    def run(self, file: str, kernel: str, how: Launch) -> None:
        """Untimed."""
        self.launch(file, kernel, how)
        self._call("DeviceSynchronize")

    def microseconds(self, file: str, kernel: str, how: Launch) -> float:
        """Of all its launches, the shortest of SHOTS."""
        self.function(file, kernel)
        return min(self._shot(file, kernel, how) for _ in range(SHOTS))

    def _shot(self, file: str, kernel: str, how: Launch) -> float:
        if how.cold:
            self.empty_caches()
        begin, end = self._events
        self._call("EventRecord", begin, None)
        self.launch(file, kernel, how)
        self._call("EventRecord", end, None)
        self._call("EventSynchronize", end)
        elapsed = ctypes.c_float()
        self._call("EventElapsedTime", ctypes.byref(elapsed), begin, end)
        return 1000 * elapsed.value

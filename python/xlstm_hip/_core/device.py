# SPDX-License-Identifier: Apache-2.0
"""Facts of devices, read from the device itself and never from an environment variable."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

MI300X_COMPUTE_UNITS = 304
MI300X_MEMORY_LIMIT = 224 << 30  # between MI300X's 192 GB and the 256 GB of MI325X, the same die
INTERPRETED_ARCHS = ("gfx90a", "gfx942", "gfx950")  # by tests/gfx942
METAL_THREADGROUP_BYTES = 32 << 10  # the limit of every Apple GPU family
METAL_SIMD_WIDTH = 32


@dataclass(frozen=True)
class DeviceFacts:
    """kind: "amd", "nvidia", "apple" or "cpu". arch: "gfx942", "sm_90", the CPU's machine name.

    compute_units: CUs (of RDNA pairs of them, as HIP counts), SMs, GPU cores, or the CPU's cores. lds_bytes: shared
    memory one workgroup may have, 0 on a CPU. wave_size: lanes that run in step, 1 on a CPU. memory_bytes: 0 where the
    system does not say. features: what follows the arch in ROCm's name of it, such as "sramecc+".
    """

    name: str
    kind: str
    arch: str
    compute_units: int
    lds_bytes: int
    wave_size: int
    memory_bytes: int
    features: tuple[str, ...] = ()

    @property
    def is_experimental(self) -> bool:
        """Whether no machine code of this package for the chip was ever executed, by hardware or by an interpreter:
        AMD's chips but for CDNA2 to CDNA4 (docs/support.md)."""
        return self.kind == "amd" and self.arch not in INTERPRETED_ARCHS


def default_device() -> torch.device:
    """The GPU where torch has one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def available_device(name: str, device: torch.device | str) -> torch.device:
    """The device named by an argument, if torch can use it on this machine; `name` is the argument's name."""
    try:
        found = torch.device(device)
    except (TypeError, RuntimeError):
        raise ValueError(f'{name}: expected a device such as "cpu", "cuda" or "cuda:1", got {device!r}') from None
    gpus = torch.cuda.device_count()
    if found.type == "cuda" and (found.index or 0) >= gpus:
        raise ValueError(f"{name}: expected one of the {gpus} GPUs that torch sees, got {found}")
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"{name}: mps was asked for, but torch sees no Apple GPU")
    return found


def device_facts(device: torch.device | str | int | None = None) -> DeviceFacts:
    """Facts of a device. Without an argument: of the current GPU, or of the CPU if there is no GPU."""
    if device is None:
        d = default_device()
    else:  # torch.device(int) asks the machine for its accelerator; here a number is a GPU's
        d = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if d.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device: {d} was asked for, but torch sees no GPU")
        return _gpu_facts(torch.cuda.current_device() if d.index is None else d.index)
    if d.type == "mps":
        if not torch.backends.mps.is_available():
            raise ValueError("device: mps was asked for, but torch sees no Apple GPU")
        return _apple_facts()
    if d.type == "cpu":
        return _cpu_facts()
    raise ValueError(f"device: expected a cuda (ROCm included), mps or cpu device, got {str(d)!r}")


def is_amd_gpu(device: torch.device | str | int | None = None) -> bool:
    """Whether a device is an AMD GPU. False if there is no GPU."""
    return device_facts(device).kind == "amd"


def is_mi300x(device: torch.device | str | int | None = None) -> bool:
    """True for an MI300X, whole, virtual or partitioned; False for the other gfx942 chips MI300A, MI308X and MI325X.

    A product name decides (a partition of an MI300X has fewer compute units and is still one). With a generic name the
    304 compute units decide; MI325X also has 304, and is told apart by its memory size. To ask for any gfx942, use
    device_facts().arch.
    """
    facts = device_facts(device)
    if facts.kind != "amd" or facts.arch != "gfx942":
        return False
    name = facts.name.upper()
    if "MI3" in name:
        return "MI300X" in name
    return facts.compute_units == MI300X_COMPUTE_UNITS and facts.memory_bytes < MI300X_MEMORY_LIMIT


def _gpu_facts(index: int) -> DeviceFacts:
    p = torch.cuda.get_device_properties(index)
    # CUDA builds of torch fill gcnArchName with the device's name, so only a gfx name means AMD.
    gcn = str(getattr(p, "gcnArchName", ""))
    amd = gcn.startswith("gfx")
    arch, *features = gcn.split(":") if amd else (f"sm_{p.major}{p.minor}",)
    # The opt-in limit, where there is one, is what a kernel can really have (227 KB on an H200, not 48).
    lds_bytes = max(p.shared_memory_per_block, getattr(p, "shared_memory_per_block_optin", 0))
    return DeviceFacts(
        name=p.name,
        kind="amd" if amd else "nvidia",
        arch=arch,
        compute_units=p.multi_processor_count,
        lds_bytes=lds_bytes,
        wave_size=p.warp_size,
        memory_bytes=p.total_memory,
        features=tuple(features),
    )


def _apple_facts() -> DeviceFacts:
    return DeviceFacts(
        name=torch.backends.mps.get_name(),
        kind="apple",
        arch=platform.machine(),
        compute_units=torch.backends.mps.get_core_count(),
        lds_bytes=METAL_THREADGROUP_BYTES,
        wave_size=METAL_SIMD_WIDTH,
        memory_bytes=torch.mps.recommended_max_memory(),
    )


def _cpu_facts() -> DeviceFacts:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return DeviceFacts(
        name=_cpu_name(),
        kind="cpu",
        arch=platform.machine(),
        compute_units=cores,
        lds_bytes=0,
        wave_size=1,
        memory_bytes=_host_memory(),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _host_memory() -> int:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

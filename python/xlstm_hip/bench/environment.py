# SPDX-License-Identifier: Apache-2.0
"""What a figure was measured on and with: written into every result file."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from typing import Any

import torch

from .._version import __version__
from ..describe import native
from ..device import device_facts
from ..ops import devices_with_kernels

PACKAGES = (
    "torch", "numpy", "mlstm_kernels", "transformers", "xlstm", "triton", "flash-linear-attention", "flash-attn",
)  # fmt: skip
BUSY = 0.3  # a load above this is somebody else's work: the benchmark itself has hardly begun


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def gpu_facts(device: torch.device | str) -> dict[str, Any]:
    facts = device_facts(device)
    return {
        "name": facts.name,
        "arch": facts.arch,
        "units": facts.compute_units,
        "memory_bytes": facts.memory_bytes,
        "runtime": f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}",
        "kernels_for": list(devices_with_kernels()),
    }


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """device: the one that is measured; a GPU's facts stand beside the host's."""
    cpu, built = device_facts("cpu"), native()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cpu": cpu.name,
        "arch": cpu.arch,
        "cores": cpu.compute_units,
        "memory_bytes": cpu.memory_bytes,
        "isa": built.cpu_isa() if built else None,
        "threads": torch.get_num_threads(),
        "variables": {
            x: y for x, y in os.environ.items() if x.startswith(("OMP_", "KMP_", "GOMP_", "MKL_", "XLSTM_HIP_"))
        },
        "load_before": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {
            "xlstm_hip": __version__,
            **{name: _installed_version(name) for name in PACKAGES},
        },
        "build": built.build_facts() if built else None,
        "gpu": None if torch.device(device).type == "cpu" else gpu_facts(device),
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def summary(facts: dict[str, Any]) -> str:
    """One line for tables and figures."""
    packages = facts["packages"]
    names = ("xlstm_hip", "torch", "mlstm_kernels", "transformers")
    versions = ", ".join(f"{name} {packages[name] or 'not installed'}" for name in names)
    isa = facts["isa"] or "instruction set unknown (xlstm_hip._native is not built)"
    threads = f"{facts['threads']} thread{'' if facts['threads'] == 1 else 's'}"
    gpu = facts.get("gpu")
    where = f"{facts['cpu']} ({isa}), {threads}" if gpu is None else f"{gpu['name']} ({gpu['arch']}), {gpu['runtime']}"
    return f"{where}; {versions}; {facts['date'][:10]}"

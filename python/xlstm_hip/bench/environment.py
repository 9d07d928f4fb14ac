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

PACKAGES = ("torch", "numpy", "mlstm_kernels", "transformers", "xlstm")
BUSY = 0.3  # a load above this is somebody else's work: the benchmark itself has hardly begun


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
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
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def summary(facts: dict[str, Any]) -> str:
    """One line for tables and figures."""
    packages = facts["packages"]
    names = ("xlstm_hip", "torch", "mlstm_kernels", "transformers")
    versions = ", ".join(f"{name} {packages[name] or 'not installed'}" for name in names)
    isa = facts["isa"] or "instruction set unknown (xlstm_hip._native is not built)"
    threads = f"{facts['threads']} thread{'' if facts['threads'] == 1 else 's'}"
    return f"{facts['cpu']} ({isa}), {threads}; {versions}; {facts['date'][:10]}"

# SPDX-License-Identifier: Apache-2.0
"""The machine and packages that a result was measured with, written into every result file."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .._core.device import device_facts
from .._core.native import native
from .._core.ops import devices_with_kernels
from .._version import __version__
from ..mlstm.triton_peers import stands_in

PACKAGES = (
    "torch", "numpy", "mlstm_kernels", "transformers", "xlstm", "triton", "flash-linear-attention", "flash-attn",
)  # fmt: skip
MODULES = {"flash-linear-attention": "fla", "flash-attn": "flash_attn"}  # of packages that are imported by another name
DRIVER_FILES = {"nvidia": Path("/proc/driver/nvidia/version"), "amd": Path("/sys/module/amdgpu/version")}
ASK_NVIDIA = ("--query-gpu=driver_version", "--format=csv,noheader")
BUSY = 0.3  # a load above this is somebody else's work: the benchmark itself has hardly begun


def _version(package: str) -> str | None:
    """The version that pip knows, or that is written in an unpacked package on the path, as in a folder of --peers; the
    package is not imported for it. None if there is no version."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        pass
    module = MODULES.get(package, package)
    if stands_in(sys.modules.get(module)):
        return None
    found = importlib.util.find_spec(module)
    if found is None:
        return None
    text = Path(found.origin).read_text(encoding="utf-8") if found.has_location and found.origin else ""
    written = re.search(r"""^__version__\s*=\s*["']([^"']+)""", text, re.MULTILINE)
    return written[1] if written else "of unknown version"


def first_driver_number(text: str) -> str | None:
    """The version in what a driver says of itself."""
    found = re.search(r"(?<!\S)\d+\.\d[\d.]*(?!\S)", text)
    return found[0] if found else None


def driver_version(kind: str) -> str | None:
    """The version of a GPU's kernel driver, which torch does not report. None if the system does not report it
    either."""
    file = DRIVER_FILES.get(kind)
    if file is not None and file.exists():
        return first_driver_number(file.read_text())
    tool = shutil.which("nvidia-smi") if kind == "nvidia" else None
    if tool is None:
        return None
    done = subprocess.run([tool, *ASK_NVIDIA], capture_output=True, text=True)
    return first_driver_number(done.stdout) if done.returncode == 0 else None


def gpu_facts(device: torch.device | str) -> dict[str, Any]:
    facts = device_facts(device)
    return {
        "name": facts.name,
        "arch": facts.arch,
        "units": facts.compute_units,
        "memory_bytes": facts.memory_bytes,
        "driver": driver_version(facts.kind),
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
            **{name: _version(name) for name in PACKAGES},
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

# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip doctor: checks the installation and says how to fix it."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .._core.device import DeviceFacts, default_device, device_facts
from .._core.native import native
from .._version import __version__
from ..mlstm.interface import mlstm_interface
from .common import add_command

PACKAGES = ("safetensors", "transformers", "tokenizers", "xlstm", "mlstm_kernels", "triton", "rich", "matplotlib")
RUNTIMES = {"HIP": r"libamdhip64\.so[\d.]*", "CUDA": r"libcudart\.so[\d.]*"}
SELF_TEST_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Finding:
    level: str  # "ok", "note", "PROBLEM"
    text: str
    remedy: str = ""


def add(commands: Any) -> None:
    text = "Check torch, the GPU, the op library and other loaded packages, and say how to fix problems."
    add_command(commands, "doctor", run, text, "exit code: 0; 1 if there is a problem")


def run(args: argparse.Namespace) -> int:
    findings = list(examine())
    for finding in findings:
        print(f"{finding.level:<8} {finding.text}")
        if finding.remedy:
            print(f"{'':<8} -> {finding.remedy}")
    problems = sum(finding.level == "PROBLEM" for finding in findings)
    print(f"\n{problems} problem{'s' * (problems != 1)} found." if problems else "\nNo problems found.")
    return 1 if problems else 0


def examine() -> Iterator[Finding]:
    from .._core import ops

    built = native()
    if built is None:
        yield Finding("PROBLEM", "the module _native is missing", "install the package with pip")
        return
    facts, isa = built.build_facts(), built.cpu_isa()
    yield Finding(
        "ok", f"xlstm_hip {__version__} ({facts['git_sha'] or 'no git'}), built by {facts['compiler']}; {isa}"
    )
    if isa == "portable" and os.uname().machine == "x86_64":
        yield Finding("note", "the CPU has no AVX2, or XLSTM_HIP_CPU_ISA=portable is set: kernels are slow")
    built_gpu = facts["gpu"] if "cuda" in ops.devices_with_kernels() else ""
    device = default_device()
    gpu = None if device.type == "cpu" else device_facts(device)
    torch_gpu = "HIP" if torch.version.hip else "CUDA" if torch.version.cuda else ""
    yield from torch_findings(torch_gpu, gpu, os.path.exists)
    yield from kernel_findings(gpu, built_gpu, list(facts["gpu_archs"]), facts["gpu_note"], torch_gpu)
    yield from runtime_findings(Path("/proc/self/maps").read_text() if os.path.exists("/proc/self/maps") else "")
    yield from environment_findings(dict(os.environ))
    yield Finding("ok", "other packages: " + ", ".join(f"{name} {v}" for name, v in installed(PACKAGES)))
    for where in ("cpu", *(["cuda"] if gpu is not None and built_gpu else [])):
        yield self_test(where)


def installed(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def torch_findings(torch_gpu: str, gpu: DeviceFacts | None, exists: Callable[[str], bool]) -> Iterator[Finding]:
    yield Finding("ok", f"torch {torch.__version__}, {torch_gpu or 'CPU only'}")
    if gpu is not None:
        yield Finding("ok", f"GPU: {gpu.name}, {gpu.arch}")
        if gpu.is_experimental:
            text = f"kernels for {gpu.arch} are experimental: they compile, but their machine code was never executed"
            yield Finding(
                "note",
                text,
                "before you trust a result, run `python scripts/try_gpu.py doctor tests` in the repository",
            )
        return
    amd, nvidia = exists("/dev/kfd"), exists("/dev/nvidia0")
    if not amd and not nvidia:
        yield Finding("note", "no GPU: the CPU kernels are used")
    elif (amd and torch_gpu == "HIP") or (nvidia and torch_gpu == "CUDA"):
        hidden = [
            name for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if os.environ.get(name) in ("", "-1")
        ]
        remedy = f"unset {hidden[0]}" if hidden else (
            "join the groups that own /dev/kfd and /dev/dri (usermod -aG render,video $USER), then log in again"
            if amd else "check that nvidia-smi works: the driver must support the CUDA version of torch"
        )  # fmt: skip
        yield Finding("PROBLEM", "there is a GPU, but torch does not see it", remedy)
    else:
        index = "rocm7.2" if amd else "cu130"
        remedy = f"pip install torch --index-url https://download.pytorch.org/whl/{index}, then reinstall this package"
        yield Finding(
            "PROBLEM", f"there is {'an AMD' if amd else 'an NVIDIA'} GPU, but this torch was not built for it", remedy
        )


def kernel_findings(
    gpu: DeviceFacts | None, built: str, archs: list[str], note: str, torch_gpu: str
) -> Iterator[Finding]:
    if not built:
        if gpu is None:
            yield Finding("ok", f"no GPU kernels in the library{f': {note}' if note else ''}")
        else:
            remedy = "install ROCm or CUDA, then reinstall this package with XLSTM_HIP_GPU=" + torch_gpu
            yield Finding("PROBLEM", f"no GPU kernels in the library{f': {note}' if note else ''}", remedy)
        return
    yield Finding("ok", f"GPU kernels: {built} {' '.join(archs)}")
    if torch_gpu and built != torch_gpu:
        remedy = "reinstall this package in the environment of this torch"
        yield Finding("PROBLEM", f"the library was built for {built}, torch for {torch_gpu}", remedy)
    elif gpu is not None and archs and not any(same_arch(gpu.arch, arch) for arch in archs):
        variable = "PYTORCH_ROCM_ARCH" if gpu.kind == "amd" else "TORCH_CUDA_ARCH_LIST"
        value = gpu.arch if gpu.kind == "amd" else ".".join(gpu.arch.removeprefix("sm_"))
        yield Finding("PROBLEM", f"the library has no kernels for {gpu.arch}", f"reinstall with {variable}={value}")


def same_arch(device_arch: str, built: str) -> bool:
    """Whether two spellings mean the same chip: gfx942 and gfx942:xnack-, or sm_90, 90, 90a and 9.0."""
    number = re.sub(r"\D", "", built)
    return (
        built.split(":")[0] == device_arch
        or device_arch.startswith("sm_")
        and number == device_arch.removeprefix("sm_")
    )


def runtime_findings(maps: str) -> Iterator[Finding]:
    """Reports runtime libraries that are loaded twice. maps: the text of /proc/self/maps."""
    for vendor, name in RUNTIMES.items():
        found = sorted(set(re.findall(rf"\s(/\S*/{name})(?:\s|$)", maps)))
        if len(found) > 1:
            remedy = (
                "keep the one of torch: remove the other's folder from LD_LIBRARY_PATH, or reinstall this package "
                "with this torch"
            )
            yield Finding("PROBLEM", f"{len(found)} {vendor} runtimes in one process: {', '.join(found)}", remedy)
        elif found:
            yield Finding("ok", f"{vendor} runtime: {found[0]}")


def environment_findings(environment: dict[str, str]) -> Iterator[Finding]:
    override = environment.get("HSA_OVERRIDE_GFX_VERSION")
    if override:
        text = f"HSA_OVERRIDE_GFX_VERSION={override}: the GPU reports another arch, and kernels of that arch are used"
        yield Finding("note", text, "unset it if kernels fail or results are wrong")
    backend = environment.get("XLSTM_HIP_BACKEND")
    if backend:
        yield Finding("note", f"XLSTM_HIP_BACKEND={backend}: plain torch runs instead of the kernels, in this test too")
    isa = environment.get("XLSTM_HIP_CPU_ISA")
    if isa:
        yield Finding(
            "note", f"XLSTM_HIP_CPU_ISA={isa}: this instruction set is used instead of the best one of the CPU"
        )


def self_test(device: str) -> Finding:
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 100, 32, generator=rng) for _ in range(3))
    i, f = (torch.randn(1, 2, 100, generator=rng) for _ in range(2))
    want = mlstm_interface(q, k, v, i, f + 3, kernel="chunkwise--native_autograd")
    q, k, v, i, f = (x.to(device) for x in (q, k, v, i, f))
    actual = mlstm_interface(q, k, v, i, f + 3)
    error = float((actual.cpu() - want).norm() / want.norm())
    if error < SELF_TEST_TOLERANCE:
        return Finding("ok", f"the mLSTM on {device} is right: error {error:.1g} compared with plain torch")
    return Finding("PROBLEM", f"the mLSTM on {device} is wrong: error {error:.1g}", "report it with this output")

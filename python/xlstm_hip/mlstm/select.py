# SPDX-License-Identifier: Apache-2.0
"""Kernel selection by shape: this package's rule, and published rules by name.

"stock" is the configuration of the released NX-AI/xLSTM-7b. "hybrid" and "amd" come from the guides of Eliovp's
xlstm-kernels for MI300X: the hybrid configuration of its quick start, and the rule of its AMD optimization guide for
xLSTM-7B, which chooses the hybrid, the AMD or the native configuration by batch size and length. They are kept to
reproduce such runs and were not measured here.
"""

from __future__ import annotations

from typing import TypedDict

import torch

from .._core import plans
from .._core.checks import GATES, GPU_HEAD_DIM, one_of, positive_int
from .._core.device import default_device, device_facts
from .._core.graph_constants import constant_in_graphs
from .._core.native import native
from .._core.warn_once import warn_once
from .registry import KernelInfo, kernel_info, with_gate

REGIMES = ("auto", "stock", "amd", "hybrid")

#         chunkwise_kernel, sequence_kernel, step_kernel
FUSED = ("chunkwise--fused", "fused", "fused")
NATIVE = ("chunkwise--native_autograd", "native_sequence__native", "native")
STOCK = ("chunkwise--triton_limit_chunk", "native_sequence__triton", "triton")
HYBRID = ("chunkwise--native_autograd", "native_sequence__triton", "native")
AMD = ("chunkwise--triton_xl_chunk", "native_sequence__native", "triton")

HYBRID_LARGEST_BATCH, HYBRID_SHORTEST_LENGTH, AMD_LARGEST_BATCH = 2, 1024, 8


class KernelNames(TypedDict):
    """Fields of mLSTMBackendConfig, which takes them as **names."""

    chunkwise_kernel: str
    sequence_kernel: str
    step_kernel: str


def get_optimal_kernel_config(
    batch_size: int,
    seq_len: int,
    head_dim: int | None = None,
    regime: str = "auto",
    device: torch.device | str | None = None,
    gate: str = "exp",
) -> KernelNames:
    """Returns chunkwise_kernel, sequence_kernel and step_kernel, as mLSTMBackendConfig takes them.

    "auto" chooses the fused kernels if the op library has them for the device and, on a GPU, for head_dim, else the
    native kernels. The default device is the GPU, or the CPU without one; head_dim is the larger of the two head dims.
    batch_size and seq_len matter where the table of tuned plans (xlstm_hip.plans) names another kernel, and in the
    published rule "amd". Published rules ignore the device. gate: the model's input gate. For "sigmoid" the kernels'
    sigmoid counterparts are returned, and the table is not used: its kernels were timed with the exponential gate.
    """
    positive_int("batch_size", batch_size)
    positive_int("seq_len", seq_len)
    if head_dim is not None:
        positive_int("head_dim", head_dim)
    one_of("regime", regime, REGIMES)
    one_of("gate", gate, GATES)
    if regime == "auto":
        where = default_device() if device is None else torch.device(device)
        chosen = _auto(where, head_dim)
        if gate == "exp" and head_dim is not None and chosen == FUSED and plans.has_entries():
            chosen = _tuned(where, batch_size, seq_len, head_dim)
    elif regime == "amd":
        chosen = _amd_rule(batch_size, seq_len)
    else:
        chosen = STOCK if regime == "stock" else HYBRID
    chunkwise, sequence, step = chosen
    if gate != "exp":
        kinds = zip(("chunkwise", "sequence", "step"), chosen, strict=True)
        chunkwise, sequence, step = (with_gate(kernel_info(name, kind), gate).name for kind, name in kinds)
    return KernelNames(chunkwise_kernel=chunkwise, sequence_kernel=sequence, step_kernel=step)


get_optimized_kernel_config = get_optimal_kernel_config  # that guide calls it by both names


def _amd_rule(batch_size: int, seq_len: int) -> tuple[str, str, str]:
    if batch_size <= HYBRID_LARGEST_BATCH and seq_len >= HYBRID_SHORTEST_LENGTH:
        return HYBRID
    return AMD if batch_size <= AMD_LARGEST_BATCH else NATIVE


def _auto(device: torch.device, head_dim: int | None) -> tuple[str, str, str]:
    if device.type == "cuda" and head_dim is not None and head_dim > GPU_HEAD_DIM:
        warn_once(f"xlstm_hip: head dims above {GPU_HEAD_DIM} run in plain torch on a GPU, got {head_dim}")
        return NATIVE
    fused = [kernel_info(name, kind) for name, kind in zip(FUSED, ("chunkwise", "sequence", "step"), strict=True)]
    if all(_runs_on(info, device) for info in fused):
        if device.type == "cuda" and torch.version.hip and torch.cuda.is_available():
            _tell_if_experimental(device)
        return FUSED
    if device.type == "cuda" and torch.cuda.is_available():
        built = native()
        note = built.build_facts()["gpu_note"] if built else ""
        why = f" ({note})" if note else ""
        warn_once(
            f"xlstm_hip: the library has no kernels for a GPU{why}; {device} runs plain torch, many times slower. "
            "Install ROCm or CUDA and reinstall this package; `xlstm-hip doctor` says what is missing"
        )
    return NATIVE


@constant_in_graphs
def _tell_if_experimental(device: torch.device) -> None:
    facts = device_facts(device)
    if facts.is_experimental:
        warn_once(
            f"xlstm_hip: kernels for {facts.arch} are experimental: their machine code was never executed; "
            "`python scripts/try_gpu.py doctor tests` in the repository tests them"
        )


def _tuned(device: torch.device, batch: int, length: int, head_dim: int) -> tuple[str, str, str]:
    chunkwise = plans.tuned_kernel("mlstm_chunkwise", device, batch, head_dim, length)
    step = plans.tuned_kernel("mlstm_step", device, batch, head_dim)
    for name, kind in ((chunkwise, "chunkwise"), (step, "step")):
        if name is not None:
            kernel_info(name, kind)  # an unknown name in the table is an error here
    return chunkwise or FUSED[0], FUSED[1], step or FUSED[2]


def _runs_on(info: KernelInfo, device: torch.device) -> bool:
    return "*" in info.devices or device.type in info.devices

# SPDX-License-Identifier: Apache-2.0
"""xLSTMLargeConfig: the fields of the official xlstm_large model, and options of kernels. Every field has an effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from .._core.checks import non_negative, one_of, positive_int
from ..mlstm.backend import mLSTMBackendConfig
from ..mlstm.registry import LAYER_KINDS, kernel_info
from ..mlstm.select import KernelNames, get_optimal_kernel_config

WEIGHT_MODES = ("single", "fused")
KERNELS: tuple[Literal["chunkwise_kernel", "sequence_kernel", "step_kernel"], ...] = (
    "chunkwise_kernel", "sequence_kernel", "step_kernel",
)  # fmt: skip
KERNEL_OPTIONS = ("heads_per_band", "workers", "streams")  # how a kernel runs on this machine: in no checkpoint
AUTO = "auto"


@dataclass
class xLSTMLargeConfig:
    embedding_dim: int
    num_heads: int
    num_blocks: int
    vocab_size: int
    use_bias: bool = False
    """Biases in the linear layers and norms. The gates always have theirs."""
    norm_eps: float = 1e-6
    norm_reduction_force_float32: bool = True
    """Norms here never reduce in less, so that False, which allows it, changes nothing."""
    add_out_norm: bool = True

    qk_dim_factor: float = 0.5
    v_dim_factor: float = 1.0

    chunkwise_kernel: str = "chunkwise--fused"
    """Any registered chunkwise or parallel kernel, for more than one token. In this and the next two "auto" is what
    get_optimal_kernel_config has for the device and shape of each call; the input gate is then the exponential one."""
    sequence_kernel: str = "fused"
    """For what a chunkwise kernel that wants multiples of chunk_size leaves over. Those here take any length."""
    step_kernel: str = "fused"
    """For one token with a state, where no gradient is needed."""
    mode: str = "train"
    """"inference" always makes states. The train modes make them with return_last_states, and padding never."""
    chunk_size: int = 64
    return_last_states: bool = False
    """Whether forward returns (logits, state) instead of logits."""
    autocast_kernel_dtype: str = "bfloat16"
    eps: float = 1e-6
    inference_state_dtype: str = "float32"
    """Dtype of the states between calls in inference. "bfloat16" is c's alone, which the step rounds stochastically;
    "float16" is c's and n's. m is never below float32."""

    ffn_proj_factor: float = 2.6667
    ffn_round_up_to_multiple_of: int = 64

    gate_soft_cap: float | None = 15.0
    output_logit_soft_cap: float | None = 30.0

    weight_mode: str = "single"
    """"fused" keeps q, k, v and the output gate as one matrix, the two gates as one, and the two of the FFN as one."""

    heads_per_band: int | None = None
    """Of the queued and Ray kernels, like workers: heads that one worker has at a time. None: as the kernel has it."""
    workers: int | None = None
    """Threads or Ray actors."""
    streams: int | None = None
    """Of the queued kernel on a GPU: streams that the bands are dealt to."""

    def __post_init__(self) -> None:
        for name in ("embedding_dim", "num_heads", "num_blocks", "vocab_size", "ffn_round_up_to_multiple_of"):
            positive_int(name, getattr(self, name))
        for name in ("use_bias", "norm_reduction_force_float32", "add_out_norm"):
            one_of(name, getattr(self, name), (True, False))
        one_of("weight_mode", self.weight_mode, WEIGHT_MODES)
        non_negative("norm_eps", self.norm_eps)
        for name in ("qk_dim_factor", "v_dim_factor", "ffn_proj_factor", "gate_soft_cap", "output_logit_soft_cap"):
            value = getattr(self, name)
            if value is None and name.endswith("soft_cap"):
                continue
            non_negative(name, value)
            if value == 0:
                raise ValueError(f"{name}: expected a number > 0, got {value!r}")
        for name, width in (("qk_dim_factor", self.qk_dim), ("v_dim_factor", self.v_dim)):
            if width < 1 or width % self.num_heads:
                raise ValueError(
                    f"{name}: expected embedding_dim * {name} to be a multiple of num_heads = {self.num_heads}, "
                    f"got {width}"
                )
        self.backend_config(device="cpu")
        self.kernel_options()

    @property
    def qk_dim(self) -> int:
        return int(self.embedding_dim * self.qk_dim_factor)

    @property
    def v_dim(self) -> int:
        return int(self.embedding_dim * self.v_dim_factor)

    @property
    def ffn_dim(self) -> int:
        multiple = self.ffn_round_up_to_multiple_of
        # The official rounding, which works on the product as a float.
        return int(((self.embedding_dim * self.ffn_proj_factor + multiple - 1) // multiple) * multiple)

    @property
    def gate(self) -> str:
        """The input gate, "exp" or "sigmoid": that of the chunkwise kernel."""
        return "exp" if self.chunkwise_kernel == AUTO else kernel_info(self.chunkwise_kernel, LAYER_KINDS).gate

    def kernels(self, batch_size: int = 1, seq_len: int = 1, device: torch.device | str | None = None) -> KernelNames:
        """The names of the kernels, "auto" decided for a call of this shape on this device (default: the GPU)."""
        names = KernelNames(
            chunkwise_kernel=self.chunkwise_kernel, sequence_kernel=self.sequence_kernel, step_kernel=self.step_kernel
        )
        if AUTO not in names.values():
            return names
        head_dim = max(self.qk_dim, self.v_dim) // self.num_heads
        best = get_optimal_kernel_config(batch_size, seq_len, head_dim, device=device, gate=self.gate)
        for kernel in KERNELS:
            if names[kernel] == AUTO:
                names[kernel] = best[kernel]
        return names

    def kernel_options(self) -> dict[str, Any]:
        """The options of the chunkwise kernel that are set. One that it does not have is an error."""
        options = {name: getattr(self, name) for name in KERNEL_OPTIONS if getattr(self, name) is not None}
        for name, value in options.items():
            positive_int(name, value)
            if self.chunkwise_kernel == AUTO:
                raise ValueError(f"{name}: expected None with chunkwise_kernel='auto', got {value}; name a kernel")
            info = kernel_info(self.chunkwise_kernel, LAYER_KINDS)
            if name not in info.options or not info.any_length:
                has = ", ".join(info.options) or "none"
                raise ValueError(f"{name}: kernel {info.name!r} has no such option (it has {has}), got {value}")
        return options

    def backend_config(
        self, batch_size: int = 1, seq_len: int = 1, device: torch.device | str | None = None
    ) -> mLSTMBackendConfig:
        """The part that mLSTMBackend takes, for a call of this shape on this device; making one checks it."""
        return mLSTMBackendConfig(
            **self.kernels(batch_size, seq_len, device),
            mode=self.mode,
            chunk_size=self.chunk_size,
            return_last_states=self.return_last_states,
            autocast_kernel_dtype=self.autocast_kernel_dtype,
            eps=self.eps,
            inference_state_dtype=self.inference_state_dtype,
        )

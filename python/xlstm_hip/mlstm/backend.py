# SPDX-License-Identifier: Apache-2.0
"""mLSTMBackend: one module for training, training with padding and inference, with the interface of mlstm_kernels.

Unlike the original, it runs the fused kernels unless others are named, every mode honours chunk_size, eps and
autocast_kernel_dtype, each call may choose any of the three modes, and sigmoid kernels work in all modes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

from torch import Tensor, nn

from .._core.checks import IO_DTYPES, by_name, has_rank, non_negative, one_of, positive_int
from .registry import (
    LAYER_KINDS,
    get_mlstm_kernel,
    get_mlstm_sequence_kernel,
    get_mlstm_step_kernel,
    kernel_info,
)
from .wrappers import Call, Kernel, States, arbitrary_length, bind, padded

MODES = ("train", "train_with_padding", "inference")
DTYPES = by_name(IO_DTYPES)


@dataclass
class mLSTMBackendConfig:
    """Names of registered kernels and how to call them. Any registered name may be given."""

    chunkwise_kernel: str = "chunkwise--fused"
    """Chunkwise or parallel kernel, for more than one token."""
    sequence_kernel: str = "fused"
    """Kernel for what a chunkwise kernel that wants multiples of chunk_size leaves over, in inference."""
    step_kernel: str = "fused"
    """Kernel for one token, in inference."""
    mode: str = "train"
    """"train" calls the chunkwise kernel, "train_with_padding" pads for it, "inference" takes any length."""
    chunk_size: int = 64
    return_last_states: bool = True
    """In the train modes; inference always returns the states, unless a call itself says False."""
    autocast_kernel_dtype: str = "bfloat16"
    """What inputs are cast to inside an autocast region."""
    eps: float = 1e-6
    inference_state_dtype: str = "float32"
    """Dtype of the c and n that inference returns, rounded to nearest; m is never below float32."""
    normalize_siging: bool = True
    """Whether a sigmoid kernel divides by its normaliser."""

    def __post_init__(self) -> None:
        chunkwise = kernel_info(self.chunkwise_kernel, LAYER_KINDS)
        kernel_info(self.sequence_kernel, "sequence")
        kernel_info(self.step_kernel, "step")
        one_of("mode", self.mode, MODES)
        positive_int("chunk_size", self.chunk_size)
        one_of("autocast_kernel_dtype", self.autocast_kernel_dtype, tuple(DTYPES))
        non_negative("eps", self.eps)
        one_of("inference_state_dtype", self.inference_state_dtype, tuple(DTYPES))
        for name in ("return_last_states", "normalize_siging"):
            one_of(name, getattr(self, name), (True, False))
        if self.return_last_states and chunkwise.kind == "parallel":
            raise ValueError(
                f"return_last_states: expected False with the parallel kernel {chunkwise.name!r}, got True"
            )
        if self.return_last_states and self.mode == "train_with_padding":
            raise ValueError("return_last_states: expected False with mode='train_with_padding', got True")


class mLSTMBackend(nn.Module):
    """Calls the kernels of its configuration.

    chunkwise_kernel_fn, sequence_kernel_fn and step_kernel_fn may be replaced by other callables at any time.
    """

    config_class = mLSTMBackendConfig
    states_always_in_inference = False  # True in xlstm_hip.compat: mlstm_kernels asks no return_last_states there

    def __init__(self, config: mLSTMBackendConfig) -> None:
        super().__init__()
        self.config = config
        self.chunkwise_kernel_fn = get_mlstm_kernel(config.chunkwise_kernel)
        self.sequence_kernel_fn = get_mlstm_sequence_kernel(config.sequence_kernel)
        self.step_kernel_fn = get_mlstm_step_kernel(config.step_kernel)

    @property
    def chunkwise_kernel_fn(self) -> Callable:
        return self._chunkwise.function

    @chunkwise_kernel_fn.setter
    def chunkwise_kernel_fn(self, function: Callable) -> None:
        self._chunkwise = bind(function)
        self._beside: dict[Callable, Kernel] = {}

    def _beside_chunkwise(self, function: Callable) -> Kernel:
        """A sequence or step kernel with the chunkwise kernel's gate."""
        if function not in self._beside:
            self._beside[function] = bind(function, self._chunkwise)
        return self._beside[function]

    @overload
    def forward(
        self, q: Tensor | None = ..., k: Tensor | None = ..., v: Tensor | None = ..., i: Tensor | None = ...,
        f: Tensor | None = ..., c_initial: Tensor | None = ..., n_initial: Tensor | None = ...,
        m_initial: Tensor | None = ..., *, return_last_states: Literal[True], mode: str | None = ...,
        query: Tensor | None = ..., key: Tensor | None = ..., value: Tensor | None = ..., igate: Tensor | None = ...,
        fgate: Tensor | None = ..., cstate: Tensor | None = ..., nstate: Tensor | None = ...,
        mstate: Tensor | None = ...,
    ) -> tuple[Tensor, States]: ...  # fmt: skip
    @overload
    def forward(
        self, q: Tensor | None = ..., k: Tensor | None = ..., v: Tensor | None = ..., i: Tensor | None = ...,
        f: Tensor | None = ..., c_initial: Tensor | None = ..., n_initial: Tensor | None = ...,
        m_initial: Tensor | None = ..., *, return_last_states: Literal[False], mode: str | None = ...,
        query: Tensor | None = ..., key: Tensor | None = ..., value: Tensor | None = ..., igate: Tensor | None = ...,
        fgate: Tensor | None = ..., cstate: Tensor | None = ..., nstate: Tensor | None = ...,
        mstate: Tensor | None = ...,
    ) -> Tensor: ...  # fmt: skip
    @overload
    def forward(
        self, q: Tensor | None = ..., k: Tensor | None = ..., v: Tensor | None = ..., i: Tensor | None = ...,
        f: Tensor | None = ..., c_initial: Tensor | None = ..., n_initial: Tensor | None = ...,
        m_initial: Tensor | None = ..., return_last_states: bool | None = ..., mode: str | None = ..., *,
        query: Tensor | None = ..., key: Tensor | None = ..., value: Tensor | None = ..., igate: Tensor | None = ...,
        fgate: Tensor | None = ..., cstate: Tensor | None = ..., nstate: Tensor | None = ...,
        mstate: Tensor | None = ...,
    ) -> Tensor | tuple[Tensor, States]: ...  # fmt: skip
    def forward(
        self,
        q: Tensor | None = None,  # (B, NH, S, DHQK)
        k: Tensor | None = None,  # (B, NH, S, DHQK)
        v: Tensor | None = None,  # (B, NH, S, DHHV)
        i: Tensor | None = None,  # (B, NH, S)
        f: Tensor | None = None,  # (B, NH, S)
        c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
        n_initial: Tensor | None = None,  # (B, NH, DHQK)
        m_initial: Tensor | None = None,  # (B, NH, 1)
        return_last_states: bool | None = None,
        mode: str | None = None,
        *,
        query: Tensor | None = None,  # transformers' names for the same eight
        key: Tensor | None = None,
        value: Tensor | None = None,
        igate: Tensor | None = None,
        fgate: Tensor | None = None,
        cstate: Tensor | None = None,
        nstate: Tensor | None = None,
        mstate: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, States]:  # h (B, NH, S, DHHV), (c, n, m)
        q, k, v = (
            _needed("q", q, "query", query),
            _needed("k", k, "key", key),
            _needed("v", v, "value", value),
        )
        i, f = _needed("i", i, "igate", igate), _needed("f", f, "fgate", fgate)
        has_rank("q", q, 4, "(B, NH, S, DHQK)")
        config = self.config
        mode = config.mode if mode is None else mode
        one_of("mode", mode, MODES)
        call = Call(
            _either("c_initial", c_initial, "cstate", cstate),
            _either("n_initial", n_initial, "nstate", nstate),
            _either("m_initial", m_initial, "mstate", mstate),
            config.eps,
            DTYPES[config.autocast_kernel_dtype],
            config.chunk_size,
            {"normalize": config.normalize_siging} if self._sigmoid else {},
        )
        if mode == "inference":
            return arbitrary_length(
                self._chunkwise,
                self._beside_chunkwise(self.sequence_kernel_fn),
                self._beside_chunkwise(self.step_kernel_fn),
                call, q, k, v, f, i,
                return_last_states is not False or self.states_always_in_inference,
                DTYPES[config.inference_state_dtype],
            )  # fmt: skip
        last_states = config.return_last_states if return_last_states is None else return_last_states
        if mode == "train_with_padding":
            return padded(self._chunkwise, call, q, k, v, f, i, last_states)
        return call.layer(self._chunkwise, last_states, q, k, v, f, i)

    if TYPE_CHECKING:  # nn.Module's own returns Any
        __call__ = forward

    @property
    def _sigmoid(self) -> bool:
        """For an unregistered function the configured name decides, as in mlstm_kernels."""
        info = self._chunkwise.info
        return info.gate == "sigmoid" if info is not None else "siging" in self.config.chunkwise_kernel

    def extra_repr(self) -> str:
        return str(self.config)


def _either(name: str, x: Tensor | None, other_name: str, y: Tensor | None) -> Tensor | None:
    if x is not None and y is not None:
        raise TypeError(f"{other_name}: the same argument as {name}, which is given too")
    return y if x is None else x


def _needed(name: str, x: Tensor | None, other_name: str, y: Tensor | None) -> Tensor:
    x = _either(name, x, other_name, y)
    if x is None:
        raise TypeError(f"{name} (or {other_name}): expected a tensor, got none")
    return x

# SPDX-License-Identifier: Apache-2.0
"""How a model calls the mLSTM: the kernel for a number of tokens, and the handling of the state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._core.checks import accumulate_dtype, gradient_needed
from ..mlstm.backend import DTYPES, mLSTMBackend, mLSTMBackendConfig
from ..mlstm.interface import mlstm_interface, mlstm_step_interface
from ..mlstm.registry import LAYER_KINDS, kernel_info, with_gate
from ..mlstm.wrappers import PADDED_FORGET_GATE, PADDED_INPUT_GATE

LayerState = tuple[Tensor, Tensor, Tensor]  # c (B, NH, DHQK, DHHV), n (B, NH, DHQK), m (B, NH, 1)


@dataclass(eq=False)  # not frozen: made inside graphs, where older torch.compile loses a frozen one's fields
class MLSTMCall:
    chunkwise_kernel: str
    step_kernel: str
    step_in_place: bool  # whether that kernel can
    chunk_size: int
    eps: float
    autocast_kernel_dtype: torch.dtype
    # Between calls without gradient. float32: of c and n; float64 for a float64 model. bfloat16: of c, which the step
    # kernel rounds stochastically. float16: of c and n.
    state_dtype: torch.dtype
    keep_state: bool
    normalize: bool | None  # whether a sigmoid kernel divides by its normaliser; None: it has the exp gate
    options: dict[str, Any]  # of the chunkwise kernel
    multiples_only: mLSTMBackend | None  # runs a user's kernel that takes multiples of chunk_size alone
    cu_seqlens: Tensor | None = None  # (N + 1): sequences in the tokens of all rows, row by row; then states are of N
    context: Any = None  # a distributed.ContextParallel: the tokens are a part of a row over its ranks

    @classmethod
    def of_model(
        cls, config: Any, x: Tensor, keep_state: bool = False, cu_seqlens: Tensor | None = None, context: Any = None
    ) -> MLSTMCall:
        """With the kernels of a model's configuration for these tokens (B, S, D)."""
        backend = config.backend_config(x.shape[0], x.shape[1], x.device)
        return cls.of(backend, keep_state, cu_seqlens, config.kernel_options(), context)

    @classmethod
    def of(
        cls,
        config: mLSTMBackendConfig,
        keep_state: bool = False,
        cu_seqlens: Tensor | None = None,
        options: dict[str, Any] | None = None,
        context: Any = None,
    ) -> MLSTMCall:
        chunkwise = kernel_info(config.chunkwise_kernel, LAYER_KINDS)
        for name, given in (("cu_seqlens", cu_seqlens), ("cp_group", context)):
            if given is not None and not chunkwise.any_length:
                raise NotImplementedError(
                    f"{name}: kernel {chunkwise.name!r} takes multiples of chunk_size; expected one for any length"
                )
        step = with_gate(kernel_info(config.step_kernel, "step"), chunkwise.gate)
        # What it returns is rounded once, by _stored, which keeps n.
        wide = (
            replace(config, inference_state_dtype="float32") if config.inference_state_dtype == "bfloat16" else config
        )
        return cls(
            chunkwise.name,
            step.name,
            "in_place" in step.options,
            config.chunk_size,
            config.eps,
            DTYPES[config.autocast_kernel_dtype],
            DTYPES[config.inference_state_dtype],
            keep_state or config.mode == "inference" or config.return_last_states,
            config.normalize_siging if chunkwise.gate == "sigmoid" else None,
            options or {},
            None if chunkwise.any_length else mLSTMBackend(wide),
            cu_seqlens,
            context,
        )

    def __call__(
        self,
        q: Tensor,  # (B, S, NH, DHQK)
        k: Tensor,  # (B, S, NH, DHQK)
        v: Tensor,  # (B, S, NH, DHHV)
        i: Tensor,  # (B, S, NH)
        f: Tensor,  # (B, S, NH)
        state: LayerState | None,
        mask: Tensor | None,  # (B, S) bool: False for tokens that leave the state as it is
    ) -> tuple[Tensor, LayerState | None]:  # h (B, S, NH, DHHV)
        """Without gradient, a given state is overwritten and returned if its dtype allows that."""
        if mask is not None:
            i = torch.where(mask.unsqueeze(-1), i, PADDED_INPUT_GATE)
            f = torch.where(mask.unsqueeze(-1), f, PADDED_FORGET_GATE)
        functional = gradient_needed(q, k, v, i, f, *(state or ()))
        alone = self.cu_seqlens is None and self.context is None
        if q.shape[1] == 1 and state is not None and alone and not functional:
            h, last = self._step(q, k, v, i, f, state)
        else:
            h, last = self._sequence(q, k, v, i, f, state)
        if last is None or functional:
            return h, last
        return h, self._stored(state, last)

    def _step(self, q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: LayerState) -> tuple:
        wide = accumulate_dtype(q.dtype)
        keeps_bfloat16 = self.state_dtype == torch.bfloat16 and wide == torch.float32
        in_place = self.step_in_place and all(x.is_contiguous() for x in state)
        in_place &= state[0].dtype == wide or (keeps_bfloat16 and state[0].dtype == torch.bfloat16)
        in_place &= state[1].dtype == state[2].dtype == wide
        tokens = (q[:, 0], k[:, 0], v[:, 0], i[:, 0, :, None], f[:, 0, :, None])
        if not in_place:
            state = (state[0].to(wide), state[1].to(wide), state[2].to(wide))
        h, last = mlstm_step_interface(
            *tokens, *state, self.eps, kernel=self.step_kernel, normalize=self.normalize, in_place=in_place
        )
        return h.unsqueeze(1), last

    def _sequence(self, q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: LayerState | None) -> tuple:
        c, n, m = state or (None, None, None)
        if self.multiples_only is not None:
            q, k, v, i, f = (x.transpose(1, 2) for x in (q, k, v, i, f))
            mode = "inference" if self.keep_state else None
            out = self.multiples_only(q, k, v, i, f, c, n, m, mode=mode)
            h, last = out if isinstance(out, tuple) else (out, None)
            return h.transpose(1, 2), last
        rows = q.shape[:2]
        if self.cu_seqlens is not None:
            q, k, v, i, f = (x.flatten(0, 1).unsqueeze(0) for x in (q, k, v, i, f))
        out = mlstm_interface(
            q, k, v, i, f, c, n, m,
            return_last_states=self.keep_state, eps=self.eps, autocast_kernel_dtype=self.autocast_kernel_dtype,
            chunk_size=self.chunk_size, kernel=self.chunkwise_kernel, normalize=self.normalize, layout="bshd",
            cu_seqlens=self.cu_seqlens, cp_group=self.context, **self.options,
        )  # fmt: skip
        h, last = out if isinstance(out, tuple) else (out, None)
        return h if self.cu_seqlens is None else h.squeeze(0).unflatten(0, rows), last

    def _stored(self, state: LayerState | None, last: LayerState) -> LayerState:
        """The new state in the given one's memory if the dtypes match, else in new tensors."""
        wide = last[2].dtype
        narrow = wide if self.state_dtype == torch.float32 else self.state_dtype  # float64 stays
        dtypes = (narrow, wide if narrow == torch.bfloat16 else narrow, wide)
        if state is None or any(x.dtype != dtype for x, dtype in zip(state, dtypes, strict=True)):
            c, n, m = (x.to(dtype) for x, dtype in zip(last, dtypes, strict=True))
            return c, n, m
        for old, new in zip(state, last, strict=True):
            if old is not new:
                old.copy_(new)
        return state


@dataclass(eq=False)
class StepAndReadCall:
    """The mLSTM of one row of tokens that is two things: one token of each of `rows` sequences, and behind them a
    sequence by itself. So both share the products of a block, which read the weights once. A state is a pair, too.
    """

    rows: int
    step: MLSTMCall
    read: MLSTMCall
    keep: Tensor | None  # (rows) bool: False for those of the rows that leave their state as it is
    read_mask: Tensor | None  # (1, S) bool: the same of the sequence's tokens

    def __call__(
        self,
        q: Tensor,  # (1, rows + S, NH, DHQK), and so are the others
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        state: tuple[LayerState, LayerState],
        mask: None = None,
    ) -> tuple[Tensor, tuple[LayerState | None, LayerState | None]]:
        parts, rows = (q, k, v, i, f), self.rows
        q, k, v, i, f = (x[0, :rows].unsqueeze(1) for x in parts)
        h, last = self.step(q, k, v, i, f, state[0], None if self.keep is None else self.keep.unsqueeze(1))
        q, k, v, i, f = (x[:, rows:] for x in parts)
        after, read = self.read(q, k, v, i, f, state[1], self.read_mask)
        return torch.cat((h.transpose(0, 1), after), 1), (last, read)

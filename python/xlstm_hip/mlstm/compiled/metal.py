# SPDX-License-Identifier: Apache-2.0
"""The recurrent mLSTM as one compiled float32 step, for Apple's GPU.

Only the guard knows of that GPU: the step compiles on any device, and is tested on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._core import checks
from ..._core.autocast import in_kernel_dtype
from ...reference.inputs import wide_states, without_autocast
from ...reference.recurrent import mlstm_recurrent_step__native
from .chunk import State
from .compiling import CompiledFunction

_step = CompiledFunction(mlstm_recurrent_step__native)


def mlstm_recurrent_step__metal(
    q: Tensor,  # (B, NH, DHQK)
    k: Tensor,  # (B, NH, DHQK)
    v: Tensor,  # (B, NH, DHHV)
    i: Tensor,  # (B, NH, 1)
    f: Tensor,  # (B, NH, 1)
    c: Tensor,  # (B, NH, DHQK, DHHV)
    n: Tensor,  # (B, NH, DHQK)
    m: Tensor,  # (B, NH, 1)
    eps: float = 1e-6,
    **kwargs: Any,
) -> tuple[Tensor, State]:  # h (B, NH, DHHV), (c, n, m)
    """One token, exponential input gate, exact gradient. Computes in float32, and returns states in it."""
    checks.no_unknown_keywords("mlstm_recurrent_step__metal", kwargs)
    checks.check_step_inputs(q, k, v, i, f, c, n, m, eps)
    _on_apple_gpu(q)
    return _compiled_step(q, k, v, i, f, c, n, m, eps)


def mlstm_recurrent_sequence__metal(
    q: Tensor,  # (B, NH, S, DHQK)
    k: Tensor,  # (B, NH, S, DHQK)
    v: Tensor,  # (B, NH, S, DHHV)
    i: Tensor,  # (B, NH, S)
    f: Tensor,  # (B, NH, S)
    c_initial: Tensor | None = None,  # (B, NH, DHQK, DHHV)
    n_initial: Tensor | None = None,  # (B, NH, DHQK)
    m_initial: Tensor | None = None,  # (B, NH, 1)
    return_last_states: bool = False,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, State]:  # h (B, NH, S, DHHV), (c, n, m)
    """The compiled step, token after token. chunk_size belongs to the shared call and has no meaning here."""
    checks.no_unknown_keywords("mlstm_recurrent_sequence__metal", kwargs)
    q, k, v, i, f = in_kernel_dtype((q, k, v, i, f), autocast_kernel_dtype)
    checks.check_sequence_inputs(q, k, v, i, f, c_initial, n_initial, m_initial, eps, chunk_size)
    _on_apple_gpu(q)
    h, states = _compiled_sequence(q, k, v, i, f, wide_states(q, v, c_initial, n_initial, m_initial), eps)
    return (h, states) if return_last_states else h


def _on_apple_gpu(q: Tensor) -> None:
    if q.device.type != "mps":
        raise RuntimeError(f"the metal kernels need Apple's GPU: expected q on device 'mps', got '{q.device}'")


def _compiled_step(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, c: Tensor, n: Tensor, m: Tensor, eps: float
) -> tuple[Tensor, State]:
    with without_autocast(q):
        h, states = _step(*(x.float() for x in (q, k, v, i, f, c, n, m)), eps)
    return h.to(q.dtype), states


def _compiled_sequence(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, states: State, eps: float
) -> tuple[Tensor, State]:
    hs = []
    for t in range(q.shape[2]):
        token = (q[:, :, t], k[:, :, t], v[:, :, t], i[:, :, t, None], f[:, :, t, None])
        h, states = _compiled_step(*token, *states, eps)
        hs.append(h)
    return torch.stack(hs, dim=2), states

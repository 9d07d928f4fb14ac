# SPDX-License-Identifier: Apache-2.0
"""The plain-torch chunkwise mLSTM through torch.compile.

A loop over chunks inside a compiled graph would make a new graph for every sequence length. So two graphs
hold the work, each over all chunks at once and of dynamic size; the states between chunks are walked outside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._core import checks
from ..._core.autocast import in_kernel_dtype
from ...reference.inputs import from_chunks, to_chunks, wide_states, without_autocast
from .chunk import State, chunk_output, chunk_update, next_state
from .compiling import CompiledFunction

_output, _update = CompiledFunction(chunk_output), CompiledFunction(chunk_update)


def mlstm_chunkwise__native_compiled_autograd(
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
    """Exponential input gate, any device that torch.compile serves; the gradient is autograd's, exact.

    The first call of a process compiles, which takes from seconds to a minute; later calls of other sizes do
    not, except where a size is 1 or the dtype changes.
    """
    checks.no_unknown_keywords("mlstm_chunkwise__native_compiled_autograd", kwargs)
    autocast_off = without_autocast(q)
    q, k, v, i, f = in_kernel_dtype((q, k, v, i, f), autocast_kernel_dtype)
    checks.check_sequence_inputs(q, k, v, i, f, c_initial, n_initial, m_initial, eps, chunk_size)
    with autocast_off:
        initial = wide_states(q, v, c_initial, n_initial, m_initial)
        h, states = _chunkwise(q, k, v, i, f, initial, eps, chunk_size)
    return (h, states) if return_last_states else h


def _chunkwise(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State, eps: float, chunk_size: int
) -> tuple[Tensor, State]:
    wide, batch_heads = checks.accumulate_dtype(q.dtype), q.shape[:2]
    parts = [_side_by_side(x.to(wide), chunk_size) for x in (q, k, v)]
    parts.append(_side_by_side(i.to(wide), chunk_size, fill=-torch.inf))  # the filled tail neither enters
    parts.append(_side_by_side(f.to(wide), chunk_size, fill=torch.inf))  # nor forgets

    log_decay, added = _update(*parts[1:])
    c, n, m = (x.flatten(0, 1) for x in state)
    entering = []
    for chunk in zip(*(x.split(m.shape[0]) for x in (log_decay, *added)), strict=True):
        entering.append((c, n, m))
        c, n, m = next_state((c, n, m), chunk[0], chunk[1:])

    states = [torch.cat(s) for s in zip(*entering, strict=True)]
    h = _output(*parts, *states, torch.tensor(eps, dtype=wide, device=q.device))
    h = from_chunks(h.unflatten(0, (len(entering), *batch_heads)).movedim(0, 2), q.shape[2]).to(q.dtype)
    return h, (c.unflatten(0, batch_heads), n.unflatten(0, batch_heads), m.unflatten(0, batch_heads))


def _side_by_side(x: Tensor, chunk_size: int, fill: float = 0.0) -> Tensor:
    """(B, NH, S, ...) -> (NC * B * NH, L, ...). No view: torch.compile would watch its base's sizes too."""
    return torch.cat(to_chunks(x, chunk_size, fill).flatten(0, 1).unbind(1))

# SPDX-License-Identifier: Apache-2.0
"""Arguments for every mLSTM op, to call it directly."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

import xlstm_hip.mlstm.ops  # noqa: F401  loads the op library

FLAGS: dict[str, Any] = {"normalize": True, "eps": 1e-6}


def registered_ops() -> list[str]:
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name.partition("::")[2] for name in names if name.startswith("xlstm_hip::mlstm_"))


def arguments(
    op: str, sigmoid_gate: bool, states: bool, packed: bool, bshd: bool, dtype: torch.dtype, device: str = "cpu"
) -> dict[str, Any]:
    """The arguments of a direct call of the op."""
    b, nh, s, dqk, dhv = (1 if packed else 2), 3, 9, 8, 5
    n = 2 if packed else b
    narrow = partial(torch.randn, dtype=dtype, device=device)
    wide = partial(torch.randn, dtype=torch.promote_types(dtype, torch.float32), device=device)
    flags = FLAGS | {"sigmoid_gate": sigmoid_gate}
    if op.startswith("mlstm_step"):
        token = [narrow(b, nh, x) for x in (dqk, dqk, dhv, 1, 1)]
        c, last, m = wide(b, nh, dqk, dhv), wide(b, nh, dqk), wide(b, nh, 1)
        return dict(zip("qkvif", token, strict=True)) | flags | {"c": c, "n": last, "m": m}

    def tokens(*features: int) -> Tensor:
        return narrow(b, s, nh, *features).transpose(1, 2) if bshd else narrow(b, nh, s, *features)

    tensors: dict[str, Any] = {"q": tokens(dqk), "k": tokens(dqk), "v": tokens(dhv), "i": tokens(), "f": tokens()}
    tensors |= {"cu_seqlens": torch.tensor([0, 4, s], device=device) if packed else None, "bshd": bshd} | flags
    for name, shape in (("c", (dqk, dhv)), ("n", (dqk,)), ("m", (1,))):
        tensors[f"{name}_initial"] = wide(n, nh, *shape) if states else None
        if op.startswith("mlstm_backward"):
            tensors[f"d{name}_last"] = wide(n, nh, *shape) if states else None
    if op.startswith("mlstm_backward"):
        tensors |= {"h": tokens(dhv), "dh": tokens(dhv), "l": wide(b, nh, s), "normalizer_grad": True}
    if op != "mlstm_sequence":
        tensors["chunk_size"] = 4
    return tensors

# SPDX-License-Identifier: Apache-2.0
"""Small models: ours, the official one and transformers', with the same weights, gates that do something included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from xlstm_hip.models import xLSTMLarge, xLSTMLargeConfig

SMALL: dict[str, Any] = {
    "embedding_dim": 128, "num_heads": 4, "num_blocks": 3, "vocab_size": 97, "ffn_proj_factor": 2.0,
    "chunk_size": 16,
}  # fmt: skip
NATIVE = {
    "chunkwise_kernel": "chunkwise--native_autograd",
    "sequence_kernel": "native_sequence__native",
    "step_kernel": "native",
}


def scramble(model: nn.Module, seed: int = 0) -> None:
    """Weights in which every part matters: at the initial ones gates ignore their input."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, x in sorted(model.named_parameters()):
            noise = torch.randn(x.shape, generator=rng).to(x.dtype)
            if x.dim() == 2:
                x.copy_(noise * (2.0 if "gate_preact" in name else 1.0) / x.shape[1] ** 0.5)
            elif name.endswith("norm.weight") or "norm_" in name and name.endswith("weight"):
                x.copy_(1 + 0.2 * noise)
            else:
                x.copy_(noise)
    for name, x in model.named_parameters():
        if name.endswith("fgate_preact.bias"):
            x.data += 3


def small_model(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> xLSTMLarge:
    model = xLSTMLarge(xLSTMLargeConfig(**{**SMALL, **changes}))
    scramble(model, seed)
    return model.to(dtype)


def official(like: xLSTMLarge, **changes: Any) -> nn.Module:
    module = pytest.importorskip("xlstm.xlstm_large.model", reason="the official model comes with the test extra")
    assert module.xLSTMLarge is not xLSTMLarge, "xlstm_hip.compat stands in for it in this process"
    fields = {name: getattr(like.config, name) for name in (*SMALL, "use_bias", "add_out_norm", "weight_mode")}
    # Without return_last_states the official layer fails: it unpacks a state that is not there.
    fields |= {"return_last_states": True, **NATIVE, **changes}
    model = module.xLSTMLarge(module.xLSTMLargeConfig(**fields))
    model.load_state_dict(like.state_dict())
    return model.to(like.embedding.weight.dtype)


def hf_model(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """transformers' own."""
    transformers = pytest.importorskip("transformers")
    fields = {"hidden_size": 128, "num_heads": 4, "num_hidden_layers": 3, "vocab_size": 97, "ffn_proj_factor": 2.0}
    fields |= {"chunk_size": 16, **changes}
    model = transformers.xLSTMForCausalLM(transformers.xLSTMConfig(**fields)).eval()
    scramble(model)
    model.generation_config.eos_token_id = None
    return model.to(dtype)


def at_every_split(model: xLSTMLarge, x: Tensor) -> Iterator[tuple[int, Tensor, Tensor, dict]]:
    """A prompt in two parts: logits, of the second part at once and one by one; behind the latter the state."""
    for split in range(1, x.shape[1]):
        begun, state = model(x[:, :split])
        second_part, _ = model(x[:, split:], {n: tuple(part.clone() for part in layer) for n, layer in state.items()})
        parts = [begun]
        for t in range(split, x.shape[1]):
            logits, state = model(x[:, t : t + 1], state)
            parts.append(logits)
        yield split, torch.cat((begun, second_part), 1), torch.cat(parts, 1), state


def tokens(batch: int, length: int, vocab: int = 97, seed: int = 1) -> Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def relative(x: Tensor, true: Tensor) -> float:
    """The norm of the difference, by that of the truth unless it is zero."""
    return float((x.double() - true.double()).norm() / (true.double().norm() or 1))

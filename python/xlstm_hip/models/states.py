# SPDX-License-Identifier: Apache-2.0
"""Files of recurrent states: what a model has read, of any length, in a file of constant size.

A file is safetensors: c, n and m of each block, and perhaps the logits of the next token and which tokens were seen.
Its metadata says which model made it; another model is refused, because its states mean something else. The hash of its
tensors is compared when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .._core.atomic_files import replacing
from .._version import __version__
from .language_model import LanguageModel, State

FORMAT = "xlstm_hip state 2"
PARTS = ("c", "n", "m")
MODEL_FIELDS = (
    "embedding_dim", "num_blocks", "num_heads", "qk_dim", "v_dim", "vocab_size", "gate",
    "inference_state_dtype",
)  # fmt: skip


class SavedState(NamedTuple):
    """The result of load_state."""

    state: State
    batch_size: int
    logits: Tensor | None  # (B, V) of the next token
    seen: Tensor | None  # (B, V) bool, which tokens each row has seen
    tokens_read: int  # tokens that went in
    notes: dict[str, Any]  # of whoever saved it


def save_state(
    path: str | os.PathLike[str],
    model: LanguageModel,
    state: State,
    *,
    logits: Tensor | None = None,
    seen: Tensor | None = None,
    tokens_read: int = 0,
    notes: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    private: bool = False,
) -> None:
    """Writes a state of the model to a file, which appears whole or not at all. Stream.save calls it with all it has.

    notes    anything that JSON can hold, for the reader
    facts    model_facts(model), from whoever saves many states of a model that does not change
    private  whether its owner alone may read the file
    """
    try:
        notes_text = json.dumps(notes or {})
    except (TypeError, ValueError) as error:
        raise TypeError(f"notes: expected values that JSON can hold: {error}") from None
    tensors: dict[str, Tensor] = {}
    for block in range(model.config.num_blocks):
        layer = state.get(block) if isinstance(state, Mapping) else None
        if not isinstance(layer, tuple | list) or len(layer) != 3 or not all(isinstance(x, Tensor) for x in layer):
            raise ValueError(f"state: expected a model's last state, (c, n, m) of block {block} in it, got {layer!r}")
        tensors |= {f"{block}.{part}": x for part, x in zip(PARTS, layer, strict=True)}
    tensors |= {name: x for name, x in (("logits", logits), ("seen", seen)) if x is not None}
    tensors = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}
    metadata = {
        "format": FORMAT,
        "version": __version__,
        "model": json.dumps(model_facts(model) if facts is None else dict(facts)),
        "tokens_read": str(tokens_read),
        "notes": notes_text,
        "sha256": _hash(tensors),
    }
    try:
        with replacing(Path(path), 0o600 if private else 0o666) as file:
            save_file(tensors, file, metadata)
    except SafetensorError as error:  # a full disk, say, which is no OSError to it
        raise OSError(f"{path}: {error}") from None


def load_state(
    path: str | os.PathLike[str],
    model: LanguageModel,
    facts: Mapping[str, Any] | None = None,
    device: torch.device | None = None,
) -> SavedState:
    """The state in a file of save_state. ValueError if it is no such file, is damaged, or another model made it.

    facts     model_facts(model), as save_state has it
    device    of the tensors. Default: the model's
    """
    file = Path(path)
    device = model.embedding.weight.device if device is None else device
    if not file.is_file():
        raise FileNotFoundError(f"expected a file of a state, got {str(path)!r}")
    try:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError(f"{file}: expected a state that this version saved, got {metadata.get('format')!r}")
            _check_model(file, json.loads(metadata["model"]), dict(facts or model_facts(model)))
            # clone: not the file's own pages, which may change
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
        if _hash(tensors) != metadata["sha256"]:
            raise ValueError(f"{file}: damaged: its tensors have another hash than when they were written")
        tensors = {name: x.to(device) for name, x in tensors.items()}
        blocks = range(model.config.num_blocks)
        state = {n: (tensors[f"{n}.c"], tensors[f"{n}.n"], tensors[f"{n}.m"]) for n in blocks}
        tokens_read, notes = int(metadata["tokens_read"]), json.loads(metadata["notes"])
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{file}: damaged, or no file of a state: {error}") from None
    return SavedState(state, state[0][0].shape[0], tensors.get("logits"), tensors.get("seen"), tokens_read, notes)


def _hash(tensors: Mapping[str, Tensor]) -> str:
    """Of all bytes of the tensors, in the order of their names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def model_facts(model: Any) -> dict[str, Any]:
    """The facts of a model that a state depends on."""
    scheme = model.quantization
    return {name: getattr(model.config, name) for name in MODEL_FIELDS} | {
        "dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
        "bits": None if scheme is None else scheme.bits,
        "weights": weights_mark(model),
    }


def _check_model(file: Path, saved: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in expected | saved:  # facts of one alone, too: who saved may have kept states in another form
        value = expected.get(name)
        if saved.get(name) == value:
            continue
        if name == "weights":
            raise ValueError(f"{file}: expected a state of these weights; other weights of the same shape made it")
        raise ValueError(f"{file}: expected a state of a model with {name} {value}, got {saved.get(name)}")


def weights_mark(model: Any) -> int:
    """A number that tells models with different weights apart, the same for fused and for single ones.

    The sum of the bits of every vector and of every matrix's first column, each as an integer: any row that changes
    changes it, and the order of rows does not.
    """
    total = 0
    for x in model.state_dict().values():
        column = (x if x.dim() < 2 else x.flatten(1)[:, 0]).detach().contiguous()
        bits = column.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[column.element_size()])
        total += int(bits.sum(dtype=torch.int64))
    return total

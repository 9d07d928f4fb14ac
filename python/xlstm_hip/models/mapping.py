# SPDX-License-Identifier: Apache-2.0
"""Mapping of checkpoint tensors to parameters, for any number of blocks.

Checkpoints differ in three ways: transformers has another name for the embedding, weights are single or fused, and a
fused weight is several single ones stacked along the first dimension. So every tensor is treated as a stack of named
parts, and a parameter is assembled from the parts that its name stands for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

HF_EMBEDDING, EMBEDDING = "backbone.embeddings.weight", "embedding.weight"
FUSED = {
    "mlstm_layer.qkv_opreact": ("mlstm_layer.q", "mlstm_layer.k", "mlstm_layer.v", "mlstm_layer.ogate_preact"),
    "mlstm_layer.ifgate_preact": ("mlstm_layer.igate_preact", "mlstm_layer.fgate_preact"),
    "ffn.proj_up_gate_z": ("ffn.proj_up_gate", "ffn.proj_up"),
}
_BLOCK_TENSOR = re.compile(r"(backbone\.blocks\.\d+\.)(.+)\.(weight|bias|qweight|scales|offsets)")
MOST_NAMES = 8  # in one message


class RowRange(NamedTuple):
    """Rows begin to end of a checkpoint tensor."""

    name: str
    begin: int
    end: int


ParameterMapping = dict[str, tuple[RowRange, ...]]
Shapes = Mapping[str, tuple[int, ...]]


class CheckpointError(ValueError):
    """A checkpoint that does not fit its model. The message names the tensor or file."""


def listed(names: Iterable[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _rows(name: str, shapes: Shapes) -> list[tuple[str, int]]:
    """The single weights stacked in a tensor, with the number of rows of each."""
    rows = shapes[name][0] if shapes[name] else 0
    if name == HF_EMBEDDING:
        return [(EMBEDDING, rows)]
    match = _BLOCK_TENSOR.fullmatch(name)
    if match is None or match[2] not in FUSED:
        return [(name, rows)]
    block, module, kind = match.groups()
    parts = FUSED[module]
    if len(parts) == 2:
        sizes = [rows // 2, rows - rows // 2]
    else:
        # q and k are as wide as each other, v and the output gate too; the norm after the mLSTM is as wide as v.
        norm = shapes.get(f"{block}mlstm_layer.multihead_norm.weight")
        if norm is None:
            raise CheckpointError(f"{block}mlstm_layer.multihead_norm.weight: missing; {name} cannot be split without")
        v = norm[0] if len(norm) == 1 else 0
        if v < 1:
            raise CheckpointError(f"{block}mlstm_layer.multihead_norm.weight: expected shape (v_dim,), got {norm}")
        qk = rows // 2 - v
        if qk < 1 or 2 * (qk + v) != rows:
            raise CheckpointError(f"{name}: expected an even number of rows above {2 * v}, got {rows}")
        sizes = [qk, qk, v, v]
    return [(f"{block}{part}.{kind}", size) for part, size in zip(parts, sizes, strict=True)]


def map_shapes(checkpoint: Shapes, model: Shapes) -> ParameterMapping:
    """create_piece_mapping, on shapes only."""
    slices: dict[str, RowRange] = {}
    for name in checkpoint:
        begin = 0
        for single, size in _rows(name, checkpoint):
            if single in slices:
                raise CheckpointError(f"{single}: stored twice, as {slices[single].name} and as {name}")
            slices[single] = RowRange(name, begin, begin + size)
            begin += size
    singles_of = {name: [single for single, _ in _rows(name, model)] for name in model}
    missing = {name for name, singles in singles_of.items() if any(single not in slices for single in singles)}
    if missing:
        raise CheckpointError(f"missing from the checkpoint: {listed(missing)}")
    used = {single for singles in singles_of.values() for single in singles}
    extra = {part.name for single, part in slices.items() if single not in used}
    if extra:
        raise CheckpointError(f"in the checkpoint but not in the model: {listed(extra)}")
    mapping = {name: tuple(slices[single] for single in singles) for name, singles in singles_of.items()}
    for name, sources in mapping.items():
        _check_shape(name, sources, checkpoint, model)
    return mapping


def _check_shape(name: str, sources: tuple[RowRange, ...], checkpoint: Shapes, model: Shapes) -> None:
    sizes = [size for _, size in _rows(name, model)]
    for part, size in zip(sources, sizes, strict=True):
        actual = (part.end - part.begin, *checkpoint[part.name][1:])
        want = (size, *model[name][1:])
        if actual != want:
            complete = part.begin == 0 and actual == checkpoint[part.name]
            rows = "" if complete else f" in rows {part.begin} to {part.end}"
            raise CheckpointError(f"{part.name}: expected shape {want} for {name}, got {actual}{rows}")


def create_parameter_mapping(hf_state_dict: Mapping[str, Any], model_state_dict: Mapping[str, Any]) -> dict[str, str]:
    """For each parameter of the model, the name of the checkpoint's tensor that it is.

    Both may have the names of transformers or of xlstm_large; values need a `shape`. A parameter that is missing,
    duplicate, misshapen or unexpected raises a CheckpointError that names it, and so does one that is several tensors,
    or a part of one, because one side has fused weights: create_piece_mapping has those, too.
    """
    names = {}
    for name, slices in create_piece_mapping(hf_state_dict, model_state_dict).items():
        source, part = slices[0].name, None
        begin, end, rows = slices[0].begin, slices[-1].end, [*hf_state_dict[slices[0].name].shape, 0][0]
        if any(before._replace(begin=before.end, end=after.end) != after for before, after in pairwise(slices)):
            part = f"consists of {listed(slice_.name for slice_ in slices)}"
        elif (begin, end) != (0, rows):
            part = f"is rows {begin} to {end} of {source}"
        if part is not None:
            raise CheckpointError(f"{name}: expected a tensor of its own, but it {part}; use create_piece_mapping")
        names[name] = source
    return names


def create_piece_mapping(hf_state_dict: Mapping[str, Any], model_state_dict: Mapping[str, Any]) -> ParameterMapping:
    """For each parameter of the model, the parts of checkpoint tensors that it consists of, in order.

    As create_parameter_mapping, but either side may have single or fused weights.
    """
    shapes = []
    for name, tensors in (("hf_state_dict", hf_state_dict), ("model_state_dict", model_state_dict)):
        if not isinstance(tensors, Mapping):
            raise TypeError(f"{name}: expected a dict of tensors by name, got {type(tensors).__name__}")
        for key, x in tensors.items():
            if not isinstance(key, str) or not hasattr(x, "shape"):
                raise TypeError(f"{name}: expected tensors by name, got {type(x).__name__} as {key!r}")
        shapes.append({key: tuple(x.shape) for key, x in tensors.items()})
    return map_shapes(*shapes)


def hf_names(model_names: Iterable[str]) -> dict[str, str]:
    """Maps the model's names to those of transformers."""
    return {name: HF_EMBEDDING if name == EMBEDDING else name for name in model_names}

# SPDX-License-Identifier: Apache-2.0
"""Reads and writes models as safetensors checkpoints of transformers and of xlstm_large.

`make` is the class xLSTMLarge, which has this as from_pretrained and save_pretrained, or one derived from it.

Names, shapes and dtypes in the headers and the lengths of the files are checked before the first weight is read.
Weights are then read one at a time.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from .._core.checks import IO_DTYPES, by_name, one_of, positive_int
from .._core.device import available_device
from .._core.progress import Progress
from ..distributed import divided
from ..mlstm.select import get_optimal_kernel_config
from .config import AUTO, KERNEL_OPTIONS, WEIGHT_MODES, xLSTMLargeConfig
from .config_files import FIELDS, other_config, read_config, read_scheme, write_json, write_yaml
from .hub import as_path, called, checkpoint_folder
from .mapping import EMBEDDING, CheckpointError, ParameterMapping, RowRange, hf_names, map_shapes
from .quantize import SCALE_DTYPES, STORED, Scheme, quantizable, replaced
from .shards import INDEX, SINGLE, Stored, checkpoint_files, find_tensors
from .staging import Staging, Target

SCHEMES = ("hf", "xlstm_large")
DTYPES = by_name(IO_DTYPES)

logger = logging.getLogger("xlstm_hip")
Model = TypeVar("Model", bound=nn.Module)


def read_model(
    make: Callable[[xLSTMLargeConfig], Model],
    path: str | os.PathLike[str],
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
    weight_mode: str = "single",
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    progress: bool = True,
    tp_mesh: Any = None,
    **changes: Any,
) -> Model:
    """load_pretrained (pretrained.py), which says what the arguments are, for this class."""
    by_default, dtype = dtype is None, _dtype_of(dtype)
    one_of("weight_mode", weight_mode, WEIGHT_MODES)
    unknown = sorted(changes.keys() - {*FIELDS, *KERNEL_OPTIONS})
    if unknown:
        raise TypeError(f"load_pretrained: unexpected keyword argument {', '.join(map(repr, unknown))}")
    device = available_device("device", device)
    if device.type == "meta":
        raise ValueError("device: expected one that has memory for the weights, got meta")
    if tp_mesh is not None and getattr(tp_mesh, "device_type", device.type) != device.type:
        raise ValueError(f"tp_mesh: expected a mesh of {device.type}, as device says, got one of {tp_mesh.device_type}")
    folder = checkpoint_folder(
        "path",
        path,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        progress=progress,
    )
    kernel = changes.get("chunkwise_kernel", AUTO)
    config, tokens = read_config(folder, with_gate_of_kernel=kernel == AUTO)
    if config.gate != "exp" and "chunkwise_kernel" in changes and kernel == AUTO:
        raise ValueError("chunkwise_kernel: 'auto' has the exponential input gate, and this checkpoint the sigmoid one")
    config = dataclasses.replace(config, weight_mode=weight_mode, **changes)
    head_dim = max(config.qk_dim, config.v_dim) // config.num_heads
    kernels = get_optimal_kernel_config(1, 1, head_dim, device=device, gate=config.gate)
    for name, kernel in kernels.items():
        if name not in changes:
            setattr(config, name, kernel)

    stored = find_tensors(folder)
    model: Any = _empty(make, config, read_scheme(folder))
    weights = model.state_dict()
    mapping = map_shapes(
        {name: x.shape for name, x in stored.items()}, {name: tuple(x.shape) for name, x in weights.items()}
    )
    _check_dtypes(mapping, stored, weights)
    if by_default:
        dtype = default_dtype({x.dtype for name, x in stored.items() if not _is_quantised(name)}, device)
        if dtype is not None:
            logger.warning(
                '%s is in float32 and is loaded in bfloat16; dtype="auto" (--dtype auto) keeps float32', called(folder)
            )
    if tp_mesh is not None:
        from ..distributed import tensor_parallel

        tensor_parallel(model, tp_mesh)
    total = sum(
        divided.own(x).numel() * stored[mapping[name][0].name].dtype.itemsize for name, x in model.state_dict().items()
    )
    with Progress(f"loading {called(folder)}", total / 1e9, "GB", enabled=progress) as bar:
        _fill(model, mapping, stored, dtype, device, bar)
    model.special_tokens = tokens
    return model.eval()


def default_dtype(stored: set[torch.dtype], device: torch.device) -> torch.dtype | None:
    """The dtype in which a checkpoint of these dtypes is loaded, None for its own dtype. On a GPU it is bfloat16
    instead of float32, which has no gain for twice the memory and half the speed.
    """
    return torch.bfloat16 if device.type == "cuda" and stored == {torch.float32} else None


def _dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or dtype == "auto":
        return None
    named = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if named not in IO_DTYPES:
        raise ValueError(f"dtype: expected a torch.dtype or a name, one of auto, {', '.join(DTYPES)}, got {dtype!r}")
    return named


def _empty(make: Callable[[xLSTMLargeConfig], nn.Module], config: xLSTMLargeConfig, scheme: Scheme | None) -> Any:
    """A model on the meta device: shapes without weights."""
    with torch.device("meta"):
        model: Any = make(config)
        if scheme is not None:
            for name, layer in quantizable(model, scheme):
                replaced(model, name, layer, scheme)
    model.quantization = scheme
    return model


def _is_quantised(name: str) -> bool:
    """Whether a name is that of a quantised weight, its scales or offsets, whose dtypes are part of what they say."""
    return name.rpartition(".")[2] in STORED


def _check_dtypes(mapping: ParameterMapping, stored: dict[str, Stored], weights: dict[str, Tensor]) -> None:
    for name, slices in mapping.items():
        for part in slices:
            actual = stored[part.name].dtype
            if actual != weights[name].dtype if _is_quantised(name) else actual not in IO_DTYPES:
                want = str(weights[name].dtype).removeprefix("torch.") if _is_quantised(name) else "a dtype of floats"
                raise CheckpointError(f"{part.name}: expected {want}, got {str(actual).removeprefix('torch.')}")


def _fill(
    model: nn.Module,
    mapping: ParameterMapping,
    stored: dict[str, Stored],
    dtype: torch.dtype | None,
    device: torch.device,
    bar: Progress,
) -> None:
    """Allocates a parameter when the first of its parts is read. What this rank has of the checkpoint is read once."""
    weights, parts = model.state_dict(keep_vars=True), dict(divided.parts_of(model))
    own = {name: tuple(divided.own(x).shape) for name, x in weights.items()}
    parameters: dict[str, Tensor] = {}
    targets_of: dict[str, list[tuple[str, int, RowRange]]] = {}  # of a source: the parameter, its row, and the rows
    for name in weights:
        row, (first, last) = 0, parts[name].rows if name in parts else (0, sum(p.end - p.begin for p in mapping[name]))
        for part in mapping[name]:
            begin, end = max(first, row), min(last, row + part.end - part.begin)
            if begin < end:
                rows = RowRange(part.name, begin - row + part.begin, end - row + part.begin)
                targets_of.setdefault(part.name, []).append((name, begin - first, rows))
            row += part.end - part.begin
    staging = Staging(device, stored.values())  # for what is converted, taken apart or moved to another device
    advance = lambda count: bar.advance(count / 1e9)  # noqa: E731
    for source in sorted(targets_of, key=lambda name: (str(stored[name].file), stored[name].offset)):
        tensor, targets = stored[source], []
        for name, row, rows in targets_of[source]:
            if name not in parameters:
                load_dtype = None if _is_quantised(name) else dtype
                parameters[name] = torch.empty(own[name], dtype=load_dtype or tensor.dtype, device=device)
            memory = parameters[name][row : row + rows.end - rows.begin]
            targets.append(Target(memory, rows.begin, parts[name].columns if name in parts else None))
        only = targets[0].memory
        if len(targets) == 1 and only.device.type == "cpu" and only.dtype == tensor.dtype:
            tensor.read_into(only, targets[0].begin, targets[0].columns)
            advance(only.numel() * only.element_size())
        else:
            staging.bring(tensor, targets, advance)
    staging.finish()
    for name, value in parameters.items():
        parent, _, leaf = name.rpartition(".")
        value = divided.as_part_of(weights[name], value)
        setattr(model.get_submodule(parent), leaf, value if _is_quantised(name) else nn.Parameter(value))


def check_scheme(model: Any, scheme: str) -> None:
    """Raises if a checkpoint of this scheme cannot store the model; the error says what it cannot store."""
    one_of("scheme", scheme, SCHEMES)
    if scheme != "hf":
        if model.quantization is not None:
            raise ValueError(
                f"scheme: the official xlstm_large reads no quantised weights; expected 'hf', got {scheme!r}"
            )
        return
    config = model.config
    for name, needed in (("add_out_norm", True), ("use_bias", False)):
        if getattr(config, name) is not needed:
            raise ValueError(f"scheme: transformers' model needs {name}={needed}, got {not needed}")
    for name in ("gate_soft_cap", "output_logit_soft_cap"):
        if getattr(config, name) is None:
            raise ValueError(f"scheme: transformers' model needs {name} to be a number, got None")
    if config.gate != "exp":
        raise ValueError(
            f"scheme: transformers' model only has the exponential input gate, got {config.chunkwise_kernel!r}; "
            "expected 'xlstm_large'"
        )


def write_model(
    make: Callable[[xLSTMLargeConfig], nn.Module],
    model: Any,
    path: str | os.PathLike[str],
    scheme: str = "hf",
    weight_mode: str | None = None,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """save_pretrained (pretrained.py), which says what the arguments are. make: as the model reads its weights back."""
    weights = model.state_dict()
    if not any(divided.is_divided(x) for x in weights.values()):
        _write(make, model, weights, path, scheme, weight_mode, max_shard_bytes)
        return
    if model.quantization is not None:
        raise ValueError("model: expected weights that are not quantised, or that are saved before ranks divide them")
    weights = divided.on_first_rank(weights)
    divided.run_on_first_rank(lambda: _write(make, model, weights, path, scheme, weight_mode, max_shard_bytes))


def _write(
    make: Callable[[xLSTMLargeConfig], nn.Module],
    model: Any,
    weights: dict[str, Tensor],
    path: str | os.PathLike[str],
    scheme: str,
    weight_mode: str | None,
    max_shard_bytes: int,
) -> None:
    check_scheme(model, scheme)
    positive_int("max_shard_bytes", max_shard_bytes)
    config = model.config
    weight_mode = config.weight_mode if weight_mode is None else weight_mode
    one_of("weight_mode", weight_mode, WEIGHT_MODES)
    scheme_of_weights = model.quantization
    folder = as_path("path", path)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"path: expected a folder, got the file {str(path)!r}")
    stale_config = other_config(folder, scheme)
    config = xLSTMLargeConfig(**{name: getattr(config, name) for name in FIELDS} | {"weight_mode": weight_mode})
    if scheme_of_weights is not None:  # scales that model.float(), say, made wider
        scale_dtype = SCALE_DTYPES[scheme_of_weights.scale_dtype]
        weights = {
            name: x.to(scale_dtype) if name.endswith((".scales", ".offsets")) else x for name, x in weights.items()
        }
    shapes = {name: tuple(x.shape) for name, x in _empty(make, config, scheme_of_weights).state_dict().items()}
    mapping = map_shapes({name: tuple(x.shape) for name, x in weights.items()}, shapes)
    names = hf_names(mapping) if scheme == "hf" else {name: name for name in mapping}
    shards = _shards(mapping, shapes, weights, max_shard_bytes)
    files = _file_names(scheme, len(shards))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as name_of_beside:
        beside = Path(name_of_beside)
        for file, shard in zip(files, shards, strict=True):
            tensors = {names[name]: _assembled(mapping[name], weights) for name in shard}
            save_tensors(tensors, beside / file, folder, metadata={"format": "pt"})
        if scheme == "hf":
            if len(shards) > 1:
                file_of = {names[name]: file for file, shard in zip(files, shards, strict=True) for name in shard}
                size = sum(x.numel() * x.element_size() for x in weights.values())
                index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(file_of.items()))}
                (beside / INDEX).write_text(json.dumps(index, indent=2) + "\n")
            dtype = str(weights[EMBEDDING].dtype).removeprefix("torch.")
            write_json(beside, config, model.special_tokens, dtype, scheme_of_weights)
        else:
            write_yaml(beside, config)
        _move_into_place(beside, folder, stale_config)


def save_tensors(
    tensors: dict[str, Tensor], file: Path, final_path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Errors name `final_path`: `file` may be a temporary one."""
    file.touch()
    mode = file.stat().st_mode  # what the umask allows; safetensors lets the owner alone read
    try:
        save_file(tensors, file, metadata=metadata)
        file.chmod(mode)
    except SafetensorError as error:  # a full disk, say, which is no OSError to it
        raise OSError(f"{final_path}: {error}") from None


def _move_into_place(beside: Path, folder: Path, stale_config: str | None) -> None:
    """Replaces the old checkpoint by the new one and removes what is left of the old."""
    new = sorted(file.name for file in beside.iterdir())
    for name in new:
        with open(beside / name, "rb+") as file:
            os.fsync(file.fileno())
    old = checkpoint_files(folder) | ({stale_config} if stale_config is not None else set())
    for name in new:
        os.replace(beside / name, folder / name)
    for name in old.difference(new):
        (folder / name).unlink()


def _assembled(slices: tuple[RowRange, ...], weights: dict[str, Tensor]) -> Tensor:
    parts = [weights[part.name][part.begin : part.end].detach().cpu() for part in slices]
    return torch.cat(parts) if len(parts) > 1 else parts[0].clone()  # a slice would be saved with all of its storage


def _shards(
    mapping: ParameterMapping, shapes: dict[str, tuple[int, ...]], weights: dict[str, Tensor], most: int
) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, slices in mapping.items():
        size = torch.Size(shapes[name]).numel() * weights[slices[0].name].element_size()
        if shards[-1] and filled + size > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _file_names(scheme: str, count: int) -> list[str]:
    if count == 1:
        return [SINGLE]
    if scheme == "hf":
        return [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
    return [f"model_{n}.safetensors" for n in range(count)]

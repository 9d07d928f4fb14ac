# SPDX-License-Identifier: Apache-2.0
"""load_pretrained and save_pretrained."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from .checkpoint import read_model
from .xlstm_large import xLSTMLarge

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def load_pretrained(
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
    tp_mesh: DeviceMesh | None = None,
    **changes: Any,
) -> xLSTMLarge:
    """The model of a checkpoint that transformers or the official xlstm_large wrote, for inference.

    path           its folder, or the name of a model on the Hugging Face hub, which is downloaded once (needs
                   huggingface_hub, of the extra "hf"). A folder of that name comes first
    dtype          of the weights, a torch.dtype or its name, or "auto": that of the checkpoint. By default "auto", but
                   bfloat16 on a GPU for a checkpoint of float32, with a line that says so
    weight_mode    "single" or "fused", whatever the checkpoint has
    revision       of a model on the hub: a branch, a tag or a commit; with a folder an error
    token          for private and gated models; default: the one of HF_TOKEN or of `hf auth login`
    cache_dir      where downloads are kept; default: the hub's own cache
    local_files_only  takes a model of the hub from the cache, and asks nobody
    progress       shows a bar, or a line now and then, on stderr
    tp_mesh        divides the model over the ranks of a mesh, as distributed.tensor_parallel does; each reads only its
                   part of the files
    changes        fields of xLSTMLargeConfig to set otherwise. Default: mode="inference", return_last_states=True, and
                   the best kernels for the device with the input gate of the kernel that the checkpoint names; a
                   chunkwise_kernel given here decides the gate itself

    Host memory beyond the model is two buffers of 16 MiB at the most, or of a row. A checkpoint that does not fit is a
    CheckpointError which names the tensor or the file, before anything is read.
    """
    return read_model(
        xLSTMLarge, path, dtype, device, weight_mode,
        revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only, progress=progress,
        tp_mesh=tp_mesh, **changes,
    )  # fmt: skip


def save_pretrained(
    model: xLSTMLarge,
    path: str | os.PathLike[str],
    scheme: str = "hf",
    weight_mode: str | None = None,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes the model as transformers ("hf") or the official xlstm_large reads it.

    weight_mode: "single" or "fused"; default the model's. The official loader and transformers' own
    read single weights alone.
    A checkpoint that is in the folder stays whole until all of the new one is written, then it gives way to it; other
    files stay. A model that is divided over ranks is written by rank 0, while all ranks make the call.
    """
    if not isinstance(model, xLSTMLarge):
        raise TypeError(f"model: expected an xLSTMLarge, got {type(model).__name__}")
    model.save_pretrained(path, scheme, weight_mode, max_shard_bytes)


__all__ = ["load_pretrained", "save_pretrained"]

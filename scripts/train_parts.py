# SPDX-License-Identifier: Apache-2.0
"""Parts of scripts/train.py: windows of bytes, models over processes, and checkpoints that resume exactly.

A batch depends only on the seed and the step, and ranks share its rows, or the bytes of each row. A run that is
resumed, or that has another number of processes, therefore sees the same data, and no reader state has to be saved.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import CheckpointException, load, save

from xlstm_hip.distributed import ContextParallel, tensor_parallel
from xlstm_hip.distributed.divided import whole
from xlstm_hip.models import save_pretrained, xLSTMLarge

BYTE_VALUES = 256
BOS, END = 0, 2  # bytes 0, 1 and 2 occur in no text: they are BOS, padding and end, as transformers' defaults have it
OPTIMIZER, PROGRESS_FILE = "optimizer", "training.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
PARALLEL = ("ddp", "fsdp")


def bytes_of_files(files: Sequence[str]) -> bytes:
    return b"".join(Path(file).read_bytes() for file in files)


def bytes_of_dataset(name: str, split: str, column: str) -> bytes:
    """The texts of a dataset of the Hugging Face hub, or of a folder of text, JSON, CSV or Parquet files, each with END
    behind it."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise ValueError("dataset: expected the package datasets (pip install datasets), which is not there") from None
    try:
        rows = load_dataset(name, split=split)
    except Exception as error:  # of a file, a network, a name or a split
        raise ValueError(f"dataset: cannot load {name!r}, split {split!r}: {error}") from error
    if column not in rows.column_names:
        raise ValueError(f"column: expected one of {', '.join(rows.column_names)} of {name!r}, got {column!r}")
    texts = rows[column]
    wrong = next((type(text).__name__ for text in texts if not isinstance(text, str)), None)
    if wrong is not None:
        raise ValueError(f"column: expected one of texts, got {column!r}, which has a {wrong}")
    return b"".join(text.encode() + bytes([END]) for text in texts)


class ByteWindows:
    """Random windows of some bytes. Their last part is kept for validation."""

    def __init__(self, data: bytes, length: int, validation: float) -> None:
        text = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        held_out = max(length + 1, int(len(text) * validation))
        if len(text) < held_out + length + 1:
            raise ValueError(
                f"data: expected at least {held_out + length + 1} bytes for windows of {length}, got {len(text)}"
            )
        self.length, self.text, self.held_out = length, text[:-held_out], text[-held_out:]

    def batch(self, seed: int, step: int, rows: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
        """This rank's rows of a step: tokens, and the token after each. A window begins with BOS."""
        rng = torch.Generator().manual_seed(seed * 1_000_003 + step)
        begins = torch.randint(len(self.text) - self.length + 1, (rows,), generator=rng)
        return self._windows(self.text, begins[rank::ranks])

    def validation(self, rows: int) -> tuple[Tensor, Tensor]:
        """The same validation rows every time, spread over the held-out bytes."""
        return self._windows(self.held_out, torch.linspace(0, len(self.held_out) - self.length, rows).long())

    def _windows(self, text: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        targets = torch.stack([text[b : b + self.length] for b in begins.tolist()]).long()
        return torch.cat((torch.full_like(targets[:, :1], BOS), targets[:, :-1]), dim=1), targets


def flops_of_token(model: xLSTMLarge) -> int:
    """Of a training step: three passes of two for each weight of a product, and of four for each number of C."""
    config = model.config
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2) - model.embedding.weight.numel()
    c = config.num_blocks * config.qk_dim * config.v_dim // config.num_heads
    return 3 * (2 * weights + 4 * c)


class Speed:
    """Tokens a second of the last steps, and their part of what the devices' matrix products reach (MFU)."""

    KEPT = 0.9  # of the mean, by each step

    def __init__(self, tokens: int, flops: int, flops_per_second: float | None) -> None:
        self.tokens, self.flops, self.flops_per_second = tokens, flops, flops_per_second  # of a step; of all devices
        self._seconds = 0.0

    def note(self, seconds: float) -> None:
        """The first step is not like the others: it makes the optimizer's state."""
        kept = self.KEPT if self._seconds else 0.0
        self._seconds = kept * self._seconds + (1 - kept) * seconds

    def __str__(self) -> str:
        text = f"{self.tokens / self._seconds:,.0f} tokens/s"
        if self.flops_per_second is None:
            return text
        return f"{text}, MFU {self.flops / self._seconds / self.flops_per_second:.0%}"


class Ranks(NamedTuple):
    """The processes as a mesh: windows over `data_ranks`, the bytes of each over `context_ranks`, and of each of these
    the model over `tensor_ranks` next to each other."""

    data: int = 0
    data_ranks: int = 1
    context: int = 0
    context_ranks: int = 1
    group: Any = None  # those that share this rank's windows
    tensor_ranks: int = 1
    mesh: Any = None  # (shards, tensor): over the first FSDP divides what the second leaves

    @classmethod
    def of_processes(cls, context_ranks: int, tensor_ranks: int, device: torch.device) -> Ranks:
        if not dist.is_initialized():
            return cls()
        from torch.distributed.device_mesh import init_device_mesh

        shards = dist.get_world_size() // tensor_ranks
        data_ranks = shards // context_ranks
        of_rows = init_device_mesh(
            device.type, (data_ranks, context_ranks, tensor_ranks), mesh_dim_names=("data", "context", "tensor")
        )
        data, context = (of_rows.get_local_rank(name) for name in ("data", "context"))
        mesh = init_device_mesh(device.type, (shards, tensor_ranks), mesh_dim_names=("shards", "tensor"))
        return cls(data, data_ranks, context, context_ranks, of_rows.get_group("context"), tensor_ranks, mesh)

    def own(self, rows: Tensor) -> Tensor:
        """This rank's part of each window (B, S)."""
        return rows.tensor_split(self.context_ranks, dim=1)[self.context]


class LossOf(nn.Module):
    """The loss of this rank's part of the windows as a module's forward, as DDP and FSDP require."""

    def __init__(self, model: xLSTMLarge, ranks: Ranks, length: int) -> None:
        super().__init__()
        self.model, self.ranks = model, ranks
        self.context = None
        if ranks.context_ranks > 1:
            self.context = ContextParallel(ranks.group, ranks.own(torch.empty(1, length)).shape[1])

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        loss = self.model.loss(x, targets, cp_group=self.context)
        # DDP and FSDP take the mean of the gradients of all ranks; those of a window's ranks are to be added up.
        times = self.ranks.context_ranks
        return loss if times == 1 else times * loss - (times - 1) * loss.detach()


def in_parallel(model: xLSTMLarge, how: str, ranks: Ranks, length: int, device: torch.device) -> nn.Module:
    """A model's loss over the processes of torchrun; with one process, the loss of the model itself."""
    if ranks.tensor_ranks > 1:
        tokens = ranks.own(torch.empty(1, length)).shape[1]
        tensor_parallel(model, ranks.mesh["tensor"], sequence_parallel=tokens % ranks.tensor_ranks == 0)
    loss = LossOf(model, ranks, length)
    if not dist.is_initialized() or dist.get_world_size() == ranks.tensor_ranks > 1:
        return loss
    if how == "ddp":
        ids = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(loss, device_ids=ids)
    from torch.distributed.fsdp import fully_shard

    for block in model.backbone.blocks:
        fully_shard(block, mesh=ranks.mesh["shards"])
    fully_shard(loss, mesh=ranks.mesh["shards"])
    return loss


def spread_again(loss: nn.Module) -> None:
    """Reshards after losses without a backward pass. Until then FSDP's outermost module keeps its weights gathered:
    they are not the parameters that the optimizer knows, and a checkpoint would lack their moments.
    """
    reshard = getattr(loss, "reshard", None)
    if reshard is not None:
        reshard()


def make_optimizer(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW, with weight decay on matrices but not on norms, biases and the embedding."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and not n.endswith("embedding.weight")]
    chosen = {id(p) for p in matrices}
    without_decay = [p for p in model.parameters() if id(p) not in chosen]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": without_decay, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def learning_rate(step: int, steps: int, warmup: int, highest: float) -> float:
    """Linear warm-up, then cosine decay to a tenth."""
    if step < warmup:
        return highest * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return highest * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


# ---- checkpoints


def moments_of(model: xLSTMLarge, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    stepped = model.named_parameters() if optimizer.state else ()
    return {f"{moment}.{name}": optimizer.state[p][moment] for name, p in stepped for moment in MOMENTS}


def save_checkpoint(
    folder: Path, model: xLSTMLarge, optimizer: torch.optim.Optimizer, progress: dict[str, Any]
) -> None:
    """Saves the model in transformers' format, the optimizer's moments by torch.distributed.checkpoint, each process
    its own, and `progress` as JSON. They are written to a temporary folder and then renamed, so a checkpoint is always
    complete.
    """
    first = not dist.is_initialized() or dist.get_rank() == 0
    unfinished = folder.with_name(folder.name + ".unfinished")
    if first:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    weights: dict[str, Tensor] = {}
    for name, p in model.named_parameters():
        full = whole(p.detach())
        if first:
            weights[name] = full.cpu()
    if dist.is_initialized():
        dist.barrier()  # the folder is there
    try:
        with _quiet():
            save(moments_of(model, optimizer), checkpoint_id=unfinished / OPTIMIZER, no_dist=not dist.is_initialized())
    except (Exception, CheckpointException) as error:
        raise OSError(f"{unfinished / OPTIMIZER}: cannot be written: {_why(error)}") from None
    if first:
        with torch.device("meta"):
            full_model = xLSTMLarge(model.config)
        full_model.load_state_dict(weights, assign=True)
        save_pretrained(full_model, unfinished)
        (unfinished / PROGRESS_FILE).write_text(json.dumps(progress, indent=2) + "\n")
        if folder.exists():  # of an earlier run into the same output
            shutil.rmtree(folder)
        os.replace(unfinished, folder)
    if dist.is_initialized():
        dist.barrier()


def _quiet() -> Any:
    """Without what torch says of its own deprecated parts."""
    return warnings.catch_warnings(action="ignore", category=FutureWarning)


def _why(error: BaseException) -> str:
    """In a line, of the first rank that failed: torch puts the stacks of all ranks into a message."""
    failures = getattr(error, "failures", None)
    first = next(iter(failures.values()))[0] if failures else error
    return str(first).strip().splitlines()[0] if str(first).strip() else type(first).__name__


def read_progress(folder: Path) -> dict[str, Any]:
    return json.loads((folder / PROGRESS_FILE).read_text())


def read_moments(folder: Path, parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The moments of these parameters, of each as much as this process has of it."""
    if not (folder / OPTIMIZER / ".metadata").is_file():  # of which torch would log a stack
        raise ValueError(
            f"{folder / OPTIMIZER}: cannot be read: no .metadata, as torch.distributed.checkpoint writes it"
        )
    moments = {f"{moment}.{name}": torch.zeros_like(p.detach()) for name, p in parameters for moment in MOMENTS}
    try:
        with _quiet():
            load(moments, checkpoint_id=folder / OPTIMIZER, no_dist=not dist.is_initialized())
    except (Exception, CheckpointException) as error:  # of a file that is missing, cut off, or has other tensors
        raise ValueError(f"{folder / OPTIMIZER}: cannot be read: {_why(error)}") from None
    return moments


def load_optimizer(folder: Path, model: xLSTMLarge, optimizer: torch.optim.Optimizer, step: int) -> None:
    moments = read_moments(folder, model.named_parameters())
    for name, p in model.named_parameters():
        optimizer.state[p] = {moment: moments[f"{moment}.{name}"] for moment in MOMENTS}
        optimizer.state[p]["step"] = torch.tensor(float(step))


def gradient_norm(parameters: Iterable[nn.Parameter], most: float) -> float:
    """Clips the gradients together to a norm of `most`. Returns the norm before."""
    return float(whole(nn.utils.clip_grad_norm_(list(parameters), most)))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a byte-level xLSTM on text files, on one process or, under torchrun, on many.

  python scripts/train.py book.txt --output runs/book
  python scripts/train.py --dataset roneneldan/TinyStories --output runs/stories
  torchrun --nproc-per-node 8 scripts/train.py book.txt --output runs/book --parallel fsdp --amp bfloat16
  torchrun --nproc-per-node 8 scripts/train.py book.txt --output runs/book --context 4 --length 65536 --batch 2
  torchrun --nproc-per-node 8 scripts/train.py book.txt --output runs/book --tensor 2 --parallel fsdp --batch 4
  python scripts/train.py --resume runs/book/step-500 --output runs/book

Checkpoints are folders that transformers and xlstm_hip.models.load_pretrained read. A resumed run continues exactly.
MFU is the part of what a large matrix product reaches on the same device, measured at the start.
"""

from __future__ import annotations

import argparse
import csv
import gc
import importlib
import importlib.util
import math
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import train_parts as parts
from xlstm_hip._core.progress import Progress
from xlstm_hip.bench.machine import Machine, matmul_rate
from xlstm_hip.cli.common import NOT_NEGATIVE, POSITIVE, at_least, number
from xlstm_hip.distributed.collectives import gathered
from xlstm_hip.models import CheckpointError, load_pretrained, xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.models.checkpoint import check_scheme
from xlstm_hip.models.config_files import read_config

AMP = {"off": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
PER_RUN = ("output", "resume", "threads", "context", "tensor")  # never taken from the checkpoint that is resumed
# The shape of a checkpoint's model, by the options that set it for a new model.
SHAPE = {"dim": "embedding_dim", "heads": "num_heads", "blocks": "num_blocks", "ffn_factor": "ffn_proj_factor"}
NORM_CLIP = 1.0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Trains a byte-level xLSTM on text files.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("data", nargs="*", type=str, help="text files")
    add("--output", type=Path, required=True, help="folder for checkpoints, losses.csv and losses.png")
    add("--resume", type=Path, help="checkpoint to continue; its settings apply where no option is given")
    add("--init", type=str, help="checkpoint whose weights to start from, instead of new ones")
    add("--dataset", type=str, help="instead of files: a dataset's name on the Hugging Face hub, or a folder of one")
    add("--split", type=str, default="train", help="of the dataset")
    add("--column", type=str, default="text", help="of the dataset")
    model = parser.add_argument_group("a new model")
    model.add_argument("--dim", type=at_least(1), default=128)
    model.add_argument("--heads", type=at_least(1), default=4)
    model.add_argument("--blocks", type=at_least(1), default=4)
    model.add_argument("--ffn-factor", type=POSITIVE, default=2.667)
    run = parser.add_argument_group("training")
    run.add_argument("--steps", type=at_least(1), default=1000)
    run.add_argument("--batch", type=at_least(1), default=16, help="windows of a step, over all processes")
    run.add_argument("--length", type=at_least(1), default=256, help="bytes of a window")
    run.add_argument("--lr", type=POSITIVE, default=3e-3)
    run.add_argument("--warmup", type=at_least(0), default=50, help="steps")
    run.add_argument("--weight-decay", type=NOT_NEGATIVE, default=0.1)
    run.add_argument("--seed", type=at_least(0, 2**32 - 1), default=0)
    run.add_argument("--amp", choices=AMP, default="off", help="autocast to this dtype")
    run.add_argument("--checkpoint-activations", action="store_true", help="less memory, a second forward pass")
    run.add_argument("--parallel", choices=parts.PARALLEL, default="ddp", help="under torchrun")
    run.add_argument("--context", type=at_least(1), default=1, help="processes that share the bytes of a window")
    run.add_argument("--tensor", type=at_least(1), default=1, help="processes that share the weights: heads, features")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    run.add_argument("--threads", type=at_least(1), help="of a process, on the CPU")
    run.add_argument("--save-every", type=at_least(1), default=500, help="steps; the last one is always saved")
    run.add_argument("--validate-every", type=at_least(1), default=100, help="steps")
    run.add_argument(
        "--validation",
        type=number("a number from 0 to below 1", lambda x: 0 <= x < 1),
        default=0.02,
        help="part of the data to hold out, its end",
    )
    return parser


def settings_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Defaults, over them those of a resumed checkpoint, over them what was given on the command line; of the model's
    shape those of the checkpoint whose weights it has, which nothing on the command line may contradict."""
    args = parser.parse_args()
    if args.parallel == "fsdp" and "WORLD_SIZE" not in os.environ:
        parser.error("argument --parallel: expected torchrun to start this script, got fsdp for one process")
    for name in ("context", "tensor"):
        processes = getattr(args, name)
        if processes > 1 and "WORLD_SIZE" not in os.environ:
            parser.error(f"argument --{name}: expected torchrun to start this script, got {processes} for one process")
    step, data, dataset = 0, args.data, args.dataset
    if data and dataset is not None:
        parser.error(f"argument --dataset: expected nothing with text files, got {dataset!r}")
    if args.resume is not None:
        try:
            progress = parts.read_progress(args.resume)
            saved, step = progress["settings"], progress["step"]
            init = saved["init"]
            if not data and dataset is None:
                data, dataset = saved["data"], saved.get("dataset")
        except (OSError, ValueError, KeyError, TypeError):
            parser.error(f"argument --resume: {str(args.resume)!r} is no checkpoint of this script")
        if args.init not in (None, init):
            parser.error(f"argument --init: expected nothing with --resume, got {args.init!r}")
        parser.set_defaults(**{name: value for name, value in saved.items() if name not in PER_RUN})
    elif not data and dataset is None:
        parser.error("expected text files, --dataset, or --resume")
    shape = shape_of_weights(parser, args)
    parser.set_defaults(**shape)
    settings = parser.parse_args()
    settings.data, settings.dataset = data, dataset
    for name, value in shape.items():
        actual, option = getattr(settings, name), name.replace("_", "-")
        if actual != value:
            parser.error(f"argument --{option}: expected {value}, as the checkpoint has it, or nothing, got {actual}")
    if not shape and (settings.dim // 2 % settings.heads or settings.dim % settings.heads):
        widths = f"{settings.dim // 2} and {settings.dim}, the widths of q and v"
        parser.error(f"argument --heads: expected a divisor of {widths}, got {settings.heads}")
    if settings.length < settings.context:
        parser.error(f"argument --length: expected {settings.context} or more for --context, got {settings.length}")
    if settings.steps < step:
        parser.error(f"argument --steps: expected {step} or more, which the checkpoint has, got {settings.steps}")
    if settings.device == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: expected cpu or auto where torch sees no GPU, got cuda")
    return settings


def shape_of_weights(parser: argparse.ArgumentParser, args: argparse.Namespace) -> dict[str, Any]:
    """The model's shape where its weights come from a checkpoint; of a new model nothing."""
    option, folder = ("--init", args.init) if args.resume is None else ("--resume", args.resume)
    if folder is None:
        return {}
    try:
        config, _ = read_config(Path(folder))
    except CheckpointError as error:
        parser.error(f"argument {option}: {error}")
    return {name: getattr(config, field) for name, field in SHAPE.items()}


def start_processes(settings: argparse.Namespace) -> torch.device:
    on_gpu = settings.device == "cuda" or settings.device == "auto" and torch.cuda.is_available()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if "WORLD_SIZE" in os.environ:
        # DDP imports it. Were the group there before it, the group's threads would outlive destroy_process_group.
        importlib.import_module("torch._dynamo")
        dist.init_process_group("nccl" if on_gpu else "gloo")
        world, each = dist.get_world_size(), settings.context * settings.tensor
        groups, left = divmod(world, each)
        if left:
            names = " times ".join(f"--{name}" for name in ("context", "tensor") if getattr(settings, name) > 1)
            sys.exit(f"{names}: expected a divisor of the {world} processes, got {each}")
        if settings.batch % groups:
            name = "processes" if each == 1 else "groups of processes"
            sys.exit(f"--batch: expected a multiple of the {groups} {name}, got {settings.batch}")
        if settings.parallel == "ddp" and 1 < settings.tensor < world:
            sys.exit("--parallel: expected fsdp with --tensor, as DDP takes no divided weights, got ddp")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    return device


def make_model(settings: argparse.Namespace, device: torch.device) -> xLSTMLarge:
    weights = settings.resume or settings.init
    if weights is not None:
        changes: dict[str, Any] = {"mode": "train", "return_last_states": False}
        model = load_pretrained(weights, torch.float32, device, progress=False, **changes).train()
        if model.quantization is not None:
            raise ValueError(f"init: expected weights that are not quantised, got those of {str(weights)!r}")
        if model.config.vocab_size != parts.BYTE_VALUES:
            raise ValueError(
                f"init: expected a model of bytes, vocab_size {parts.BYTE_VALUES}, got {model.config.vocab_size} in "
                f"{str(weights)!r}"
            )
        check_scheme(model, "hf")  # which its checkpoints will have
    else:
        torch.manual_seed(settings.seed)
        config = xLSTMLargeConfig(
            settings.dim, settings.heads, settings.blocks, parts.BYTE_VALUES, ffn_proj_factor=settings.ffn_factor
        )
        model = xLSTMLarge(config).to(device)
    model.backbone.activation_checkpointing = settings.checkpoint_activations
    return model


class Run:
    def __init__(self, settings: argparse.Namespace, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        text = parts.bytes_of_files(settings.data)
        if settings.dataset is not None:
            text = parts.bytes_of_dataset(settings.dataset, settings.split, settings.column)
        self.data = parts.ByteWindows(text, settings.length, settings.validation)
        self.model = make_model(settings, device)
        flops, tokens = parts.flops_of_token(self.model), settings.batch * settings.length
        self.speed = parts.Speed(tokens, flops * tokens, self.flops_per_second())
        self.mesh = parts.Ranks.of_processes(settings.context, settings.tensor, device)
        self.loss = parts.in_parallel(self.model, settings.parallel, self.mesh, settings.length, device)
        self.optimizer = parts.make_optimizer(self.model, settings.lr, settings.weight_decay)
        self.scaler = torch.amp.GradScaler(device.type, enabled=settings.amp == "float16")
        self.history: list[tuple[int, float, float | None]] = []  # step, loss, that of validation
        self.step = 0
        if settings.resume is not None:
            saved = parts.read_progress(settings.resume)
            self.step, self.history = saved["step"], [tuple(row) for row in saved["history"]]
            self.scaler.load_state_dict(saved["scaler"])
            parts.load_optimizer(settings.resume, self.model, self.optimizer, saved["optimizer_steps"])
        self.optimizer_steps = saved["optimizer_steps"] if settings.resume is not None else 0

    def flops_per_second(self) -> float | None:
        """Of all devices. Not of a CPU, on which measuring it takes seconds."""
        if self.device.type == "cpu":
            return None
        dtype = "fp32" if self.settings.amp == "off" else {"bfloat16": "bf16", "float16": "fp16"}[self.settings.amp]
        return self.ranks * matmul_rate(Machine(self.device), dtype, quick=False)

    def autocast(self) -> Any:
        dtype = AMP[self.settings.amp]
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def mean(self, loss: torch.Tensor) -> float:
        """Over all processes; an error on each, before it changes a weight, that names those where it is no number."""
        every = loss.detach().float().reshape(1)
        if self.ranks > 1:
            every = gathered(every, dist.group.WORLD)[:, 0]
        wrong = (~every.isfinite()).nonzero().flatten().tolist()
        if wrong:
            whose = "" if self.ranks == 1 else f" on rank {', '.join(map(str, wrong))} of {self.ranks}"
            raise ValueError(f"step {self.step + 1}: the loss is {float(every[wrong[0]])}{whose}")
        return float(every.mean())

    def train_step(self) -> float:
        settings = self.settings
        rate = parts.learning_rate(self.step, settings.steps, settings.warmup, settings.lr)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        rows = self.data.batch(settings.seed, self.step, settings.batch, self.mesh.data, self.mesh.data_ranks)
        x, targets = (self.mesh.own(part).to(self.device) for part in rows)
        with self.autocast():
            loss = self.loss(x, targets)
        mean = self.mean(loss)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = parts.gradient_norm(self.model.parameters(), NORM_CLIP)
        if not math.isfinite(norm) and not self.scaler.is_enabled():  # the scaler leaves such a step out
            raise ValueError(f"step {self.step + 1}: the norm of the gradients is {norm}; no weight was changed")
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer_steps += self.scaler.get_scale() >= scale  # a lower scale: the step overflowed, and was left out
        self.step += 1
        return mean

    @torch.no_grad()
    def validate(self) -> float:
        own = slice(self.mesh.data, None, self.mesh.data_ranks)
        rows = self.data.validation(self.settings.batch)
        x, targets = (self.mesh.own(part[own]).to(self.device) for part in rows)
        with self.autocast():
            loss = self.loss(x, targets)
        parts.spread_again(self.loss)
        return self.mean(loss)

    def save(self) -> None:
        settings = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(self.settings).items()
            if name not in PER_RUN
        }
        progress = {
            "step": self.step,
            "optimizer_steps": self.optimizer_steps,
            "scaler": self.scaler.state_dict(),
            "settings": settings,
            "history": self.history,
        }
        parts.save_checkpoint(self.settings.output / f"step-{self.step}", self.model, self.optimizer, progress)

    def go(self) -> None:
        settings = self.settings
        with Progress("training", settings.steps, "steps", enabled=self.rank == 0) as bar:
            bar.advance(self.step)
            while self.step < settings.steps:
                began = time.monotonic()
                loss = self.train_step()
                self.speed.note(time.monotonic() - began)
                last = self.step == settings.steps
                held_out = self.validate() if last or self.step % settings.validate_every == 0 else None
                self.history.append((self.step, loss, held_out))
                if last or self.step % settings.save_every == 0:
                    self.save()
                note = "" if held_out is None else f", held out {held_out:.3f}"
                bar.advance(1, f"loss {loss:.3f}{note}; {self.speed}")


def write_losses(run: Run) -> None:
    with open(run.settings.output / "losses.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("step", "loss", "validation"))
        writer.writerows((step, loss, "" if held_out is None else held_out) for step, loss, held_out in run.history)
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (pip install 'xlstm_hip[plot]')", file=sys.stderr)
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(
        [row[0] for row in run.history], [row[1] for row in run.history], color="#5b6770", lw=0.8, label="training"
    )
    held_out = [(row[0], row[2]) for row in run.history if row[2] is not None]
    axes.plot(*zip(*held_out, strict=True), "-o", color="#c8102e", markersize=3, label="held out")
    axes.set(xlabel="step", ylabel="nats per byte", title="Loss")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(run.settings.output / "losses.png", dpi=120)
    plt.close(figure)


def train(settings: argparse.Namespace, device: torch.device) -> None:
    run = Run(settings, device)
    if run.rank == 0:
        settings.output.mkdir(parents=True, exist_ok=True)
    run.go()
    if run.rank == 0:
        write_losses(run)
        step, loss, held_out = run.history[-1]
        measured = "" if held_out is None else f", held out {held_out:.4f}"
        print(f"step {step}: loss {loss:.4f}{measured} nats per byte; {run.speed}; {settings.output}")


def main() -> None:
    settings = settings_of(arguments())
    device = start_processes(settings)
    try:
        train(settings, device)
    except (ValueError, OSError) as error:
        sys.exit(f"train.py: {error}")
    finally:
        if dist.is_initialized():
            # DDP must let go of the group first. Were it the last to do so, it would wait for the group's threads with
            # Python's lock held, and a thread that ends may be waiting for that lock.
            gc.collect()
            dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")

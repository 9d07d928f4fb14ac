# SPDX-License-Identifier: Apache-2.0
"""Whole models: decoding, reading a prompt, the first token, memory over what is written, loading.

    python benchmarks/model.py                              on the CPU: models/demo, and 4.2 million random weights
    python benchmarks/model.py --device cuda --size 7b      on a GPU, random weights of xLSTM-7B's shape
    python benchmarks/model.py --quick                      a smoke run

Contenders are ours (the dtype asked for, and int8 and int4), transformers' own xLSTM and the official xlstm_large, with
the kernels that they run here; on a GPU the official one's step also compiled by torch and captured as one graph. All
are held to the plain kernels' model in the same dtype before they are timed, by logits and each token that they write,
those of rounded weights to one of the same: one of ours that is wrong ends the run, a peer's error is in the file. In
float32 those with the same weights write the same text. They take turns, so ratios are the medians of the rounds' own.
Results lie beside this file, in results.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import Tensor

from model_report import draw, markdown
from xlstm_hip.bench.environment import environment
from xlstm_hip.bench.machine import Machine
from xlstm_hip.bench.memory import MemoryUnknown, growth_of
from xlstm_hip.bench.models import (
    IMPLEMENTATIONS,
    MAKERS,
    Weights,
    after,
    errors_of,
    plain_model,
    random_weights,
)
from xlstm_hip.bench.operators import MODEL_EXACT
from xlstm_hip.bench.readers import Reader
from xlstm_hip.bench.registry import DTYPES
from xlstm_hip.bench.result_files import keeps_what_there_is, write
from xlstm_hip.bench.timing import Pace, interleaved, paired_ratio
from xlstm_hip.models import load_pretrained, xLSTMLarge
from xlstm_hip.progress import Tasks

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).resolve().parent / "results"
OURS, THEIRS, OFFICIAL, CAPTURED = "xlstm_hip", "transformers", "xlstm_large", "xlstm_large graph"
OTHERS = ("int8", "int4", THEIRS, OFFICIAL, CAPTURED)
REGISTERED = {OURS: "ours", f"{OURS} int8": "ours int8", f"{OURS} int4": "ours int4"}  # names in the registry
REGISTERED |= {name: name for name in (THEIRS, OFFICIAL, CAPTURED)}
BITS = {f"{OURS} int8": 8, f"{OURS} int4": 4}
PROMPT = 16
FULL = Pace(seconds=20, least_rounds=3, most_rounds=9, sample_seconds=0.1)
QUICK = Pace(seconds=0.1, least_rounds=1, most_rounds=1, sample_seconds=0.001)
Calls = dict[str, Callable[[], Any]]


def contenders(weights: Weights, wanted: list[str]) -> dict[str, Reader]:
    """By their names here."""
    here = {x.name for x in IMPLEMENTATIONS if x.missing(weights.device) is None}
    return {
        name: MAKERS[own](weights)
        for name, own in REGISTERED.items()
        if own in here and (name == OURS or name.removeprefix(f"{OURS} ") in wanted)
    }


def bits_of(name: str) -> int:
    return BITS.get(name, 0)


def check(
    found: dict[str, Reader], plain: Callable[[int], xLSTMLarge], x: Tensor, dtype: str
) -> dict[str, dict[str, float]]:
    """How far each is from the plain kernels' model of its own weights, and the limit; ours are within it.

    plain: of bits, or of 0, of weights as they are.
    """
    limit, texts, rows = MODEL_EXACT[dtype], {}, {}
    for bits, names in itertools.groupby(sorted(found, key=bits_of), bits_of):
        model = plain(bits)
        true = after(model, {"tokens": x})
        for name in names:
            read_it = found[name](x)
            texts[name] = read_it.write(PROMPT)
            errors = errors_of(model, true, read_it.logits, texts[name])
            if name.startswith(OURS) and not max(errors.values()) <= limit:
                off = ", ".join(f"{error:.3g} ({what})" for what, error in errors.items())
                raise SystemExit(f"{name}: errors {off}, expected at most {limit}")
            rows[name] = errors | {"limit": limit}
    for name in (THEIRS, OFFICIAL, CAPTURED):
        if name in found and dtype == "fp32" and not torch.equal(texts[name], texts[OURS]):
            raise SystemExit(f"{name} writes otherwise than {OURS}")
    return {name: rows[name] for name in found}


def timed(
    job: str, tokens: int, calls: Calls, machine: Machine, pace: Pace, advance: Callable[[float], None]
) -> dict[str, Any]:
    """tokens: of one call."""
    samples = interleaved(calls, pace, advance, machine.seconds)
    entries = []
    for name in calls:
        ms = samples[name].as_json()
        ratio = paired_ratio(samples[name].ms, samples[OURS].ms)
        entries.append({"name": name, "ms": ms, "tokens_per_s": 1e3 * tokens / ms["median"], "times_ours": ratio})
    return {"job": job, "tokens": tokens, "contenders": entries}


def memory_over_length(model: Reader, x: Tensor, lengths: tuple[int, ...], machine: Machine) -> list[dict[str, Any]]:
    """What writing so much takes at its worst moment, beyond the model."""
    rows: list[dict[str, Any]] = []
    for length in lengths:
        row: dict[str, Any] = {"length": length}
        try:
            call = lambda length=length: model(x).write(length)  # noqa: E731
            row["bytes"] = machine.peak_bytes(call) if machine.gpu else growth_of(call)
        except MemoryUnknown as reason:
            row["missing"] = str(reason)
        rows.append(row)
    return rows


def loading(folder: Path, device: str) -> dict[str, Any]:
    """Seconds of the second of two goes each: what is in the page cache is so for both."""
    files = sorted(folder.glob("*.safetensors"))
    buffer = bytearray(16 << 20)

    def read() -> None:
        for file in files:
            with open(file, "rb", buffering=0) as opened:
                while opened.readinto(buffer):
                    pass

    seconds = {}
    for name, call in (("read", read), ("load", lambda: load_pretrained(folder, None, device, progress=False))):
        call()
        began = time.perf_counter()
        call()
        seconds[name] = time.perf_counter() - began
        gc.collect()
    return {"bytes": sum(file.stat().st_size for file in files), **seconds, "share": seconds["read"] / seconds["load"]}


def reads(name: str) -> bool:
    """Whether a contender reads otherwise than another that is there."""
    return " int" not in name and name != CAPTURED


@torch.no_grad()
def measure(
    result: dict[str, Any],  # of a size; holds at any time what has been measured
    weights: Weights,
    arguments: argparse.Namespace,
    machine: Machine,
    progress: Tasks,
) -> None:
    size, rows = result["size"], result["jobs"]
    device, quick = arguments.device, arguments.quick
    pace = QUICK if quick else replace(FULL, seconds=arguments.seconds)
    write_tokens, read_tokens = (4, 32) if quick else (128, 8192 if machine.gpu else 2048)
    progress.begin(f"{size}: contenders")
    found = contenders(weights, arguments.contenders)
    model = plain_model(weights)
    plain = lambda bits: plain_model(weights, bits) if bits else model  # noqa: E731
    vocab, result["weights"] = model.config.vocab_size, sum(p.numel() for p in model.parameters())
    result["weights_bytes"] = sum(p.numel() * p.element_size() for p in model.parameters())
    progress.advance(1)
    g = torch.Generator().manual_seed(0)

    def tokens(batch: int, length: int) -> Tensor:
        return torch.randint(3, vocab, (batch, length), generator=g).to(device)

    result["errors"] = check(found, plain, tokens(1, PROMPT), arguments.dtype)
    for batch in (1, 8):
        progress.begin(f"{size}: writing, batch {batch}")
        x = tokens(batch, PROMPT)
        texts = {name: own(x) for name, own in found.items()}
        calls: Calls = {name: (lambda text=text: text.write(write_tokens)) for name, text in texts.items()}
        rows.append(timed(f"write B{batch}", batch * write_tokens, calls, machine, pace, progress.advance))
    for job, batch, length in (
        (f"read B1 S{read_tokens}", 1, read_tokens),
        ("read B2 S128", 2, 128),
    ):
        progress.begin(f"{size}: {job}")
        x = tokens(batch, length)
        calls = {name: (lambda own=own, x=x: own(x).logits) for name, own in found.items() if reads(name)}
        rows.append(timed(job, batch * length, calls, machine, pace, progress.advance))
    progress.begin(f"{size}: the first token after {2048 if not quick else 32}")
    x = tokens(1, 32 if quick else 2048)
    calls = {name: (lambda own=own: own(x).logits.argmax(-1)) for name, own in found.items() if reads(name)}
    rows.append(timed(f"first token after {x.shape[1]}", 1, calls, machine, pace, progress.advance))
    progress.begin(f"{size}: memory, loading")
    lengths = (4, 8) if quick else (64, 512, 2048)
    result["memory"] = memory_over_length(found[OURS], tokens(1, PROMPT), lengths, machine)
    result["loading"] = loading(weights.folder, device)
    progress.advance(1)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(arguments.threads)
    facts, machine = environment(arguments.device), Machine(arguments.device)
    results: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as temporary,
        keeps_what_there_is(),
        Tasks(7 * len(arguments.size)) as progress,
    ):
        for size in arguments.size:
            dtype, device = DTYPES[arguments.dtype], torch.device(arguments.device)
            weights = Weights(ROOT / "models" / "demo", dtype, device)
            if size != "demo":
                weights = random_weights(size, dtype, device, Path(temporary) / size)
            results.append({"size": size, "jobs": []})
            measure(results[-1], weights, arguments, machine, progress)
            gc.collect()
    results = [result for result in results if result["jobs"]]
    if not results:
        raise SystemExit("ended before anything was measured")
    settings = {"quick": arguments.quick, "device": arguments.device, "dtype": arguments.dtype}
    return {"benchmark": "model", "environment": facts, "settings": settings, "sizes": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", choices=("demo", "4m", "7b"), nargs="+", help="(default: demo 4m; on a GPU 7b)")
    parser.add_argument("--dtype", choices=DTYPES, help="(default: fp32; on a GPU bf16)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=FULL.seconds, help="for each job (default: %(default)s)")
    parser.add_argument("--contenders", choices=OTHERS, nargs="*", default=OTHERS, help="beside ours (default: all)")
    parser.add_argument("--folder", type=Path, help="where checkpoints of random weights go for the time being")
    parser.add_argument("--out", type=Path, help="JSON; the tables and the plot go beside it")
    parser.add_argument("--quick", action="store_true", help="a few tokens, one round: no figures, a smoke run")
    arguments = parser.parse_args()
    on_cpu = arguments.device == "cpu"
    arguments.size = arguments.size or (["demo", "4m"] if on_cpu else ["7b"])
    arguments.dtype = arguments.dtype or ("fp32" if on_cpu else "bf16")
    out: Path = arguments.out or FOLDER / f"model_{arguments.device}.json"
    write(run(arguments), out, markdown, draw)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A small language model on the CPU: it writes, and is timed beside plain torch and transformers' own.

Run by ./scripts/demo. The model in models/demo reads and writes bytes; docs/demo_model.md says what it was trained on.
It is loaded from the files that transformers reads, written as a text as it streams, and timed at three jobs:
reading a prompt, writing token by token, and one training step.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from demo import OUR_COLOUR, PLAIN_COLOUR, leave_picture, print_table, seconds, with_folder
from xlstm_hip import device_facts
from xlstm_hip.cli.common import NOT_NEGATIVE, at_least
from xlstm_hip.models import Sampling, Stream, generate, load_pretrained, xLSTMLarge
from xlstm_hip.models.tokenizer import BYTES

MODEL = Path(__file__).resolve().parents[1] / "models" / "demo"
PLAIN_KERNELS = {
    "chunkwise_kernel": "chunkwise--native_autograd",
    "sequence_kernel": "native_sequence__native",
    "step_kernel": "native",
}
XLSTM_HIP, PLAIN, TRANSFORMERS, SWAPPED = "xlstm_hip", "plain torch", "transformers", "transformers, accelerated"
JOBS = ("reading", "writing", "training")
COLOURS = {XLSTM_HIP: OUR_COLOUR, SWAPPED: "#e58a96", PLAIN: PLAIN_COLOUR, TRANSFORMERS: "#b5bcc2"}
TRAINING_ROWS = 4
PROMPT = 16  # bytes that are gone on with when writing is timed
Jobs = dict[str, Callable[[], Any]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--prompt", default="In the beginning ", help="the text that the model continues")
    parser.add_argument("--tokens", type=at_least(1), default=400, help="bytes to write")
    parser.add_argument("--temperature", type=NOT_NEGATIVE, default=0.6)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--read", type=at_least(PROMPT), default=2048, help="bytes of the prompt that is timed")
    parser.add_argument("--write", type=at_least(1), default=128, help="bytes written when timed")
    parser.add_argument("--threads", type=at_least(1), default=1, help="more have nothing to do in layers this small")
    parser.add_argument("--output", type=Path, default=Path("demo_outputs"), help="folder for the picture")
    return with_folder(parser)


def write_text(job: argparse.Namespace, model: xLSTMLarge) -> None:
    print(f"It goes on with {job.prompt!r}, temperature {job.temperature:g}, seed {job.seed}:\n")
    stream = Stream(model)
    stream.feed(torch.tensor([[model.special_tokens.bos, *BYTES.encode(job.prompt)]]))
    complete = BYTES.streamer()
    print(job.prompt, end="", flush=True)
    began = time.perf_counter()
    for token in stream.tokens(job.tokens, Sampling(job.temperature), job.seed):
        print(complete(int(token)), end="", flush=True)
    print(f"\n\n({job.tokens / (time.perf_counter() - began):.0f} bytes a second)\n")


# ---- who is timed, and at what


def package_jobs(job: argparse.Namespace, model: xLSTMLarge, prompt: Tensor) -> Jobs:
    def read() -> Tensor:
        with torch.no_grad():
            return model(prompt)[0]

    def write() -> Tensor:
        return generate(model, prompt[:, :PROMPT], job.write, bos=None, eos=()).tokens

    def train() -> None:
        model.zero_grad()
        model.loss(*rows_of(prompt)).backward()

    return dict(zip(JOBS, (read, write, train), strict=True))


def transformers_jobs(job: argparse.Namespace, model: Any, prompt: Tensor) -> Jobs:
    def read() -> Tensor:
        with torch.no_grad():
            return model(prompt, use_cache=True).logits

    def write() -> Tensor:
        generated = model.generate(
            prompt[:, :PROMPT], max_new_tokens=job.write, min_new_tokens=job.write, do_sample=False
        )
        return generated[:, PROMPT:]

    def train() -> None:
        model.zero_grad()
        x, targets = rows_of(prompt)
        logits = model(x, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()

    return dict(zip(JOBS, (read, write, train), strict=True))


def rows_of(prompt: Tensor) -> tuple[Tensor, Tensor]:
    """The prompt as a batch: tokens and what follows each."""
    length = (prompt.shape[1] - 1) // TRAINING_ROWS or 1
    rows = min(TRAINING_ROWS, (prompt.shape[1] - 1) // length)
    x, targets = prompt[0, : rows * length], prompt[0, 1 : rows * length + 1]
    return x.view(rows, length), targets.view(rows, length)


def contenders(job: argparse.Namespace, prompt: Tensor) -> dict[str, Jobs]:
    found = {
        XLSTM_HIP: package_jobs(
            job, load_pretrained(MODEL, torch.float32, weight_mode="fused", progress=False), prompt
        ),
        PLAIN: package_jobs(job, load_pretrained(MODEL, torch.float32, progress=False, **PLAIN_KERNELS), prompt),
    }
    if importlib.util.find_spec("transformers") is None:
        print("transformers is not installed, so it is not timed (pip install 'xlstm_hip[hf]').\n")
        return found
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    from xlstm_hip import hf

    for contender in (TRANSFORMERS, SWAPPED):
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
        found[contender] = transformers_jobs(job, hf.accelerate(model) if contender == SWAPPED else model, prompt)
    return found


def measure(job: argparse.Namespace, prompt: Tensor) -> dict[str, dict[str, float]]:
    """Bytes a second, by who and job. All must agree on what is read, and write the same."""
    size = {"reading": job.read, "writing": job.write, "training": rows_of(prompt)[0].numel()}
    rates: dict[str, dict[str, float]] = {}
    first: dict[str, Any] = {}
    for contender, jobs in contenders(job, prompt).items():
        rates[contender] = {}
        for name, function in jobs.items():
            function()
            took, result = seconds(function)
            rates[contender][name] = size[name] / took
            if name == "reading":
                want = first.setdefault(name, result)
                error = float((result - want).norm() / want.norm())
                assert error < 1e-3, f"{contender} reads otherwise: {error}"
            elif name == "writing":
                want = first.setdefault(name, result)
                assert torch.equal(result, want), f"{contender} writes otherwise"
    return rates


def print_rates(rates: dict[str, dict[str, float]]) -> None:
    reference_rates = rates[XLSTM_HIP]
    rows: list[tuple[str, ...]] = [("bytes a second", *(text for name in JOBS for text in (name, "ours is")))]
    for contender, by_job in rates.items():
        cells = [
            (f"{by_job[name]:.0f}", "" if contender == XLSTM_HIP else f"{reference_rates[name] / by_job[name]:.1f}x")
            for name in JOBS
        ]
        rows.append((contender, *(text for pair in cells for text in pair)))
    print_table(rows)


def draw(job: argparse.Namespace, rates: dict[str, dict[str, float]], to: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(JOBS), figsize=(13, 3.6), layout="constrained")
    titles = (f"Reading {job.read} bytes", f"Writing {job.write} bytes, one by one", "A training step")
    order = [contender for contender in COLOURS if contender in rates]
    for axes, name, title in zip(panels, JOBS, titles, strict=True):
        bars = axes.bar(
            order, [rates[contender][name] for contender in order], color=[COLOURS[contender] for contender in order]
        )
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=9)
        axes.set(title=title, ylabel="bytes a second")
        axes.set_xticks(range(len(order)), [contender.replace(", ", ",\n") for contender in order], fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    chip = f"{device_facts('cpu').name}, {torch.get_num_threads()} threads, float32, batch 1"
    figure.suptitle(f"The demo model on the CPU ({chip})")
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to, dpi=150)
    plt.close(figure)


def main() -> None:
    job = arguments()
    torch.set_num_threads(job.threads)
    model = load_pretrained(MODEL, torch.float32, weight_mode="fused", progress=False)
    size = sum(p.numel() for p in model.parameters())
    print(f"{MODEL.relative_to(MODEL.parents[1])}: an xLSTM of {size:,} weights that reads and writes bytes.")
    write_text(job, model)
    prompt = generate(model, [BYTES.encode(job.prompt)], job.read - 1, temperature=1.0, seed=1, eos=()).tokens
    prompt = torch.cat((torch.full_like(prompt[:, :1], model.special_tokens.bos), prompt), dim=1)
    rates = measure(job, prompt)
    print_rates(rates)
    leave_picture(job.output / "model_demo.png", lambda picture: draw(job, rates, picture))
    print()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")

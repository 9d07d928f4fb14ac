# SPDX-License-Identifier: Apache-2.0
"""Whole models: decoding, reading a prompt, the first token, memory over what is written, loading.

    python benchmarks/model.py                              on the CPU: models/demo, and 4.2 million random weights
    python benchmarks/model.py --device cuda --size 7b      on a GPU, random weights of xLSTM-7B's shape
    python benchmarks/model.py --quick                      a smoke run
    python benchmarks/model.py --redraw FILE                tables and picture of a result file once more

Contenders are ours (the dtype asked for, and int8 and int4), transformers' own xLSTM and the official xlstm_large, with
the kernels that they run here; on a GPU the official one's step also compiled by torch and captured as one graph. All
are held to the plain kernels' model in the same dtype before they are timed, by logits and each token that they write,
those of rounded weights to one of the same: one of ours that is wrong ends the run, a peer's error is in the file. In
float32 those with the same weights write the same text.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.benchmark import Benchmark, Job, Session
from harness.whole_models import CONTENDERS, PROMPT, bits_of, check, loading, memory_over_length
from pages.model import draw, markdown
from xlstm_hip.bench.contest import Advance
from xlstm_hip.bench.models import SIZES, Models, Weights, random_weights
from xlstm_hip.bench.readers import Reader
from xlstm_hip.bench.registry import DTYPES, XLSTM_HIP
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.timing import Pace
from xlstm_hip.models import xLSTMLargeConfig

DEMO = Path(__file__).resolve().parents[1] / "models" / "demo"
CAPTURED = "xlstm_large graph"  # reads as xlstm_large does
OTHERS = tuple(name.removeprefix(f"{XLSTM_HIP} ") for name in CONTENDERS if name != XLSTM_HIP)


class Size:
    """Shared by the jobs of one size; the models are there from its first job to its last."""

    def __init__(self, session: Session, size: str) -> None:
        self.session, self.args, self.size = session, session.args, size
        self.device, self.dtype = torch.device(self.args.device), DTYPES[self.args.dtype]
        self.found: dict[str, Reader] = {}
        self.vocab, self.draw = 0, torch.Generator().manual_seed(0)
        self.result: Results = {"size": size, "jobs": []}

    def tokens(self, batch: int, length: int) -> Tensor:
        return torch.randint(3, self.vocab, (batch, length), generator=self.draw).to(self.device)

    def begin(self, advance: Advance) -> Results:
        random = self.size != "demo"
        self.weights = (
            random_weights(xLSTMLargeConfig(**SIZES[self.size]), self.dtype, self.device, self.args.folder)
            if random
            else Weights(DEMO, self.dtype, self.device)
        )
        models = Models(self.weights)
        names = {XLSTM_HIP, *(f"{XLSTM_HIP} {name}" for name in self.args.contenders), *self.args.contenders}
        available = (name for name, x in CONTENDERS.items() if name in names and x.missing(self.device) is None)
        self.found = {name: models.reader(CONTENDERS[name].name) for name in available}
        model = models.plain()
        self.vocab = model.config.vocab_size
        self.result["weights"] = sum(p.numel() for p in model.parameters())
        self.result["weights_bytes"] = sum(p.numel() * p.element_size() for p in model.parameters())
        self.result["errors"] = check(self.found, models.plain, self.tokens(1, PROMPT), self.args.dtype)
        return self.result

    def timed(self, job: str, tokens: int, calls: dict[str, Callable[[], Any]], advance: Advance) -> Results:
        """tokens: of one call."""
        entries: list[Results] = [{"name": name, "provider": CONTENDERS[name].provider} for name in calls]
        self.session.race(entries, calls, advance)
        for entry in entries:
            entry["tokens_per_s"] = 1e3 * tokens / entry["ms"]["median"]
        return {"job": job, "tokens": tokens, "contenders": entries}

    def writing(self, batch: int, advance: Advance) -> Results:
        x, count = self.tokens(batch, PROMPT), 4 if self.session.quick else 128
        texts = {name: write(x) for name, write in self.found.items()}
        calls = {name: (lambda text=text: text.write(count)) for name, text in texts.items()}
        return self.timed(f"write B{batch}", batch * count, calls, advance)

    def reading(self, job: str, tokens: int, batch: int, length: int, advance: Advance) -> Results:
        """By all that read otherwise than another that is there."""
        x, readers = (
            self.tokens(batch, length),
            {n: r for n, r in self.found.items() if not bits_of(n) and n != CAPTURED},
        )
        calls = {name: (lambda read=read: read(x).logits.argmax(-1)) for name, read in readers.items()}
        return self.timed(job, tokens, calls, advance)

    def memory_and_loading(self, advance: Advance) -> Results:
        x, lengths = self.tokens(1, PROMPT), (4, 8) if self.session.quick else (64, 512, 2048)
        memory = memory_over_length(self.found[XLSTM_HIP], x, lengths, self.session.machine)
        measured = {"memory": memory, "loading": loading(self.weights.folder, self.args.device)}
        self.found, self.weights = {}, None  # the next size needs their memory
        return measured

    def jobs(self) -> list[Job]:
        quick, results = self.session.quick, self.session.results
        most = 32 if quick else 8192 if self.session.machine.gpu else 2048
        first, append_job = 32 if quick else 2048, self.result["jobs"].append

        def job(title: str, keep: Callable[[Any], object], measure: Callable[..., Results], *arguments: Any) -> Job:
            return Job(f"{self.size}: {title}", lambda advance: torch.no_grad()(measure)(*arguments, advance), keep)

        return [
            job("contenders", results["sizes"].append, self.begin),
            *(job(f"writing, batch {batch}", append_job, self.writing, batch) for batch in (1, 8)),
            *(
                job(title, append_job, self.reading, title, tokens, batch, length)
                for title, tokens, batch, length in (
                    (f"read B1 S{most}", most, 1, most),
                    ("read B2 S128", 2 * 128, 2, 128),
                    (f"first token after {first}", 1, 1, first),
                )
            ),
            job("memory, loading", self.result.update, self.memory_and_loading),
        ]


def plan(session: Session) -> list[Job]:
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
    session.results["settings"]["dtype"] = session.args.dtype
    session.results["sizes"] = []
    return [job for size in session.args.size for job in Size(session, size).jobs()]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=("demo", "4m", "7b"), nargs="+", help="(default: demo 4m; on a GPU 7b)")
    parser.add_argument("--dtype", choices=DTYPES, help="(default: fp32; on a GPU bf16)")
    parser.add_argument("--seconds", dest="pace", type=float, help="for each job (default: 20)")
    parser.add_argument("--contenders", choices=OTHERS, nargs="*", default=OTHERS, help="beside ours (default: all)")
    parser.add_argument("--folder", type=Path, help="where checkpoints of random weights go for the time being")


def settle(args: argparse.Namespace) -> None:
    on_cpu = args.device == "cpu"
    args.size = args.size or (["demo", "4m"] if on_cpu else ["7b"])
    args.dtype = args.dtype or ("fp32" if on_cpu else "bf16")


BENCHMARK = Benchmark(
    "model", __file__, __doc__ or "", "model_{device}", Pace(20, 3, 9, 0.1), plan, markdown, draw, options, settle
)

if __name__ == "__main__":
    BENCHMARK.main()

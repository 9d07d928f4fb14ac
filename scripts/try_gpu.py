# SPDX-License-Identifier: Apache-2.0
"""Runs the package on this machine's GPU: its tests, the sanitizers, the benchmarks. One folder, one archive.

    python scripts/try_gpu.py                          everything that can run here, one part after the other
    python scripts/try_gpu.py --list                   the parts, what each needs, how long each may take
    python scripts/try_gpu.py tests speed-mlstm        parts whose names hold one of these
    python scripts/try_gpu.py --minutes 30 --out here  what fits; the same command again goes on where it ended

A part is a process of its own: one that fails, hangs or loses the device is written down, and the next one begins. The
folder has report.md, each part's log.txt and what it measured. exit code: 1 where a part failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import xlstm_hip
from xlstm_hip._core.atomic_files import write_atomically
from xlstm_hip._core.progress import Tasks
from xlstm_hip.bench.environment import environment, summary
from xlstm_hip.cli.common import at_least

ROOT = Path(__file__).resolve().parents[1]
SPARE = 20  # seconds that a part told to end in time has to do so
LAST_WORDS = 300  # characters of a log that the report repeats
PEERS = "--peers, where they are given"
NOT_ALL = re.compile(r"\b([1-9]\d*) left out for time")  # a table's last line
PASSED, FAILED, TIME = "passed", "FAILED", "FAILED: out of time"
CANNOT_RUN = 77  # the exit code of a part that this machine lacks something for; its last line says what


@dataclass(frozen=True)
class Part:
    name: str
    title: str
    seconds: int  # at most
    command: tuple[str, ...]  # python's arguments; {out}: the part's folder, {seconds}: until it should end, and PEERS
    tool: str = ""  # a program that runs python
    tool_arguments: tuple[str, ...] = ()
    module: str = ""  # that must be there

    def missing(self) -> str:
        """Why it cannot run here; nothing where it can."""
        if self.tool and not shutil.which(self.tool):
            return f"{self.tool} is not on the PATH"
        if self.module and find_spec(self.module) is None:
            return f"the package {self.module} is not installed"
        return ""

    def words(self, out: Path, seconds: float, peers: Path | None) -> list[str]:
        values = {"out": str(out), "seconds": str(max(1, int(seconds - SPARE)))}
        python = [sys.executable]
        for word in self.command:
            if word != PEERS:
                python.append(word.format(**values))
            elif peers:
                python += ["--peers", str(peers)]
        return [self.tool, *self.tool_arguments, *python] if self.tool else python


def _pytest(*files: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", "-m", "gpu", *files)


TABLES = {
    "mlstm": ("tests/mlstm/test_gpu.py", "--seconds", "{seconds}"),
    "attention": ("tests/attention/test_attention_gpu.py", "--seconds", "{seconds}"),
    "layers": ("tests/layers/test_layer_gpu.py",),
}
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Truth from the CPU: a sanitizer makes each of plain torch's many launches slow, and looks at our kernels anyway.
SANITIZED = TABLES | {"mlstm": (*TABLES["mlstm"], "--truth-on", "cpu")}


def _sanitized(tool: str, family: str) -> Part:
    arguments = ("--tool", tool, "--error-exitcode", "9", "--target-processes", "all")
    so_far = ", as far as it comes" if "{seconds}" in SANITIZED[family] else ""
    name, title = f"sanitizer-{family}-{tool}", f"{tool} over the table of {family}{so_far}"
    return Part(name, title, 600, SANITIZED[family], "compute-sanitizer", arguments)


PARTS = (
    Part("doctor", "torch, the GPU, the library, a self-test", 120, ("-m", "xlstm_hip", "doctor")),
    Part("tests-mlstm", "the mLSTM's table and checks against float64", 3600,
         (*TABLES["mlstm"], "--out", "{out}/rows.jsonl")),
    Part("tests-attention", "attention's table of arguments", 1800, TABLES["attention"]),
    Part("tests-decode", "decoding from caches, MLA", 900, _pytest("tests/attention/test_gpu_decode.py"),
         module="pytest"),
    Part("tests-layers", "the layers around the mLSTM", 900, TABLES["layers"]),
    Part("tests-engine", "a model's step as a graph, and drawing", 900, _pytest("tests/models"), module="pytest"),
    Part("tests-others", "tuning and compiled kernels", 900,
         _pytest("tests/tune", "tests/mlstm/test_compiled_bands.py"), module="pytest"),
    Part("speed-mlstm", "the mLSTM beside its peers", 1800,
         ("benchmarks/mlstm_gpu.py", PEERS, "--seconds", "{seconds}", "--out", "{out}/mlstm_gpu.json")),
    Part("speed-attention", "attention beside torch's", 1800,
         ("benchmarks/attention.py", "--device", "cuda", "--seconds", "{seconds}",
          "--out", "{out}/attention_cuda.json")),
    Part("speed-attention-features", "what packed, shared, windowed and cached keys cost", 900,
         ("benchmarks/attention_features.py", "--device", "cuda", "--out", "{out}/attention_features.json")),
    Part("speed-layers", "layers beside a copy of as many bytes", 900,
         ("benchmarks/layers.py", "--device", "cuda", "--out", "{out}/layers_cuda.json")),
    Part("speed-model", "a model of 7 billion random weights", 1800,
         ("benchmarks/model.py", "--device", "cuda", "--out", "{out}/model_cuda.json")),
    Part("speed-decoding", "decoding with that model over the batch", 1800,
         ("benchmarks/decoding.py", "--device", "cuda", "--seconds", "{seconds}", "--out", "{out}/decoding_cuda.json")),
    Part("speed-prefill", "prompts of that model by batch and length", 1800,
         ("benchmarks/prefill.py", "--device", "cuda", "--seconds", "{seconds}", "--out", "{out}/prefill_cuda.json")),
    Part("speed-training", "training steps beside the official model", 1200,
         ("benchmarks/training.py", "--device", "cuda", "--out", "{out}/training_cuda.json")),
    Part("speed-bench", "every operator and provider of xlstm-hip bench", 1800,
         ("-m", "xlstm_hip", "bench", "--device", "cuda", PEERS, "--seconds", "{seconds}",
          "--out", "{out}/bench_cuda.json")),
    Part("speed-shapes", "heads of models, head dims of attention, packed sequences", 1200,
         ("-m", "xlstm_hip", "bench", "shapes", "--device", "cuda", PEERS, "--seconds", "{seconds}",
          "--out", "{out}/shapes_cuda.json")),
    Part("speed-selection", "regime=\"auto\" beside the fastest kernels", 900,
         ("-m", "xlstm_hip", "bench", "selection", "--device", "cuda", PEERS, "--seconds", "{seconds}",
          "--out", "{out}/selection_cuda.json")),
    Part("calibrate", "the constants of the model that predicts times on an MI300X", 1200,
         ("benchmarks/mi300x_constants.py", "--out", "{out}")),
    *(_sanitized(tool, family) for tool in SANITIZERS for family in TABLES),
)  # fmt: skip


class Report:
    """The results of all parts, in a folder that is complete after each part."""

    def __init__(self, out: Path, facts: dict[str, Any]) -> None:
        self.out, self.facts = out, facts
        self.file = out / "report.json"
        self.parts: dict[str, dict[str, Any]] = {}
        if out.exists() and not out.is_dir():
            raise ValueError(f"--out: expected a folder, {out} is a file")
        if self.file.exists():
            self.parts = self._parts_before()
        out.mkdir(parents=True, exist_ok=True)

    def _parts_before(self) -> dict[str, dict[str, Any]]:
        try:
            before = json.loads(self.file.read_text())
            gpu, parts = before["environment"]["gpu"], before["parts"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"--out: {self.file} is no report of this script ({error})") from error
        if gpu != self.facts["gpu"]:
            raise ValueError(f"--out: {self.out} is of another GPU or driver; expected an empty or a new folder")
        return parts

    def passed(self, name: str) -> bool:
        return self.parts.get(name, {}).get("outcome") == PASSED

    def failed(self) -> list[str]:
        return [name for name, part in self.parts.items() if part["outcome"].startswith(FAILED)]

    def add(self, part: Part, outcome: str, seconds: float = 0.0, words: str = "") -> None:
        self.parts[part.name] = {"what": part.title, "outcome": outcome, "seconds": round(seconds, 1), "end": words}
        write_atomically(self.file, json.dumps({"environment": self.facts, "parts": self.parts}, indent=1) + "\n")
        write_atomically(self.out / "report.md", self.text())

    def text(self) -> str:
        lines = [
            "# GPU report",
            "",
            summary(self.facts),
            "",
            "| part | what | outcome | seconds |",
            "|---|---|---|---|",
        ]
        lines += [f"| {n} | {p['what']} | {p['outcome']} | {p['seconds']:.0f} |" for n, p in self.parts.items()]
        for name, part in self.parts.items():
            if part["end"]:
                lines += ["", f"## {name}", "", "```", part["end"], "```"]
        return "\n".join(lines) + "\n"

    def pack(self) -> Path:
        """The folder as one file beside it."""
        packed = self.out.with_name(self.out.name + ".tar.gz")
        beside = packed.with_name(f".{packed.name}.{os.getpid()}")
        try:
            with tarfile.open(beside, "w:gz") as archive:
                archive.add(self.out, self.out.name)
            os.replace(beside, packed)
        finally:
            beside.unlink(missing_ok=True)
        return packed


def end_of(log: Path) -> str:
    text = log.read_text(errors="replace").strip()
    return text if len(text) <= LAST_WORDS else "... " + text[-LAST_WORDS:]


def run(part: Part, folder: Path, seconds: float, peers: Path | None) -> tuple[str, float]:
    """Its outcome, and how long it took. Nothing of it is left running."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    package = str(Path(xlstm_hip.__file__).parents[1])  # this one, installed or not
    search = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    variables = os.environ | {"PYTHONPATH": search, "PYTHONUNBUFFERED": "1"}
    begun = time.monotonic()
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            part.words(folder, seconds, peers), cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
            outcome = _outcome(code, folder / "log.txt")
        except subprocess.TimeoutExpired:
            outcome = TIME
        finally:
            _end(process)
    return outcome, time.monotonic() - begun


def _outcome(code: int, log: Path) -> str:
    last_line = log.read_text(errors="replace").strip().rpartition("\n")[2]
    if code == CANNOT_RUN:
        return f"left out: {last_line}"
    if code:
        return f"{FAILED}: exit code {code}"
    left_out = NOT_ALL.search(last_line)
    return f"{PASSED} as far as it came, {left_out[0]}" if left_out else PASSED


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # whatever it started too
    process.wait()


def chosen(parts: Sequence[Part], texts: Sequence[str]) -> list[Part]:
    for text in texts:
        if not any(text in part.name for part in parts):
            raise ValueError(f"parts: no name of --list holds {text!r}")
    return [part for part in parts if not texts or any(text in part.name for text in texts)]


def gpu_facts() -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise ValueError(f"torch {torch.__version__} sees no GPU; xlstm-hip doctor says why")
    return environment("cuda")


def default_folder(facts: dict[str, Any]) -> Path:
    name = "".join(c if c.isalnum() else "-" for c in str(facts["gpu"]["name"]))
    return Path("gpu_reports") / f"{name}-{time.strftime('%Y-%m-%d')}"


def main(
    words: Sequence[str] | None = None,
    parts: Sequence[Part] = PARTS,
    facts_of: Callable[[], dict[str, Any]] = gpu_facts,
) -> int:
    text = __doc__ or ""
    parser = argparse.ArgumentParser(
        description=text.partition("\n")[0],
        epilog=text.partition("\n")[2],
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", help="texts in the names of parts (default: all)")
    parser.add_argument("--out", type=Path, help="the folder (default: gpu_reports/<GPU>-<day>)")
    parser.add_argument(
        "--minutes",
        type=at_least(1),
        help="end after so many seconds; parts that did not fit are left for the next run",
    )
    parser.add_argument("--peers", type=Path, help="a folder with mlstm_kernels and fla, unpacked")
    parser.add_argument("--again", action="store_true", help="also run the parts that have passed before")
    parser.add_argument("--list", action="store_true", help="list the parts and run nothing")
    arguments = parser.parse_args(words)
    try:
        selected = chosen(parts, arguments.parts)
        if arguments.list:
            for part in selected:
                print(
                    f"{part.name:28} {part.seconds // 60:3} min  {part.title}"
                    + (f"; {m}" if (m := part.missing()) else "")
                )
            return 0
        if arguments.peers and not arguments.peers.is_dir():
            raise ValueError(f"--peers: expected a folder, got {arguments.peers}")
        facts = facts_of()
        report = Report(arguments.out or default_folder(facts), facts)
    except ValueError as error:
        parser.error(str(error))
    begun = time.monotonic()

    def left() -> float:
        return 60.0 * arguments.minutes - (time.monotonic() - begun) if arguments.minutes else float("inf")

    left_out = 0
    with Tasks(len(selected)) as tasks:
        for part in selected:
            if report.passed(part.name) and not arguments.again:
                tasks.begin(f"{part.name}: passed before")
            elif why := part.missing():
                tasks.begin(f"{part.name}: left out, {why}")
                report.add(part, f"left out: {why}")
            elif left() < 2 * SPARE:
                tasks.begin(f"{part.name}: no time is left")
                left_out += 1
            else:
                tasks.begin(f"{part.name}: {part.title}")
                folder = report.out / part.name
                outcome, seconds = run(part, folder, min(part.seconds, left()), arguments.peers)
                report.add(part, outcome, seconds, end_of(folder / "log.txt"))
                print(f"{part.name}: {outcome}, {seconds:.0f} s", flush=True)
    failed = report.failed()
    print(f"{report.out / 'report.md'} and, for sending, {report.pack()}")
    print(f"{len(failed)} failed{': ' if failed else ''}{', '.join(failed)}; {left_out} left out for time")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

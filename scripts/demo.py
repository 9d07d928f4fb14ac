# SPDX-License-Identifier: Apache-2.0
"""The main job, shown: the mLSTM on a long sequence beside plain torch, timed, with the error and a picture.

Run by ./scripts/demo once everything is set up. Two parts, in one process, on the CPU:
  1. forward, and forward with backward, over growing lengths; at the full length also the error against the same
     formulas in float64, and the peak memory
  2. decoding from the last state, token by token: the time of a token does not depend on its position
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from xlstm_hip import device_facts, mlstm_interface, mlstm_step_interface
from xlstm_hip._core.progress import Tasks
from xlstm_hip.bench.registry import DTYPES
from xlstm_hip.cli.common import at_least

FUSED = "chunkwise--fused"
PLAIN = ("chunkwise--native_autograd", "chunkwise--native_custbw")  # which is the faster depends on the size
TRUTH = PLAIN[1]  # in float64
KERNELS = (FUSED, *PLAIN)
STEP_KERNELS = {"ours": "fused", "plain torch": "native"}
QUANTITIES = ("h", "dq", "dk", "dv", "di", "df")
MODES = ("forward", "forward + backward")
MOST_RUNS, ENOUGH_SECONDS = 5, 1.5
DECODE_WINDOWS = 32
OUR_COLOUR, PLAIN_COLOUR = "#c8102e", "#5b6770"
Result = TypeVar("Result")


# ---- what to run


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Times the fused mLSTM beside plain torch on the CPU, and draws the result.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--length", type=at_least(1), default=4096, help="tokens of the longest sequence")
    parser.add_argument("--heads", type=at_least(1), default=4)
    parser.add_argument("--dqk", type=at_least(1), default=256, help="head dim of q and k")
    parser.add_argument("--dhv", type=at_least(1), default=512, help="head dim of v and h")
    parser.add_argument("--chunk-size", type=at_least(1), default=64, help="tokens per matrix product, for all kernels")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["fp32", "bf16"])
    parser.add_argument("--decode", type=at_least(DECODE_WINDOWS), default=4096, help="tokens to decode afterwards")
    parser.add_argument("--threads", type=at_least(1), default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=Path("demo_outputs"), help="folder for the picture")
    parser.add_argument("--seed", type=at_least(0), default=0)
    args = with_folder(parser)
    args.dtypes = list(dict.fromkeys(args.dtypes))
    return args


def with_folder(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The parsed arguments, with an --output folder into which a picture can be written."""
    args = parser.parse_args()
    if args.output.exists() and not args.output.is_dir():
        parser.error(f"argument --output: expected a folder, got the file {str(args.output)!r}")
    return args


def lengths(job: argparse.Namespace) -> list[int]:
    return sorted({max(1, job.length // n) for n in (16, 8, 4, 2, 1)})


def inputs(job: argparse.Namespace, dtype: torch.dtype, length: int) -> list[Tensor]:
    """q, k (1, NH, S, DHQK), v (1, NH, S, DHHV), i, f (1, NH, S); gates stay float32, as in training."""
    rng = torch.Generator().manual_seed(job.seed)
    q, k, v = (torch.randn(1, job.heads, length, d, generator=rng).to(dtype) for d in (job.dqk, job.dqk, job.dhv))
    i, f = (torch.randn(1, job.heads, length, generator=rng) for _ in range(2))
    return [q, k, v, i, f + 3]


def cotangent(job: argparse.Namespace, dtype: torch.dtype, length: int) -> Tensor:  # (1, NH, S, DHHV)
    rng = torch.Generator().manual_seed(job.seed + 1)
    return torch.randn(1, job.heads, length, job.dhv, generator=rng).to(dtype)


def forward(job: argparse.Namespace, kernel: str, tensors: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return mlstm_interface(*tensors, kernel=kernel, chunk_size=job.chunk_size)


def forward_and_backward(job: argparse.Namespace, kernel: str, tensors: list[Tensor], dh: Tensor) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    h = mlstm_interface(*leaves, kernel=kernel, chunk_size=job.chunk_size)
    return [h.detach(), *torch.autograd.grad(h, leaves, dh)]


# ---- how it is measured


def seconds(function: Callable[[], Result]) -> tuple[float, Result]:
    """The fastest of a few runs, since what else the machine does only adds to a time, and the last run's result."""
    times: list[float] = []
    while True:
        began = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - began)
        if len(times) == MOST_RUNS or sum(times) >= ENOUGH_SECONDS:
            return min(times), result
        del result  # or its memory would count as the next run's


@dataclass
class Peak:
    bytes: int | None = None  # None where the system does not tell


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """How far the process grows inside the block, at its highest. Linux keeps that mark and lets it be reset."""
    peak, status, reset = Peak(), Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def mark(name: str) -> int:
        return next(int(line.split()[1]) << 10 for line in status.read_text().splitlines() if line.startswith(name))

    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # memory that was freed is given back first
        reset.write_text("5")
        before: int | None = mark("VmRSS")
    except (OSError, AttributeError, StopIteration):
        before = None
    yield peak
    if before is not None:
        peak.bytes = max(0, mark("VmHWM") - before)


def relative_error(x: Tensor, true: Tensor) -> float:
    return float((x.double() - true).norm() / true.norm())


@dataclass
class Results:
    times: dict[tuple[str, str, str, int], float] = field(default_factory=dict)  # dtype, kernel, mode, length
    errors: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # dtype, kernel: as QUANTITIES
    memory: dict[tuple[str, str], int | None] = field(default_factory=dict)  # dtype, kernel
    decode: dict[str, list[float]] = field(default_factory=dict)  # whose: seconds of the fastest token, by window
    lengths: list[int] = field(default_factory=list)

    def best_plain(self, dtype: str, mode: str, length: int) -> tuple[float, str]:
        """The time and the name of the faster plain kernel."""
        return min((self.times[dtype, kernel, mode, length], kernel) for kernel in PLAIN)

    def ratio(self, dtype: str, mode: str) -> float:
        longest = self.lengths[-1]
        return self.best_plain(dtype, mode, longest)[0] / self.times[dtype, FUSED, mode, longest]


# ---- the two parts


def measure(job: argparse.Namespace, progress: Tasks) -> Results:
    results = Results(lengths=lengths(job))
    for name in job.dtypes:
        for length in results.lengths:
            run_kernels(job, name, length, results, progress)
    progress.begin(f"{job.dtypes[-1]}, {job.decode} tokens decoded after the first {job.length}")
    decode(job, results, progress)
    return results


def tasks(job: argparse.Namespace) -> int:
    return len(job.dtypes) * (len(lengths(job)) * len(KERNELS) + 1) + 1  # the truth, and decoding


def run_kernels(job: argparse.Namespace, name: str, length: int, results: Results, progress: Tasks) -> None:
    tensors, dh = inputs(job, DTYPES[name], length), cotangent(job, DTYPES[name], length)
    true: list[Tensor] | None = None
    if length == job.length:
        progress.begin(f"{name}, {length} tokens in float64, for the errors")
        true = forward_and_backward(job, TRUTH, [x.double() for x in tensors], dh.double())
    for kernel in KERNELS:
        progress.begin(f"{name}, {length} tokens: {kernel}")
        time_forward, _ = seconds(partial(forward, job, kernel, tensors))
        progress.advance(1 / len(MODES))
        with peak_memory() as peak:
            time_both, actual = seconds(partial(forward_and_backward, job, kernel, tensors, dh))
        progress.advance(1 / len(MODES))
        for mode, taken in zip(MODES, (time_forward, time_both), strict=True):
            results.times[name, kernel, mode, length] = taken
        if true is not None:
            results.memory[name, kernel] = peak.bytes
            results.errors[name, kernel] = [relative_error(x, y) for x, y in zip(actual, true, strict=True)]


def decode(job: argparse.Namespace, results: Results, progress: Tasks) -> None:
    """Each token is random: what a token costs does not depend on what it says."""
    dtype = DTYPES[job.dtypes[-1]]
    _, states = mlstm_interface(*inputs(job, dtype, job.length), return_last_states=True)
    q, k, v, i, f = inputs(job, dtype, 64)
    tokens = [(q[:, :, t], k[:, :, t], v[:, :, t], i[:, :, t, None], f[:, :, t, None]) for t in range(64)]
    for name, kernel in STEP_KERNELS.items():
        state = [x.clone() for x in states]
        for token in tokens:
            mlstm_step_interface(*token, *state, kernel=kernel, in_place=True)
        window = job.decode // DECODE_WINDOWS
        results.decode[name] = []
        for _ in range(DECODE_WINDOWS):
            times = []
            for t in range(window):
                began = time.perf_counter()
                mlstm_step_interface(*tokens[t % 64], *state, kernel=kernel, in_place=True)
                times.append(time.perf_counter() - began)
            results.decode[name].append(min(times))
        progress.advance(1 / len(STEP_KERNELS))


# ---- what is printed


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """The first row is the header; the first column reads from the left, numbers from the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = [x.rjust(w) if j else x.ljust(w) for j, (x, w) in enumerate(zip(row, widths, strict=True))]
        print("  " + "   ".join(cells))
        if number == 0:
            print("  " + "   ".join("-" * w for w in widths))


def milliseconds(time: float) -> str:
    return f"{1e3 * time:.0f} ms" if time >= 0.1 else f"{1e3 * time:.2g} ms"


def print_results(job: argparse.Namespace, results: Results) -> None:
    for name in job.dtypes:
        rows = [("kernel", *MODES, "peak memory", "error of h", "worst gradient")]
        for kernel in KERNELS:
            times = (milliseconds(results.times[name, kernel, mode, job.length]) for mode in MODES)
            size = results.memory[name, kernel]
            memory = "not known" if size is None else f"{size / 2**20:.0f} MiB"
            h, *gradients = results.errors[name, kernel]
            worst = max(range(len(gradients)), key=gradients.__getitem__)
            rows.append((kernel, *times, memory, f"{h:.1e}", f"{gradients[worst]:.1e} ({QUANTITIES[1 + worst]})"))
        print(f"\n{name}, {job.length} tokens")
        print_table(rows)
        ratios = " and ".join(f"{results.ratio(name, mode):.1f}" for mode in MODES)
        print(f"  plain torch, the faster of the two, takes {ratios} times as long")
    print(f"\ndecoding, {job.dtypes[-1]} with float32 states, after {job.length} tokens")
    rows = [("step", "first tokens", "last tokens")]
    for label, times in results.decode.items():
        quarter = DECODE_WINDOWS // 4
        ends = (min(part) for part in (times[:quarter], times[-quarter:]))
        rows.append((f"{label} ({STEP_KERNELS[label]})", *(f"{1e6 * x:.0f} us" for x in ends)))
    print_table(rows)
    print("\nErrors are ||x - x64|| / ||x64|| against the same formulas in float64; peak memory is that of forward +")
    print("backward beyond its inputs. benchmarks/mlstm_cpu.py compares with other projects' kernels.")


# ---- the picture


def draw(job: argparse.Namespace, results: Results, to: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25}
    )
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    draw_times(job, results, left)
    draw_errors(job, results, middle)
    draw_decode(job, results, right)
    shape = f"batch 1, {job.heads} heads, head dims {job.dqk} and {job.dhv}, {torch.get_num_threads()} threads"
    figure.suptitle(f"mLSTM on the CPU: xlstm_hip beside plain torch   ({shape}; {device_facts('cpu').name})")
    to.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(to, dpi=150)
    plt.close(figure)


def draw_times(job: argparse.Namespace, results: Results, axes: Any) -> None:
    for name, style in zip(job.dtypes, ("-o", "--s", ":^"), strict=False):
        fused_ms = [1e3 * results.times[name, FUSED, MODES[1], n] for n in results.lengths]
        plain = [1e3 * results.best_plain(name, MODES[1], n)[0] for n in results.lengths]
        axes.plot(results.lengths, plain, style, color=PLAIN_COLOUR, label=f"plain torch (the faster), {name}")
        axes.plot(results.lengths, fused_ms, style, color=OUR_COLOUR, label=f"xlstm_hip, {name}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(results.lengths, [str(n) for n in results.lengths])
    axes.set(title="Forward + backward", xlabel="tokens", ylabel="ms")
    axes.legend(frameon=False)


def draw_errors(job: argparse.Namespace, results: Results, axes: Any) -> None:
    width = 0.8 / (2 * len(job.dtypes))
    for j, name in enumerate(job.dtypes):
        _, plain = results.best_plain(name, MODES[1], job.length)
        for label, colour, kernel in (("plain torch", PLAIN_COLOUR, plain), ("xlstm_hip", OUR_COLOUR, FUSED)):
            shift = (2 * j + (kernel == FUSED) - len(job.dtypes) + 0.5) * width
            positions = [position + shift for position in range(len(QUANTITIES))]
            hatch = (None, "////", "....")[j]
            axes.bar(positions, results.errors[name, kernel], width * 0.9, color=colour, hatch=hatch, edgecolor="white",
                     label=f"{label}, {name}")  # fmt: skip
    axes.set_yscale("log")
    axes.set_xticks(range(len(QUANTITIES)), QUANTITIES)
    axes.grid(axis="x", visible=False)
    axes.set(title=f"Relative error against float64, {job.length} tokens", ylabel="||x - x64|| / ||x64||")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend
    axes.legend(frameon=False, ncols=len(job.dtypes), loc="upper center", fontsize=9)


def draw_decode(job: argparse.Namespace, results: Results, axes: Any) -> None:
    window = job.decode // DECODE_WINDOWS
    positions = [job.length + (n + 0.5) * window for n in range(DECODE_WINDOWS)]
    for name, colour in (("plain torch", PLAIN_COLOUR), ("ours", OUR_COLOUR)):
        label = "xlstm_hip" if name == "ours" else name
        axes.plot(positions, [1e6 * x for x in results.decode[name]], "-o", markersize=3, color=colour, label=label)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 2, high * 3)
    axes.set(title=f"Decoding, {job.dtypes[-1]} with float32 states", xlabel="position in the sequence",
             ylabel=f"us, the fastest token of {window}")  # fmt: skip
    axes.legend(frameon=False)


def leave_picture(picture: Path, draw_to: Callable[[Path], None]) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print("No picture: matplotlib is not installed (pip install 'xlstm_hip[plot]').")
        return
    draw_to(picture)
    print(f"Picture: {picture}")


def main() -> None:
    job = arguments()
    torch.set_num_threads(job.threads)
    print(
        f"The mLSTM over {job.length} tokens (batch 1, {job.heads} heads, head dims {job.dqk} and {job.dhv}) on "
        f"{device_facts('cpu').name}, {job.threads} threads, torch {torch.__version__}:"
    )
    print(f"{FUSED} beside this package's two plain-torch kernels, {' and '.join(PLAIN)}.\n")
    with Tasks(tasks(job)) as progress:
        results = measure(job, progress)
    print_results(job, results)
    leave_picture(job.output / "mlstm_demo.png", lambda picture: draw(job, results, picture))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")

# SPDX-License-Identifier: Apache-2.0
"""A model's step at each number of rows, by the decode engine's op and by the layers: errors beside float64, and times.

    python benchmarks/decode_rows.py                           on a GPU: xLSTM-7B's width, all rows and formats
    python benchmarks/decode_rows.py --rows 9 64 --formats int8 --skip-check
    python benchmarks/decode_rows.py --profile 64              also the time of each kernel of a step of 64 rows

Errors are those of the logits of one block and a small vocabulary. The engine's op may be off by twice what it is off
with the same rows in batches of eight, and by what 16 bits of x make; the layers' error stands beside it. Times are of
four blocks and 50304 words, both ways as CUDA or HIP graphs. The floor is the weights read once and the states read and
written once, at the rate of a copy on this GPU. exit code: 1 where an error is too large or a second run has other
bits, 77 without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from xlstm_hip.models import xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.models.config_files import HF_KERNELS  # plain torch's, which take float64
from xlstm_hip.models.quantize import QuantizedLinear, quantize

ROWS = (1, 2, 3, 5, 8, 9, 16, 17, 31, 64, 65, 128, 200, 256)
FORMATS = ("bf16", "fp16", "int8", "fp8", "int4")
SPLIT = 2.0**-17  # matrix units see 16 bits of what weights are multiplied with
CANNOT_RUN = 77
OP_ROWS = "XLSTM_HIP_DECODE_OP_ROWS"
PROMPT, STEPS, CALLS, RUNS = 3, 3, 30, 5
State = dict[int, tuple[Tensor, Tensor, Tensor]]


def model_of(form: str, width: int, blocks: int, vocab: int) -> xLSTMLarge:
    """Random weights by which gates depend on their input."""
    config = xLSTMLargeConfig(width, max(1, width // 512), blocks, vocab, mode="inference")
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = xLSTMLarge(config).to(torch.float16 if form == "fp16" else torch.bfloat16)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.dim() == 2:
                x.normal_(std=(2.0 if "gate_preact" in name else 1.0) / x.shape[1] ** 0.5)
            elif "weight" in name:
                x.normal_(mean=1.0, std=0.2)
            else:
                x.normal_(mean=3.0 if "fgate" in name else 0.0)
    if form in ("int8", "fp8", "int4"):
        quantize(model, 4 if form == "int4" else 8, format="float8_e4m3fn" if form == "fp8" else "int", progress=False)
    return model.eval()


def in_float64(model: xLSTMLarge) -> xLSTMLarge:
    weights = model.state_dict()
    for name, layer in model.named_modules():
        if isinstance(layer, QuantizedLinear):
            weights = {key: x for key, x in weights.items() if not key.startswith(f"{name}.") or key.endswith("bias")}
            weights[f"{name}.weight"] = layer.widened(torch.float32)
    with torch.device("cuda"):
        twin = xLSTMLarge(replace(model.config, **HF_KERNELS)).double()
    twin.load_state_dict(weights)
    return twin.eval()


@contextlib.contextmanager
def most_rows(rows: int) -> Iterator[None]:
    """The engine's op takes up to so many rows, and the layers more."""
    before = os.environ.get(OP_ROWS, "")
    os.environ[OP_ROWS] = str(rows)
    try:
        yield
    finally:
        os.environ[OP_ROWS] = before


def begun(model: xLSTMLarge, rows: int) -> State:
    draw = torch.Generator().manual_seed(1)
    prompt = torch.randint(model.config.vocab_size, (rows, PROMPT), generator=draw).cuda()
    return model.hidden(prompt, keep_state=True)[1]


def copied(state: State, dtype: torch.dtype = torch.float32) -> State:
    return {n: tuple(x.to(dtype, copy=True) for x in layer) for n, layer in state.items()}  # type: ignore[misc]


def tokens(model: xLSTMLarge, rows: int, steps: int) -> Tensor:
    draw = torch.Generator().manual_seed(2)
    return torch.randint(model.config.vocab_size, (rows, steps), generator=draw).cuda()


def logits(model: xLSTMLarge, state: State, x: Tensor, engine: bool) -> Tensor:
    with most_rows(x.shape[0] if engine else 0):
        return torch.stack([model.step(x[:, t], state) for t in range(x.shape[1])], dim=1)


def by_eights(model: xLSTMLarge, state: State, x: Tensor) -> Tensor:
    """The engine's logits, eight rows at a time."""
    parts = []
    for first in range(0, x.shape[0], 8):
        rows = slice(first, first + 8)
        of_rows = {n: tuple(layer[rows].contiguous() for layer in layers) for n, layers in state.items()}
        parts.append(logits(model, of_rows, x[rows], engine=True))  # type: ignore[arg-type]
    return torch.cat(parts)


def check(form: str, width: int, rows: list[int]) -> bool:
    model = model_of(form, width, 1, 1000)
    twin, right = in_float64(model), True
    for batch in rows:
        state, x = begun(model, batch), tokens(model, batch, STEPS)
        true = logits(twin, copied(state, torch.float64), x, engine=False)

        def off(y: Tensor, true: Tensor = true) -> float:
            return float((y.double() - true).norm() / true.norm())

        by_engine, again = (logits(model, copied(state), x, engine=True) for _ in range(2))
        layers = off(logits(model, copied(state), x, engine=False))
        most = 2 * off(by_eights(model, copied(state), x)) + 8 * SPLIT
        same, ok = torch.equal(by_engine, again), off(by_engine) <= most
        right = right and same and ok
        print(
            f"{form:5} {batch:4} rows: {off(by_engine):.2e} off, may be {most:.2e}; layers {layers:.2e}"
            f"{'' if same else '   NOT THE SAME TWICE'}{'' if ok else '   WRONG'}",
            flush=True,
        )
    return right


def milliseconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS + 1):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(CALLS):
            call()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / CALLS)
    return statistics.median(times[1:])


def copy_rate() -> float:
    """Bytes a millisecond, read and written."""
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() / milliseconds(lambda: y.copy_(x))


def profile(call: Callable[[], object], blocks: int) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as record:
        for _ in range(5):
            call()
        torch.cuda.synchronize()
    print(f"    us a step of {blocks} blocks, launches")
    for of in sorted(record.key_averages(), key=lambda of: -of.device_time_total)[:16]:
        print(f"    {of.device_time_total / 5:8.1f} {of.count // 5:4}  {of.key[:110]}")


def time_rows(form: str, options: argparse.Namespace, rate: float) -> None:
    model = model_of(form, options.width, options.blocks, options.vocab)
    embedding = model.embedding.weight
    weights = sum(x.numel() * x.element_size() for x in model.state_dict().values())
    weights -= embedding.numel() * embedding.element_size()
    for batch in options.rows:
        state = begun(model, batch)
        states = sum(x.numel() * x.element_size() for layer in state.values() for x in layer)
        step = functools.partial(model.step, tokens(model, batch, 1)[:, 0], state)
        floor = (weights + 2 * states) / rate
        for name, op_rows in (("op", batch), ("layers", 0)):
            if name == "layers" and options.skip_layers:
                continue
            with most_rows(op_rows):
                taken = milliseconds(step)
                of_floor = f"floor {floor:6.3f}: {floor / taken:.0%} of it"
                print(f"{form:5} {batch:4} rows: {name:6} {taken:7.3f} ms, {of_floor}", flush=True)
                if batch == options.profile:
                    profile(step, options.blocks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--formats", choices=FORMATS, nargs="+", default=list(FORMATS))
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--blocks", type=int, default=4, help="of the model that is timed")
    parser.add_argument("--vocab", type=int, default=50304, help="of the model that is timed")
    parser.add_argument("--profile", type=int, help="the time of each kernel at this number of rows")
    parser.add_argument("--skip-check", action="store_true")
    parser.add_argument("--skip-times", action="store_true")
    parser.add_argument("--skip-layers", action="store_true", help="times of the op alone")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU that torch can use", file=sys.stderr)
        return CANNOT_RUN
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    right = True
    with torch.no_grad():
        if not options.skip_check:
            right = all([check(form, options.width, options.rows) for form in options.formats])
        if not options.skip_times:
            rate = copy_rate()
            print(f"a copy reads and writes {rate / 1e9:.2f} TB/s")
            for form in options.formats:
                time_rows(form, options, rate)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

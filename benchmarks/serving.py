# SPDX-License-Identifier: Apache-2.0
"""The serving engine under load: tokens a second, and times to the first token and between tokens.

    python benchmarks/serving.py                                      the demo model on the CPU
    python benchmarks/serving.py --shape 4096x32x8 --device cuda      xLSTM-7B's shape, random weights
    python benchmarks/serving.py --concurrency 64 --prompt 512 --new 128 --token-budget 512 --out FILE.json

So many requests are under way all the time: one that is over makes way for the next. Beside the engine stand the same
model's parts by themselves, with as many rows: a decode step, and a prompt read in the engine's chunks. *of both*: the
time that these need for the same tokens, as a share of the engine's. The prefix cache is off: all prompts differ.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from xlstm_hip.bench.environment import environment, summary
from xlstm_hip.models import load_pretrained, xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.models.config_files import SpecialTokens
from xlstm_hip.models.tokenizer import Tokenizer
from xlstm_hip.serving import Engine, EngineConfig, Output, Request, SamplingParams

DEMO = Path(__file__).parents[1] / "models" / "demo"
STEPS = 16
# Text does not count here: a token is its number.
NUMBERS = Tokenizer(
    encode=lambda text: [int(word) for word in text.split()],
    decode=lambda tokens: " ".join(map(str, tokens)),
    streamer=lambda before: lambda token: f" {token}",
)


def model_of(args: argparse.Namespace) -> xLSTMLarge:
    if args.shape is None:
        return load_pretrained(str(args.model), weight_mode="fused").to(args.device)
    width, blocks, heads = (int(number) for number in args.shape.split("x"))
    config = xLSTMLargeConfig(width, heads, blocks, args.vocab, mode="inference", weight_mode="fused")
    torch.manual_seed(0)
    with torch.device(args.device):
        model = xLSTMLarge(config).to(torch.bfloat16).eval()
    model.special_tokens = SpecialTokens(bos=0, eos=(), pad=0)
    return model


def seconds_of(call: Callable[[], object], device: torch.device, times: int) -> float:
    """Of one call, after two that load and capture."""
    for _ in range(2):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


@torch.no_grad()
def parts_alone(model: xLSTMLarge, rows: int, prompt: int, chunk: int) -> tuple[float, float]:
    """Seconds of a decode step of so many rows, and of one prompt in chunks."""
    device = model.embedding.weight.device
    first = torch.zeros(rows, 1, dtype=torch.int64, device=device)
    _, state = model.read(first)
    tokens, mask = first[:, 0].contiguous(), torch.ones(rows, dtype=torch.bool, device=device)
    step = seconds_of(lambda: model.step(tokens, state, mask), device, STEPS)
    x = torch.randint(model.config.vocab_size, (1, prompt), device=device)
    _, one = model.read(x[:, :1])

    def read() -> None:
        for begin in range(0, prompt, chunk):
            model.read(x[:, begin : begin + chunk], one, None, x[:, begin : begin + chunk].shape[1] == chunk)

    return step, seconds_of(read, device, 3)


class Load:
    """A closed loop of requests, and when their tokens came."""

    def __init__(self, engine: Engine, args: argparse.Namespace, vocab: int) -> None:
        self._engine, self._args, self._vocab = engine, args, vocab
        self._left, self._running = args.requests, 0
        self._changed = threading.Condition()
        self._submitted: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self.first: list[float] = []
        self.between: list[float] = []
        self.tokens = 0

    def run(self) -> float:
        began = time.perf_counter()
        for number in range(self._args.requests):
            with self._changed:
                self._changed.wait_for(lambda: self._running < self._args.concurrency)
                self._running += 1
            self._submit(number)
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0)
        return time.perf_counter() - began

    def _submit(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(self._vocab, (self._args.prompt,), generator=generator).tolist()
        params = SamplingParams(
            max_tokens=self._args.new, temperature=self._args.temperature, seed=number, ignore_eos=True
        )
        self._submitted[str(number)] = time.perf_counter()
        self._engine.submit(Request(str(number), tokens, params), self._on_output)

    def _on_output(self, output: Output) -> None:
        now = time.perf_counter()
        if output.error is not None:
            raise output.error
        if output.tokens:
            self.tokens += len(output.tokens)
            if output.id in self._last:
                self.between.append(now - self._last[output.id])
            else:
                self.first.append(now - self._submitted[output.id])
            self._last[output.id] = now
        if output.finish_reason is not None:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(model: xLSTMLarge, args: argparse.Namespace) -> dict[str, Any]:
    step, prompt = parts_alone(model, args.concurrency, args.prompt, args.chunk)
    config = EngineConfig(
        slots=args.concurrency, prefill_chunk=args.chunk, token_budget=args.token_budget, prefix_cache_bytes=0,
        lookahead=False if args.no_lookahead else None,
    )  # fmt: skip
    with Engine(model, NUMBERS, config) as engine:
        warm = argparse.Namespace(**{**vars(args), "requests": args.concurrency, "new": 4})
        Load(engine, warm, model.config.vocab_size).run()  # what is loaded at first use
        load = Load(engine, args, model.config.vocab_size)
        seconds = load.run()
    alone = load.tokens / args.concurrency * step + args.requests * prompt
    return {
        "concurrency": args.concurrency,
        "requests": args.requests,
        "prompt": args.prompt,
        "new": args.new,
        "token_budget": args.token_budget,
        "chunk": args.chunk,
        "lookahead": not args.no_lookahead and args.device != "cpu",
        "tokens_per_s": load.tokens / seconds,
        "step_tokens_per_s": args.concurrency / step,
        "prompt_tokens_per_s": args.prompt / prompt,
        "of_both": alone / seconds,
        "first_ms": [1e3 * quantile(load.first, share) for share in (0.5, 0.99)],
        "between_ms": [1e3 * quantile(load.between, share) for share in (0.5, 0.99)],
        "step_ms": 1e3 * step,
    }


def shared_prompt(model: xLSTMLarge, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds to the first token of a prompt, and of others that go on from the same beginning."""
    generator = torch.Generator().manual_seed(0)
    config = EngineConfig(prefill_chunk=args.chunk, token_budget=args.token_budget, prefix_cache_bytes=8 << 30)
    times: dict[bool, list[float]] = {False: [], True: []}
    with Engine(model, NUMBERS, config) as engine:

        def first_token(tokens: list[int]) -> float:
            came = threading.Event()
            began = time.perf_counter()
            engine.submit(Request("a", tokens, SamplingParams(max_tokens=1, temperature=0)), lambda _: came.set())
            came.wait()
            return 1e3 * (time.perf_counter() - began)

        for turn in range(6):
            prompt = torch.randint(model.config.vocab_size, (args.shared,), generator=generator).tolist()
            for again in range(4):
                own = torch.randint(model.config.vocab_size, (16,), generator=generator).tolist()
                elapsed = first_token(prompt + own)
                if turn:  # the first loads
                    times[again > 0].append(elapsed)
    return {"tokens": args.shared, "first_ms": quantile(times[False], 0.5), "again_ms": quantile(times[True], 0.5)}


def show(row: dict[str, Any]) -> str:
    first, between = (" and ".join(f"{ms:.3g}" for ms in row[name]) for name in ("first_ms", "between_ms"))
    return (
        f"{row['concurrency']} requests at a time, {row['prompt']} in, {row['new']} out:"
        f" {row['tokens_per_s']:,.0f} tokens/s, {row['of_both']:.0%} of both"
        f" (steps alone {row['step_tokens_per_s']:,.0f}, prompts alone {row['prompt_tokens_per_s']:,.0f});"
        f" p50 and p99 in ms: first token {first}, between tokens {between} (a step {row['step_ms']:.3g})"
    )


def markdown(results: dict[str, Any]) -> str:
    lines = [
        "# Serving",
        "",
        summary(results["environment"]) + f"; {results['model']}.",
        "",
        "So many requests are under way all the time. Rates in tokens a second, times in ms. *of both*: the time that",
        "steps and prompts need by themselves for the same tokens, as a share of the engine's.",
        "",
        "| at a time | in, out | budget, chunk | lookahead | written | of both | steps alone | prompts alone "
        "| first token p50, p99 | between tokens p50, p99 | a step |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        first, between = (", ".join(f"{ms:.3g}" for ms in row[name]) for name in ("first_ms", "between_ms"))
        lines.append(
            f"| {row['concurrency']} | {row['prompt']}, {row['new']} | {row['token_budget']}, {row['chunk']} "
            f"| {'yes' if row['lookahead'] else 'no'} | {row['tokens_per_s']:,.0f} | {row['of_both']:.0%} "
            f"| {row['step_tokens_per_s']:,.0f} | {row['prompt_tokens_per_s']:,.0f} | {first} | {between} "
            f"| {row['step_ms']:.3g} |"
        )
    if shared := results.get("shared"):
        lines += [
            "",
            f"A prompt of {shared['tokens']} tokens and 16 of its own has its first token after "
            f"{shared['first_ms']:.3g} ms,",
            f"and where another one began with those, after {shared['again_ms']:.3g} ms (medians).",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEMO, help="folder of a checkpoint (default: the demo model)")
    parser.add_argument("--shape", help="WIDTHxBLOCKSxHEADS of random bfloat16 weights, instead of a checkpoint")
    parser.add_argument("--vocab", type=int, default=50304, help="with --shape (default: %(default)s)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--requests", type=int, help="in all (default: three times the concurrency)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens (default: %(default)s)")
    parser.add_argument("--new", type=int, default=128, help="tokens (default: %(default)s)")
    parser.add_argument("--chunk", type=int, default=256, help="EngineConfig.prefill_chunk (default: %(default)s)")
    parser.add_argument(
        "--token-budget",
        type=int,
        default=EngineConfig.token_budget,
        help="EngineConfig.token_budget (default: %(default)s)",
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--no-lookahead", action="store_true", help="EngineConfig.lookahead is False")
    parser.add_argument(
        "--shared", type=int, default=4096, help="tokens of a shared beginning; 0: none (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="JSON file of the results; a table goes beside it")
    args = parser.parse_args()
    model = model_of(args)
    rows = []
    for concurrency in args.concurrency:
        one = argparse.Namespace(**{**vars(args), "concurrency": concurrency})
        one.requests = args.requests or 3 * concurrency
        rows.append(measure(model, one))
        print(show(rows[-1]), flush=True)
    shared = shared_prompt(model, args) if args.shared else None
    if shared is not None:
        print(
            f"a prompt of {shared['tokens']} tokens and 16: first token after {shared['first_ms']:.3g} ms,"
            f" with the beginning of another one {shared['again_ms']:.3g} ms"
        )
    if args.out is not None:
        results = {
            "environment": environment(torch.device(args.device)),
            "model": args.shape or args.model.name,
            "rows": rows,
            "shared": shared,
        }
        args.out.write_text(json.dumps(results, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(markdown(results))


if __name__ == "__main__":
    main()

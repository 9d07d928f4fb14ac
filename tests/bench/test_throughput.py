# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip bench --model: how much is read and generated in a repetition, figures, tables, refused options."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from support.peer_models import scramble
from xlstm_hip import cli
from xlstm_hip.bench import throughput
from xlstm_hip.bench.machine import Machine
from xlstm_hip.bench.memory import MemoryUnknown
from xlstm_hip.bench.throughput import Work, measure, weight_bytes, works_of
from xlstm_hip.models import Stream, save_pretrained, xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.quantize import quantize


def small_model() -> xLSTMLarge:
    model = xLSTMLarge(xLSTMLargeConfig(64, 2, 1, 256, ffn_proj_factor=1.0, mode="inference", return_last_states=True))
    scramble(model)
    return model.eval()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_pretrained(small_model(), folder)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        code = cli.main(["bench", *map(str, arguments)])
    except SystemExit as stopped:  # argparse
        code = int(stopped.code or 0)
    return code, *capsys.readouterr()


class Clock(Machine):
    """Every repetition takes twice as long as the one before, the first a second."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.next = 0.5
        self.work: list[list[tuple[str, tuple[int, ...]]]] = []  # of each repetition
        self.done: list[tuple[str, tuple[int, ...]]] = []

    def seconds(self, call: Any, times: int) -> float:
        assert times == 1
        self.done.clear()
        call()
        self.work.append(list(self.done))
        self.next *= 2
        return self.next


@pytest.mark.parametrize("test", [Work("pp", 24, 3), Work("tg", 5, 2)], ids=lambda test: test.name)
def test_a_repetition_is_the_work_that_it_says(test: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    model, clock = small_model(), Clock()
    for name, of in (("feed", Stream), ("step", xLSTMLarge)):
        original = getattr(of, name)

        def spied(
            model_of_call: Any, tokens: torch.Tensor, *more: Any, original: Any = original, name: str = name
        ) -> Any:
            clock.done.append((name, tuple(tokens.shape)))
            return original(model_of_call, tokens, *more)

        monkeypatch.setattr(of, name, spied)
    parts: list[float] = []
    actual = measure(model, test, 3, clock, parts.append)
    model_of_call = [("feed", (3, 24))] if test.kind == "pp" else [("step", (2,))] * 5
    assert clock.work == [model_of_call] * 3
    rates = [test.tokens * test.batch / seconds for seconds in (1, 2, 4)]
    assert actual["samples"] == rates and actual["tokens_per_second"] == pytest.approx(statistics.mean(rates))
    assert actual["deviation"] == pytest.approx(statistics.stdev(rates)) and sum(parts) == pytest.approx(1)
    assert (actual["test"], actual["batch"], actual["tokens"]) == (test.name, test.batch, test.tokens)


def test_what_is_generated_is_what_generate_makes() -> None:
    from xlstm_hip.models import generate

    model, stepped = small_model(), []
    step = model.step
    model.step = lambda tokens, *more: stepped.append(tokens.clone()) or step(tokens, *more)  # type: ignore
    call = throughput.started(model, Work("tg", 4, 2), 2)
    call()
    call()
    prompt = torch.randint(256, (2, 1), generator=torch.Generator().manual_seed(0))
    want = generate(small_model(), prompt, 9, bos=None, eos=()).tokens
    assert torch.equal(torch.stack(stepped, dim=1), want[:, :8])


def test_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()

    def grown(call: Any) -> int:
        call()
        return 1000

    def unknown(call: Any) -> int:
        raise MemoryUnknown("here")

    for growth, peak in ((grown, weight_bytes(model) + 1000), (unknown, None)):
        monkeypatch.setattr(throughput, "growth_of", growth)
        actual = measure(model, Work("tg", 1, 1), 1, Clock(), lambda part: None)
        assert actual["peak_bytes"] == peak and actual["deviation"] == 0
    assert weight_bytes(model) == sum(x.numel() * 4 for x in model.parameters())
    assert " n/a " in "\n".join(throughput.table(throughput.facts_of(model, "x"), [actual]))


def test_the_command(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--model", checkpoint, "-p", "16,8", "-n", "3", "-b", "1,2", "-r", "2")
    assert code == 0
    rows = [[x.strip() for x in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("| ")]
    assert rows[0] == ["model", "parameters", "weights", "batch", "test", "tokens/s", "peak memory"]
    assert [(row[4], row[3]) for row in rows[1:]] == [
        ("pp16", "1"), ("pp8", "1"), ("tg3", "1"), ("pp16", "2"), ("pp8", "2"), ("tg3", "2"),
    ]  # fmt: skip
    assert all(
        row[0] == "tiny"
        and row[1] == f"{small_model().num_parameters() / 1e6:.2f} M"
        and row[2].startswith("float32, 0.")
        for row in rows[1:]
    )
    assert all(float(row[5].partition(" ± ")[0]) > 0 for row in rows[1:])
    assert "torch" in out.splitlines()[-1] and "[6/6] tg3, batch 2" in err


def test_json_and_dtype(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", checkpoint, "-p", 0, "-n", 2, "--json", "--device", "cpu", "--dtype", "bfloat16")
    code, out, _ = run(capsys, *options)
    actual = json.loads(out)
    assert code == 0 and (actual["weights"], actual["device"], actual["repetitions"]) == ("bfloat16", "cpu", 5)
    assert actual["parameters"] * 2 == actual["weight_bytes"] and actual["environment"]["packages"]["torch"]
    assert [x["test"] for x in actual["tests"]] == ["tg2"] and len(actual["tests"][0]["samples"]) == 5


def test_quantised_weights() -> None:
    model = quantize(small_model(), 4, 32, progress=False)[0]
    facts = throughput.facts_of(model, "x")
    assert facts["weights"] == "int4, float32" and facts["parameters"] == small_model().num_parameters()
    assert facts["weight_bytes"] < weight_bytes(small_model()) / 2


def test_tests_of() -> None:
    assert [x.name for x in works_of([0], [7], [1])] == ["tg7"] and works_of([0], [0], [1, 2]) == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("-p", 8), 2, "--prompt: expected --model with it, got [8]"),
        (("-n", 8), 2, "--generate: expected --model with it, got [8]"),
        (("-b", 8), 2, "--batch: expected --model with it, got [8]"),
        (("--repetitions", 8), 2, "--repetitions: expected --model with it, got 8"),
        (("--json",), 2, "--json: expected --model with it, got True"),
        (("--revision", "v1"), 2, "--revision: expected --model with it, got 'v1'"),
        (("step", "--model", "x"), 2, "operators: expected none with --model"),
        (("--model", "x", "--quick"), 2, "--quick: expected none with --model"),
        (("--model", "x", "--seconds", "3"), 2, "--seconds: expected none with --model"),
        (("--model", "x", "--list"), 2, "--list: expected none with --model"),
        (("--model", "x", "--dtype", "float32", "bfloat16"), 2, "--dtype: expected one with --model, got float32 bf"),
        (("--model", "x", "-p", "0", "-n", "0"), 2, "-p, -n: expected at least one above 0, got none"),
        (("--model", "x", "-p", "8,"), 2, "argument -p/--prompt: expected a whole number >= 0, got ''"),
        (("--model", "x", "-b", "0"), 2, "argument -b/--batch: expected a whole number >= 1, got '0'"),
        (("--model", "nowhere"), 1, "--model: expected the folder of a checkpoint, or a model of the Hugging Face hub"),
    ],
)
def test_refused(arguments: tuple, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    actual, _, err = run(capsys, *arguments)
    assert actual == code and text in err and err.count("\n") == 1

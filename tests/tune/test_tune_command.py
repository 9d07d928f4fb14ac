# SPDX-License-Identifier: Apache-2.0
"""xlstm-hip tune: real runs on this CPU, going on after Ctrl-C, and what is wrong in arguments."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from support.terminal import command
from xlstm_hip import cli
from xlstm_hip._core import plans
from xlstm_hip.tune import judge, tuner
from xlstm_hip.tune import measure as measuring
from xlstm_hip.tune.measure import Pace

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
SMALL = ("--heads", 2, "--length", 200, "--dqk", 16, "--dhv", 16, "--dtype", "float32", "--threads", 2)

STEP = ("--heads", 2, "--dqk", 16, "--dhv", 16, "--dtype", "float32", "--threads", 2)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "SEARCH_PACE", Pace(3, 1e-3))
    monkeypatch.setattr(tuner, "FINAL_PACE", Pace(5, 1e-3))
    monkeypatch.delenv(plans.ENVIRONMENT, raising=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    try:
        code = cli.main(["tune", *(str(x) for x in arguments)])
    except SystemExit as stopped:  # argparse
        code = int(stopped.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def test_a_real_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it finds depends on the machine; that it ends well, and that the table can be read, does not."""
    code, out, err = run(capsys, *SMALL, "--budget", 4, "--runs", tmp_path, "--model", DEMO)
    assert code == 0, err
    folder = only(tmp_path)
    assert folder.name.startswith("cpu_") and folder.name.endswith("_mlstm_chunkwise")
    assert out.count("trial ") >= 4 and ("the shipped plan is kept" in out or "times as fast, written to" in out)
    entries = plans.read_table(folder / "table.json")
    assert (entries == []) == ("the shipped plan is kept" in out)
    best = json.loads((folder / "best.json").read_text())
    assert (best["entry"] is None) == (entries == [])
    code, out, _ = run(capsys, "--resume", folder, "--budget", 6, "--model", DEMO, "--table", tmp_path / "t.json")
    assert code == 0 and "trial 3" not in out.partition("the shipped")[0] and "trial 5: " in out
    assert len((folder / "trials.jsonl").read_text().splitlines()) == 6
    plans.read_table(tmp_path / "t.json")


@pytest.mark.parametrize("op", ["mlstm_backward", "attention_forward", "attention_backward", "mla_decode"])
def test_ops_without_a_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str], op: str) -> None:
    more = ("--heads-k", 1, "--queries", 3, "--causal") if op != "mlstm_backward" else ()
    code, out, err = run(capsys, "--op", op, *SMALL, *more, "--budget", 2, "--runs", tmp_path, "--tag", "x.y")
    assert code == 0, err
    assert only(tmp_path).name.endswith("_x.y") and "trial 1: " in out


@pytest.fixture
def twice_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every trial is, and so is judged."""
    twice = measuring.paired_ms

    def planted(calls, device, pace):
        _, tuned_ms = twice(calls, device, pace)
        return [[2 * ms for ms in tuned_ms], tuned_ms]

    class InThisProcess:
        """Trials in this process, where the planted clock is."""

        def __init__(self, *_: object) -> None: ...

        def run(self, problem, plans, pace):
            yield from ((n, measuring.measure(problem, plan, pace, 2)) for n, plan in plans.items())

        def close(self) -> None: ...

    monkeypatch.setattr(measuring, "paired_ms", planted)
    monkeypatch.setattr("xlstm_hip.tune.engines.LocalEngine", InThisProcess)


def test_the_environments_table_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, twice_as_fast: None
) -> None:
    few = partial(judge.save_outputs_for_trials, texts=1, read=40, written=20)
    monkeypatch.setattr(judge, "save_outputs_for_trials", few)
    table = tmp_path / "mine.json"
    monkeypatch.setenv(plans.ENVIRONMENT, str(table))
    code, out, err = run(capsys, *SMALL, "--budget", 3, "--runs", tmp_path / "runs", "--model", DEMO)
    assert code == 0, err
    assert f"2.000 times as fast, written to {table}\n" in out and "to use it: export" not in out
    (entry,) = plans.read_table(table)
    assert entry["class"]["length"] == 256 and entry["arch"].endswith("/2")
    outputs = only(tmp_path / "runs") / "outputs"
    assert (outputs / "shipped.json").exists() and len(list(outputs.iterdir())) == 4


@pytest.mark.parametrize(("op", "shape"), [("mlstm_chunkwise", SMALL), ("mlstm_step", STEP)])
def test_without_a_model_plans_are_judged_by_numerical_error(
    op: str, shape: tuple, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    twice_as_fast: None,
) -> None:  # fmt: skip
    """As outside the repository, where models/demo is not."""
    monkeypatch.chdir(tmp_path)
    arguments = ("--op", op, *shape, "--budget", 3)
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    line = "no --model, and no models/demo here: plans are checked by numerical error alone, not by a model's text\n"
    assert out.startswith(line) and "2.000 times as fast" in out
    folder = only(tmp_path / "runs")
    assert json.loads((folder / "run_meta.json").read_text())["model"] is None
    shipped = json.loads((folder / "outputs" / "shipped.json").read_text())
    assert shipped["op"] == op and all(row["errors"] for row in shipped["draws"])
    code, _, err = run(capsys, *arguments, "--model", "models/demo/")
    assert code == 1 and "--model: expected the folder of a checkpoint, or a model of the Hugging Face hub" in err


def test_without_a_model_the_demo_judges_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, twice_as_fast: None
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "demo").symlink_to(DEMO)
    monkeypatch.chdir(tmp_path)
    judged: dict[str, plans.Plan] = {}
    monkeypatch.setattr(judge, "save_outputs_for_trials", lambda model, tokens, op, trials, to: judged.update(trials))
    monkeypatch.setattr(judge, "judge_outputs", lambda model, folder: dict.fromkeys(judged, {"refused": "planted"}))
    code, out, err = run(capsys, *SMALL, "--budget", 3)
    assert code == 0, err
    assert judged and "is refused: planted" in out and "no --model" not in out
    assert json.loads((only(tmp_path / "runs") / "run_meta.json").read_text())["model"] == "models/demo"


def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    words = ("tune", "--op", "mlstm_backward", *SMALL, "--budget", 1000, "--runs", tmp_path)
    first = command(*words, start_new_session=True)
    until = time.monotonic() + 120
    trials = Path()
    while time.monotonic() < until and not (trials.is_file() and trials.stat().st_size):
        time.sleep(0.1)
        trials = next(iter(tmp_path.glob("*/trials.jsonl")), Path())
    os.killpg(first.pid, signal.SIGINT)  # as a terminal sends it: to the trial's process too
    _, err = first.communicate(timeout=60)
    assert first.returncode == 130 and f"continue with: xlstm-hip tune --resume {trials.parent}" in err
    assert "Traceback" not in err
    before = trials.read_text()
    done = len(before.splitlines())
    again = command("tune", "--resume", trials.parent, "--budget", done + 1)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert trials.read_text().startswith(before) and f"trial {done}: " in out and f"trial {done - 1}: " not in out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--op", "mlstm"), 2, "argument --op: invalid choice: 'mlstm'"),
        (("--search", "grid"), 2, "argument --search: invalid choice: 'grid'"),
        (("--engine", "slurm"), 2, "argument --engine: invalid choice: 'slurm'"),
        (("--dtype", "int7"), 2, "argument --dtype: invalid choice: 'int7'"),
        (("--dtype", "int8"), 1, "dtype: expected one of 'float32', 'bfloat16', 'float16', got 'int8'"),
        (("--budget", 0), 2, "argument --budget: expected a whole number >= 1, got '0'"),
        (("--finalists", 0), 2, "argument --finalists: expected a whole number >= 1"),
        (("--seed", -1), 2, "argument --seed: expected a whole number >= 0"),
        (("--batch", 0), 2, "argument --batch: expected a whole number >= 1"),
        (("--heads", "x"), 2, "argument --heads: expected a whole number >= 1"),
        (("--length", 0), 2, "argument --length: expected a whole number >= 1"),
        (("--dqk", 0), 2, "argument --dqk: expected a whole number >= 1"),
        (("--dhv", 0), 2, "argument --dhv: expected a whole number >= 1"),
        (("--threads", 0), 2, "argument --threads: expected a whole number >= 1"),
        (("--heads-k", 0), 2, "argument --heads-k: expected a whole number >= 1"),
        (("--queries", 0), 2, "argument --queries: expected a whole number >= 1"),
        (("--heads-k", 2), 1, "heads_k: expected none for mlstm_chunkwise, got 2"),
        (("--causal",), 1, "causal: expected none for mlstm_chunkwise, got True"),
        (("--device", "mps"), 1, "device: expected one of 'cpu'"),
        (("--device", "nothing"), 1, "device: expected cpu, cuda or cuda:N, got 'nothing'"),
        (("--trial-seconds", 0), 1, "--trial-seconds: expected above 0, got 0.0"),
        (("--tag", "a/b"), 1, "tag: expected letters, digits"),
        (("--op", "mlstm_step", "--length", 3), 1, "--length: expected none for mlstm_step, which takes one token"),
        (("--op", "mlstm_backward", "--model", DEMO), 1, "--model: expected none for mlstm_backward"),
        (
            ("--op", "mlstm_sequence", "--device", "cpu"),
            1,
            "--op: expected an op with something to tune on cpu, got mlstm_sequence",
        ),
        (("--model", "nowhere"), 1, "--model: expected the folder of a checkpoint, or a model of the Hugging Face hub"),
        (("--revision", "v1"), 2, "--revision: expected --model with it, got 'v1'"),
        (("--ray-address", "auto", "--model", DEMO), 1, "ray_address: expected none with engine 'local', got 'auto'"),
        (("--resume", "nowhere"), 1, "resume: expected the folder of a run with run_meta.json, got 'nowhere'"),
    ],
)
def test_bad_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple, code: int, text: str
) -> None:
    actual, _, err = run(capsys, "--runs", tmp_path, *arguments)
    assert actual == code and text in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())  # no run began


@pytest.mark.parametrize("has", ["nothing", "config.json", "config.json and weights"])
def test_a_model_that_cannot_judge_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has: str
) -> None:
    folder, runs = tmp_path / "model", tmp_path / "runs"
    folder.mkdir()
    for name in [file.name for file in DEMO.iterdir()]:
        if name in has or ("weights" in has and "safetensors" in name):
            (folder / name).write_bytes((DEMO / name).read_bytes())
    if "weights" in has:
        (weights,) = folder.glob("*.safetensors")
        weights.write_bytes(weights.read_bytes()[:100])
    code, _, err = run(capsys, *SMALL, "--model", folder, "--runs", runs, "--budget", 1)
    assert code == 1 and f"--model: {folder}" in err and not runs.exists(), err


def test_a_table_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, runs = tmp_path / "file", tmp_path / "runs"
    file.write_text("no table")
    arguments = ("--runs", runs, "--op", "mlstm_backward", *SMALL, "--budget", 1)
    for table in (file, file / "table.json", tmp_path):
        code, _, err = run(capsys, *arguments, "--table", table)
        assert code == 1 and f"--table: {table}" in err and not runs.exists(), err
    monkeypatch.setenv(plans.ENVIRONMENT, str(file))
    code, _, err = run(capsys, *arguments)
    assert code == 1 and f"{plans.ENVIRONMENT}: {file}" in err and not runs.exists(), err


def test_a_folder_of_runs_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "--op", "mlstm_backward", *SMALL, "--runs", tmp_path / "file")
    assert code == 1 and "runs: expected a folder that can be written, got " in err


def test_a_cluster_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")

    def refused(**_: object) -> None:
        raise ConnectionError("no one\nis there")

    monkeypatch.setattr(ray, "init", refused)
    arguments = (
        "--op",
        "mlstm_backward",
        *SMALL,
        "--runs",
        tmp_path,
        "--engine",
        "ray",
        "--ray-address",
        "127.0.0.1:9",
    )
    code, _, err = run(capsys, *arguments)
    assert code == 1 and "ray_address: expected a Ray cluster, got '127.0.0.1:9': no one is there" in err
    assert not list(tmp_path.iterdir())


def test_a_run_on_ray(tmp_path: Path) -> None:
    """In a process of its own: it starts a Ray of this machine, and ends it."""
    pytest.importorskip("ray")
    arguments = ("--op", "mlstm_backward", *SMALL[:-1], 1, "--budget", 2, "--runs", tmp_path, "--engine", "ray")
    done = command("tune", *arguments)
    out, err = done.communicate(timeout=240)
    assert done.returncode == 0, err
    assert "trial 0: " in out and "trial 1: " in out and ("the shipped plan is kept" in out or "written to" in out)
    folder = only(tmp_path)
    trials = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert sorted(x["trial"] for x in trials) == [0, 1] and {x["status"] for x in trials} == {"ok"}
    assert json.loads((folder / "run_meta.json").read_text())["engine"] == "ray"


def test_what_a_run_was_begun_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And two runs that begin in the same second have a folder each."""
    monkeypatch.setattr(time, "strftime", lambda *_: "now")
    for _ in range(2):
        code, _, err = run(capsys, "--op", "mlstm_step", *STEP, "--budget", 1, "--runs", tmp_path, "--model", DEMO)
        assert code == 0, err
    names = sorted(x.name for x in tmp_path.iterdir())
    assert names == ["cpu_now_mlstm_step", "cpu_now_mlstm_step-2"]
    meta = json.loads((tmp_path / names[1] / "run_meta.json").read_text())
    assert (meta["budget"], meta["engine"], meta["model"]) == (1, "local", str(DEMO))
    assert "git_sha" in meta and meta["settings"]["seed"] == 0


def test_help_says_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--help")
    help_text = " ".join(out.split())
    assert (
        "gives the same candidates (default: 0)" in help_text
        and "(default: --heads, mla_decode 1)" in help_text
        and "(default: 8, mla_decode 128)" in help_text
        and "(default: False)" not in help_text
    )
    assert help_text.count("(default: 0)") == 1


def test_bad_tables_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.json"
    table.write_text('{"format": 1, "entries": [{"op": "x"}]}')
    arguments = ("--runs", tmp_path / "runs", "--op", "mlstm_backward", *SMALL, "--budget", 1)
    code, _, err = run(capsys, *arguments, "--table", table)
    assert code == 1 and "--table: " in err and "entries[0].op: expected one of" in err
    code, _, err = run(capsys, *arguments)
    assert code == 0, err
    folder = only(tmp_path / "runs")
    for more, text in (
        (("--heads", 4), "--heads: expected 2 as in the run, got 4"),
        (("--op", "mlstm_step"), "--op: expected 'mlstm_backward' as in the run, got 'mlstm_step'"),
        (("--seed", 3), "--seed: expected 0 as in the run, got 3"),
        (("--tag", "x"), "--tag: expected none with --resume"),
    ):
        code, _, err = run(capsys, "--resume", folder, *more)
        assert code == 1 and text in err
    meta = folder / "run_meta.json"
    meta.write_text(meta.read_text().replace('"arch": "', '"arch": "other'))
    code, _, err = run(capsys, "--resume", folder)
    assert code == 1 and "--resume: expected a machine of kind other" in err
    meta.write_text("{}")
    code, _, err = run(capsys, "--resume", folder)
    assert code == 1 and "--resume: expected the settings of a run in" in err

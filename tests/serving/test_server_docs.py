# SPDX-License-Identifier: Apache-2.0
"""docs/serving.md has the options, fields, statuses and metrics that there are, and its example of the client runs."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from support.fake_engine import FakeEngine, served_by
from support.served_model import served_model
from xlstm_hip import cli
from xlstm_hip.cli import serve
from xlstm_hip.cli.common import add_model_options
from xlstm_hip.serving import EngineConfig, Snapshot
from xlstm_hip.serving.server import Keys, Limits, ServerState, create_app, metrics
from xlstm_hip.serving.server.errors import TYPES
from xlstm_hip.serving.server.logs import Record
from xlstm_hip.serving.server.openai_types import ChatBody, CompletionBody

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")


def options(command: argparse.ArgumentParser) -> set[str]:
    return {name for action in command._actions for name in action.option_strings if name.startswith("--")}


def test_options() -> None:
    commands = next(x for x in cli.parser()._actions if isinstance(x, argparse._SubParsersAction))
    model = argparse.ArgumentParser()
    add_model_options(model)
    own = options(commands.choices["serve"]) - options(model)
    table = PAGE.partition("## Options")[2].partition("**Keys**")[0]
    assert {
        name for line in table.splitlines() if line.startswith("|") for name in re.findall(r"`(--[\w-]+)`", line)
    } == (own - {"--template"})
    assert "--template FILE" in PAGE
    assert set(re.findall(r"`(--[\w-]+)", PAGE)) <= options(commands.choices["serve"]) | {"--help"}


def test_the_command_has_what_the_engine_has() -> None:
    """But for two that only measurements ask for, and what a request may ask of logprobs."""
    args = cli.parser().parse_args(["serve", "models/demo"])
    assert serve.engine_config(args) == EngineConfig(
        max_prompt_tokens=args.max_prompt_tokens, max_new_tokens=args.max_new_tokens
    )
    used = set(re.findall(r"^            (\w+)=", inspect.getsource(serve.engine_config), re.MULTILINE))
    fields = {field.name for field in dataclasses.fields(EngineConfig)}
    assert fields - used == {"max_logprobs", "ageing_seconds", "prefix_cache_states"}
    counted = {field.name for field in dataclasses.fields(Snapshot)} - {"healthy", "requests_finished"}
    assert counted == {*metrics.GAUGES, *metrics.COUNTERS, *metrics.HISTOGRAMS}


def test_fields() -> None:
    """All that are taken, beside the prompt or the messages; refused ones are not among them."""
    table = PAGE.partition("and no others:")[2].partition("`usage` has")[0]
    named = {name for line in table.splitlines() if line.startswith("|") for name in re.findall(r"`(\w+)`", line)}
    taken = {*CompletionBody.model_fields, *ChatBody.model_fields} - {"model", "prompt", "messages"}
    assert taken <= named
    assert named - taken <= {
        "include_usage", "continuous_usage_stats", "stop_reason", "json_object", "json_schema", "n",
    }  # fmt: skip


def test_statuses() -> None:
    table = PAGE.partition("| status | when |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line]
    named = {int(status) for cell in cells for status in re.findall(r"\b[45]\d\d\b", cell)}
    assert named == set(TYPES) - {405}


def test_metrics() -> None:
    state = ServerState(Keys(), Limits())
    engine = FakeEngine()
    engine.finished["length"] = 1
    state.served = served_by(engine, template=False)
    state.metrics.ended(Record("a", "GET", "/"), 0.1)
    text = state.metrics.text().decode()
    known = set(re.findall(r"^(xlstm_hip_\w+?)(?:_bucket)?[{ ]", text, re.MULTILINE))
    named = set(re.findall(r"`(xlstm_hip_\w+)`", PAGE))
    assert len(named) > 15 and named <= known


def test_paths() -> None:
    app = create_app(ServerState(Keys(), Limits()))
    served = {path for path in app.openapi()["paths"]}
    table = PAGE.partition("| path | |")[2].partition("\n\n")[0]
    named = {path.replace("NAME", "{name}") for path in re.findall(r"`(?:GET |POST )?(/[\w/.]*)`", table)}
    assert named == served | {"/", "/openapi.json"}


@pytest.mark.parametrize(
    "code", re.findall(r'^```python title="needs the server above.*?"\n(.*?)^```', PAGE, re.M | re.S)
)
def test_the_example_runs(code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served_model(tmp_path) as server:
        exec(compile(code.replace("http://127.0.0.1:8000", server.url), "docs/serving.md", "exec"), {})
    assert len(capsys.readouterr().out) > 60

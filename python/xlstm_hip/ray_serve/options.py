# SPDX-License-Identifier: Apache-2.0
"""The options of `xlstm-hip serve` as the `args` of a Serve application: the command's own parser reads them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, NoReturn

from ..cli import serve

ELSEWHERE = {
    "host": "http_options of Serve have it",
    "engines": "replicas of the deployment Engine are them (num_replicas)",
    "port": "http_options of Serve have it",
    "drain_timeout": "graceful_shutdown_timeout_s of a deployment is it",
    "stall_timeout": "Serve's proxy stands between client and ingress, and takes all that is written",
    "swap_folder": "replicas would write the same files; sessions stay in host memory (swap_mb)",
    "swap_folder_mb": "replicas would write the same files; sessions stay in host memory (swap_mb)",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ").removeprefix("--")
        name, _, rest = text.partition(":")
        raise ValueError(f"{name.replace('-', '_')}:{rest}")


def parse(options: Mapping[str, Any]) -> argparse.Namespace:
    """Options by their names with or without dashes; texts are taken for numbers and booleans, as `serve run` has them.
    A ValueError names the one that is wrong.
    """
    parser = _Parser(allow_abbrev=False)
    serve.add(parser.add_subparsers())
    command: argparse.ArgumentParser = parser._subparsers._group_actions[0].choices["serve"]  # type: ignore
    actions = {action.dest: action for action in command._actions if action.dest != "help"}
    words: list[str] = []
    for written, value in options.items():
        name = str(written).replace("-", "_")
        if name in ELSEWHERE:
            raise ValueError(f"{name}: expected none with Ray Serve, as {ELSEWHERE[name]}; got {value!r}")
        if name not in actions:
            known = ", ".join(sorted(actions.keys() - ELSEWHERE.keys()))
            raise ValueError(f"{name}: expected one of the options {known}")
        if name != "model" and value is not None:
            words += _words(name, value, actions[name])
    model = options.get("model")
    if not isinstance(model, str) or not model:
        raise ValueError(
            f"model: expected the folder of a checkpoint, or the name of a model of the hub, got {model!r}"
        )
    args = command.parse_args([*words, "--", model])
    del args.run  # what the command would do with them
    return args


def _words(name: str, value: Any, action: argparse.Action) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if action.nargs == 0:
        flag = {"true": True, "false": False}.get(str(value).lower())
        if flag is None:
            raise ValueError(f"{name}: expected true or false, got {value!r}")
        return [option] if flag else []
    values = value if isinstance(value, list) and isinstance(action.default, list) else [value]
    for one in values:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            raise ValueError(f"{name}: expected a number or a text, got {one!r}")
    return [f"{option}={one}" for one in values]

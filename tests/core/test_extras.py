# SPDX-License-Identifier: Apache-2.0
"""Without a package of an extra: what needs it says how to install it, what can do without does without."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import xlstm_hip
from xlstm_hip import attention
from xlstm_hip._core.extras import EXTRA_OF, optional_module
from xlstm_hip.bench import plot, result_files
from xlstm_hip.mlstm.compiled import mlstm_chunkwise__ray_compiled_steps
from xlstm_hip.models import load_pretrained
from xlstm_hip.models.chat_template import ChatTemplate
from xlstm_hip.models.tokenizer import load_tokenizer
from xlstm_hip.tune.engines import make_engine

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(xlstm_hip.__file__).parent
REQUIRED = {"torch", "numpy", "safetensors"}
# Other implementations, which are compared with or stood in for. No extra installs them.
PEERS = {"mlstm_kernels", "xlstm", "triton", "fla", "flash_attn", "kernels"}
# Imports this package, as a plug-in.
HOST = "vllm"
IMPORTS = ("importlib.import_module", "optional_module")


def _tokenizer(folder: Path) -> Any:
    (folder / "tokenizer.json").write_text("{}")
    return load_tokenizer(folder, 9)


def _hf(folder: Path) -> Any:
    module = sys.modules.pop("xlstm_hip.integrations.hf", None)
    try:
        return importlib.import_module("xlstm_hip.integrations.hf")
    finally:
        if module is not None:
            sys.modules["xlstm_hip.integrations.hf"] = module


def _ray_kernel(folder: Path) -> Any:
    q, gate = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3)
    return mlstm_chunkwise__ray_compiled_steps(q, q, q, gate, gate)


def _template(folder: Path) -> Any:
    return ChatTemplate("", {}, "chat_template.jinja").render([])


NEEDS: list[tuple[str, str, Callable[[Path], Any]]] = [
    ("transformers", "xlstm_hip.hf", _hf),
    ("transformers", "register_with_transformers", lambda folder: attention.register_with_transformers()),
    ("tokenizers", "tokenizer.json", _tokenizer),
    ("transformers", "chat_template.jinja: a chat template", _template),
    ("jinja2", "chat_template.jinja: a chat template", _template),
    ("huggingface_hub", "a model of the hub", lambda folder: load_pretrained("lab/no-folder")),
    ("ray", "engine: 'ray'", lambda folder: make_engine("ray", 1, 1.0)),
    ("ray", "chunkwise--ray_compiled_steps", _ray_kernel),
    ("matplotlib", "drawing pictures", lambda folder: plot.panels(1)),
]


@pytest.mark.parametrize(
    ("package", "label", "call"), NEEDS, ids=[f"{package}: {label}" for package, label, _ in NEEDS]
)
def test_the_error_names_the_extra(
    package: str, label: str, call: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError) as raised:
        call(tmp_path)
    assert str(raised.value).endswith(f'{label} needs {package}: pip install "xlstm_hip[{EXTRA_OF[package]}]"')
    assert raised.value.name == package


def test_a_package_that_lacks_something_itself_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("import no_such_part_of_ray")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_part_of_ray'"):
        optional_module("ray", "this")


def test_a_report_without_pictures_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result_files.report({}, tmp_path / "a.json", lambda results: "a table", lambda results, out: [])
    assert 'drawing pictures needs matplotlib: pip install "xlstm_hip[plot]"' in capsys.readouterr().out
    assert (tmp_path / "a.md").read_text() == "a table"


def test_the_extras_install_them() -> None:
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, extra in EXTRA_OF.items():
        # opentelemetry is of several distributions: opentelemetry-sdk and others.
        assert package in {re.split("[>-]", requirement)[0] for requirement in extras[extra]}


def test_every_package_that_is_imported_is_known() -> None:
    found: dict[str, str] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "importlib.import_module",
                "optional_module",
            ):
                names = [node.args[0].value] if isinstance(node.args[0], ast.Constant) else []
            found |= {name.partition(".")[0]: path.name for name in names if not name.startswith(".")}
    known = {*sys.stdlib_module_names, *REQUIRED, *PEERS, *EXTRA_OF, HOST, "xlstm_hip", "xlstm_hip_command"}
    assert {"torch", "transformers", "ray", "matplotlib"} <= found.keys()
    assert not {name: file for name, file in found.items() if name not in known}

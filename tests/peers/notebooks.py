# SPDX-License-Identifier: Apache-2.0
"""The notebooks of xlstm's large model, cell by cell, and the README's block, on xlstm_hip.compat."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from sdists import sdist

import xlstm_hip
from xlstm_hip.models import save_pretrained, xLSTMLarge, xLSTMLargeConfig

NOTEBOOKS = sdist("xlstm") / "notebooks/xlstm_large"


def on_a_cpu(code: str) -> str:
    return re.sub(r"([\"'])cuda\1", r"\1cpu\1", code)


def run(notebook: Path, replacements: dict[str, str]) -> dict[str, Any]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for number, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code"):
        code = on_a_cpu("".join(cell["source"]))
        for old, new in replacements.items():
            code = code.replace(old, new)
        exec(compile(code, f"{notebook.name}, cell {number}", "exec"), names)
    return names


def is_of_package(model: torch.nn.Module) -> bool:
    return type(model).__module__.startswith(f"{xlstm_hip.__name__}.")


def test_demo() -> None:
    names = run(NOTEBOOKS / "demo.ipynb", {})
    assert is_of_package(names["xlstm"])
    # The notebook's last comparison, whose result it only shows.
    torch.testing.assert_close(names["out_chunkwise"], names["out_steps"], atol=7e-2, rtol=1e-3)


def test_load_from_pretrained(tmp_path: Path) -> None:
    config = xLSTMLargeConfig(embedding_dim=64, num_heads=4, num_blocks=2, vocab_size=2048)
    save_pretrained(xLSTMLarge(config), tmp_path)
    names = run(NOTEBOOKS / "load_from_pretrained.ipynb", {"/path/to/xlstm_large_checkpoint": str(tmp_path)})
    assert is_of_package(names["model"])
    assert names["h"].shape == (2, 256, 2048)


@pytest.mark.parametrize("number", [0, 1])
def test_readme(number: int) -> None:
    blocks = re.findall(r"^```python *\n(.*?)^```", (sdist("xlstm") / "README.md").read_text("utf-8"), re.M | re.S)
    about_the_large_model = [block for block in blocks if "xLSTMLargeConfig(" in block]
    assert len(about_the_large_model) == 2, "README.md of another version"
    names: dict[str, Any] = {}
    # The last line takes out for a tensor, which with these settings is a pair in xlstm, too.
    exec(on_a_cpu(about_the_large_model[0]).replace("\nout.shape[1:] == (256, 2048)\n", "\n"), names)
    if number:
        exec(on_a_cpu(about_the_large_model[1]), names)
        names["xlstm"] = names["xLSTMLarge"](names["xlstm_config"])
        names["out"] = names["xlstm"](names["input"])
    assert is_of_package(names["xlstm"])
    assert names["out"][0].shape[1:] == (256, 2048)

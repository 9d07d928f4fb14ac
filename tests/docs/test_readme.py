# SPDX-License-Identifier: Apache-2.0
"""README and docs say what is: their code runs, the files they name exist, their kernel names are the registry's."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import xlstm_hip
from xlstm_hip import attention, cli, models, serving
from xlstm_hip._core.plans import use_plans
from xlstm_hip.mlstm import builtin_kernels, select

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
FAMILY_PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "csrc").glob("*/README.md"))
PAGES = ("README.md", "CONTRIBUTING.md", *DOCS, *FAMILY_PAGES)
FOLDERS = "build_backend|cmake|csrc|docs|examples|python|scripts|tests"
FENCE = re.compile(r"^```(\w*)(?: title=\"needs ([^\"\n]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIRST = ("README.md", "CONTRIBUTING.md", "docs/quickstart.md")  # other pages' examples run in CI
LANGUAGES = ("", "python", "py", "sh", "json")  # "" is no code: figures, formulas, signatures


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The blocks that run here. A block whose title says what it needs is left out: other hardware, a network, an
    hour."""
    return [block[3] for block in FENCE.finditer(text_of(page)) if block[1] == language and not block[2]]


def python_of(page: str) -> str:
    """The page with everything but its Python blanked out, so that a traceback has the page's line numbers.

    A block marked `py` is left out: it runs by itself, as xlstm_hip.compat must come before what others import."""
    text = text_of(page)
    lines = [""] * (text.count("\n") + 1)
    for block in FENCE.finditer(text):
        if block[1] == "python" and not block[2]:
            first = text.count("\n", 0, block.start(3))
            for n, line in enumerate(block[3].splitlines()):
                lines[first + n] = line
    return "\n".join(lines)


def run_python(code: str, page: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"exec(compile({code!r}, {page!r}, 'exec'))"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def pages_with(language: str) -> list[Any]:
    pages = [page for page in PAGES if blocks(page, language)]
    return [pytest.param(page, marks=pytest.mark.rows("representative" if page in FIRST else "ci")) for page in pages]


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_examples_run(page: str) -> None:
    """One after the other, as a reader would; in a process of its own, as compat changes what imports mean."""
    run_python(python_of(page), page)


@pytest.mark.parametrize("page", pages_with("py"))
def test_examples_of_their_own_run(page: str) -> None:
    for code in blocks(page, "py"):
        run_python(code, page)


@pytest.fixture
def clone(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder that looks like a clone, for a page's commands to write into, with xlstm-hip, python and a text."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("benchmarks", "docs", "examples", "models", "scripts", "tests"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "book.txt").write_text("And it came to pass in those days. " * 40, encoding="utf-8")
    commands = folder / "bin"
    commands.mkdir()
    for name, arguments in (("python", ""), ("xlstm-hip", " -m xlstm_hip")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n', encoding="utf-8")
        (commands / name).chmod(0o755)
    paths = {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return folder, {**os.environ, **paths}


@pytest.mark.parametrize("page", pages_with("sh"))
def test_shell_examples_run(page: str, clone: tuple[Path, dict[str, str]]) -> None:
    folder, environment = clone
    for code in blocks(page, "sh"):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_or_says_what_it_needs(page: str) -> None:
    """No block in a language that no test runs, none with another title, none left open."""
    text = text_of(page)
    found = list(FENCE.finditer(text))
    assert sum(line.startswith("```") for line in text.splitlines()) == 2 * len(found)
    assert {block[1] for block in found} <= set(LANGUAGES)
    for data in blocks(page, "json"):
        json.loads(data)
    assert not [block[0] for block in found if block[2] and not block[1]]
    starts = re.compile(r"^\s*(?:pip|python|xlstm-hip|import|from|\./scripts)\s", re.MULTILINE)
    assert not [block[3] for block in found if not block[1] and starts.match(block[3])]  # code without a language


def test_the_readme_is_short_and_for_users() -> None:
    """It fits 150 lines, has examples, and leaves internal aims to docs/benchmarks.md."""
    text = text_of("README.md")
    assert len(text.splitlines()) <= 150
    assert all(call in python_of("README.md") for call in ("mlstm_interface(", "hf.accelerate(", "generate("))
    assert not re.findall(r"\b(?:aims?|MISSED|held to)\b", text)
    assert "MISSED" in text_of("docs/benchmarks.md")


def test_the_quickstart_has_examples() -> None:
    assert python_of("docs/quickstart.md").count("mlstm_interface(") >= 4


@functools.cache
def sources_named() -> set[str]:
    """Of C++ sources: every name that a page may use, from the file's name alone to its path."""
    parts = [
        path.relative_to(ROOT).parts for top in ("csrc", "examples", "tests") for path in (ROOT / top).rglob("*.*")
    ]
    return {"/".join(names[first:]) for names in parts for first in range(len(names))}


@pytest.mark.parametrize("page", PAGES)
def test_files_named_exist(page: str) -> None:
    """Backticked paths and links; names with <placeholders> or * are patterns, not files."""
    text = text_of(page)
    named = set(re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", text))
    links = {link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link}
    missing = {path for path in named if not (ROOT / path).exists()}
    missing |= {link for link in links if not (ROOT / page).parent.joinpath(link).exists()}
    missing |= set(re.findall(r"`([\w/]+\.(?:h|cpp|hip|cu))`", text)) - sources_named()
    assert not missing


def test_family_pages_name_files() -> None:
    """The tables that say which file serves which chip: each path exists in the family's folder."""
    assert len(FAMILY_PAGES) >= 4
    for page in FAMILY_PAGES:
        named = re.findall(r"`([\w./-]+)`", text_of(page))
        assert len(named) >= 10
        assert not {name for name in named if not (ROOT / page).parent.joinpath(name).exists()}, page


@pytest.mark.parametrize("page", [page for page in DOCS if page.startswith("docs/design/")])
def test_a_design_page_is_one_thing(page: str) -> None:
    """At most 8 KB, and no dates: what was measured, and when, is in docs/lab/."""
    text = text_of(page)
    assert len(text.encode()) <= 8 << 10
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", text)


def test_what_lies_below_python_is_listed() -> None:
    """Every op, function of the C API and command."""
    text = text_of("docs/api.md")
    header, ops = text_of("csrc/include/xlstm_hip.h"), text_of("csrc/torch/register.cpp")
    functions = {name for name in re.findall(r"^[\w ]+ \**(xlstm_\w+)\(", header, re.M) if "workspace" not in name}
    expected = {name for name in functions if not name.startswith("xlstm_gpu_")}
    expected |= set(re.findall(r'm\.def\(\s*"(\w+)\(', ops)) | {
        module.__name__.split(".")[-1] for module in cli.COMMANDS
    }
    assert len(expected) > 40
    assert not {name for name in expected - {"evaluate"} if not re.search(rf"`{name}[` ]", text)}


def in_the_reference() -> set[Any]:
    """The objects that docs/reference.md shows."""
    found = set()
    for path, options in re.findall(r"^::: ([\w.]+)\n((?:    .*\n)*)", text_of("docs/reference.md"), re.MULTILINE):
        members = re.search(r"members: \[(.*?)\]", options, re.DOTALL)
        parent, _, name = path.rpartition(".")
        if members:
            found |= {getattr(importlib.import_module(path), member) for member in re.findall(r"\w+", members[1])}
        elif importlib.util.find_spec(parent) and hasattr(importlib.import_module(parent), name):
            found.add(getattr(importlib.import_module(parent), name))
    return found


def test_the_reference_has_every_public_name() -> None:
    """Each with a docstring, without which the site leaves it out, and with a line for those who browse the source."""
    shown = in_the_reference()
    lines = set(re.findall(r"^- `(\w+)`: \w", text_of("docs/reference.md"), re.MULTILINE))
    for module in (xlstm_hip, attention, models, serving):
        public = {name: getattr(module, name) for name in module.__all__ if name != "__version__"}
        assert not {name for name, x in public.items() if x not in shown}
        assert not {name for name, x in public.items() if not x.__doc__}
        assert not {x.__name__ for x in shown if callable(x)} - lines
        assert not set(public) - lines
    assert use_plans in shown


def test_kernel_names() -> None:
    text = text_of("docs/api.md")
    first_cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    in_tables = set(re.findall(r"`([\w-]+)`", " ".join(first_cells)))
    known = {name for _, name in (*builtin_kernels.BUILTIN, *builtin_kernels.ALIASES)}
    assert known <= in_tables
    mentioned = set().union(*(re.findall(r"\b(?:chunkwise|parallel)--\w+", text_of(page)) for page in PAGES))
    assert mentioned <= known
    assert all(f"`{regime}`" in text for regime in select.REGIMES)


def test_kernel_facts() -> None:
    """Gate and options of each kernel in docs/api.md's table are those of mlstm/builtin_kernels.py."""
    lines = text_of("docs/api.md").splitlines()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    table = [row for row in rows if len(row) == 5 and row[1] in ("chunkwise", "parallel", "sequence", "step")]
    documented = {
        (kind, name): (gate, set(filter(None, options.split(", "))))
        for name_cell, kind, gate, _, options in table
        for name in re.findall(r"`([\w-]+)`", name_cell)
    }
    facts = {key: row.info for key, row in builtin_kernels.BUILTIN.items() if row.stand_in is None}
    assert documented == {key: (info.gate, set(info.options)) for key, info in facts.items()}

# SPDX-License-Identifier: Apache-2.0
"""Pages that list what the code has list all of it, as it is: environment variables, signatures, names of tests."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from test_readme import DOCS, FENCE, PAGES, ROOT, python_of, text_of

import xlstm_hip
from xlstm_hip import attention, models, quantize
from xlstm_hip.models.quantize import GATES, SINGLE_NAMES

# How each language reads a variable, and where users meet it.
READS = {
    "python/**/*.py": r'"(XLSTM_HIP_[A-Z_]+)"',
    "csrc/**/*.cpp": r'getenv\("(\w+)"\)',
    "csrc/**/*.hip": r'getenv\("(\w+)"\)',
    "cmake/*.cmake": r"\$ENV\{([A-Z_]+)\}|ENV:([A-Z_]+)\b",
    "build_backend/*.py": r'environ(?:ment)?(?:\.get\(|\[)"(\w+)"|"(MAX_JOBS|CMAKE_\w+|VIRTUAL_ENV|UV_\w+)"',
    "tests/*/**/*.cpp": r'getenv\("(\w+)"\)',
    "tests/**/*.py": r'environ(?:\.get\(|\[)"(XLSTM_HIP_OTHER_TORCH|WITHOUT_\w+|MOONMATH_AMD_KERNELS)"',
}


def variables_read(root: Path) -> set[str]:
    found = set()
    for pattern, read in READS.items():
        for path in root.glob(pattern):
            for match in re.finditer(read, path.read_text(encoding="utf-8")):
                found |= set(filter(None, match.groups()))
    return found


def variables_listed() -> set[str]:
    first_cells = re.findall(r"^\| (`.*?) \|", text_of("docs/environment.md"), re.MULTILINE)
    return {name for cell in first_cells for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", cell)}


def test_every_environment_variable_is_listed() -> None:
    """And no other, but PYTHON, which shell scripts read."""
    read = variables_read(ROOT)
    assert {"XLSTM_HIP_LOGS", "XLSTM_HIP_GPU_SCHEDULE", "XLSTM_HIP_GPU", "MAX_JOBS", "ROCM_PATH"} <= read
    compilers = {f"{language}CXX" for language in ("HIP", "CUDA")}  # cmake/gpu_compilers.cmake puts them together
    assert variables_listed() == read | compilers | {"PYTHON"}


def test_planted_variables_are_found(tmp_path: Path) -> None:
    (tmp_path / "python/a").mkdir(parents=True)
    (tmp_path / "python/a/b.py").write_text('x = os.environ.get("XLSTM_HIP_NEW")')
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc/x.cpp").write_text('const char* x = std::getenv("XLSTM_HIP_OTHER");')
    assert variables_read(tmp_path) == {"XLSTM_HIP_NEW", "XLSTM_HIP_OTHER"}


def test_an_adapter_goes_to_every_large_layer() -> None:
    """The target_modules of docs/finetuning.md: all linear layers of a block but the gates."""
    code = python_of("docs/finetuning.md")
    named = re.search(r"target_modules=\[(.*?)\]", code, re.DOTALL)
    assert named
    targets = set(re.findall(r'"(\w+)"', named[1]))
    assert targets == set(SINGLE_NAMES) - {*GATES, "lm_head"}


def written_signatures(text: str) -> dict[str, str]:
    """Of the blocks of signatures: each function's name and its parameters. One with ... is left out."""
    found = {}
    for block in FENCE.finditer(text):
        for match in re.finditer(r"^(\w+)\(", block[3], re.MULTILINE) if not block[1] else ():
            end, depth = match.end(), 1
            while depth:
                depth += {"(": 1, ")": -1}.get(block[3][end], 0)
                end += 1
            inside = " ".join(block[3][match.end() : end - 1].split())
            if "..." not in inside:
                found[match[1]] = inside
    return found


def signature_of(function: Any) -> str:
    """As api.md writes it: without annotations."""
    parameters = inspect.signature(function).parameters.values()
    bare = inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])
    return str(bare)[1:-1].replace("'", '"')


def test_signatures_are_the_functions() -> None:
    modules = (xlstm_hip, attention, models, quantize)
    public = {name: getattr(module, name) for module in modules for name in module.__all__}
    written = {name: x for name, x in written_signatures(text_of("docs/api.md")).items() if name in public}
    assert {"mlstm_interface", "flash_attn_func", "flash_mla_with_kvcache", "load_pretrained"} <= set(written)
    different = {name: x for name, x in written.items() if ast.dump(of(x)) != ast.dump(of(signature_of(public[name])))}
    assert different == {}


def of(signature: str) -> ast.arguments:
    parsed = ast.parse(f"def f({signature.replace('1e-06', '1e-6')}): pass").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    return parsed.args


WRITTEN_BY_SCRIPTS = tuple(
    f"docs/{page}.md" for page in ("amd_kernels", "amd_roofline", "amd_time", "amd_time_kernels", "benchmarks")
)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WRITTEN_BY_SCRIPTS])
def test_a_page_is_readable_as_source(page: str) -> None:
    """Lines fit a window. A row of a table is one line, so it is short but for the targets of its links."""
    for line in text_of(page).splitlines():
        row = line.startswith("|")
        limit = (420 if page.startswith("docs/lab/") else 200) if row else 120
        assert len(re.sub(r"\]\([^)]*\)", "]", line) if row else line) <= limit, line


def test_tests_that_the_lab_names_are_there() -> None:
    """Of docs/lab/first-contact.md: in a file that the row names, or one before it."""
    sources, names = "", []
    for line in text_of("docs/lab/first-contact.md").splitlines():
        sources += "".join(map(text_of, re.findall(r"`(tests/[\w/]+\.py)`", line)))
        names += re.findall(r"`(test_\w+)`", line)
        assert not [name for name in names if f"def {name}(" not in sources]
    assert len(names) > 15


def lab_entries(page: str, text: str) -> dict[str, tuple[str, str]]:
    """Of a page of the lab: each dated heading with its date and the text up to the next heading."""
    parts = re.split(r"^##+ (.+)\n", text, flags=re.MULTILINE)[1:]
    found = {}
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        date = re.match(r"\n(20\d\d-\d\d-\d\d)\b", body)
        if date:
            found[title] = (date[1], body)
        else:  # a heading of a group of entries
            assert page == "docs/lab/compilers.md", (page, title)
    return found


LAB = [page for page in DOCS if page.startswith("docs/lab/") and not page.endswith("/index.md")]


@pytest.mark.parametrize("page", LAB)
def test_an_entry_of_the_lab_is_complete(page: str) -> None:
    """Newest first, each with its question, set-up, table and verdict; one of compilers.md has its remedy."""
    entries = lab_entries(page, text_of(page))
    assert entries
    wanted = ["**Question.**", "**Set-up.**", "\n|---", "**Verdict.**"]
    if page == "docs/lab/compilers.md":
        wanted = ["**Remedy.**"]
    else:
        dates = [date for date, _ in entries.values()]
        assert dates == sorted(dates, reverse=True)
    for title, (_, body) in entries.items():
        assert not [part for part in wanted if part not in body], title


def test_the_index_of_the_lab_has_every_entry() -> None:
    index = text_of("docs/lab/index.md")
    rows = re.findall(r"^\| (20\d\d-\d\d-\d\d) \| \[(.+?)\]\(([\w-]+\.md)#", index, re.MULTILINE)
    entries = []
    for page in LAB:
        entries += [(date, title, Path(page).name) for title, (date, _) in lab_entries(page, text_of(page)).items()]
    assert sorted(rows) == sorted(entries)

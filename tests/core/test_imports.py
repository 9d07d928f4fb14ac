# SPDX-License-Identifier: Apache-2.0
"""The modules of the package, and its folders, import one another in one direction: no circle, in whatever function an
import stands. And the wheel holds what users run: every module is reached from a public one or from the command."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

import xlstm_hip

PACKAGE = Path(xlstm_hip.__file__).parent
CORE = "xlstm_hip._core"
Graph = dict[str, set[str]]


def name_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(package: Path) -> Graph:
    """Module -> the modules that its source imports relatively, with the packages that Python imports for them."""
    paths = {name_of(path, package): path for path in package.rglob("*.py")}
    graph: Graph = {}
    for name, path in paths.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                above = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = above[: len(above) - node.level + 1] + (node.module.split(".") if node.module else [])
                for alias in node.names:
                    target = ".".join([*base, alias.name])
                    found.add(target if target in paths else ".".join(base))
        packages = {target.rsplit(".", n)[0] for target in found for n in range(target.count(".") + 1)}
        # A module's own packages are being imported already.
        graph[name] = {x for x in (found | packages) & set(paths) if x != name and not name.startswith(f"{x}.")}
    return graph


def reached_from(modules: Iterable[str], graph: Graph) -> set[str]:
    """The modules that these import, directly or not; not they themselves, unless something leads back to them."""
    seen, waiting = set(), [target for module in modules for target in graph[module]]
    while waiting:
        target = waiting.pop()
        if target not in seen:
            seen.add(target)
            waiting += graph[target]
    return seen


def circles(graph: Graph) -> list[set[str]]:
    """Groups of modules in which every one reaches every other."""
    reached = {module: reached_from([module], graph) for module in graph}
    in_circles = [frozenset(x for x in reached[module] if module in reached[x]) for module in graph]
    return [set(circle) for circle in set(in_circles) if circle]


def test_no_circles() -> None:
    graph = import_graph(PACKAGE)
    assert len(graph) > 100 and sum(map(len, graph.values())) > 400
    assert circles(graph) == []


def folder_graph(graph: Graph) -> Graph:
    """The same of the folders below the package and of the modules beside them. The package itself has no level: its
    `__init__` names its public modules."""

    def folder(module: str) -> str:
        return ".".join(module.split(".")[:2])

    folders: Graph = {folder(module): set() for module in graph if "." in module}
    for module, targets in graph.items():
        if "." in module:
            folders[folder(module)] |= {folder(x) for x in targets if "." in x} - {folder(module)}
    return folders


def test_folders_are_a_stack() -> None:
    folders = folder_graph(import_graph(PACKAGE))
    assert {"xlstm_hip.bench", "xlstm_hip.models"} <= folders["xlstm_hip.cli"]
    assert circles(folders) == []


def test_a_planted_circle_of_folders_is_found() -> None:
    modules = {"p.cli.bench": {"p.bench.runner"}, "p.bench.runner": set(), "p.cli.common": set()}
    assert circles(folder_graph(modules)) == []
    modules["p.bench.trial"] = {"p.cli.common"}
    assert circles(modules) == [] and circles(folder_graph(modules)) == [{"p.bench", "p.cli"}]


def test_core_imports_nothing_above_it() -> None:
    allowed = ("xlstm_hip._core", "xlstm_hip._ops", "xlstm_hip._version")
    imports = {name: targets for name, targets in import_graph(PACKAGE).items() if name.startswith(CORE)}
    assert len(imports) > 5
    assert not {(name, x) for name, targets in imports.items() for x in targets if not x.startswith(allowed)}


def of_no_use_to_users(package: Path, public: Iterable[str]) -> set[str]:
    """Modules that neither a public module nor the command imports. bench imports what it offers by name alone, so what
    counts of it is what `xlstm-hip bench` needs."""
    graph = import_graph(package)
    roots = {package.name, *(f"{package.name}.{name}" for name in (*public, "compat", "__main__"))} & set(graph)
    reached = reached_from(roots, graph) | roots
    packages = {name.rsplit(".", n)[0] for name in reached for n in range(name.count("."))}
    return set(graph) - reached - packages


# By the entry point in pyproject.toml, and by the name that this registers.
IMPORTED_BY_VLLM = ("integrations.vllm", "integrations.vllm.model")


def test_the_wheel_holds_what_users_run() -> None:
    """Result pages and other tools of this repository are in benchmarks/ and scripts/."""
    assert of_no_use_to_users(PACKAGE, [*xlstm_hip.PUBLIC_MODULES, *IMPORTED_BY_VLLM]) == set()
    bench = {f"xlstm_hip.bench.{name}" for name in xlstm_hip.bench.__all__}
    assert bench <= reached_from(["xlstm_hip.cli.bench"], import_graph(PACKAGE))


def test_a_planted_tool_of_the_repository_is_found(tmp_path: Path) -> None:
    package = tmp_path / "p"
    (package / "bench/pages").mkdir(parents=True)
    sources = {"__init__": "", "models": "from . import parts", "parts": "", "bench/__init__": "", "bench/clock": ""}
    sources |= {"__main__": "from .bench import clock", "training": "from . import models"}
    sources |= {"bench/pages/__init__": "", "bench/pages/table": "from .. import clock"}
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
    found = of_no_use_to_users(package, ["models", "bench"])
    assert found == {"p.training", "p.bench.pages", "p.bench.pages.table"}


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ("from . import b", "", 0),
        ("from . import b", "from .a import x", 1),
        ("def f():\n    from .b import x", "from . import a", 1),
        ("from .sub import c", "", 0),
        ("from .sub.c import x", "", 0),
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, a: str, b: str, found: int) -> None:
    package = tmp_path / "p"
    (package / "sub").mkdir(parents=True)
    sources = {"__init__": "from . import a", "a": a, "b": b, "sub/__init__": "", "sub/c": "from .. import b"}
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
    assert len(circles(import_graph(package))) == found


def test_a_circle_through_a_package_is_found(tmp_path: Path) -> None:
    """sub.c needs a, which needs sub.d: importing sub.d runs sub, which imports sub.c."""
    package = tmp_path / "p"
    (package / "sub").mkdir(parents=True)
    sources = {
        "__init__": "",
        "a": "from .sub.d import x",
        "sub/__init__": "from . import c",
        "sub/c": "from .. import a",
    }
    for name, text in sources.items():
        (package / f"{name}.py").write_text(text)
    (package / "sub/d.py").write_text("x = 1")
    assert circles(import_graph(package)) == [{"p.a", "p.sub", "p.sub.c"}]

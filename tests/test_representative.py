# SPDX-License-Identifier: Apache-2.0
"""How rows are chosen for a run, and that pytest leaves out the others and no more."""

from __future__ import annotations

import importlib.util
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from support.representative import LEVELS, levels, marked, up_to

SIZES = {"kernel": 7, "case": 11, "dtype": 3}
ROWS = [row for row in itertools.product(*map(range, SIZES.values())) if sum(row) % 5]  # some combinations do not exist


def axes(row: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(SIZES, row, strict=True))


def met(rows: list[tuple[int, ...]], count: int) -> set[Any]:
    return {met for row in rows for met in itertools.combinations(axes(row).items(), count)}


def test_quick_has_every_value_and_representative_every_pair() -> None:
    quick, usual, ci, everything = (up_to(level, ROWS, axes) for level in LEVELS)
    assert met(quick, 1) == met(ROWS, 1) and len(quick) == max(SIZES.values())
    assert met(usual, 2) == met(ROWS, 2) and len(usual) < len(ROWS) / 2
    assert everything == ROWS and set(quick) < set(usual) and ci == usual


def test_pairs_of_other_axes_do_not_count() -> None:
    usual = up_to("representative", ROWS, axes, pairs_of=("kernel", "dtype"))
    assert {(row[0], row[2]) for row in usual} == {(row[0], row[2]) for row in ROWS}
    assert met(usual, 1) == met(ROWS, 1) and met(usual, 2) < met(ROWS, 2)


def test_the_order_alone_decides_between_equals() -> None:
    assert levels(ROWS, axes) == levels(list(ROWS), axes)
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    assert met(up_to("representative", shuffled, axes), 2) == met(ROWS, 2)


def test_slow_rows_are_not_quick_and_count_later() -> None:
    found = levels(ROWS, axes, pairs_of=(), slow=lambda row: row[1] == 3)
    assert {row[1] for row, level in zip(ROWS, found, strict=True) if level == "quick"} == {*range(11)} - {3}
    assert {row[1] for row, level in zip(ROWS, found, strict=True) if level != "everything"} == {*range(11)}


def test_late_rows_run_in_ci() -> None:
    usual, found = levels(ROWS, axes), levels(ROWS, axes, late=lambda row: row[1] == 3)
    for row, before, after in zip(ROWS, usual, found, strict=True):
        assert after == ("ci" if row[1] == 3 and before != "everything" else before)


def test_no_rows_and_one() -> None:
    assert levels([], axes) == [] and levels([(0, 0, 1)], axes) == ["quick"]


def test_parameters_are_marked() -> None:
    result = marked(ROWS, axes, str)
    assert [p.values for p in result] == ROWS and [p.id for p in result] == [str(row) for row in ROWS]
    assert [p.marks[0].args[0] for p in result] == levels(ROWS, axes)


TABLE = """
import pytest
from test_representative import ROWS, axes
from support.representative import marked

@pytest.mark.parametrize("kernel, case, dtype", marked(ROWS, axes, str))
def test_row(kernel, case, dtype):
    pass

def test_no_row():
    pass
"""
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    ("arguments", "level"),
    [([], "representative"), *((["--rows", level], level) for level in LEVELS), (["file.py::test_row"], "everything")],
    ids=lambda x: x if isinstance(x, str) else " ".join(x) or "no option",
)
def test_pytest_runs_a_level(tmp_path: Path, arguments: list[str], level: str) -> None:
    """By conftest.py, in a session of its own."""

    class Counted:
        names: list[str] = []

        def pytest_collection_finish(self, session: pytest.Session) -> None:
            self.names = [item.name for item in session.items]

    (tmp_path / "file.py").write_text(TABLE)
    where = [str(tmp_path / x) if "::" in x else x for x in arguments]
    counted = Counted()
    named = any("::" in x for x in where)
    targets = [*where, *([] if named else [str(tmp_path / "file.py")])]
    options = ["--collect-only", "-q", "-c", str(HERE.parent / "pyproject.toml"), "--import-mode=importlib"]
    spec = importlib.util.spec_from_file_location("conftest_of_all", HERE / "conftest.py")
    assert spec and spec.loader
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    assert pytest.main([*options, *targets], plugins=[conftest, counted]) == 0
    rows = [f"test_row[{row}]" for row in up_to(level, ROWS, axes)]
    assert counted.names == rows + ["test_no_row"] * (not named)

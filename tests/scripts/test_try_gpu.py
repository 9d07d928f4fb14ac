# SPDX-License-Identifier: Apache-2.0
"""scripts/try_gpu.py: parts that pass, fail, hang or cannot run; going on; the archive; wrong arguments."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("try_gpu", ROOT / "scripts/try_gpu.py")
assert SPEC and SPEC.loader
report = sys.modules["try_gpu"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(report)


def part(name: str, code: str, *more: str, seconds: int = 60, **needs: Any) -> Any:
    return report.Part(name, f"what {name} is", seconds, ("-c", code, *more), **needs)


def facts(gpu: str = "a GPU") -> dict[str, Any]:
    from xlstm_hip.bench.environment import environment

    known = {"name": gpu, "arch": "gfx942", "runtime": "HIP 6", "driver": "1"}
    return environment() | {"gpu": known}


def run(out: Path, parts: tuple[Any, ...], *arguments: str, gpu: str = "a GPU") -> int:
    return report.main([*arguments, "--out", str(out)], parts, lambda: facts(gpu))


def outcomes(out: Path) -> dict[str, str]:
    return {name: p["outcome"] for name, p in json.loads((out / "report.json").read_text())["parts"].items()}


def test_each_outcome_and_the_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, left_running = tmp_path / "report", tmp_path / "left_running"
    child = f"import time; time.sleep(3); open({str(left_running)!r}, 'w')"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    parts = (
        part("good", "import sys; open(sys.argv[1] + '/result.json', 'w').write('{{}}')", "{out}"),
        part("bad", "import sys; print('it is wrong'); sys.exit(3)"),
        part("hangs", parent, seconds=1),
        part("half", "print('5 done, 0 failed, 2 left out for time')"),
        part("whole", "print('7 done, 0 failed, 0 left out for time')"),
        part("cannot", "import sys; print('a line'); print('no hipcc was found'); sys.exit(77)"),
        part("no tool", "", tool="no-such-program"),
        part("no module", "", module="no_such_module"),
    )
    assert run(out, parts) == 1
    assert outcomes(out) == {
        "good": "passed",
        "bad": "FAILED: exit code 3",
        "hangs": "FAILED: out of time",
        "half": "passed as far as it came, 2 left out for time",
        "whole": "passed",
        "cannot": "left out: no hipcc was found",
        "no tool": "left out: no-such-program is not on the PATH",
        "no module": "left out: the package no_such_module is not installed",
    }
    page = (out / "report.md").read_text()
    assert "a GPU (gfx942), HIP 6" in page and "it is wrong" in page and "| bad | what bad is | FAILED" in page
    with tarfile.open(tmp_path / "report.tar.gz") as archive:
        names = archive.getnames()
    assert {"report/report.md", "report/good/result.json", "report/bad/log.txt"} <= set(names)
    assert "2 failed: bad, hangs" in capsys.readouterr().out
    time.sleep(3)
    assert not left_running.exists(), "a part out of time left a process behind"


def test_going_on(tmp_path: Path) -> None:
    out, count = tmp_path / "report", tmp_path / "count"
    counting = f"open({str(count)!r}, 'a').write('x')"
    first, second = part("first", counting), part("second", "raise SystemExit(1)")
    assert run(out, (first, second)) == 1
    mended = part("second", counting)
    assert run(out, (first, mended)) == 0
    assert count.read_text() == "xx" and set(outcomes(out).values()) == {"passed"}
    assert run(out, (first, mended), "first", "--again") == 0
    assert count.read_text() == "xxx"


def test_no_time_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(report, "SPARE", 31)
    assert run(tmp_path / "report", (part("late", "raise SystemExit(1)"),), "--minutes", "1") == 0
    assert "1 left out for time" in capsys.readouterr().out and not (tmp_path / "report/late").exists()


def test_arguments_of_a_part(tmp_path: Path) -> None:
    peers = tmp_path / "peers"
    peers.mkdir()
    shows = part("shows", "import sys; print(sys.argv[1:])", "{seconds}", report.PEERS, seconds=50)
    assert run(tmp_path / "with", (shows,), "--peers", str(peers)) == 0
    assert (tmp_path / "with/shows/log.txt").read_text().strip() == str(["30", "--peers", str(peers)])
    assert run(tmp_path / "without", (shows,)) == 0
    assert (tmp_path / "without/shows/log.txt").read_text().strip() == "['30']"


def test_wrong_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/report.json").write_text("[1]")
    assert run(tmp_path / "before", (part("good", ""),)) == 0
    for call_arguments, gpu, words in (
        (["nonsense"], "a GPU", "parts: no name of --list holds 'nonsense'"),
        (["--minutes", "0"], "a GPU", "expected a whole number >= 1"),
        (["--peers", str(tmp_path / "file")], "a GPU", "--peers: expected a folder"),
        (["--out", str(tmp_path / "file")], "a GPU", "--out: expected a folder"),
        (["--out", str(tmp_path / "other")], "a GPU", "is no report of this script"),
        (["--out", str(tmp_path / "before")], "another", "is of another GPU"),
    ):
        arguments = call_arguments if "--out" in call_arguments else [*call_arguments, "--out", str(tmp_path / "new")]
        with pytest.raises(SystemExit) as ended:
            report.main(arguments, (part("good", ""),), lambda gpu=gpu: facts(gpu))
        assert ended.value.code == 2 and words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.rows("ci")
def test_parts_are_there() -> None:
    """Files that the parts name exist, and take the options that they are given."""
    assert len({part.name for part in report.PARTS}) == len(report.PARTS)
    help_of: dict[tuple[str, ...], str] = {}
    for each in report.PARTS:
        files = [word for word in each.command if word.startswith(("tests/", "benchmarks/"))]
        assert all((ROOT / word).exists() for word in files), each.name
        options = {word for word in each.command if word.startswith("--") and word != report.PEERS}
        options |= {"--peers"} if report.PEERS in each.command else set()
        command = (*each.command[: 3 if each.command[0] == "-m" else 1], "--help")
        if options and command not in help_of:
            help_of[command] = subprocess.check_output([sys.executable, *command], cwd=ROOT, text=True)
        assert not options or all(option in help_of[command] for option in options), each.name

# SPDX-License-Identifier: Apache-2.0
"""predict.py as a command: a report, a trace, a picture, a difference of two builds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import builds

SOURCE = """
#include <hip/hip_runtime.h>
extern "C" __global__ void sums(float* x, int n) {
  __shared__ float shared[256];
  float s = 0;
  for (int i = 0; i < n; ++i) s += x[i * 256 + threadIdx.x];
  shared[threadIdx.x] = s;
  __syncthreads();
  x[threadIdx.x] = shared[255 - threadIdx.x];
}
"""


@pytest.fixture(scope="module")
def predict(device: ModuleType) -> ModuleType:
    import predict

    return predict


@pytest.fixture
def code(device: ModuleType, tmp_path: Path) -> Path:
    path = tmp_path / "sums.co"
    path.write_bytes(builds.compile_hip(SOURCE, "-g1"))
    return path


def arguments(code: Path, n: int) -> list[str]:
    return [str(code), "--kernel", "sums", "--grid", "4", "--block", "256", "--arg", "f32[16384]=1", "--arg", str(n)]


def test_a_report(predict: ModuleType, code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "waves.png"
    assert predict.main([*arguments(code, 32), "--trace", str(trace), "--picture", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "predicted 0.0" in text and "nothing was measured" in text
    assert "wait: memory" in text and "s_waitcnt vmcnt" in text
    lines = re.findall(r"%  \S+\.hip:(\d+)$", text, re.MULTILINE)  # the source lines that wait
    assert lines[0] == str(1 + SOURCE[: SOURCE.index("for (int i")].count("\n")) and len(set(lines)) > 2
    slices = [x for x in json.loads(trace.read_text())["traceEvents"] if x["ph"] == "X"]
    waves = {(x["pid"], x["tid"]) for x in slices}
    assert len(waves) == 4 * 4  # the four workgroups, one after the other on one compute unit
    for wave in waves:  # nothing at the same time
        mine = sorted((x["ts"], x["ts"] + x["dur"]) for x in slices if (x["pid"], x["tid"]) == wave)
        assert all(a[1] <= b[0] + 1e-9 for a, b in zip(mine, mine[1:], strict=False))
    assert picture.stat().st_size > 5_000


def test_lines_of_source(predict: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HIP source is compiled with line tables."""
    source = tmp_path / "sums.hip"
    source.write_text(SOURCE)
    assert predict.main(arguments(source, 32)) == 0
    assert re.search(r"%  \S+\.hip:\d+\n", capsys.readouterr().out)


def test_lines_of_other_code(device: ModuleType, predict: ModuleType) -> None:
    """Of a kernel without line tables, by the same source compiled with them; other code is refused."""
    import source_lines
    import timing

    with device.Module(device.compile_hip(SOURCE)) as module:
        launches = timing.predict(lambda: module.launch("sums", 4, 256, (np.ones(1 << 14, np.float32), 32)))
    assert not any(s.source for s in launches[0].stalls)
    (found,) = source_lines.with_lines(launches, lambda kernel: device.compile_hip(SOURCE, "-gline-tables-only"))
    loop = SOURCE[: SOURCE.index("for (int i")].count("\n") + 1
    (worst,) = (s for s in found.stalls if s.stall == max(x.stall for x in found.stalls))
    assert f".hip:{loop}:" in worst.source
    other = SOURCE.replace("255 - threadIdx.x", "threadIdx.x ^ 3")
    with pytest.raises(ValueError, match="sums: compiled with -gline-tables-only it has other instructions"):
        source_lines.with_lines(launches, lambda kernel: device.compile_hip(other, "-gline-tables-only"))


@pytest.mark.rows("ci")  # it compiles an object of the package
def test_lines_of_the_package(package: ModuleType, predict: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict.main(["--call", "mLSTM, step in place, B1", "--lines", "--instructions", "1000"]) == 0
    assert re.search(r"%  recurrent\w*\.(h|hip):\d+\n", capsys.readouterr().out)


def test_a_difference(predict: ModuleType, code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = [tmp_path / f"{n}.json" for n in (8, 64)]
    for n, path in zip((8, 64), saved, strict=True):
        assert predict.main([*arguments(code, n), "--save", str(path)]) == 0
    capsys.readouterr()
    assert predict.main(["--diff", *map(str, saved)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("sums: predicted") and "(+" in text and "wait: memory" in text


def test_kernels_are_listed(predict: ModuleType, code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict.main([str(code)]) == 0
    assert "sums:" in capsys.readouterr().out


def test_bad_input(predict: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        predict.main([])
    assert "expected a code object" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        predict.main([str(tmp_path / "sums.co"), "--kernel", "sums", "--lines"])
    assert "--lines: expected --call" in capsys.readouterr().err
    assert predict.main(["--diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 1

# SPDX-License-Identifier: Apache-2.0
"""benchmarks/mi300x_constants.py without a GPU: what it refuses, and how results become a table and a corrected file.
tests/gfx942/clock/test_microbenchmarks.py has the microbenchmarks themselves."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mi300x import gpu
from mi300x.formulas import MICROBENCHMARKS, RATES, AtLeast, Lab, Microbenchmark
from mi300x.gpu import CannotRun, Launch, compile_command, compiled
from xlstm_hip._core.device import DeviceFacts

MI300X = DeviceFacts("AMD Instinct MI300X", "amd", "gfx942", 304, 65536, 64, 192 << 30)
H100 = DeviceFacts("NVIDIA H100", "nvidia", "sm_90", 132, 232448, 32, 80 << 30)


class FakeMachine:
    """Each round of each kernel takes a number of nanoseconds, which may change from one call to the next."""

    scale, units = 1, 304

    def __init__(self, drift: float = 0) -> None:
        self.drift, self.calls, self.released = drift, 0, 0

    def reported_mhz(self) -> float:
        return 1980

    def microseconds(self, file: str, kernel: str, how: Launch) -> float:
        self.calls += 1
        bodies = 48 if kernel.endswith("_long") else 16
        return how.rounds * bodies * (1 + self.drift * self.calls) / 500

    def run(self, file: str, kernel: str, how: Launch) -> None: ...
    def upload(self, words: np.ndarray) -> int:
        return 1

    def allocate(self, size: int) -> int:
        return 1

    def download(self, address: int, count: int) -> np.ndarray:
        return np.zeros(count, np.uint32)

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def command(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    found = load("mi300x_constants")
    monkeypatch.setattr(found, "is_mi300x", lambda _: True)
    monkeypatch.setattr(found, "machine_facts", lambda machine: {"mhz": machine.reported_mhz()})
    yield found


def run(command: ModuleType, *words: str, facts: DeviceFacts = MI300X, machine: Any = None) -> int:
    return command.main(words, lambda: facts, lambda _: machine or FakeMachine())


def results_of(command: ModuleType, **values: float | AtLeast) -> dict[str, Any]:
    return {name: command.Result.of([x]) for name, x in values.items()}


# ---- results


def test_median_spread_and_lower_bounds(command: ModuleType) -> None:
    assert command.Result.of([3.0, 1.0, 2.0]) == command.Result(2.0, 2.0, False)
    limited = command.Result.of([3.0, AtLeast(4.0)])
    assert limited.at_least and not limited.is_constant
    assert not command.Result.of([-1.0]).is_constant


def test_the_file_is_written_as_it_is(command: ModuleType) -> None:
    assert command.as_text(command.chip()) == command.CHIP.read_text(encoding="utf-8")


def test_a_corrected_file_says_what_was_measured(command: ModuleType) -> None:
    before = command.chip()
    found = results_of(
        command, hbm_gb_a_second=112.34567, barrier_cycles=-1.0, l1_miss_lines=AtLeast(70.0), v_exp_f32=15.0
    )
    made = json.loads(command.as_text(command.corrected(before, found, {"gpu": "this one"})))
    assert made["constants"]["hbm_gb_a_second"] == {"value": 112.3, "from": "measured"}
    assert made["measured"]["machine"] == {"gpu": "this one"}
    assert made["measured"]["constants"] == {
        "hbm_gb_a_second": {"spread": 0.0, "before": before["constants"]["hbm_gb_a_second"]["value"]}
    }
    assert set(before["fitted"]) - set(made["fitted"]) == {"hbm_gb_a_second"} and made["assumed"] == before["assumed"]
    others = {name: x for name, x in made["constants"].items() if name != "hbm_gb_a_second"}
    assert others == {name: x for name, x in before["constants"].items() if name != "hbm_gb_a_second"}
    assert command.chip() == before


def test_a_table_has_every_result(command: ModuleType) -> None:
    found = results_of(command, lds_latency=112.34567, l1_miss_lines=AtLeast(70.0), v_exp_f32=15.0)
    text = command.table(found, command.known_before(command.chip()))
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    assert rows[1:] == [
        ["lds_latency", str(command.chip()["constants"]["lds_latency"]["value"]), "112.3", "0"],
        ["l1_miss_lines", "64", "at least 70", "0"],
        ["v_exp_f32", "16 (the interpreter's)", "15", "0"],
    ]


def test_a_clock_that_is_not_the_reported_one_is_said(
    command: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(command, "--only", "vector_issue", "--repeats", "1") == 0  # a body takes 2 ns: 2000 MHz
    assert "WARNING" not in capsys.readouterr().err
    monkeypatch.setattr(FakeMachine, "reported_mhz", lambda _: 1000)
    assert run(command, "--only", "vector_issue", "--repeats", "1") == 0
    assert "WARNING: the chain of vector_issue says 2000 MHz, the runtime 1000" in capsys.readouterr().err


def test_every_constant_is_measured_or_published(command: ModuleType) -> None:
    """What is fitted or assumed has a microbenchmark."""
    names = [name for x in MICROBENCHMARKS for name in x.gives]
    assert len(set(names)) == len(names)
    content = command.chip()
    assert set(content["fitted"]) | set(content["assumed"]) <= set(names)
    assert set(names) <= set(command.known_before(content))


# ---- runs


def test_what_was_found_is_used_by_those_after(command: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def first(lab: Lab, c: Any) -> dict[str, Any]:
        return {"ds_read_b32": lab.body("kernel")}

    def second(lab: Lab, c: Any) -> dict[str, Any]:
        return {"lds_latency": 10 * c["ds_read_b32"]}

    rows = (Microbenchmark("a.hip", first, ("ds_read_b32",)), Microbenchmark("b.hip", second, ("lds_latency",)))
    machine = FakeMachine()
    results, failed = command.measure(machine, rows, 3, command.known_before(command.chip()))
    assert not failed and results["lds_latency"].value == pytest.approx(40) and machine.released == 6
    assert results["ds_read_b32"].spread == pytest.approx(0, abs=1e-9)
    drifting, _ = command.measure(FakeMachine(0.001), rows[:1], 3, command.known_before(command.chip()))
    assert drifting["ds_read_b32"].spread > 0


@pytest.mark.parametrize("error", [RuntimeError("hipModuleLaunchKernel: out of something"), ZeroDivisionError("float")])
def test_one_that_fails_does_not_stop_the_others(
    command: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    error: Exception,
) -> None:
    """Times that are too short to divide by are a failure, too."""

    def fails(lab: Lab, c: Any) -> dict[str, Any]:
        raise error

    rows = (replace(MICROBENCHMARKS[1], find=fails), MICROBENCHMARKS[0])
    monkeypatch.setattr(command, "MICROBENCHMARKS", rows)
    assert run(command, "--out", str(tmp_path / "out"), "--repeats", "1") == 1
    said = capsys.readouterr()
    assert f"transcendental FAILED: {error}" in said.err
    assert "peak_mhz" in said.out and "written:" in said.out
    assert json.loads((tmp_path / "out/mi300x.json").read_text())["constants"]["peak_mhz"]["from"] == "measured"


def test_another_chip_writes_no_mi300x_json(
    command: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(command, "--only", "vector_issue", "--out", str(tmp_path), facts=H100) == 0
    assert [x.name for x in tmp_path.iterdir()] == ["measured.json"]
    assert json.loads((tmp_path / "measured.json").read_text())["machine"] == {"mhz": 1980}
    monkeypatch.setattr(command, "is_mi300x", lambda _: False)
    mi325x = replace(MI300X, name="AMD Instinct MI325X")
    assert run(command, "--only", "vector_issue", "--out", str(tmp_path), facts=mi325x) == 0
    assert not (tmp_path / "mi300x.json").exists()


def test_an_nvidia_gpu_runs_what_nvcc_compiles(command: ModuleType) -> None:
    names = {x.name for x in command.chosen((), H100)}
    assert names == {"vector_issue", "memory_latency", "empty_launch", "bandwidth"}
    assert len(command.chosen((), MI300X)) == len(MICROBENCHMARKS)


# ---- refusals


@pytest.mark.parametrize(
    ("words", "facts", "said"),
    [
        (("--only", "nonsense"), MI300X, "--only: no name of --list holds 'nonsense'"),
        (("--only", "barrier"), H100, "--only: expected a microbenchmark that runs on NVIDIA GPUs as well"),
        (("--repeats", "0"), MI300X, "expected a whole number >= 1"),
        (("--out", __file__), MI300X, "--out: expected a folder"),
    ],
)
def test_wrong_arguments(
    command: ModuleType, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], facts: DeviceFacts, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(command, *words, facts=facts)
    assert ended.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (None, "torch sees no GPU"),
        (
            replace(MI300X, name="AMD Instinct MI250X", arch="gfx90a"),
            "expected an MI300X (gfx942), got AMD Instinct MI250X",
        ),
        (replace(MI300X, compute_units=38), "expected all 304 compute units of an MI300X, got a partition of 38"),
    ],
)
def test_gpus_that_cannot_run_them(
    command: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    facts: DeviceFacts | None,
    said: str,
) -> None:
    def device_facts(_: str) -> DeviceFacts:
        if facts is None:
            raise ValueError("device: cuda was asked for, but torch sees no GPU")
        return facts

    monkeypatch.setattr(command, "device_facts", device_facts)
    assert command.main([], command.checked_facts, lambda _: FakeMachine()) == command.CANNOT_RUN
    assert said in capsys.readouterr().err


def test_compilers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HIPCXX", "CUDACXX", "ROCM_PATH", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    elsewhere = {kind: (*names[:3], str(tmp_path / "usual")) for kind, names in gpu.COMPILERS.items()}
    monkeypatch.setattr(gpu, "COMPILERS", elsewhere)
    for kind, program in (("amd", "hipcc"), ("nvidia", "nvcc")):
        with pytest.raises(CannotRun, match=f"no {program} was found"):
            compile_command(kind, "chip")
    monkeypatch.setenv("HIPCXX", "no-such-program")
    with pytest.raises(CannotRun, match="HIPCXX: expected a compiler, got 'no-such-program'"):
        compile_command("amd", "gfx942")
    (tmp_path / "bin").mkdir()
    hipcc = tmp_path / "bin/hipcc"
    hipcc.touch(0o755)
    monkeypatch.delenv("HIPCXX")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert compile_command("amd", "gfx942")[0] == str(hipcc)


@pytest.mark.parametrize("microbenchmark", [x for x in MICROBENCHMARKS if x.everywhere], ids=lambda x: x.name)
def test_nvcc_compiles_them(microbenchmark: Microbenchmark) -> None:
    try:
        command = compile_command("nvidia", "sm_90")
    except CannotRun as error:
        pytest.skip(str(error))
    assert compiled(command, gpu.HERE / microbenchmark.file).startswith(b"\x7fELF")


def test_the_list_has_a_title_for_each(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--list") == 0
    said = capsys.readouterr().out
    for x in MICROBENCHMARKS:
        assert x.title() and f"{x.name:24} {x.title()}" in said and ", ".join(x.gives) in said


def test_the_page_has_each_microbenchmark() -> None:
    page = (gpu.HERE.parents[1] / "docs/calibrate.md").read_text(encoding="utf-8")
    rows = {row[1]: row[3] for row in re.findall(r"^(\| `(\w+)` \| ([^|]+) \| ([^|]+) \|)$", page, re.MULTILINE)}
    constants = {x.name: [name for name in x.gives if name not in RATES] for x in MICROBENCHMARKS}
    assert {name: re.findall(r"`(\w+)`", cell) for name, cell in rows.items()} == constants


# ---- the CUDA driver's calls; tests/gfx942/clock/test_microbenchmarks.py has HIP's


@pytest.fixture
def driver(tmp_path: Path) -> str:
    library = tmp_path / "libcuda.so.1"
    source = Path(__file__).with_name("fake_cuda_driver.cpp")
    subprocess.run(["c++", "-std=c++20", "-shared", "-fPIC", source, "-o", library], check=True)
    return str(library)


def test_a_run_on_the_cuda_driver(
    command: ModuleType, driver: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "compiled", lambda words, source: b"code")
    monkeypatch.setattr(gpu, "FLUSHED_BYTES", 1 << 20)
    machine = gpu.Gpu(H100, driver, [])
    assert run(command, "--only", "vector", "launch", "--repeats", "2", facts=H100, machine=machine) == 0
    rows = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()[2:]]
    measured = {name: float(value) for name, _, value, _ in rows}
    assert measured["peak_mhz"] == pytest.approx(2000, rel=1e-3)  # a float has seven digits of a millisecond
    outside = sum((100, 4, 128, 4)) / 2000  # the constants by which an empty launch is more than a launch
    assert measured["launch_microseconds"] == pytest.approx(3 - outside, rel=1e-3)
    memory = machine.upload(np.arange(8, dtype=np.uint32))
    assert machine.download(memory, 8).tolist() == list(range(8)) and machine.reported_mhz() == 1980
    machine.microseconds("vector_issue.hip", "vector_chain_short", Launch(rounds=1, cold=True))
    machine.release()


def test_errors_of_the_cuda_driver_have_its_words(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = gpu.Gpu(H100, driver, [])
    monkeypatch.setattr(gpu, "compiled", lambda words, source: b"code")
    with pytest.raises(RuntimeError, match="cuModuleGetFunction: named symbol not found"):
        machine.function("vector_issue.hip", "nothing")
    monkeypatch.setattr(gpu, "compiled", lambda words, source: b"other")
    with pytest.raises(RuntimeError, match="cuModuleLoadData: device kernel image is invalid"):
        machine.function("bandwidth.hip", "read")
    with pytest.raises(RuntimeError, match="cuLaunchKernel: unknown error"):
        machine.run("vector_issue.hip", "vector_chain_short", Launch(waves=17))


def test_a_runtime_that_is_not_there_is_named() -> None:
    with pytest.raises(CannotRun, match="no runtime of the GPU: .*no-such-library"):
        gpu.Gpu(H100, "no-such-library.so", [])

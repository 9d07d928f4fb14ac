# SPDX-License-Identifier: Apache-2.0
"""The microbenchmarks of benchmarks/mi300x on the model: the formulas, applied to predicted times, give back the
constants that the model has, those of mi300x.json and others."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from code_objects import NoCompiler
from mi300x.formulas import MICROBENCHMARKS, RATES, AtLeast, Found, Known, Lab, Microbenchmark, find
from mi300x.gpu import HERE, Launch

# Another chip. Where the model counts in slots of four cycles, its constants are multiples of four.
OTHER = {
    "peak_mhz": 1800,
    "matrix_mhz": 1000,
    "matrix_power": 0.3,
    "matrix_result_cycles": 24,
    "transcendental_result_cycles": 8,
    "matrix_blocks_vector": 0.75,
    "branch_cycles": 12,
    "taken_branch_cycles": 40,
    "vector_to_scalar_cycles": 24,
    "barrier_cycles": 20,
    "sleep_cycles": 32,
    "counter_vm": 40,
    "counter_lgkm": 10,
    "queue_cycles": 16,
    "lds_cycles_without_banks": 4,
    "lds_latency": 128,
    "instruction_miss_cycles": 96,
    "scalar_hit_cycles": 80,
    "scalar_miss_cycles": 300,
    "address_cycles": 8,
    "l1_bytes_a_cycle": 32,
    "l1_latency": 160,
    "l1_miss_lines": 40,
    "l2_bytes_a_cycle": 1024,
    "l2_latency": 400,
    "mall_gb_a_second": 8000,
    "mall_nanoseconds": 300,
    "hbm_gb_a_second": 3000,
    "hbm_nanoseconds": 500,
    "cache_share": 0.75,
    "wave_launch_cycles": 12,
    "group_launch_cycles": 200,
    "launch_microseconds": 3,
}
# With these constants, compute units cannot ask for the full bandwidth of L2 and of the Infinity Cache, and LDS answers
# before so many reads are under way that their counter is full.
LIMITED = {"l2_bytes_a_cycle", "mall_gb_a_second", "counter_lgkm"}
OTHER_FOR = {"bandwidth": {"l1_miss_lines": 512}}
# So that the first workgroup of a unit, which fetches the instructions, counts little.
INSTRUCTIONS = {"group_launch": 300_000}

SLOT = 4  # cycles: what waits goes on with a slot of its SIMD, so that a latency is known to one
BODIES = 32  # by which two kernels differ
LOOP = 2 * 4 + 40  # cycles of a loop's own instructions: other waves hide some of them, of few bodies or of many

# How far what is found may be from the constant: the larger of a share of it and a difference.
SHARES = {
    "matrix_blocks_vector": (LOOP + 8) / 2048,  # products between two rounds of 512 additions delay none
    "counter_lgkm": SLOT / 96 + 15 / (16 * BODIES),  # a body may end within what may be under way
    "counter_vm": SLOT / 300 + 63 / (32 * BODIES),
    "l1_bytes_a_cycle": (160 + LOOP) / BODIES / 256,  # a round ends with a wait, of 256 cycles a body
    "l1_miss_lines": (400 + LOOP) / BODIES / 150,
    "matrix_mhz": 0.012,  # a workgroup begins with 800 of 61440 cycles in which it fetches instructions
    "matrix_power": 0.012 / 0.25,
    # A workgroup begins with 500 cycles, and ends with a wait: of 64 chunks a unit, 1024 cycles each.
    **dict.fromkeys(("hbm_gb_a_second", "l2_bytes_a_cycle", "mall_gb_a_second"), 0.02),
}
DIFFERENCES = {
    **dict.fromkeys(("barrier_cycles", "queue_cycles", "lds_latency", "l1_latency", "l2_latency"), SLOT),
    **dict.fromkeys(("scalar_hit_cycles", "scalar_miss_cycles", "group_launch_cycles"), SLOT),
    **dict.fromkeys(("mall_nanoseconds", "hbm_nanoseconds"), 1000 * SLOT / 1800),
    "wave_launch_cycles": SLOT / 3,
    "v_add_f32": LOOP / BODIES / 2,
    "launch_microseconds": 2 * SLOT / 1800,  # a workgroup's beginning and its first instruction
    "instruction_miss_cycles": SLOT + (128 + LOOP) / 768,  # the line after the lines that are counted, and the loop
    # A barrier may take longer than LDS has reads waiting, and a round ends with a wait.
    **dict.fromkeys((name for name in RATES if name.startswith("ds_")), 24 / 128 + (128 + LOOP) / BODIES / 128),
    "lds_cycles_without_banks": 24 / 128 + (128 + LOOP) / BODIES / 128,
    "address_cycles": (160 + LOOP) / BODIES / 128,
    "cache_share": 0.05,  # the shares that are tried
}
EXACT = 1e-6  # the times are of single precision's digits in JSON


class Read(dict[str, float]):
    """Constants, and which were asked for."""

    def __init__(self, values: dict[str, float]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.names.add(name)
        return super().__getitem__(name)


def agree(found: Found, known: Known, limited: set[str]) -> None:
    for name, x in found.items():
        if isinstance(x, AtLeast):
            assert name in limited and x.value < known[name], name
        else:
            assert x == pytest.approx(known[name], abs=tolerance(name, known[name]), rel=0), name


def tolerance(name: str, constant: float) -> float:
    return max(EXACT, SHARES.get(name, 0)) * constant + DIFFERENCES.get(name, 0)


def in_slots() -> dict[str, float]:
    """The constants of mi300x.json that the model rounds up to slots, as slots: a measured one may be between two."""
    import timing

    usual = timing.constants()
    cycles = (
        "branch_cycles",
        "taken_branch_cycles",
        "vector_to_scalar_cycles",
        "matrix_result_cycles",
        "transcendental_result_cycles",
    )
    share = SLOT / RATES["v_mfma_f32_16x16x16_bf16"]
    blocked = share * round(usual["matrix_blocks_vector"] / share)
    return {name: SLOT * round(usual[name] / SLOT) for name in cycles} | {"matrix_blocks_vector": blocked}


def chips() -> list[Any]:
    usual = [pytest.param(x, {}, id=x.name) for x in MICROBENCHMARKS]
    other = {x.name: OTHER | OTHER_FOR.get(x.name, {}) for x in MICROBENCHMARKS}
    mark = pytest.mark.rows("ci")
    return usual + [pytest.param(x, other[x.name], id=f"{x.name}-other", marks=mark) for x in MICROBENCHMARKS]


@pytest.mark.parametrize(("microbenchmark", "other"), chips())
def test_the_model_gives_its_constants_back(
    device: ModuleType, microbenchmark: Microbenchmark, other: dict[str, float]
) -> None:
    from predicted_gpu import PredictedGpu

    gpu = PredictedGpu(INSTRUCTIONS.get(microbenchmark.name, 60_000), **(other or in_slots()))
    known = Read(RATES | gpu.chip)
    found = find(gpu, microbenchmark, known)
    assert set(found) == set(microbenchmark.gives)
    not_yet = MICROBENCHMARKS[MICROBENCHMARKS.index(microbenchmark) :]
    assert not known.names & {name for x in not_yet for name in x.gives}, "expected what those before give"
    agree(found, known, set() if other else LIMITED)


@pytest.mark.rows("ci")
@pytest.mark.parametrize("microbenchmark", MICROBENCHMARKS, ids=lambda x: x.name)
def test_rocms_compiler_times_the_same(device: ModuleType, microbenchmark: Microbenchmark) -> None:
    """A machine with an MI300X has ROCm's compiler: the code of ROCm 7.2's LLVM takes the same time."""
    import builds
    import rocm_llvm
    from predicted_gpu import PredictedGpu

    try:
        rocm_llvm.sources()
    except NoCompiler as error:
        pytest.skip(str(error))

    class ByRocm(PredictedGpu):
        def load(self, file: str) -> bytes:
            text = rocm_llvm.text_of(HERE / file, "gfx942", ("-std=c++17", "-O3"))
            return builds.assemble(rocm_llvm.assembly_of(text, "gfx942"))

    gpu = ByRocm(INSTRUCTIONS.get(microbenchmark.name, 60_000), **in_slots())
    known = {**RATES, **gpu.chip}
    agree(find(gpu, microbenchmark, known), known, LIMITED)


def test_the_other_chip_is_another(device: ModuleType) -> None:
    """Its constants are further away than what is forgiven, so that a formula must follow them."""
    import timing

    usual = timing.constants()
    assert set(OTHER) == {name for x in MICROBENCHMARKS for name in x.gives} - set(RATES)
    for name, x in OTHER.items():
        assert abs(x - usual[name]) > tolerance(name, x) + tolerance(name, usual[name]), name


def test_rates_are_those_of_the_interpreter(device: ModuleType) -> None:
    """The clock plays the interpreter's table, so that the times above hold RATES to it; here its vector part alone."""
    import builds
    from assembly import kernel_text

    names = [name for name in RATES if name.startswith("v_")]
    operands = {"v_add_f32": "v1, v1, v1", "v_exp_f32": "v1, v1", "v_mfma_f32_16x16x4_f32": "v[4:7], v1, v1, 0"}
    text = "".join(f"  {name} {operands.get(name, 'v[4:7], v[8:9], v[8:9], 0')}\n" for name in names)
    device.reset_counters()
    with device.Module(builds.assemble(kernel_text(text))) as module:
        module.launch("kernel", grid=1, block=64)
        found = {i.mnemonic: float(i.cycles) for i in device.counters()[0].instructions}
    assert {name: found[name] for name in names} == {name: RATES[name] for name in names}


# ---- the program that runs them, on the interpreter's HIP


def test_times_are_those_of_events(device: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that time a launch on a GPU, up to the last: caches are emptied, the kernel runs, and the interpreter
    says that its events have no time."""
    from mi300x import gpu
    from predicted_gpu import PredictedGpu

    monkeypatch.setattr(gpu, "FLUSHED_BYTES", 1 << 20)
    machine = PredictedGpu(0)
    memory = machine.upload(np.zeros(64, np.uint32))
    how = gpu.Launch(rounds=4, memory=memory, cold=True)
    with pytest.raises(RuntimeError, match="hipEventElapsedTime: an interpreter has no clock"):
        gpu.Gpu.microseconds(machine, "transcendental.hip", "exp_result_after_8_short", how)
    assert machine.download(memory, 64).view(np.float32) == pytest.approx(8 / 3, rel=1e-6)  # 1 + 2/2 + 1/4 + ...
    machine.release()
    assert machine.reported_mhz() == 2100


def test_errors_name_the_call(device: ModuleType) -> None:
    from predicted_gpu import PredictedGpu

    with pytest.raises(RuntimeError, match="hipModuleGetFunction: .*nothing"):
        PredictedGpu(0).function("barrier.hip", "nothing")


def test_wrong_sums_are_not_timed(device: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first number of wait states counts whose sums are right; where none is, that is an error."""
    from predicted_gpu import PredictedGpu

    class Hazardous(PredictedGpu):
        """Sums are right after so many wait states."""

        right_after, asked = 0, ""

        def run(self, file: str, kernel: str, how: Launch) -> None:
            self.asked = kernel

        def download(self, address: int, count: int) -> np.ndarray:
            return np.full(count, int(self.asked.split("_")[-2]) < self.right_after, np.uint32)

    gpu = Hazardous(60_000)
    known = {**RATES, **gpu.chip}
    lab = Lab(gpu, "matrix_result.hip", known)
    kernels: list[str] = []
    monkeypatch.setattr(lab, "body", lambda kernel, **_: kernels.append(kernel))
    for gpu.right_after in (0, 5):
        lab.first_right("result", tuple(range(9)), 24)
    assert kernels == ["result_after_0", "result_after_5"]
    gpu.right_after = 20
    with pytest.raises(RuntimeError, match="matrix_result.hip: expected right sums with at most 8 wait states"):
        lab.first_right("result", tuple(range(9)), 24)

# SPDX-License-Identifier: Apache-2.0
"""The clock on small programs whose time follows from the rules: what the difference between many rounds and few takes,
so that launching and the first round do not count."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from assembly import KERNARG, kernel_text

BODY_ROUNDS = 16  # times that a loop's body is written out: its own three instructions count little
FEW, MANY = 8, 40
# Free of what these programs are not about. What a loop's own instructions take beside a busy unit is within 1 cycle.
PLAIN = {"instruction_miss_cycles": 0, "branch_cycles": 4, "taken_branch_cycles": 4, "wave_launch_cycles": 0}
LOOP = 3 * 4  # cycles of the loop's own instructions, with branches as above


@pytest.fixture(scope="module")
def timing(device: ModuleType) -> ModuleType:
    import timing

    return timing


@pytest.fixture(autouse=True)
def forget(device: ModuleType) -> Iterator[None]:
    yield
    device.set_recording(0)
    device.forget_recordings()


def looped(body: str, rounds: int, setup: str = "") -> str:
    registers = "".join(f"  v_mov_b32 v{r}, 1.0\n" for r in range(2, 64))
    head = f"  s_load_dwordx2 s[16:17], {KERNARG}, 0x0\n  v_lshlrev_b32 v1, 2, v0\n{registers}{setup}"
    head += f"  s_waitcnt lgkmcnt(0)\n  s_mov_b32 s8, {rounds}\nround:\n"
    return head + body * BODY_ROUNDS + "  s_sub_u32 s8, s8, 1\n  s_cmp_lg_u32 s8, 0\n  s_cbranch_scc1 round"


class Clock:
    """Predicted launches of such loops, in cycles of their one workgroup."""

    def __init__(self, device: ModuleType, timing: ModuleType) -> None:
        self.device, self.timing = device, timing
        self.memory = np.zeros(1 << 20, np.uint32)

    def launch(
        self,
        text: str,
        waves: int = 1,
        grid: int = 1,
        instructions: int = 10**7,
        *,
        trace: int = 0,
        warm: bool = True,
        **other: float,
    ) -> Any:
        code = self.device.assemble(
            kernel_text(text, ("*",), name="clocked", lds=16384, vgprs=64, agprs=0, threads=1024)
        )
        with self.device.Module(code) as module, self.timing.recording(instructions):
            module.launch("clocked", grid=grid, block=64 * waves, args=(self.memory,))
            (found,) = self.timing.timed(
                mhz=2100, trace=trace, warm=warm, chip=self.timing.constants(**{**PLAIN, **other})
            )
        return found

    def body(self, body: str, waves: int = 1, setup: str = "", **other: float) -> float:
        """Cycles that the body takes once."""
        many, few = (self.launch(looped(body, n, setup), waves, **other).group_cycles for n in (MANY, FEW))
        return ((many - few) / (MANY - FEW) - LOOP) / BODY_ROUNDS


@pytest.fixture
def clock(device: ModuleType, timing: ModuleType) -> Clock:
    return Clock(device, timing)


MFMA = "v_mfma_f32_16x16x16_bf16"
RESULT = 16  # matrix_result_cycles: until others may use what an MFMA gives


def test_vector_code_takes_four_cycles_an_instruction(clock: Clock) -> None:
    assert clock.body("  v_add_f32 v2, v2, v3\n") == pytest.approx(4)  # a chain
    assert clock.body("  v_add_f32 v2, v4, v3\n  v_add_f32 v5, v4, v3\n") == pytest.approx(8)


def test_waves_of_a_simd_share_its_vector_unit(clock: Clock) -> None:
    body = "  v_add_f32 v2, v2, v3\n"
    assert clock.body(body, waves=4) == pytest.approx(4, rel=0.05)  # a wave on each SIMD
    assert clock.body(body, waves=8) == pytest.approx(8, rel=0.1)
    # Scalar instructions of one go beside vector instructions of the other.
    assert clock.body("  s_add_u32 s20, s20, 1\n  v_add_f32 v2, v2, v3\n", waves=8) == pytest.approx(8, rel=0.1)


def test_transcendentals_take_a_quarter_of_the_rate(clock: Clock) -> None:
    assert clock.body("  v_exp_f32 v2, v3\n  v_exp_f32 v4, v3\n") == pytest.approx(32, abs=1)
    assert clock.body("  v_exp_f32 v2, v2\n", transcendental_result_cycles=8) == pytest.approx(24, abs=1)


@pytest.mark.parametrize(("name", "cycles"), [(MFMA, 16), ("v_mfma_f32_32x32x8_bf16", 32)])
def test_products_take_their_passes(clock: Clock, name: str, cycles: int) -> None:
    registers = 4 if cycles == 16 else 16
    independent = "".join(
        f"  {name} v[{r}:{r + registers - 1}], v[2:3], v[4:5], v[{r}:{r + registers - 1}]\n" for r in (16, 32)
    )
    assert clock.body(independent) == pytest.approx(2 * cycles, abs=1)
    # Sums in one place go on at full rate.
    assert clock.body(independent.splitlines()[0] + "\n") == pytest.approx(cycles, abs=1)


def test_a_product_of_a_product_waits_for_it(clock: Clock) -> None:
    chain = f"  {MFMA} v[16:19], v[16:17], v[4:5], 0\n"
    assert clock.body(chain) == pytest.approx(16 + RESULT, abs=1)
    assert clock.body(f"  {MFMA} v[16:19], v[2:3], v[4:5], 0\n  v_add_f32 v20, v20, v16\n") == pytest.approx(36)


def test_vector_code_goes_on_beside_products(clock: Clock) -> None:
    body = f"  {MFMA} v[16:19], v[2:3], v[4:5], v[16:19]\n" + 3 * "  v_add_f32 v20, v20, v3\n"
    assert clock.body(body, matrix_blocks_vector=0) == pytest.approx(16, abs=1)
    assert clock.body(body, matrix_blocks_vector=0.5) == pytest.approx(8 + 12)
    assert clock.body(body, matrix_blocks_vector=1) == pytest.approx(16 + 12)


def test_lds_gives_128_bytes_a_cycle_less_for_conflicts(clock: Clock) -> None:
    read = "  ds_read_b32 v2, v1\n"
    assert clock.body(read, waves=16) == pytest.approx(32, rel=0.05)  # 2 cycles for each of 16 waves
    column = "  v_lshlrev_b32 v1, 7, v0\n  v_and_b32 v1, 0x1fff, v1\n"  # all lanes in one bank
    assert clock.body(read, setup=column) == pytest.approx(64, rel=0.05)


def test_a_wait_for_lds_takes_its_latency(clock: Clock) -> None:
    body = "  ds_read_b32 v2, v1\n  s_waitcnt lgkmcnt(0)\n"
    for latency in (64, 96):
        assert clock.body(body, lds_latency=latency) == pytest.approx(latency + 2 + 4, abs=4)
    two = "  ds_read_b32 v2, v1\n  ds_read_b32 v3, v1\n  s_waitcnt lgkmcnt(1)\n"
    assert clock.body(two, lds_latency=96) < 2 * (96 + 2)


def test_a_wait_for_memory_takes_the_latency_of_where_it_is(clock: Clock) -> None:
    body = "  global_load_dword v2, v1, s[16:17]\n  s_waitcnt vmcnt(0)\n"
    assert clock.body(body, l1_latency=120) == pytest.approx(120 + 8, abs=4)
    past = "  global_load_dword v2, v1, s[16:17] sc1\n  s_waitcnt vmcnt(0)\n"
    assert clock.body(past, l2_latency=300) == pytest.approx(300 + 8, abs=8)


def test_what_does_not_fit_into_l1_comes_from_l2(clock: Clock) -> None:
    step = "  v_add_u32 v1, 0x800, v1\n  v_and_b32 v1, {mask:#x}, v1\n"
    body = step + "  global_load_dword v2, v1, s[16:17]\n  s_waitcnt vmcnt(0)\n"
    small, large = (clock.body(body.format(mask=mask), l1_latency=120, l2_latency=300) for mask in (0x1FFF, 0x3FFFF))
    assert small == pytest.approx(120 + 16, abs=8)
    assert large > 290


def test_counters_are_waited_for_when_they_are_full(clock: Clock) -> None:
    body = "  ds_read_b32 v2, v1\n"
    assert clock.body(body, counter_lgkm=1, lds_latency=96) == pytest.approx(100, abs=4)


def test_nothing_counts_in_expcnt(clock: Clock, device: ModuleType) -> None:
    """Exports and the global data share would, but gfx942 has none, and the interpreter implements none."""
    store = "  global_store_dword v1, v2, s[16:17]\n"
    waits, works = (clock.body(store + other) for other in ("  s_waitcnt expcnt(0)\n", "  s_mov_b32 s20, 1\n"))
    assert waits == pytest.approx(works, abs=1)
    assert not [name for name in device.operations() if name.startswith(("exp", "ds_gws", "ds_ordered"))]


def test_waves_wait_for_the_last_at_a_barrier(clock: Clock) -> None:
    late = "  v_cmp_gt_u32 vcc, 64, v0\n  s_and_b64 vcc, vcc, exec\n"
    work = 20 * "  v_add_f32 v2, v2, v3\n"
    body = late + "  s_cbranch_vccz 20\n" + work + "  s_barrier\n"
    cycles = clock.body(body, waves=2, barrier_cycles=8, vector_to_scalar_cycles=0)
    assert cycles == pytest.approx(20 * 4 + 4 * 4 + 8, abs=12)
    found = clock.launch(looped(body, MANY), 2)
    assert found.spent["wait: barrier"] > 0.3 * found.wave_cycles


def test_a_branch_waits_for_what_vector_code_decides(clock: Clock) -> None:
    body = "  v_cmp_gt_u32 vcc, 64, v0\n  s_cbranch_vccz 0\n"
    assert clock.body(body, vector_to_scalar_cycles=16) == pytest.approx(4 + 16 + 4)
    assert clock.body(body, vector_to_scalar_cycles=0) == pytest.approx(8)


def test_pauses(clock: Clock) -> None:
    assert clock.body("  s_nop 7\n") == pytest.approx(32)
    assert clock.body("  s_sleep 2\n") == pytest.approx(4 + 128)


def test_priority_decides_who_issues(clock: Clock) -> None:
    """Two waves of a SIMD, of which the second may ask for priority: then it ends first."""
    add = looped("  v_add_f32 v2, v2, v3\n", MANY)
    for ask, earlier in (("s_setprio 3", True), ("s_nop 0", False)):
        text = f"  v_cmp_le_u32 vcc, 0x100, v0\n  s_cbranch_vccz 1\n  {ask}\n{add}"
        found = clock.launch(text, 8, trace=10**6)
        end = {wave: max(t[4] for t in found.trace if t[1] == wave) for wave in (0, 4)}
        assert (end[4] < 0.75 * end[0]) is earlier


def test_workgroups_fill_the_chip_and_the_rest_has_a_round_of_its_own(clock: Clock) -> None:
    text = looped("  v_add_f32 v2, v2, v3\n", MANY)
    # 16 waves: two workgroups are all that a compute unit has room for.
    one, two, more = (clock.launch(text, 16, n, 10**6).microseconds for n in (304, 608, 609))
    launch = clock.timing.constants()["launch_microseconds"]
    assert (two - launch) / (one - launch) == pytest.approx(2, rel=0.1)
    assert 1.2 * (two - launch) < more - launch < 1.7 * (two - launch)


def test_memory_gives_its_bandwidth(clock: Clock) -> None:
    """Each workgroup reads 4096 bytes of its own: all together as fast as HBM, or as the Infinity Cache if it has
    them."""
    grid = 304 * 8
    loads = "".join(
        f"  global_load_dwordx4 v[{8 + 4 * k}:{11 + 4 * k}], v1, s[16:17] offset:{1024 * k}\n" for k in range(4)
    )
    place = "  s_lshl_b32 s21, s2, 12\n  v_lshlrev_b32 v1, 4, v0\n  v_add_u32 v1, s21, v1\n"
    text = f"  s_load_dwordx2 s[16:17], {KERNARG}, 0x0\n{place}  s_waitcnt lgkmcnt(0)\n{loads}"
    clock.memory = np.zeros(grid * 1024, np.uint32)
    for warm, name in ((False, "hbm_gb_a_second"), (True, "mall_gb_a_second")):
        found = [
            clock.launch(text, 1, grid, 10**4, warm=warm, **{name: rate, "launch_microseconds": 0})
            for rate in (100, 200)
        ]
        assert found[0].lines["mall" if warm else "hbm"] > 50 * found[0].lines["hbm" if warm else "mall"]
        assert grid * 4096 / (found[0].microseconds * 1e-6) == pytest.approx(100e9, rel=0.15)
        assert found[0].microseconds / found[1].microseconds == pytest.approx(2, rel=0.1)


def test_what_is_stored_goes_to_memory_once(clock: Clock) -> None:
    """Each workgroup loads 4096 bytes and stores them twice: memory sees each once in and once out."""
    grid = 304 * 27
    what = ("load_dwordx4 v[8:11], v1", *2 * ("store_dwordx4 v1, v[12:15]",))
    accesses = "".join(f"  global_{x}, s[16:17] offset:{1024 * k}\n" for x in what for k in range(4))
    place = "  s_lshl_b32 s21, s2, 12\n  v_lshlrev_b32 v1, 4, v0\n  v_add_u32 v1, s21, v1\n"
    values = "".join(f"  v_mov_b32 v{r}, 1.0\n" for r in range(12, 16))
    text = f"  s_load_dwordx2 s[16:17], {KERNARG}, 0x0\n{place}{values}  s_waitcnt lgkmcnt(0)\n{accesses}"
    clock.memory = np.zeros(grid * 1024, np.uint32)
    found = clock.launch(text, 1, grid, 10**4, hbm_gb_a_second=100, mall_bytes=1 << 20, launch_microseconds=0)
    assert 2 * grid * 4096 / (found.microseconds * 1e-6) == pytest.approx(100e9, rel=0.2)


def test_the_same_events_take_the_same_time(clock: Clock) -> None:
    text = looped(f"  {MFMA} v[16:19], v[2:3], v[4:5], v[16:19]\n  ds_read_b32 v8, v1\n", FEW)
    assert clock.launch(text, 8, 700) == clock.launch(text, 8, 700)


MIXED = f"""
  ds_read_b128 v[8:11], v1
  s_setprio 1
  {MFMA} v[16:19], v[2:3], v[4:5], v[16:19]
  {MFMA} v[20:23], v[2:3], v[6:7], v[20:23]
  s_setprio 0
  v_exp_f32 v24, v16
  v_cmp_gt_u32 vcc, 64, v0
  s_cbranch_vccz 3
  v_add_f32 v25, v24, v25
  v_add_f32 v25, v24, v25
  v_add_f32 v25, v24, v25
  s_waitcnt lgkmcnt(0)
  ds_write_b128 v1, v[8:11]
  s_barrier
"""


@pytest.mark.parametrize(("waves", "cycles"), [(1, 29609), (8, 40342), (16, 68782)])
def test_cycles_to_the_last_one(clock: Clock, waves: int, cycles: int) -> None:
    """As a model that looked at each slot of each SIMD had them. What makes the model faster must not change them;
    other rules or other constants do."""
    found = clock.launch(looped(MIXED, FEW, "  v_lshlrev_b32 v1, 4, v0\n"), waves, 2)
    assert found.unit_cycles == cycles


def test_constants_are_refused_by_name(timing: ModuleType, device: ModuleType) -> None:
    with pytest.raises(ValueError, match=f"expected names of {timing.CHIP.name}, got l3_bytes"):
        timing.constants(l3_bytes=1)
    with pytest.raises(device.HipError, match="issue_cycles is expected to be a power of two"):
        timing.timed(chip=timing.constants(issue_cycles=3))
    chip = timing.constants()
    del chip["lds_latency"]
    with pytest.raises(device.HipError, match="lds_latency is missing"):
        timing.timed(chip=chip)


@pytest.mark.parametrize("chip", ["gfx942", "gfx90a", "gfx950"])
def test_every_constant_says_where_it_comes_from(timing: ModuleType, chip: str) -> None:
    import json

    content = json.loads(timing.CHIPS[chip].read_text())
    assert set(timing.values_of(timing.CHIPS[chip])) == set(timing.values_of(timing.CHIPS["gfx942"]))
    assert (content.pop("like", None), bool(content.pop("taken_over", ""))) == (
        (None, False) if chip == "gfx942" else ("mi300x.json", True)
    )
    measured = content.pop("measured", {"constants": {}})  # of benchmarks/mi300x_constants.py
    assert set(content) == {"sources", "fitted", "assumed", "constants"}
    kinds = {"fitted": content["fitted"], "assumed": content["assumed"], "measured": measured["constants"]}
    for name, x in content["constants"].items():
        assert {"value", "from"} <= set(x) <= {"value", "from", "how"}, name
        assert x["from"] in {*content["sources"], *kinds}, name
    for kind, names in kinds.items():
        assert set(names) == {name for name, x in content["constants"].items() if x["from"] == kind}
    assert all(source["url"].startswith("https://") and source["title"] for source in content["sources"].values())

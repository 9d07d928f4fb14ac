# SPDX-License-Identifier: Apache-2.0
"""From the times of the microbenchmarks to the constants of tests/gfx942/clock/mi300x.json. Each file beside this one
says what it times and how; here are the formulas, a function for each file."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from .gpu import HERE, Launch

SHORT, LONG = 16, 48  # bodies: kShort, kLong of microbenchmark.h
FEW, MANY = 8, 40  # rounds
LINE = 128  # bytes
KB, MB = 1 << 10, 1 << 20
LIMITED = 1.1  # a time within this factor of another limit gives a lower bound only


class AtLeast(NamedTuple):
    """A lower bound: another limit was reached first."""

    value: float


Found = dict[str, "float | AtLeast"]
Known = Mapping[str, float]


class Machine(Protocol):
    """A GPU, or the model of one."""

    scale: int  # factor of all rounds and launches, so that a GPU's clock resolves them
    units: int

    def reported_mhz(self) -> float: ...
    def upload(self, words: np.ndarray) -> int: ...
    def allocate(self, size: int) -> int: ...
    def download(self, address: int, count: int) -> np.ndarray: ...
    def run(self, file: str, kernel: str, how: Launch) -> None: ...
    def microseconds(self, file: str, kernel: str, how: Launch) -> float: ...
    def release(self) -> None: ...


class Lab:
    """One file's kernels on a machine. Cycles are of the clock that vector_issue.hip's chain showed just before."""

    def __init__(self, machine: Machine, file: str, known: Known) -> None:
        self.machine, self.file, self.known = machine, file, known
        body = self._body("vector_issue.hip", "vector_chain", FEW, MANY, Launch())
        self.mhz = known["issue_cycles"] / body

    def microseconds(self, kernel: str, how: Launch) -> float:
        return self.machine.microseconds(self.file, kernel, how)

    def _round(self, file: str, kernel: str, few: int, many: int, how: Launch) -> float:
        low, high = few * self.machine.scale, many * self.machine.scale
        times = [self.machine.microseconds(file, kernel, replace(how, rounds=rounds)) for rounds in (low, high)]
        return (times[1] - times[0]) / (high - low)

    def _body(self, file: str, kernel: str, few: int, many: int, how: Launch) -> float:
        short, long = (self._round(file, f"{kernel}_{name}", few, many, how) for name in ("short", "long"))
        return (long - short) / (LONG - SHORT)

    def round(self, kernel: str, few: int = FEW, many: int = MANY, **how: Any) -> float:
        """Microseconds of a round of the kernel's loop."""
        return self._round(self.file, kernel, few, many, Launch(**how))

    def body(self, kernel: str, few: int = FEW, many: int = MANY, **how: Any) -> float:
        """Cycles of a body."""
        return self.mhz * self._body(self.file, kernel, few, many, Launch(**how))

    def first_right(self, kernel: str, waits: tuple[int, ...], enough: int) -> float:
        """Cycles of a body of kernel_after_N with the first of these wait states whose sums are those of enough."""
        memory = self.machine.allocate(4 * KB)

        def sums(number: int) -> list[int]:
            self.machine.run(self.file, f"{kernel}_after_{number}_short", Launch(rounds=4, memory=memory))
            return self.machine.download(memory, 64).tolist()

        right = sums(enough)
        for number in waits:
            if sums(number) == right:
                return self.body(f"{kernel}_after_{number}", memory=memory)
        raise RuntimeError(f"{self.file}: expected right sums with at most {waits[-1]} wait states, got others")


def ring(size: int) -> np.ndarray:
    """Memory of so many bytes whose lines name each other, each once, in no order that one could guess."""
    lines = size // LINE
    order = np.random.default_rng(0).permutation(lines)
    words = np.zeros(size // 4, np.uint32)
    words[order * (LINE // 4)] = np.roll(order, -1) * LINE
    return words


# ---- issue


def vector_issue(lab: Lab, c: Known) -> Found:
    return {"peak_mhz": lab.mhz, "v_add_f32": lab.body("vector_chain", waves=8) / 2}


def transcendental(lab: Lab, c: Known) -> Found:
    rate = lab.body("exp_rate") / 2
    result = lab.first_right("exp_result", (0, 1, 2), 8) - rate - 2 * c["issue_cycles"]
    return {"v_exp_f32": rate, "transcendental_result_cycles": result}


def vector_to_scalar(lab: Lab, c: Known) -> Found:
    return {"vector_to_scalar_cycles": lab.body("to_scalar_and_back") - 3 * c["issue_cycles"]}


def branches(lab: Lab, c: Known) -> Found:
    return {"branch_cycles": lab.body("not_taken"), "taken_branch_cycles": lab.body("taken")}


def barrier(lab: Lab, c: Known) -> Found:
    return {"barrier_cycles": lab.body("barriers", waves=4) - c["issue_cycles"]}


def sleep(lab: Lab, c: Known) -> Found:
    return {"sleep_cycles": (lab.body("sleeps") - c["issue_cycles"]) / 4}


def instruction_fetch(lab: Lab, c: Known) -> Found:
    far = lab.mhz * lab.round("far", few=2, many=4) / 768
    return {"instruction_miss_cycles": far - lab.body("near") / 2}


# ---- matrix units

PRODUCTS = {
    "products_bf16": "v_mfma_f32_16x16x16_bf16",
    "products_fp16": "v_mfma_f32_16x16x16_f16",
    "products_fp32": "v_mfma_f32_16x16x4_f32",
}
USUAL = PRODUCTS["products_bf16"]


def matrix_passes(lab: Lab, c: Known) -> Found:
    return {name: lab.body(kernel) / 2 for kernel, name in PRODUCTS.items()}


def matrix_result(lab: Lab, c: Known) -> Found:
    cycles = lab.first_right("result", tuple(range(9)), 24)
    return {"matrix_result_cycles": cycles - c[USUAL] - c["issue_cycles"]}


def matrix_beside_vector(lab: Lab, c: Known) -> Found:
    few, many = 40, 72  # a round of additions takes longer than one of products, so the products end first
    how = {"waves": 8, "other": many * lab.machine.scale}
    longer = lab.mhz * lab.round("products_beside_additions_short", few, many, **how)
    return {"matrix_blocks_vector": longer / (2 * SHORT) / c[USUAL]}


def clock_under_load(lab: Lab, c: Known) -> Found:
    rounds = 60 * lab.machine.scale
    alone, loaded = {}, {}
    for kernel in ("busy_always", "busy_half", "busy_quarter"):
        how = Launch(waves=4, rounds=rounds)
        alone[kernel] = lab.microseconds(f"{kernel}_short", how) - c["launch_microseconds"]
        some = 1 + lab.machine.scale // 16  # launches: the clock follows the load after some milliseconds
        many = replace(how, grid=lab.machine.units, times=some)
        loaded[kernel] = lab.microseconds(f"{kernel}_short", many) / some - c["launch_microseconds"]
    products = 4 * SHORT * rounds * c[USUAL]
    busy = {k: products / (lab.mhz * x) for k, x in alone.items()}
    mhz = {k: lab.mhz * alone[k] / loaded[k] for k in alone}
    slower = [k for k in alone if mhz[k] < 0.97 * lab.mhz]
    if len(slower) < 2:
        return {"matrix_mhz": AtLeast(min(mhz.values()))}
    slope, at_full = np.polyfit([math.log(busy[k]) for k in slower], [math.log(mhz[k]) for k in slower], 1)
    return {"matrix_mhz": math.exp(at_full), "matrix_power": -float(slope)}


# ---- LDS


def lds_rates(lab: Lab, c: Known) -> Found:
    kernels = {
        "ds_read_b32": "reads_of_4",
        "ds_read_b64": "reads_of_8",
        "ds_read_b128": "reads_of_16",
        "ds_read_b32 of one bank": "reads_of_one_bank",
        "lds_cycles_without_banks": "swizzles",
    }
    return {name: lab.body(kernel, few=2, many=6, waves=16) / (16 * 8) for name, kernel in kernels.items()}


def lds_latency(lab: Lab, c: Known) -> Found:
    waited = lab.body("lds_chase") - c["issue_cycles"]
    each = lab.body("lds_reads") / 16
    depth = waited / each
    slot = max(c["issue_cycles"], c["ds_read_b32"])
    return {
        "lds_latency": waited - c["ds_read_b32"],
        "counter_lgkm": depth if each > LIMITED * slot else AtLeast(depth),
    }


def lds_queue(lab: Lab, c: Known) -> Found:
    more = lab.body("three_reads", few=2, many=6) - lab.body("one_read", few=2, many=6)
    return {"queue_cycles": 2 * c["ds_read_b32 of one bank"] - more}


# ---- memory


def scalar_memory(lab: Lab, c: Known) -> Found:
    found: Found = {}
    for name, size in (("scalar_hit_cycles", 2 * KB), ("scalar_miss_cycles", 64 * KB)):
        memory = lab.machine.upload(ring(size))
        found[name] = lab.body("scalar_chase", memory=memory) - c["issue_cycles"]
    return found


def memory_rates(lab: Lab, c: Known) -> Found:
    memory = lab.machine.upload(np.zeros(KB, np.uint32))
    return {
        "address_cycles": lab.body("loads_of_a_dword", waves=16, memory=memory) / (16 * 8),
        "l1_bytes_a_cycle": 16 * KB / lab.body("loads_of_16_bytes", waves=16, memory=memory),
    }


def memory_latency(lab: Lab, c: Known) -> Found:
    sent = LINE / c["l1_bytes_a_cycle"]

    def waited(size: int, few: int, many: int, cold: bool = False) -> float:
        memory = lab.machine.upload(ring(size))
        lab.machine.run(lab.file, "chase_long", Launch(rounds=many * lab.machine.scale, memory=memory))
        return lab.body("chase", few, many, memory=memory, cold=cold) - c["issue_cycles"]

    far = {
        "mall_nanoseconds": waited(64 * MB, 32, 160),
        # Few enough for each line to be loaded once: 16 scale LONG, on a GPU 196608 of 524288.
        "hbm_nanoseconds": waited(64 * MB, 4, 16, cold=True),
    }
    return {
        "l1_latency": waited(16 * KB, FEW, MANY) - c["address_cycles"],
        "l2_latency": waited(256 * KB, 128, 256) - sent,
        **{name: 1000 * (cycles - sent) / lab.mhz for name, cycles in far.items()},
    }


def memory_depth(lab: Lab, c: Known) -> Found:
    memory = lab.machine.upload(np.zeros(256 * KB // 4, np.uint32))
    load = c["l2_latency"] + LINE / c["l1_bytes_a_cycle"]
    loads = lab.body("loads_past_l1", waves=4, memory=memory)
    store = lab.body("waited_store", memory=memory) - c["issue_cycles"]
    each = lab.body("stores", memory=memory) / 32
    lines, depth = 32 * load / loads, store / each
    return {
        "l1_miss_lines": lines if loads > LIMITED * 32 * LINE / c["l1_bytes_a_cycle"] else AtLeast(lines),
        "counter_vm": depth if each > LIMITED * max(c["issue_cycles"], c["address_cycles"]) else AtLeast(depth),
    }


CHUNK = 64 * KB
SHARES = tuple(n / 20 for n in range(14, 22))  # that are tried as cache_share


def bandwidth(lab: Lab, c: Known) -> Found:
    units = lab.machine.units
    memory = lab.machine.allocate(64 * units * CHUNK)
    most = units * c["l1_miss_lines"] * LINE  # bytes under way

    def bound(rate: float, limit: float) -> float | AtLeast:
        return AtLeast(rate) if rate * LIMITED > limit else rate

    def again(chunks: int, few: int, many: int) -> float:
        """Bytes a microsecond, of those that were read before."""
        how = {"grid": units, "waves": 16, "memory": memory, "other": chunks}
        return max(units, chunks) * CHUNK / lab.round("read", few, many, **how)

    def once(chunks: int) -> float:
        how = Launch(grid=units, waves=16, rounds=1, memory=memory, other=chunks, cold=True)
        return lab.microseconds("read", how)

    near, mall = again(256 * KB // CHUNK, 8, 40), again(8 * units, 1, 3)
    return {
        "l2_bytes_a_cycle": bound(near / lab.mhz / c["xcds"], most / c["l2_latency"] / c["xcds"]),
        "mall_gb_a_second": bound(mall / 1000, most / c["mall_nanoseconds"]),
        "hbm_gb_a_second": 48 * units * CHUNK / (once(64 * units) - once(16 * units)) / 1000,
        "cache_share": cache_share(lab, c, memory),
    }


def cache_share(lab: Lab, c: Known, memory: int) -> float:
    """The share of mall_bytes that a launch finds in the cache if the launch before has read as much."""
    times = 1 + lab.machine.scale // 16

    def rate(share: float) -> float:
        chunks = int(share * c["mall_bytes"] / CHUNK)
        how = Launch(grid=lab.machine.units, waves=16, rounds=1, memory=memory, other=chunks, times=times)
        lab.machine.run(lab.file, "read", replace(how, times=1))
        return chunks / (lab.microseconds("read", how) / times - c["launch_microseconds"])

    between = (rate(0.5) + rate(1.5)) / 2
    return max((share for share in SHARES if rate(share) > between), default=SHARES[0])


# ---- launches


def empty_launch(lab: Lab, c: Known) -> Found:
    few, many = 4 * lab.machine.scale, 8 * lab.machine.scale
    times = [lab.microseconds("empty", Launch(times=n)) for n in (few, many)]
    alone = sum(c[x] for x in ("group_launch_cycles", "wave_launch_cycles", "instruction_miss_cycles", "issue_cycles"))
    return {"launch_microseconds": (times[1] - times[0]) / (many - few) - alone / lab.mhz}


def group_launch(lab: Lab, c: Known) -> Found:
    few, many = (lab.machine.units * n * lab.machine.scale for n in (2, 6))

    def cycles(kernel: str, waves: int) -> float:
        """Of one workgroup of those that a unit has one after the other."""
        low, high = (
            lab.microseconds(kernel, Launch(grid=n, waves=waves, lds=int(c["lds_bytes"]))) for n in (few, many)
        )
        return lab.mhz * (high - low) / (many - few) * lab.machine.units

    def without_bodies(waves: int) -> float:
        short, long = (cycles(kernel, waves) for kernel in ("group_short", "group_long"))
        return short - (long - short) * SHORT / (LONG - SHORT)

    one, four = without_bodies(1), without_bodies(4)
    wave = (four - one) / 3
    of_loop = 2 * c["issue_cycles"] + c["branch_cycles"] - c["taken_branch_cycles"]
    return {"wave_launch_cycles": wave, "group_launch_cycles": one - wave - of_loop}


# ---- all of them


@dataclass(frozen=True)
class Microbenchmark:
    file: str
    find: Callable[[Lab, Known], Found]
    gives: tuple[str, ...]
    everywhere: bool = False  # on NVIDIA GPUs as well

    @property
    def name(self) -> str:
        return self.file.removesuffix(".hip")

    def title(self) -> str:
        """The first sentence of the file."""
        text = (HERE / self.file).read_text(encoding="utf-8")
        comment = " ".join(re.findall(r"^// (.*)$", text, re.MULTILINE)[1:])
        return comment.partition(". ")[0].partition(": ")[0]


# What is not in mi300x.json but in the interpreter: cycles that an instruction takes of its unit.
RATES = {
    "v_add_f32": 4.0,
    "v_exp_f32": 16.0,
    "v_mfma_f32_16x16x16_bf16": 16.0,
    "v_mfma_f32_16x16x16_f16": 16.0,
    "v_mfma_f32_16x16x4_f32": 32.0,
    "ds_read_b32": 2.0,
    "ds_read_b64": 4.0,
    "ds_read_b128": 8.0,
    "ds_read_b32 of one bank": 64.0,
}

# A formula may use what those before it give.
MICROBENCHMARKS = (
    Microbenchmark("vector_issue.hip", vector_issue, ("peak_mhz", "v_add_f32"), everywhere=True),
    Microbenchmark("transcendental.hip", transcendental, ("v_exp_f32", "transcendental_result_cycles")),
    Microbenchmark("vector_to_scalar.hip", vector_to_scalar, ("vector_to_scalar_cycles",)),
    Microbenchmark("branches.hip", branches, ("branch_cycles", "taken_branch_cycles")),
    Microbenchmark("barrier.hip", barrier, ("barrier_cycles",)),
    Microbenchmark("sleep.hip", sleep, ("sleep_cycles",)),
    Microbenchmark("instruction_fetch.hip", instruction_fetch, ("instruction_miss_cycles",)),
    Microbenchmark("matrix_passes.hip", matrix_passes, tuple(PRODUCTS.values())),
    Microbenchmark("matrix_result.hip", matrix_result, ("matrix_result_cycles",)),
    Microbenchmark("matrix_beside_vector.hip", matrix_beside_vector, ("matrix_blocks_vector",)),
    Microbenchmark(
        "lds_rates.hip",
        lds_rates,
        ("ds_read_b32", "ds_read_b64", "ds_read_b128", "ds_read_b32 of one bank", "lds_cycles_without_banks"),
    ),
    Microbenchmark("lds_latency.hip", lds_latency, ("lds_latency", "counter_lgkm")),
    Microbenchmark("lds_queue.hip", lds_queue, ("queue_cycles",)),
    Microbenchmark("scalar_memory.hip", scalar_memory, ("scalar_hit_cycles", "scalar_miss_cycles")),
    Microbenchmark("memory_rates.hip", memory_rates, ("address_cycles", "l1_bytes_a_cycle")),
    Microbenchmark(
        "memory_latency.hip",
        memory_latency,
        ("l1_latency", "l2_latency", "mall_nanoseconds", "hbm_nanoseconds"),
        everywhere=True,
    ),
    Microbenchmark("memory_depth.hip", memory_depth, ("l1_miss_lines", "counter_vm")),
    Microbenchmark("group_launch.hip", group_launch, ("wave_launch_cycles", "group_launch_cycles")),
    Microbenchmark("empty_launch.hip", empty_launch, ("launch_microseconds",), everywhere=True),
    Microbenchmark(
        "bandwidth.hip",
        bandwidth,
        ("l2_bytes_a_cycle", "mall_gb_a_second", "hbm_gb_a_second", "cache_share"),
        everywhere=True,
    ),
    Microbenchmark("clock_under_load.hip", clock_under_load, ("matrix_mhz", "matrix_power")),
)


def find(machine: Machine, benchmark: Microbenchmark, known: Known) -> Found:
    """Once. known: the constants, and what was found before."""
    try:
        return benchmark.find(Lab(machine, benchmark.file, known), known)
    finally:
        machine.release()

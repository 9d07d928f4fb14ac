# SPDX-License-Identifier: Apache-2.0
"""The clock against what others measured on an MI300X (measured.json): attention forward of AITER, by which the clock
under load was fitted, and of moonmath-ai, which is held out: only an earlier trial, which chose `matrix_blocks_vector`
and `lds_latency`, saw both.

export PYTHONPATH=build_backend:tests/amd:tests/gfx942/support:tests/gfx942/clock
python tests/gfx942/clock/calibrate.py --aiter FOLDER --moonmath FOLDER [--write]

FOLDER: AITER's fwd_hd128_bf16_*.co; moonmath's attention_kernel.hip compiled to attention_{rtne,rtna,rtz}.co. The
interpreter must know loads from memory to LDS. --write: calibration.json, which docs/amd_time.md shows.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import device
import timing

HERE = Path(__file__).parent
MEASURED, RESULTS = HERE / "measured.json", HERE / "calibration.json"
HEAD_DIM = 128
LONGEST = 8192  # keys that are run, with all queries; more keys take time in proportion
INSTRUCTIONS = 1_200_000
Tensors = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Point:
    kernel: str
    rounding: str
    batch: int
    heads: int
    length: int
    measured: float  # ms
    predicted: float = 0.0
    mhz: float = 0.0

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def points() -> list[Point]:
    return [Point(*row) for row in json.loads(MEASURED.read_text(encoding="utf-8"))["points"]]


def results() -> list[Point]:
    return [Point(**x) for x in json.loads(RESULTS.read_text(encoding="utf-8"))]


def tensors(p: Point, keys: int) -> Tensors:
    """q and the output of all queries, k and v of so many keys, in bfloat16."""
    random = np.random.default_rng(0)

    def drawn(length: int) -> np.ndarray:
        some = random.standard_normal((p.batch, min(length, 4096), p.heads, HEAD_DIM), dtype=np.float32)
        bits = (some.view(np.uint32) >> 16).astype(np.uint16)
        return np.tile(bits, (1, math.ceil(length / bits.shape[1]), 1, 1))[:, :length].copy()

    q = drawn(p.length)
    return q, drawn(keys), drawn(keys), np.zeros_like(q)


# ---- AITER: its own argument block, of 16 bytes a field (csrc/include/mha_fwd.h, fmha_fwd_v3_args)


def field(x: np.ndarray | float | int | None) -> bytes:
    if x is None:
        return bytes(16)
    if isinstance(x, np.ndarray):
        return struct.pack("<QQ", x.ctypes.data, 0)
    return struct.pack("<fIII", x, 0, 0, 0) if isinstance(x, float) else struct.pack("<IIII", x, 0, 0, 0)


def run_aiter(folder: Path, p: Point, keys: int) -> device.Module:
    q, k, v, out = tensors(p, keys)
    lse = np.zeros((p.batch, p.heads, p.length), np.float32)
    row, head = p.heads * HEAD_DIM * 2, HEAD_DIM * 2
    of_q, of_k = (row, head, p.length * row), (row, head, keys * row)
    fields: tuple[Any, ...] = (
        *(out, q, k, v, lse, HEAD_DIM**-0.5, p.length, row, 256 * row, *of_q[1:], 1, *of_k, 5, 0, keys),
        *(HEAD_DIM, HEAD_DIM, p.heads, *of_k, *of_q, None, None, p.length * 4, None, None),
    )
    module = device.Module((folder / f"fwd_hd128_bf16_{p.rounding}.co").read_bytes())
    (name,) = [x.name for x in device.kernels() if x.name.endswith(f"fmha_fwd_hd128_bf16_{p.rounding}E")]
    segment = b"".join(field(x) for x in fields).ljust(module.kernel(name).kernarg_bytes, b"\0")
    grid = (math.ceil(p.length / 256), p.heads, p.batch)
    module.launch_segment(name, grid, 512, segment, (q, k, v, out, lse))
    return module


def run_moonmath(folder: Path, p: Point, keys: int) -> device.Module:
    q, k, v, out = tensors(p, keys)
    module = device.Module((folder / f"attention_{p.rounding}.co").read_bytes())
    (name,) = [x.name for x in device.kernels() if "17attention_forwardILb1ELb0ELb0E" in x.name]
    scale = math.log2(math.e) / math.sqrt(HEAD_DIM)
    rest = (0, 0, 0, 0.0, 0, 0, 0, 0, 0)
    grid = (math.ceil(math.ceil(p.length / 16) / 24), p.batch * p.heads)
    module.launch(name, grid, 512, (q, k, v, out, p.length, keys, scale, p.heads, *rest))
    return module


RUNS = {"aiter": run_aiter, "moonmath": run_moonmath}
ROWS = {"aiter": 256, "moonmath": 384}  # queries of a workgroup


def of_all_keys(p: Point, launch: timing.Launch, chip: dict[str, float]) -> tuple[float, float]:
    """Milliseconds and MHz: a workgroup's time in proportion to its keys. moonmath shares out the last round."""
    rounds = launch.workgroups / chip["cus"]
    dealt = math.ceil(rounds) if p.kernel == "aiter" else max(1.0, rounds)
    busy = launch.matrix_busy * math.ceil(rounds) / dealt
    mhz = min(chip["peak_mhz"], chip["matrix_mhz"] * busy ** -chip["matrix_power"])
    return dealt * launch.group_cycles * p.length / min(p.length, LONGEST) / mhz / 1000, mhz


def predicted(p: Point, folder: Path, chip: dict[str, float]) -> Point:
    keys = min(p.length, LONGEST)
    with timing.recording(INSTRUCTIONS):
        module = RUNS[p.kernel](folder, p, keys)
    (launch,) = timing.timed(chip=chip)
    device.forget_recordings()
    module.close()
    time, mhz = of_all_keys(p, launch, chip)
    return Point(**asdict(p) | {"predicted": round(time, 3), "mhz": round(mhz)})


def summary(found: list[Point]) -> str:
    lines = []
    for kernel in RUNS:
        errors = [p.error for p in found if p.kernel == kernel]
        if errors:
            sizes = [abs(e) for e in errors]
            lines.append(
                f"{kernel}: {len(errors)} points, error {min(errors):+.0%} to {max(errors):+.0%}, "
                f"median size {median(sizes):.1%}, largest {max(sizes):.1%}"
            )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kernel in RUNS:
        parser.add_argument(f"--{kernel}", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    found = []
    for p in points():
        found.append(predicted(p, getattr(options, p.kernel), timing.constants()))
        print(found[-1], f"{found[-1].error:+.1%}", flush=True)
    print(summary(found))
    if options.write:
        rows = ",\n".join(json.dumps(asdict(p)) for p in found)
        RESULTS.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

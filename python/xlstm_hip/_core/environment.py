# SPDX-License-Identifier: Apache-2.0
"""The environment variables of the package.

XLSTM_HIP_BACKEND   reference: the mLSTM, attention and the layers run in plain torch. Read in every call
XLSTM_HIP_DECODE_OP_ROWS   the largest batch of the decode engine's op. Read in every step
XLSTM_HIP_LOGS      comma-separated list of dispatch, plan, build. Read when the package is imported
XLSTM_HIP_RANGES    1: a named range around every op, for NVIDIA's and AMD's profilers. Read at import

An unknown value is an error that lists the known ones. The C++ library reads two more: XLSTM_HIP_CPU_ISA and
XLSTM_HIP_GPU_SCHEDULE.
"""

from __future__ import annotations

import os

from .graph_constants import constant_in_graphs

BACKENDS = ("reference",)
LOGS = ("dispatch", "plan", "build")

# os.environ encodes a name before it looks it up, which takes 0.7 us, a seventh of a small layer's call. This is the
# dictionary that it then looks in.
_VARIABLES = vars(os.environ)["_data"]
_BACKEND, _DECODE_OP_ROWS = os.fsencode("XLSTM_HIP_BACKEND"), os.fsencode("XLSTM_HIP_DECODE_OP_ROWS")


@constant_in_graphs
def plain_torch_forced() -> bool:
    """Whether XLSTM_HIP_BACKEND is reference. A torch.compile graph keeps the answer from when it was traced."""
    value = _VARIABLES.get(_BACKEND)
    return False if not value else _is_reference(os.fsdecode(value))


def _is_reference(value: str) -> bool:
    if value not in BACKENDS:
        raise ValueError(f"XLSTM_HIP_BACKEND: expected {' or '.join(BACKENDS)}, or nothing, got {value!r}")
    return True


def decode_op_rows() -> int | None:
    """XLSTM_HIP_DECODE_OP_ROWS: the largest batch of the decode engine's op; None: the engine chooses."""
    value = os.fsdecode(_VARIABLES.get(_DECODE_OP_ROWS, b""))
    if value and not (value.isascii() and value.isdigit()):
        raise ValueError(f"XLSTM_HIP_DECODE_OP_ROWS: expected a number of rows, 0 or more, or nothing, got {value!r}")
    return int(value) if value else None


def gpu_schedule() -> str:
    """XLSTM_HIP_GPU_SCHEDULE, which the C++ library reads and checks."""
    return os.environ.get("XLSTM_HIP_GPU_SCHEDULE", "")


def logs_of(value: str) -> frozenset[str]:
    """The logs that a value of XLSTM_HIP_LOGS names."""
    names = frozenset(filter(None, (name.strip() for name in value.split(","))))
    unknown = sorted(names - set(LOGS))
    if unknown:
        raise ValueError(f"XLSTM_HIP_LOGS: expected any of {', '.join(LOGS)}, got {', '.join(map(repr, unknown))}")
    return names


def ranges_of(value: str) -> bool:
    if value not in ("", "0", "1"):
        raise ValueError(f"XLSTM_HIP_RANGES: expected 0 or 1, got {value!r}")
    return value == "1"

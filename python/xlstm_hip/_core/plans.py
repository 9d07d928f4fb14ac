# SPDX-License-Identifier: Apache-2.0
"""The table of tuned launch plans: for an op, a class of shapes and a chip, the configuration that was measured
fastest.

Two files are read at import: the shipped plans.json in this folder, then the file named by XLSTM_HIP_PLANS, whose
entries take precedence. `xlstm-hip tune` writes such files. A call without an entry uses the plan computed in csrc/.
The argument `plan=` of a call overrides every table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .device import device_facts
from .graph_constants import constant_in_graphs
from .native import native

FORMAT = 1
SHIPPED = Path(__file__).with_name("plans.json")
ENVIRONMENT = "XLSTM_HIP_PLANS"
DTYPES = ("float32", "bfloat16", "float16", "float64")
WEIGHTS = ("int8", "int4", "float8_e4m3fn", "float8_e4m3fnuz")  # more dtypes, of a model's weights

Plan = Mapping[str, Any]  # choice -> value; 0, or a choice that is left out, is as the plan in csrc/ says
AS_PLANNED: Plan = {}
FUSED = {"mlstm_chunkwise": "chunkwise--fused", "mlstm_step": "fused"}  # whose calls read the table

MLSTM_CLASS = ("dtype", "batch", "heads", "length", "dqk", "dhv")
ATTENTION_CLASS = ("dtype", "batch", "heads", "heads_k", "queries", "length", "dqk", "dhv", "causal")
# The values of a plan that may be chosen for each op, and the sizes that make a class of its shapes. Sizes in ROUNDED
# stand for all numbers down to the next lower power of two.
BANDS = ("heads_per_band", "workers", "streams")  # of the kernels in bands alone (mlstm/compiled/bands.py)
CHOICES = {
    "mlstm_chunkwise": ("kernel", "chunk_size", "segments", "walk_chunk", *BANDS),
    "mlstm_backward": ("chunk_size", "segments", "walk_chunk"),
    "mlstm_sequence": ("step_columns",),
    "mlstm_step": ("kernel", "step_columns"),
    "attention_forward": ("block_size", "splits"),
    "attention_backward": ("block_size", "row_panels", "parts", "common_schedule"),
    "mla_decode": ("block_size", "splits"),
    "decode_step": ("path",),
}
BY_OP, BY_LAYERS = "the decode engine's op", "the model's layers"
PATHS = ("as planned", BY_OP, BY_LAYERS)  # of a decode step, by their numbers in a plan
CLASSES = {
    "mlstm_chunkwise": MLSTM_CLASS,
    "mlstm_backward": MLSTM_CLASS,
    "mlstm_sequence": MLSTM_CLASS,
    "mlstm_step": ("dtype", "batch", "heads", "dqk", "dhv"),
    "attention_forward": ATTENTION_CLASS,
    "attention_backward": ATTENTION_CLASS,
    "mla_decode": ATTENTION_CLASS,
    "decode_step": ("dtype", "batch", "heads", "dqk", "dhv"),  # dtype: of the weights
}
FIELDS = ("op", "arch", "class", "plan", "speedup", "run")  # of an entry; the last two say where it is from
ROUNDED = ("batch", "length", "queries")

Key = tuple  # arch, then the class
_entries: dict[str, dict[Key, Plan]] = {}  # by op
_trying: dict[str, Plan] = {}  # by op, for every shape
_changes = 0  # of the two


def rounded_up(n: int) -> int:
    """Rounds up to a power of two. n may be symbolic."""
    power = 1
    while power < n:
        power *= 2
    return power


def class_of(op: str, **sizes: Any) -> dict[str, Any]:
    """The shape class of a call: its sizes, with those in ROUNDED rounded up."""
    return {name: rounded_up(sizes[name]) if name in ROUNDED else sizes[name] for name in CLASSES[op]}


@constant_in_graphs
def arch_of(device_type: str, index: int | None = None) -> str:
    """The name, in table entries, of the device that a plan was tuned on: "gfx942/304", "sm_90a/132", "avx2/8".

    A GPU's arch and its compute units; on a CPU the instruction set of the kernels and torch's threads.
    """
    if device_type == "cpu":
        return f"{native().cpu_isa()}/{torch.get_num_threads()}"
    facts = device_facts(torch.device(device_type, torch.cuda.current_device() if index is None else index))
    arch = "sm_90a" if facts.arch == "sm_90" else facts.arch  # what the library's code for that chip is compiled for
    return f"{arch}/{facts.compute_units}"


def plan_for(op: str, device: torch.device, dtype: torch.dtype | str, **sizes: Any) -> Plan:
    """The table's plan for a call, or AS_PLANNED. Costs time only if the table has entries for the op.

    dtype: of a decode step, which weights of 8 and 4 bits may have, one of DTYPES and WEIGHTS
    """
    if op in _trying:
        return _trying[op]
    if op not in _entries or device.type not in ("cpu", "cuda"):
        return AS_PLANNED
    call = class_of(op, dtype=str(dtype).removeprefix("torch."), **sizes)
    return _entries[op].get((arch_of(device.type, device.index), *call.values()), AS_PLANNED)


def has_entries() -> bool:
    return bool(_entries)


def changes() -> int:
    """How often the plans in use have changed: graphs keep those that they were captured with."""
    return _changes


def fused_plan_for(op: str, device: torch.device, dtype: torch.dtype, **sizes: Any) -> Plan:
    """plan_for, for a call of the fused kernel: entries that choose another kernel are ignored."""
    plan = plan_for(op, device, dtype, **sizes)
    return plan if plan.get("kernel") in (None, FUSED.get(op)) else AS_PLANNED


def plan_of_kernel(kernel: str, q: torch.Tensor, v: torch.Tensor) -> Plan:
    """The table's plan for a call of a chunkwise kernel that is not fused, if the entry is for this kernel."""
    batch, heads, length, dqk = q.shape
    plan = plan_for(
        "mlstm_chunkwise", q.device, q.dtype, batch=batch, heads=heads, length=length, dqk=dqk, dhv=v.shape[-1]
    )
    return plan if plan.get("kernel") == kernel else AS_PLANNED


def tuned_kernel(op: str, device: torch.device, batch: int, head_dim: int, length: int | None = None) -> str | None:
    """The kernel that the table names for calls of this size, or None if its entries for other heads or dtypes
    disagree.

    head_dim is the larger of the two head dims.
    """
    named = set()
    for (arch, *values), plan in _entries.get(op, {}).items():
        sizes = dict(zip(CLASSES[op], values, strict=True))
        fits = sizes["batch"] == rounded_up(batch) and max(sizes["dqk"], sizes["dhv"]) == head_dim
        if length is not None and sizes["length"] != rounded_up(length):
            fits = False
        if fits and arch == arch_of(device.type, device.index):
            named.add(plan.get("kernel", FUSED[op]))
    return named.pop() if len(named) == 1 else None


def check_plan(name: str, op: str, plan: Any) -> Plan:
    """Checks a plan from a caller or a file. Errors name the choice."""
    if not isinstance(plan, Mapping):
        raise TypeError(f"{name}: expected a mapping of {', '.join(CHOICES[op])}, got {type(plan).__name__}")
    for choice, value in plan.items():
        if choice not in CHOICES[op]:
            raise ValueError(f"{name}: expected choices of {', '.join(CHOICES[op])} for {op}, got {choice!r}")
        if choice == "kernel":
            if not isinstance(value, str) or not value:
                raise ValueError(f"{name}.kernel: expected a registry name, got {value!r}")
        elif choice in BANDS and plan.get("kernel") in (None, FUSED.get(op)):
            raise ValueError(f"{name}.{choice}: expected none without a kernel that runs in bands, got {value!r}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name}.{choice}: expected an integer >= 0, got {value!r}")
        elif choice == "path" and value >= len(PATHS):
            numbered = ", ".join(f"{number} ({path})" for number, path in enumerate(PATHS))
            raise ValueError(f"{name}.path: expected one of {numbered}, got {value}")
    return plan


def check_fused_plan(name: str, op: str, plan: Any) -> Plan:
    """Checks the plan= of a call of a fused kernel, which a plan cannot make another one."""
    plan = check_plan(name, op, plan)
    if plan.get("kernel") not in (None, FUSED.get(op)):
        raise ValueError(f"{name}.kernel: expected none in a call, which has kernel=, got {plan['kernel']!r}")
    return plan


@contextmanager
def trying(op: str, plan: Plan) -> Iterator[None]:
    """Within this context, every call of the op in this process uses the plan, for any shape."""
    global _changes
    before = _trying.get(op)
    _trying[op] = check_plan("plan", op, plan)
    _changes += 1
    try:
        yield
    finally:
        del _trying[op]
        _changes += 1
        if before is not None:
            _trying[op] = before


# ---- files


def read_table(path: Path) -> list[dict[str, Any]]:
    """Reads and checks the entries of a file. Errors name the file and the field."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: expected a table of plans as JSON: {error}") from error
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        actual = table.get("format") if isinstance(table, dict) else type(table).__name__
        raise ValueError(f"{path}: format: expected {FORMAT}, got {actual!r}")
    if not isinstance(table.get("entries"), list):
        raise ValueError(f"{path}: entries: expected a list, got {type(table.get('entries')).__name__}")
    for n, entry in enumerate(table["entries"]):
        try:
            check_entry(entry)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: entries[{n}].{error}") from error
    return table["entries"]


def check_entry(entry: Any) -> None:
    if not isinstance(entry, dict):
        raise TypeError(f"op: expected an object with op, arch, class and plan, got {type(entry).__name__}")
    for name in entry:
        if name not in FIELDS:
            raise ValueError(f"{name}: expected one of {', '.join(FIELDS)}")
    op, arch, sizes = entry.get("op"), entry.get("arch"), entry.get("class")
    if op not in CHOICES:
        raise ValueError(f"op: expected one of {', '.join(CHOICES)}, got {op!r}")
    if not isinstance(arch, str) or not arch.rpartition("/")[0] or not arch.rpartition("/")[2].isdecimal():
        raise ValueError(f"arch: expected a name and a number such as 'gfx942/304', got {arch!r}")
    if not isinstance(sizes, dict) or sorted(sizes) != sorted(CLASSES[op]):
        actual = sorted(sizes) if isinstance(sizes, dict) else sizes
        raise ValueError(f"class: expected {', '.join(CLASSES[op])}, got {actual!r}")
    for name, value in sizes.items():
        if name == "dtype":
            dtypes = (*DTYPES, *WEIGHTS) if op == "decode_step" else DTYPES
            if value not in dtypes:
                raise ValueError(f"class.dtype: expected one of {', '.join(dtypes)}, got {value!r}")
        elif name == "causal":
            if not isinstance(value, bool):
                raise ValueError(f"class.causal: expected true or false, got {value!r}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"class.{name}: expected an integer >= 1, got {value!r}")
        elif name in ROUNDED and value != rounded_up(value):
            raise ValueError(f"class.{name}: expected a power of two, got {value}")
    if "plan" not in entry:
        raise ValueError(f"plan: expected choices of {', '.join(CHOICES[op])}, got none")
    check_plan("plan", op, entry["plan"])


def same_call(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a[name] == b[name] for name in ("op", "arch", "class"))


def use_plans(*paths: Path | str) -> None:
    """Replaces all tables in use by these files. If two have an entry for the same call, the later file wins."""
    fresh: dict[str, dict[Key, Plan]] = {}
    for path in paths:
        for entry in read_table(Path(path)):
            op = entry["op"]
            key = (entry["arch"], *(entry["class"][name] for name in CLASSES[op]))
            fresh.setdefault(op, {})[key] = entry["plan"]
    global _changes
    _entries.clear()
    _entries.update(fresh)
    _changes += 1


def default_tables() -> list[Path]:
    """The shipped table, and the one named by the environment variable."""
    named = os.environ.get(ENVIRONMENT)
    if named and not Path(named).is_file():
        raise ValueError(f"{ENVIRONMENT}: expected the path of a table of plans, got {named!r}, which is no file")
    return [SHIPPED, *([Path(named)] if named else [])]


use_plans(*default_tables())

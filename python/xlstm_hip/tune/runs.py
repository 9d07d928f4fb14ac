# SPDX-License-Identifier: Apache-2.0
"""A run's folder: run_meta.json, trials.jsonl, summary.csv, best.json. No file is ever left half-written.

A trial is one line, written at once. A line cut short by a power loss is dropped when the run is opened again. Every
other file is written to a temporary name and renamed.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .._core import plans
from .._core.atomic_files import write_atomically
from .._core.device import device_facts
from .._core.native import native
from .._core.plans import Plan
from .._version import __version__
from .measure import Result

META, TRIALS, SUMMARY, BEST = "run_meta.json", "trials.jsonl", "summary.csv", "best.json"
COLUMNS = ("trial", "status", "speedup", "ms", "shipped_ms", "share_of_tolerance", "plan", "error")
NEW = {"entries": [], "format": plans.FORMAT}


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2) + "\n")


def backend_name(device: torch.device) -> str:
    return ("rocm" if torch.version.hip else "cuda") if device.type == "cuda" else device.type


class Run:
    """A folder and what its trials gave, by number."""

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder, self.meta = folder, meta
        self.trials: dict[int, tuple[Plan, Result]] = {}

    @classmethod
    def create(
        cls, parent: Path, backend: str, tag: str, settings: dict[str, Any], begun_with: Mapping[str, Any] | None = None
    ) -> Run:
        """begun_with: what else there is to say of it, such as its budget; unlike settings, --resume may change it."""
        if not re.fullmatch(r"[\w.-]+", tag):
            raise ValueError(f"tag: expected letters, digits, '.', '_' and '-', got {tag!r}")
        built = native()
        meta = {
            "settings": settings,
            "device": asdict(device_facts(settings["device"])),
            "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "xlstm_hip": __version__,
            "torch": torch.__version__,
            "git_sha": built.build_facts()["git_sha"] if built else None,
            **(begun_with or {}),
        }
        folder = _new_folder(parent, f"{backend}_{time.strftime('%Y%m%d-%H%M%S')}_{tag}")
        write_json(folder / META, meta)
        return cls(folder, meta)

    @classmethod
    def open(cls, folder: Path) -> Run:
        try:
            meta = json.loads((folder / META).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"resume: expected the folder of a run with {META}, got {str(folder)!r}: {error}"
            ) from error
        run = cls(folder, meta)
        path = folder / TRIALS
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        complete = [line for line in lines if line.endswith(b"\n")]
        for n, line in enumerate(complete):
            try:
                record = json.loads(line)
                run.trials[record["trial"]] = record["plan"], Result.of_json(record)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}: line {n + 1}: expected a trial: {error!r}") from error
        if len(complete) < len(lines):
            write_atomically(path, b"".join(complete).decode())
        return run

    def add(self, number: int, plan: Plan, result: Result) -> None:
        line = json.dumps({"trial": number, "plan": dict(plan)} | result.as_json()) + "\n"
        target = os.open(self.folder / TRIALS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(target, line.encode())
            os.fsync(target)
        finally:
            os.close(target)
        self.trials[number] = plan, result

    def write_summary(self) -> None:
        out = io.StringIO()
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(COLUMNS)
        for number, (plan, result) in sorted(self.trials.items()):
            ms, shipped = (min(x) if x else "" for x in (result.ms, result.shipped_ms))
            rows.writerow(
                (number, result.status, result.speedup or "", ms, shipped, result.share_of_tolerance,
                 plan_text(plan), result.error)
            )  # fmt: skip
        write_atomically(self.folder / SUMMARY, out.getvalue())


def _new_folder(parent: Path, name: str) -> Path:
    """parent/name, or of a run of the same second the first of parent/name-2, -3, ... that is not there."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder, number = parent / name, 1
        while True:
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
                folder = parent / f"{name}-{number}"
    except OSError as error:
        raise ValueError(
            f"runs: expected a folder that can be written, got {str(parent)!r}: {error.strerror}"
        ) from error


def plan_text(plan: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in plan.items()) or "as planned"


def ensure_table(path: Path) -> None:
    """A table that is there is one that can be read and written; else there is an empty one."""
    if path.exists():
        plans.read_table(path)
        if not os.access(path.parent, os.W_OK):
            raise ValueError(f"{path}: cannot be written: its folder takes no files")
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, NEW)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error.strerror}") from error


def entered(path: Path, call: Mapping[str, Any]) -> Plan | None:
    """The plan that a table has for op, arch and class of a call."""
    return next((one["plan"] for one in plans.read_table(path) if plans.same_call(one, call)), None)


def enter(path: Path, call: Mapping[str, Any], entry: dict[str, Any] | None) -> None:
    """Puts an entry for a call into a table, in the place of one that is there; None takes that one out."""
    entries = [one for one in plans.read_table(path) if not plans.same_call(one, call)]
    if entry is not None:
        plans.check_entry(entry)
        entries.append(entry)
    write_json(path, NEW | {"entries": entries})

# SPDX-License-Identifier: Apache-2.0
"""The number of compilers that may run at once: one per core, but no more than free memory feeds.

Run as a script it prints the number, for plain CMake builds:
    cmake --build build/cpp -j $(python build_backend/jobs.py)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

BYTES_PER_JOB = 1536 * 1024**2  # what the largest kernel file takes to compile, with room to spare


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory that a new process may use: the machine's, or less where a control group sets a limit."""
    found = []
    meminfo = root / "proc/meminfo"
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    for limit_file, used_file in (
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, used = root / limit_file, root / used_file
        if limit.is_file() and used.is_file() and limit.read_text().strip() != "max":
            found.append(int(limit.read_text()) - int(used.read_text()))
    return min(found) if found else None


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def job_count(available_cores: int, available_bytes: int | None) -> int:
    by_memory = available_cores if available_bytes is None else available_bytes // BYTES_PER_JOB
    return max(1, min(available_cores, by_memory))


def job_limit(environment: Mapping[str, str] = os.environ) -> int:
    """The number that the user sets (MAX_JOBS, then CMAKE_BUILD_PARALLEL_LEVEL), else the number that the machine has
    memory and cores for."""
    for name in ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL"):
        value = environment.get(name)
        if value:
            if not value.isdecimal() or int(value) < 1:
                raise SystemExit(f"{name}: expected a whole number of jobs, at least 1, got {value!r}")
            return int(value)
    return job_count(cores(), free_bytes())


def set_job_limit() -> None:
    os.environ["CMAKE_BUILD_PARALLEL_LEVEL"] = str(job_limit())


if __name__ == "__main__":
    print(job_limit())

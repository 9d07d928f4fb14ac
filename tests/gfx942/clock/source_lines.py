# SPDX-License-Identifier: Apache-2.0
"""Source lines of predicted launches. The package's objects have no line tables: the object of a kernel is compiled
again with them. They change no instruction, which is checked."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import builds
import code_objects
import device
from timing import Launch

FLAG = "-gline-tables-only"


def with_lines(launches: Sequence[Launch], code_of: Callable[[str], bytes]) -> list[Launch]:
    """Launches that have no source lines get those of the code object that code_of gives for their kernel."""
    sources: dict[str, dict[int, tuple[str, str]]] = {}
    found = []
    for launch in launches:
        if any(s.source for s in launch.stalls):
            found.append(launch)
            continue
        if launch.kernel not in sources:
            sources[launch.kernel] = lines_of(launch.kernel, code_of(launch.kernel))
        lines = sources[launch.kernel]
        if any(lines.get(s.offset, ("", ""))[0] != s.text for s in launch.stalls):
            raise ValueError(f"{launch.kernel}: compiled with {FLAG} it has other instructions than those that ran")
        found.append(replace(launch, stalls=tuple(replace(s, source=lines[s.offset][1]) for s in launch.stalls)))
    return found


def lines_of(kernel: str, code: bytes) -> dict[int, tuple[str, str]]:
    """By offset: each instruction's text and source line."""
    with device.Module(code) as module:
        return {x["offset"]: (x["text"], x["source"]) for x in module.lines(kernel)}


def of_package(kernel: str) -> bytes:
    """The code object with line tables that has one of the package's kernels."""
    if builds.CHIP not in code_objects.built_archs():
        raise ValueError(f"lines: expected a chip that build/amd has code for, got {builds.CHIP}")
    objects = [path for path in code_objects.gpu_objects() if f"{kernel}.kd".encode() in path.read_bytes()]
    if len(objects) != 1:
        raise ValueError(f"lines: expected {kernel} in one object of build/amd, got {len(objects)}")
    return compiled_with_lines(objects[0])


def compiled_with_lines(object_file: Path) -> bytes:
    """Made once for an object as it is."""
    commands = json.loads((code_objects.BUILD / "compile_commands.json").read_text(encoding="utf-8"))
    (command,) = (shlex.split(x["command"]) for x in commands if Path(x["output"]) == object_file)
    command = [x for x in command if not x.startswith("--offload-arch=")]
    at = command.index("-o")
    del command[at : at + 2]
    command += [f"--offload-arch={builds.CHIP}", "--offload-device-only", "--no-gpu-bundle-output", FLAG]
    key = hashlib.sha256("\0".join(command).encode() + object_file.read_bytes()).hexdigest()[:24]
    code = builds.BUILD / "lines" / f"{key}.co"
    if not code.exists():
        code.parent.mkdir(parents=True, exist_ok=True)
        unfinished = code.with_suffix(f".{os.getpid()}")
        code_objects.run(*command, "-o", unfinished)
        unfinished.rename(code)
    return code.read_bytes()

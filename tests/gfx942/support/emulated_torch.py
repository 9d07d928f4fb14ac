# SPDX-License-Identifier: Apache-2.0
"""A CPU torch with a GPU: the device "cuda" is the emulated MI300X, and xlstm_hip is the one built for it.

torch_device/ gives torch the device. Here are the few functions of torch.cuda that a CPU torch lacks, as far as the
package and its tests ask for them; the rest of torch.cuda (streams, graphs, events) is not there.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

import builds
import device

# Of tests/support/gpu_checks.py; the others need streams, graphs, the compiler's idea of a GPU or a second one.
CHECKS = (
    "poison_reaches_the_workspace",
    "inference_and_training_agree",
    "an_expanded_cotangent",
    "autocast",
    "a_step_from_one_projection",
    "a_step_with_c_in_bfloat16",
    "a_step_caps_its_gates",
    "offsets_outside_the_row_are_cut_off",
    "errors",
)


@functools.cache
def _properties(_: Any = None) -> SimpleNamespace:
    p = device.properties()
    return SimpleNamespace(
        name=p["name"],
        gcnArchName=p["arch"],
        multi_processor_count=p["compute_units"],
        warp_size=p["wave_size"],
        shared_memory_per_block=p["lds_bytes"],
        total_memory=p["memory_bytes"],
        major=p["major"],
        minor=p["minor"],
    )


@functools.cache
def give_torch_a_gpu() -> None:
    if torch.cuda.is_available():
        raise RuntimeError("this torch has a GPU of its own")
    device.library()
    ctypes.CDLL(str(builds.torch_device()), mode=ctypes.RTLD_GLOBAL)
    stand_ins = {
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda _=None: None,
        "get_device_properties": _properties,
        "get_device_name": lambda _=None: _properties().name,
    }
    for name, function in stand_ins.items():
        setattr(torch.cuda, name, function)


class _Site(importlib.abc.MetaPathFinder):
    """Finds xlstm_hip in one folder, whatever is installed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "xlstm_hip":
            return None
        return importlib.machinery.PathFinder.find_spec(name, path or [self.folder], target)


@functools.cache
def import_package() -> ModuleType:
    """xlstm_hip with its GPU kernels. A process has one: no test before may have imported another."""
    give_torch_a_gpu()
    if "xlstm_hip" in sys.modules:
        raise RuntimeError("another xlstm_hip was imported before")
    sys.meta_path.insert(0, _Site(str(builds.package())))
    import xlstm_hip

    return xlstm_hip

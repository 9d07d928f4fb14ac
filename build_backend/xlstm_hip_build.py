# SPDX-License-Identifier: Apache-2.0
"""The PEP 517 backend: scikit-build-core, told where torch is.

`pip install .` builds in an isolated environment in which torch cannot be imported, yet the build needs only
torch's files. So this finds them in the environment that the package goes to (find_torch.py), caps the
parallel jobs by free memory (jobs.py), and leaves the rest to scikit-build-core and CMakeLists.txt.

Settings, each as `-Ccmake.define.NAME=value` (before pip 23.1 `--config-settings=`) or environment variable:
  GPU       AUTO (default), HIP, CUDA or OFF           environment: XLSTM_HIP_GPU
  TORCH_DIR the folder of the torch package to use     environment: TORCH_DIR
"""

from __future__ import annotations

import os
from typing import Any

import scikit_build_core.build as scikit_build

from find_torch import OLDEST_TORCH, Torch, find_torch
from jobs import set_job_limit

Settings = dict[str, Any]
GPU_CHOICES = ("AUTO", "HIP", "CUDA", "OFF")


def cmake_define(settings: Settings, name: str) -> str | None:
    """The value of -Ccmake.define.NAME, which pip may spell in two ways."""
    for key in (f"cmake.define.{name}", f"skbuild.cmake.define.{name}"):
        value = settings.get(key)
        if value is not None:
            return str(value[-1] if isinstance(value, list) else value)
    return None


def gpu_choice(settings: Settings) -> str:
    value = cmake_define(settings, "GPU") or os.environ.get("XLSTM_HIP_GPU") or "AUTO"
    if value.upper() not in GPU_CHOICES:
        raise SystemExit(f"GPU: expected one of {', '.join(GPU_CHOICES)}, got {value!r}")
    return value.upper()


def torch_for(settings: Settings) -> Torch | None:
    return find_torch(cmake_define(settings, "TORCH_DIR"))


def with_torch(settings: Settings | None) -> Settings:
    """The settings, completed by what CMakeLists.txt must know about torch and the GPU."""
    settings = dict(settings or {})
    torch = torch_for(settings)
    if torch is None:
        raise SystemExit(
            f"no torch found: install torch>={OLDEST_TORCH} in the target environment, or set TORCH_DIR to "
            "the folder of the torch package"
        )
    print(f"xlstm_hip: GPU={gpu_choice(settings)}, building against {torch.text}", flush=True)
    facts = {
        "GPU": gpu_choice(settings),
        "TORCH_DIR": str(torch.folder),
        "TORCH_VERSION": torch.version,
        "TORCH_GPU": torch.gpu,
    }
    for name, value in facts.items():
        settings.pop(f"skbuild.cmake.define.{name}", None)
        settings[f"cmake.define.{name}"] = value
    set_job_limit()
    return settings


def torch_requirement(settings: Settings | None) -> list[str]:
    """Any torch will do for its headers, so one is asked for only where the target environment has none."""
    return [] if torch_for(settings or {}) else [f"torch>={OLDEST_TORCH}"]


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    return scikit_build.get_requires_for_build_wheel(config_settings) + torch_requirement(config_settings)


def get_requires_for_build_editable(config_settings: Settings | None = None) -> list[str]:
    return scikit_build.get_requires_for_build_editable(config_settings) + torch_requirement(config_settings)


def get_requires_for_build_sdist(config_settings: Settings | None = None) -> list[str]:
    return scikit_build.get_requires_for_build_sdist(config_settings)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings | None = None) -> str:
    return scikit_build.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings | None = None) -> str:
    return scikit_build.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    return scikit_build.build_wheel(wheel_directory, with_torch(config_settings), metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    return scikit_build.build_editable(wheel_directory, with_torch(config_settings), metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings | None = None) -> str:
    return scikit_build.build_sdist(sdist_directory, config_settings)

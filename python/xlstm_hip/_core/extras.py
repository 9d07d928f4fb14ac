# SPDX-License-Identifier: Apache-2.0
"""Packages that this one does without until something needs them, and the extra that installs each."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

EXTRA_OF = {
    "huggingface_hub": "hf",
    "jinja2": "hf",
    "tokenizers": "hf",
    "transformers": "hf",
    "ray": "ray",
    "matplotlib": "plot",
    "rich": "rich",
    "fastapi": "serve",
    "starlette": "serve",
    "pydantic": "serve",
    "uvicorn": "serve",
    "h11": "serve",
    "prometheus_client": "serve",
    "opentelemetry": "otel",
    "xgrammar": "structured",
}


def how_to_install(package: str) -> str:
    return f'pip install "xlstm_hip[{EXTRA_OF[package]}]"'


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def optional_module(module: str, needed_by: str) -> Any:
    """Imports a package of an extra, or a module of it. Without the package the error says what needs it, and how to
    install it.
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:  # the package is there, and lacks something itself
            raise
        raise not_installed(package, needed_by) from None


def not_installed(package: str, needed_by: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"{needed_by} needs {package}: {how_to_install(package)}", name=package)

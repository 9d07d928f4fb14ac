# SPDX-License-Identifier: Apache-2.0
"""Serving: an engine that answers many requests at a time with one model, by constant-size states in slots."""

from .config import EngineConfig
from .engine import Engine, EngineClosed, EngineFailed, QueueFull
from .metrics import HistogramSnapshot, Snapshot
from .params import Output, Request, SamplingParams, Structure
from .router import Router

__all__ = [
    "Engine",
    "EngineClosed",
    "EngineConfig",
    "EngineFailed",
    "HistogramSnapshot",
    "Output",
    "QueueFull",
    "Request",
    "Router",
    "SamplingParams",
    "Snapshot",
    "Structure",
]


def __dir__() -> list[str]:
    return __all__

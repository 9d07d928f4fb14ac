# SPDX-License-Identifier: Apache-2.0
"""Warnings and log lines that a process gives once each."""

from __future__ import annotations

import logging
import warnings

from .graph_constants import constant_in_graphs

logger = logging.getLogger("xlstm_hip")
_warned: set[str] = set()
_logged: set[str] = set()


@constant_in_graphs
def warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


@constant_in_graphs
def log_once(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        logger.warning(text)

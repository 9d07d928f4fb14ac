# SPDX-License-Identifier: Apache-2.0
"""Warnings that a process gives once each."""

from __future__ import annotations

import warnings

from .graph_constants import constant_in_graphs

_given: set[str] = set()


@constant_in_graphs
def warn_once(text: str) -> None:
    if text not in _given:
        _given.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)

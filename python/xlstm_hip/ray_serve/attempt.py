# SPDX-License-Identifier: Apache-2.0
"""What the ingress sends to a replica."""

from __future__ import annotations

from dataclasses import dataclass

from ..serving.params import Request


@dataclass(frozen=True)
class Attempt:
    """
    request    with an id of its own for each attempt: an earlier one may still run
    avoid      replicas whose engine has failed; they take no requests, and Serve ends them. For the router
    """

    request: Request
    avoid: frozenset[str] = frozenset()

# SPDX-License-Identifier: Apache-2.0
"""Tables of tuned launch plans."""

from ._core.plans import use_plans

__all__ = ["use_plans"]


def __dir__() -> list[str]:
    return __all__

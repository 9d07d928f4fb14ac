# SPDX-License-Identifier: Apache-2.0
"""Autotuning: measures launch configurations and writes the best into a table for xlstm_hip.plans.

`xlstm-hip tune` is the command; docs/tuning.md describes it.
"""

from .errors import judge_errors, save_errors_for_trials
from .judge import Refused, judge_outputs, save_outputs_for_trials
from .problem import OPS, Problem
from .search import GeneticSearch, RandomSearch, Search, make_search
from .space import Space, space_of
from .tuner import Outcome, Tuner

__all__ = [
    "OPS",
    "GeneticSearch",
    "Outcome",
    "Problem",
    "RandomSearch",
    "Refused",
    "Search",
    "Space",
    "Tuner",
    "judge_errors",
    "judge_outputs",
    "make_search",
    "save_errors_for_trials",
    "save_outputs_for_trials",
    "space_of",
]


def __dir__() -> list[str]:
    return __all__

# SPDX-License-Identifier: Apache-2.0
"""EngineConfig: how many requests an Engine runs, what it keeps, and where."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .._core.checks import one_of, positive_int
from . import narrow

MIB = 2**20
STATE_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class EngineConfig:
    """The limits of an Engine.

    slots                 requests that are read or answered at a time; each has a state, all in one allocation
    prefill_chunk         prompts are read in pieces that end at multiples of it
    token_budget          prompt tokens of a step at most, beside rows that decode: it bounds the time between tokens
    max_waiting           requests that wait for a slot; more are refused (QueueFull)
    max_prompt_tokens     of a request; None: no limit
    max_new_tokens        greatest max_tokens of a request; None: no limit
    max_logprobs          greatest number of most probable tokens that a request may ask for
    ageing_seconds        of waiting that count as much as one of priority
    preemption            whether a waiting request may take the slot of a running one of lower priority, whose state
                          waits in host memory
    fixed_rows            whether every decode step has all slots as rows. On a GPU a row's last bits depend on how many
                          rows a step has; with fixed_rows they never do, at the price of a full step each time
    state_dtype           "float32" or "bfloat16" (half the memory; docs/generation.md). None: as the model is. It is
                          written to the model's configuration
    kept_dtype            of C in states that are kept for others to go on from, of prompts, answers and sessions:
                          "bfloat16" or "int8", a half or a quarter of the bytes. None: as in the slots, to the bit.
                          States of preempted requests are always kept so
    prefix_cache_bytes    of states of prompts that are kept for others with the same beginning; 0: none
    prefix_cache_device   "device" (beside the slots, a copy is quick) or "host": where those lie
    prefix_cache_states   of one request at most: beyond, every second of them is dropped
    cache_answers         whether the state at an answer's end is kept, too, with lookahead after an end token. A
                          conversation that goes on from it was read in other pieces than its text at once, which may
                          change last bits
    swap_bytes            of host memory for states that left their slot: of sessions and of preempted requests. With a
                          swap_folder those on their way to and from files are beyond it: as much again or eight, and
                          one for each slot
    swap_folder           a folder for states of sessions that swap_bytes does not hold; None: those are dropped
    swap_folder_bytes     of files in it at most
    lookahead             whether a step is launched before the last one's tokens are handled, so that a GPU does not
                          wait for the host; answers stay the same. Steps that guess or have a request of a session are
                          launched after them. None: on a GPU
    join_chunks           whether rows that decode share their products with a chunk of a prompt, so that weights are
                          read once; without graphs with a whole one alone. Last bits of an answer then depend on what
                          runs beside. None: on a GPU, but not with fixed_rows, and never with speculation_tokens
    warm_up               whether a GPU captures the graphs of all numbers of rows at the start, so that no request
                          waits for that
    speculation_tokens    that are guessed from what the text repeats, and checked in one call; 0: none. The answer is
                          the same, but for last bits, as a check is a chunk and not a step
    speculation_rows      greatest number of rows that decode at which guesses are checked: each row's is a call
    """

    slots: int = 16
    prefill_chunk: int = 256
    token_budget: int = 256
    max_waiting: int = 1024
    max_prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    max_logprobs: int = 20
    ageing_seconds: float = 10.0
    preemption: bool = True
    fixed_rows: bool = False
    state_dtype: str | None = None
    kept_dtype: str | None = None
    prefix_cache_bytes: int = 1024 * MIB
    prefix_cache_device: str = "device"
    prefix_cache_states: int = 16
    cache_answers: bool = True
    swap_bytes: int = 1024 * MIB
    swap_folder: str | os.PathLike[str] | None = None
    swap_folder_bytes: int = 16 * 1024 * MIB
    lookahead: bool | None = None
    join_chunks: bool | None = None
    warm_up: bool = True
    speculation_tokens: int = 0
    speculation_rows: int = 4

    def __post_init__(self) -> None:
        for name in (
            "slots",
            "prefill_chunk",
            "token_budget",
            "max_waiting",
            "prefix_cache_states",
            "speculation_rows",
        ):
            positive_int(name, getattr(self, name))
        for name in ("max_prompt_tokens", "max_new_tokens"):
            if getattr(self, name) is not None:
                positive_int(name, getattr(self, name))
        for name in ("max_logprobs", "prefix_cache_bytes", "swap_bytes", "swap_folder_bytes", "speculation_tokens"):
            _integer_from_0(name, getattr(self, name))
        for name in ("preemption", "fixed_rows", "cache_answers", "warm_up"):
            one_of(name, getattr(self, name), (True, False))
        for name in ("lookahead", "join_chunks"):
            one_of(name, getattr(self, name), (True, False, None))
        if self.join_chunks and (self.fixed_rows or self.speculation_tokens):
            raise ValueError("join_chunks: expected False or None with fixed_rows or speculation_tokens, got True")
        ageing = self.ageing_seconds
        if isinstance(ageing, bool) or not isinstance(ageing, (int, float)) or not 0 < ageing < float("inf"):
            raise ValueError(f"ageing_seconds: expected a finite number > 0, got {ageing!r}")
        if self.token_budget < self.prefill_chunk:
            raise ValueError(
                f"token_budget: expected at least prefill_chunk = {self.prefill_chunk}, as a step reads whole chunks, "
                f"got {self.token_budget}"
            )
        if self.state_dtype is not None:
            one_of("state_dtype", self.state_dtype, STATE_DTYPES)
        if self.kept_dtype is not None:
            one_of("kept_dtype", self.kept_dtype, narrow.DTYPES)
        one_of("prefix_cache_device", self.prefix_cache_device, ("host", "device"))
        if self.swap_folder is not None and not isinstance(self.swap_folder, str | os.PathLike):
            raise ValueError(f"swap_folder: expected a folder or None, got {self.swap_folder!r}")


def _integer_from_0(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: expected an integer >= 0, got {value!r}")

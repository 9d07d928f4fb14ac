# SPDX-License-Identifier: Apache-2.0
"""The steps of an engine, without its thread: each reads chunks of prompts and decodes a token of every other request.
With lookahead a step is launched first, and the tokens that the last one has drawn are handled while a GPU works at it:
they go from step to step on the GPU.

scheduler: who has a slot, which chunks ---> slots: states in place ---> the model: a step of rows, and chunks
    ^                                          |  ^                          |
    |                                          v  |                          v
requests   <--- outputs --- running <--- sampler: a token of each  <---  logits        (prefix cache, swap: states)
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.language_model import ServedModel
from ..models.tokenizer import Tokenizer
from ..models.transfers import to_device
from .config import EngineConfig
from .metrics import Counts
from .params import Output
from .prefix_cache import HashedTokens, KeptBoundaries, PrefixCache
from .running import RunningRequest
from .sampler import Choice, Draw, Drawn, Sampler
from .scheduler import Chunk, Scheduler
from .slots import Batch, KeptState, Slots
from .speculation import NgramDraft
from .structure import Structures
from .swap import SwapStore

logger = logging.getLogger("xlstm_hip")
STEPS_PER_SLOT = 256  # without an out-of-memory, after which one more slot is used again, and one more state is kept
SHORT = 4  # the ends of prompts, padded for a GPU's graphs, are a chunk or this part of one
TO_CAPTURE = 2  # calls of a kind after which its graph is there
MOST_OUT_OF_MEMORY = 3  # times that a request is read again for it


class Ready:
    """Requests whose next token is to be sampled, and the logits of it."""

    def __init__(self) -> None:
        self.requests: list[RunningRequest] = []
        self._parts: list[Tensor] = []

    def add(self, requests: Sequence[RunningRequest], logits: Tensor) -> None:
        """logits (R, V), a row for each."""
        self.requests.extend(requests)
        self._parts.append(logits)

    def keep(self, rows: list[int]) -> None:
        """These alone."""
        if len(rows) < len(self.requests):
            logits = rows_of(self.logits, rows)
            self.requests, self._parts = [self.requests[row] for row in rows], [logits]

    @property
    def logits(self) -> Tensor:
        if len(self._parts) > 1:
            self._parts = [torch.cat(self._parts)]
        return self._parts[0]


class Sampled(NamedTuple):
    """Tokens that were drawn, maybe are still being drawn, and are not handled yet."""

    requests: list[RunningRequest]
    draw: Draw
    logits: Tensor  # that they were drawn from


class NextChunk(NamedTuple):
    """The next piece of a prompt."""

    running: RunningRequest
    tokens: Tensor  # (1, S), padded on the left to the length of a graph
    mask: Tensor | None  # (1, S)
    end: int  # in the prompt


class Stepper:
    """
    on_loaded    called from another thread when the state of a session was read: see session_loaded
    on_over      called with the id of a request that is over
    """

    def __init__(
        self,
        model: ServedModel,
        tokenizer: Tokenizer,
        config: EngineConfig,
        structures: Structures,
        on_loaded: Callable[[str], None],
        on_over: Callable[[str], None],
    ) -> None:
        self._model, self._config, self._structures, self._on_over = model, config, structures, on_over
        self._device = model.embedding.weight.device
        self._vocab_size = model.config.vocab_size
        self.slots = Slots(model, config.slots, config.fixed_rows, config.kept_dtype)
        self.scheduler = Scheduler(
            config.slots, config.token_budget, config.prefill_chunk, config.ageing_seconds, config.preemption
        )
        self.cache = PrefixCache(config.prefix_cache_bytes, config.prefill_chunk)
        self.swap = SwapStore(
            model, config.swap_bytes, config.swap_folder, config.swap_folder_bytes, config.slots, config.kept_dtype,
            on_loaded,
        )  # fmt: skip
        self._sampler = Sampler(tokenizer)
        self.live: dict[str, RunningRequest] = {}
        self._asking: dict[str, set[str]] = {}  # by session: its requests that have not begun
        self._cache_on_host = config.prefix_cache_device == "host"
        self._good_steps = 0  # since memory ran out, or a slot was given back
        self._sampled: Sampled | None = None
        on_gpu = self._device.type == "cuda"
        joins = on_gpu and not config.fixed_rows if config.join_chunks is None else config.join_chunks
        self._joins = joins and not config.speculation_tokens
        chunk = config.prefill_chunk
        self._pads = on_gpu  # a CPU has no graphs, and padding costs time
        self._graph_lengths = sorted({-(-chunk // SHORT), chunk}) if self._pads else [chunk]
        self._lookahead = (on_gpu if config.lookahead is None else config.lookahead) and not config.speculation_tokens
        self.counts = Counts()

    # ---- requests

    def take(self, running: RunningRequest) -> None:
        request = running.request
        ready = request.session is None or self.swap.ready(request.session)
        if request.session is not None:
            self._asking.setdefault(request.session, set()).add(running.id)
        deadline = None if request.deadline is None else running.arrived + request.deadline
        self.live[running.id] = running
        self.scheduler.add(running.id, len(running.to_read), running.arrived, request.priority, deadline, ready)
        self.counts.accepted += 1

    def session_loaded(self, session: str) -> None:
        """Requests that waited for its state may begin."""
        asking = self._asking.get(session, ())
        if asking and self.swap.ready(session):  # else it was read for those before them, and is read once more
            for id in asking:
                self.scheduler.set_ready(id)

    def _asks_no_more(self, running: RunningRequest) -> None:
        """The request has begun, or is over."""
        session = running.request.session
        asking = None if session is None else self._asking.get(session)
        if session is not None and asking is not None and running.id in asking:
            asking.remove(running.id)
            if not asking:
                del self._asking[session]
                self.swap.unasked(session)

    def cancel(self, id: str) -> None:
        if id in self.live:
            self._end(self.live[id], "cancelled")

    def end_all(self, reason: str, error: Exception | None = None) -> None:
        for running in list(self.live.values()):
            self._end(running, reason, error)

    def fail(self, submitted: list[RunningRequest], error: Exception) -> None:
        """Tells all requests, and touches nothing else, as anything may be broken."""
        for running in {one.id: one for one in (*self.live.values(), *submitted)}.values():
            self.counts.finished["error"] = self.counts.finished.get("error", 0) + 1
            self._on_over(running.id)
            try:
                running.on_output(running.end("error", error))
            except Exception:
                logger.warning("on_output of request %s failed for its last output", running.id)
        self.live.clear()

    # ---- a step

    @torch.no_grad()
    def warm_up(self) -> None:
        """Has a GPU capture the graphs of each number of rows, and of a chunk, before a request waits for that."""
        began, batches = time.monotonic(), self.slots.graph_batches()
        if not batches:
            return
        chunks = [torch.zeros(1, n, dtype=torch.int64, device=self._device) for n in self._graph_lengths]
        masks = [torch.zeros_like(chunk, dtype=torch.bool) for chunk in chunks]
        self.slots.claim("warm-up")
        of_chunk = self.slots.copy_of("warm-up")
        self.slots.release("warm-up")
        try:
            for batch in batches:
                tokens = torch.zeros(len(batch.ids), dtype=torch.int64, device=self._device)
                for _ in range(TO_CAPTURE):
                    self._model.step(tokens, batch.state, batch.mask)
                    for chunk, mask in zip(chunks, masks, strict=True) if self._joins else ():
                        self._model.step_and_read(tokens, batch.state, batch.mask, chunk, of_chunk, mask, True)
            for chunk, mask in zip(chunks, masks, strict=True):
                for _ in range(TO_CAPTURE):
                    self._model.read(chunk, of_chunk, mask, True)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            torch.cuda.empty_cache()
            logger.warning("out of memory while graphs were captured ahead; the others are when a step needs them")
            return
        logger.info("graphs of %d numbers of rows captured in %.1f s", len(batches), time.monotonic() - began)

    @torch.no_grad()
    def step(self) -> bool:
        """One step. False if there was nothing to do."""
        began = time.monotonic()
        for id in self.scheduler.expired(began):
            self._end(self.live[id], "deadline")
        looks_ahead = self._lookahead and not any(
            self.live[id].request.session is not None for id in self.slots.decoding_ids()
        )
        plan = self.scheduler.plan(self.swap.room_for(self.slots.row_bytes))
        handled = self._sampled is not None
        if plan.preempted or not looks_ahead:
            self._handle()
        for id in plan.preempted:
            if id in self.live:
                self._swap_out(self.live[id])
        ready = Ready()
        for id in plan.admitted:
            self._guarded(self.live[id], self._admit, ready)
        beside = self._chunk_beside(plan.chunks, ready) if self._joins else None
        decoded = self._decode(ready, beside)
        for chunk in plan.chunks[0 if beside is None else 1 :]:
            running = self.live.get(chunk.id)
            if running is not None and self.slots.has(chunk.id) and not running.is_read:
                self._guarded(running, self._read_chunk, ready)
        self._handle(ready)
        self._sample(ready)
        if not looks_ahead:
            self._handle()
        worked = bool(decoded or plan.chunks or plan.admitted)
        if worked:
            self._count_step(decoded, time.monotonic() - began)
        return worked or handled

    def _guarded(
        self,
        running: RunningRequest,
        do: Callable[[RunningRequest, Ready], None],
        ready: Ready,
    ) -> None:
        """What fails in work for one request concerns that request."""
        try:
            do(running, ready)
        except Exception as error:
            if not is_out_of_memory(error):
                self._end(running, "error", error)
                return
            self._out_of_memory(f"reading a text of {len(running.to_read)} tokens", error)
            self._read_again(running, error)

    def _swap_out(self, running: RunningRequest) -> None:
        tokens = (running.text_read() if running.is_read else running.to_read).tokens
        try:
            state = self.slots.keep(running.id, tokens, None, to_host=True, exact=True)
        except Exception as error:
            self._end(running, "error", error)
            return
        self.swap.hold(running.id, state)
        self.slots.release(running.id)
        self.counts.preemptions += 1

    def _admit(self, running: RunningRequest, ready: Ready) -> None:
        request = running.request
        self.slots.claim(running.id)
        if running.choice is None:
            structure = None if running.compiled is None else self._structures.follow(running.compiled)
            running.choice = Choice(request.params, request.tokens, self._vocab_size, self._device, structure)
            for token in request.answered:
                running.choice.add(token)
            if self._config.speculation_tokens:
                running.draft = NgramDraft((*request.tokens, *request.answered))
        held = self.swap.release(running.id)
        if held is not None:
            self.slots.load(running.id, held.state)
            if running.is_read:
                self.slots.decode(running.id)
            return
        running.boundaries = KeptBoundaries(self.cache, running.to_read, self._config.prefix_cache_states)
        of_session = None if request.session is None else self.swap.find(request.session)
        self._asks_no_more(running)
        if of_session is not None and running.to_read.begins_with(of_session.tokens):
            self._go_on_from(running, of_session, ready)
        self._go_on_from_cache(running, ready)
        if not running.began:
            running.began = True
            if not request.answered:  # else another engine has counted it
                hit = running.cached > 0
                self.counts.prefix_hits += hit
                self.counts.prefix_misses += not hit

    def _go_on_from_cache(self, running: RunningRequest, ready: Ready) -> None:
        kept = self.cache.longest(running.to_read, running.read, len(running.to_read))
        if kept is not None:
            self._go_on_from(running, kept, ready)

    def _go_on_from(self, running: RunningRequest, kept: KeptState, ready: Ready) -> None:
        self.slots.load(running.id, kept.state)
        if not running.generated:  # else it is read again, and was counted
            running.cached += len(kept.tokens) - running.read
            self.counts.tokens_saved += len(kept.tokens) - running.read
        self._has_read(running, len(kept.tokens), kept.logits, ready)

    def _read_chunk(self, running: RunningRequest, ready: Ready) -> None:
        """Up to the next multiple of the chunk size; if another request has just read it, goes on from its state."""
        self._go_on_from_cache(running, ready)
        if running.is_read:
            return
        chunk = self._next_chunk(running)
        in_graph = chunk.tokens.shape[1] in self._graph_lengths
        logits, _ = self._model.read(chunk.tokens, self.slots.state_of(running.id), chunk.mask, in_graph)
        self._chunk_was_read(chunk, logits, ready)

    def _next_chunk(self, running: RunningRequest) -> NextChunk:
        text, begin = running.to_read, running.read
        end = min((begin // text.chunk + 1) * text.chunk, len(text))
        x = torch.from_numpy(text.tokens[begin:end]).long().unsqueeze(0)
        if not self._pads:
            return NextChunk(running, to_device(x, self._device), None, end)
        # The ends of prompts have any length, and graphs a few.
        before = next(length for length in self._graph_lengths if length >= end - begin) - (end - begin)
        mask = to_device((torch.arange(before + end - begin) >= before).unsqueeze(0), self._device)
        return NextChunk(running, to_device(F.pad(x, (before, 0)), self._device), mask, end)

    def _chunk_was_read(self, chunk: NextChunk, logits: Tensor, ready: Ready) -> None:
        running, end = chunk.running, chunk.end
        self.counts.tokens_prefilled += end - running.read
        self._keep(running, running.to_read, end, logits)
        if end % running.to_read.chunk == 0 and running.boundaries is not None:
            running.boundaries.kept(end)
        self._has_read(running, end, logits, ready)

    def _chunk_beside(self, chunks: Sequence[Chunk], ready: Ready) -> NextChunk | None:
        """The first chunk, if the rows that decode may share their products with it."""
        running = self.live.get(chunks[0].id) if chunks else None
        if running is None or not self.slots.has(running.id) or running.is_read:
            return None
        self._guarded(running, self._go_on_from_cache, ready)
        if running.id not in self.live or running.is_read or not self.slots.has(running.id):
            return None
        chunk = self._next_chunk(running)
        return chunk if chunk.tokens.shape[1] in self._graph_lengths else None

    def _has_read(self, running: RunningRequest, read: int, logits: Tensor | None, ready: Ready) -> None:
        running.read = read
        self.scheduler.advance(running.id, read)
        if not running.is_read:
            return
        self.slots.decode(running.id)
        if not running.generated:
            assert logits is not None
            ready.add([running], logits.to(self._device))

    def _decode(self, ready: Ready, beside: NextChunk | None) -> int:
        """A token of each row that decodes, or more, and the chunk beside them; returns how many rows those were."""
        checked = self._check_guesses(ready)
        without = {id for id in checked if id in self.live and self.slots.has(id)}
        without.update(running.id for running in self._awaited() if running.may_add == 1)
        without.update(running.id for running in ready.requests if not running.generated)  # has no token yet
        if self.slots.decoding > len(without):
            return len(checked) + self._decode_rows(self.slots.batch(without), ready, beside)
        if beside is not None:
            self._guarded(beside.running, self._read_chunk, ready)
        return len(checked)

    def _decode_rows(self, batch: Batch, ready: Ready, beside: NextChunk | None) -> int:
        rows = [row for row, id in enumerate(batch.ids) if id is not None]
        decoding = [self.live[id] for id in batch.ids if id is not None]
        tokens = self._last_tokens(batch.ids)
        try:
            if beside is None:
                logits = self._model.step(tokens, batch.state, batch.mask)
            else:
                read = self.slots.state_of(beside.running.id)
                logits, chunk_logits = self._model.step_and_read(
                    tokens, batch.state, batch.mask, beside.tokens, read, beside.mask, True
                )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._out_of_memory(f"decoding {len(rows)} rows", error)
            self._handle(keep=False)
            alone = error if len(rows) == 1 and beside is None else None
            for running in decoding if beside is None else [*decoding, beside.running]:
                if self.live.get(running.id) is running:  # its state may be between two tokens
                    self._read_again(running, alone)
            return len(rows)
        for running in decoding:
            running.unread -= 1
        ready.add(decoding, logits if len(rows) == len(batch.ids) else rows_of(logits, rows))
        if beside is not None:
            self._guarded(beside.running, lambda _, ready: self._chunk_was_read(beside, chunk_logits, ready), ready)
        return len(rows)

    def _awaited(self) -> list[RunningRequest]:
        """Requests whose last token is drawn and not handled."""
        sampled = self._sampled
        return [] if sampled is None else [one for one in sampled.requests if self.live.get(one.id) is one]

    def _last_tokens(self, ids: Sequence[str | None]) -> Tensor:
        """(rows) the last token of each; 0 for those that are masked. Tokens being drawn stay on the device."""
        places: dict[str, int] = {}
        if self._sampled is not None:
            places = {one.id: place for place, one in enumerate(self._sampled.requests)}
        known = [0 if id is None or id in places else self.live[id].generated[-1] for id in ids]
        if self._sampled is None:
            return to_device(torch.tensor(known), self._device)
        drawn = self._sampled.draw.tokens.clamp(min=0)  # where there was none to draw, the request will end
        place = [-1 if id is None else places.get(id, -1) for id in ids]
        known_tokens, place_of = to_device(torch.tensor([known, place]), self._device)
        return torch.where(place_of >= 0, drawn[place_of.clamp(min=0)], known_tokens)

    # ---- speculation

    def _check_guesses(self, ready: Ready) -> set[str]:
        """Checks the guesses of the rows that have one, and catches up where the last one was wrong: each is a call of
        its own. Returns these requests, which are not decoded in this step.
        """
        checked: set[str] = set()
        if not self._config.speculation_tokens:
            return checked
        decoding = [self.live[id] for id in self.slots.decoding_ids() if self.live[id].unread]
        for running in decoding:
            guess: list[int] = []
            if len(decoding) <= self._config.speculation_rows and running.draft is not None:
                left = running.may_add - 1
                guess = running.draft.guess(min(self._config.speculation_tokens, left)) if left else []
            if guess or running.unread > 1:
                checked.add(running.id)
                self._guarded(running, functools.partial(self._check_guess, guess), ready)
        return checked

    def _check_guess(self, guess: list[int], running: RunningRequest, ready: Ready) -> None:
        """Reads what the state has not read, and the guess. Each place's token is sampled as without a guess; the first
        one that differs from it ends the check, and the state in the slot, which read nothing, is that before it.
        """
        unread = running.generated[-running.unread :]
        x = torch.tensor([[*unread, *guess]], device=self._device)
        state = self.slots.copy_of(running.id)
        hidden, last = self._model.hidden(x, state, None, True)
        logits = self._model.logits(hidden[0, len(unread) - 1 :])
        assert running.choice is not None and running.draft is not None
        right = 0
        for row in range(len(guess) + 1):
            (one,) = self._sampler.draw([running.choice], logits[row : row + 1])
            if isinstance(one, Exception):
                raise one
            if row == len(guess):
                self.slots.load(running.id, last)
                running.unread = 0
            is_right = row < len(guess) and one.token == guess[row]
            right += is_right
            self._add(running, one, logits, row, time.monotonic())
            if not is_right or running.id not in self.live:
                break
        if guess:
            running.draft.checked(right)
        self.counts.guessed += len(guess)
        self.counts.guessed_right += right

    def _sample(self, ready: Ready) -> None:
        """Draws a token of each, without waiting for it."""
        if not ready.requests:
            return
        choices = [running.choice for running in ready.requests if running.choice is not None]
        self._sampled = Sampled(ready.requests, self._sampler.start(choices, ready.logits), ready.logits)

    def _handle(self, ready: Ready | None = None, keep: bool = True) -> None:
        """Waits for the tokens that are being drawn, and delivers them.

        ready    of the step that is under way: it loses the requests that these tokens end
        keep     whether states of answers that end may be kept
        """
        sampled, self._sampled = self._sampled, None
        if sampled is None:
            return
        next_row = {} if ready is None else {id(running): row for row, running in enumerate(ready.requests)}
        drawn = sampled.draw.results()
        now = time.monotonic()
        for row, (running, one) in enumerate(zip(sampled.requests, drawn, strict=True)):
            if self.live.get(running.id) is not running:  # cancelled, say
                continue
            if isinstance(one, Exception):
                self._end(running, "error", one)
            elif ready is not None and id(running) in next_row:
                self._add(running, one, ready.logits, next_row[id(running)], now)
            else:
                self._add(running, one, sampled.logits, row, now, keep)
        if ready is not None:
            ready.keep([row for row, one in enumerate(ready.requests) if self.live.get(one.id) is one])

    def _add(
        self, running: RunningRequest, drawn: Drawn, logits: Tensor, row: int, now: float, keep: bool = True
    ) -> None:
        """logits[row]: those after what the state has read."""
        if running.last_token_at is None and not running.request.answered:
            self.counts.time_to_first_token.add(now - running.arrived)
        elif running.last_token_at is not None:
            self.counts.inter_token_latency.add(now - running.last_token_at)
        running.last_token_at = now
        self.counts.tokens_generated += 1
        if running.draft is not None:
            running.draft.add(drawn.token)
        try:
            output = running.add(drawn)
            if output.finish_reason is not None and keep:
                self._keep_answer(running, logits[row : row + 1])
        except Exception as error:  # of a tokenizer, say
            self._end(running, "error", error)
            return
        if output.finish_reason is not None:
            self._over(running, output.finish_reason)
        self._deliver(running, output)

    # ---- states that are kept

    def _keep(self, running: RunningRequest, text: HashedTokens, length: int, logits: Tensor) -> None:
        """Puts the request's state into the cache, if there is room."""
        if not self.cache.takes(self.slots.kept_bytes) or self.cache.has(text, length):
            return
        try:
            kept = self.slots.keep(running.id, text.tokens[:length], logits, self._cache_on_host)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.counts.out_of_memory += 1
            self._good_steps = 0
            self.cache.halve()
            logger.warning("prefix_cache_bytes: out of memory; %d bytes are used for now: %s", self.cache.limit, error)
            return
        self.cache.keep(text, kept)

    def _keep_answer(self, running: RunningRequest, logits: Tensor) -> None:
        """The state at the end: it has read all but the last token, or that, too. These are the logits after it."""
        session = running.request.session
        if session is None and not self._config.cache_answers:
            return
        try:
            if running.unread > 1:  # the last guess was wrong
                x = torch.tensor([running.generated[-running.unread : -1]], device=self._device)
                logits, _ = self._model.read(x, self.slots.state_of(running.id))
                running.unread = 1
            text = running.text_read()
            if session is None:
                self._keep(running, text, len(text), logits)
            else:
                self.swap.keep(session, self.slots.keep(running.id, text.tokens, logits, to_host=True))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.counts.out_of_memory += 1
            logger.warning("out of memory: the state of an answer is not kept, its text will be read again: %s", error)

    # ---- ends

    def _end(self, running: RunningRequest, reason: str, error: Exception | None = None) -> None:
        """Ends a request wherever it is, before its own tokens do."""
        self._over(running, reason)
        self._deliver(running, running.end(reason, error))

    def _over(self, running: RunningRequest, reason: str) -> None:
        del self.live[running.id]
        if self.slots.has(running.id):
            self.slots.release(running.id)
        else:
            self.swap.drop(running.id)
        self._asks_no_more(running)
        self.scheduler.remove(running.id)
        self.counts.finished[reason] = self.counts.finished.get(reason, 0) + 1
        self._on_over(running.id)

    def _deliver(self, running: RunningRequest, output: Output) -> None:
        try:
            running.on_output(output)
        except Exception as error:
            logger.warning("on_output of request %s failed: %s: %s", running.id, type(error).__name__, error)
            if running.id in self.live:
                self._over(running, "error")
                last = running.end("error", error)
                try:
                    running.on_output(last)
                except Exception:
                    logger.warning("on_output of request %s failed for its last output, too", running.id)

    # ---- out of memory

    def _read_again(self, running: RunningRequest, error: Exception | None) -> None:
        """Its state is lost; it waits in its old place, and its text is read again with what it has answered.

        error    of its own work, not of the work for many: it may not come again and again
        """
        running.out_of_memory += error is not None
        if running.out_of_memory > MOST_OUT_OF_MEMORY:
            self._end(running, "error", error)
            return
        self.slots.release(running.id)
        running.read_again()
        self.scheduler.requeue(running.id, len(running.to_read), 0)

    def _out_of_memory(self, doing: str, error: Exception) -> None:
        """Gives memory back, and has fewer requests run at a time for a while."""
        self.counts.out_of_memory += 1
        self.scheduler.slots = max(1, min(self.scheduler.slots, self.scheduler.running) // 2)
        self._good_steps = 0
        self.cache.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        logger.warning(
            "out of memory while %s: the prefix cache is dropped, and %d slots are used for now: %s",
            doing, self.scheduler.slots, error,
        )  # fmt: skip

    def _count_step(self, decoding: int, seconds: float) -> None:
        self.counts.steps += 1
        if decoding:
            self.counts.rows_per_step.add(decoding)
        self.counts.step_seconds.add(seconds)
        self._good_steps += 1
        if self._good_steps % STEPS_PER_SLOT == 0:
            self.scheduler.slots = min(self.scheduler.slots + 1, self._config.slots)
            self.cache.raise_limit(self.slots.kept_bytes)


def rows_of(x: Tensor, rows: Sequence[int]) -> Tensor:
    return x[to_device(torch.tensor(rows, dtype=torch.int64), x.device)]


def is_out_of_memory(error: BaseException) -> bool:
    """torch has a type for a GPU's alone."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)

# SPDX-License-Identifier: Apache-2.0
"""Text generation. A Stream holds a model's recurrent state.

The size of a Stream does not depend on how many tokens it has read or generated. generate() feeds a Stream with the
prompts and then with its own tokens, and returns the same tokens as streaming.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._core.checks import has_integers, has_rank, has_shape, is_tensor, positive_int
from .language_model import LanguageModel, State
from .sampling import MOST_ENDS, Drawing, Sampling, check_drawn, row_seeds
from .states import SavedState, load_state, save_state

SLICE = 4096  # tokens of a prompt that go through the model at a time: bounds what the layers need
PAD_WITHOUT_ONE = 0
Stop = Callable[[Tensor], Iterable[int]]  # called with the tokens (B) of each step; returns the rows that end with them


class Logprobs(NamedTuple):
    """Log-probabilities of tokens under the model itself, before a penalty, a temperature or what it cuts off, and the
    most probable tokens at the same places. float64; NaN after a row's end, where the tokens are padding.
    """

    tokens: Tensor  # (B, N) of the tokens that were generated
    top: Tensor  # (B, N, K) of the K most probable, falling
    top_tokens: Tensor  # (B, N, K) which tokens those are


class Generated(NamedTuple):
    """The result of generate: the new tokens, how many belong to each row, and the state to continue from."""

    tokens: Tensor  # (B, N) the new tokens; after a row's end its row is padding
    lengths: Tensor  # (B) how many are the row's own, the end token or stop sequence among them
    state: State  # everything but each row's last token has gone in
    logprobs: Logprobs | None = None  # if asked for


class Stream:
    """A batch of sequences that a model reads and continues, of any length.

    state              of an earlier Stream or model call; it is overwritten. Default: the initial state
    remember_tokens    keep which tokens each row has seen, (B, V) bool, for a repetition penalty
    replay_chunks      on a GPU: feed() replays chunks of one shape, of up to 2048 tokens, as a graph from the third on,
                       for prompts that are read in chunks
    """

    def __init__(
        self,
        model: LanguageModel,
        batch_size: int = 1,
        state: State | None = None,
        remember_tokens: bool = False,
        replay_chunks: bool = False,
    ) -> None:
        positive_int("batch_size", batch_size)
        self.model, self.batch_size, self.state = model, batch_size, state
        self._replay_chunks = replay_chunks
        self.tokens_read = 0  # tokens that went in, padding of a mask among them
        device, vocab = model.embedding.weight.device, model.config.vocab_size
        # (B, V) of what comes next; None before the first token. A step of tokens() may overwrite those of the last.
        self.logits: Tensor | None = None
        self.seen = torch.zeros(batch_size, vocab, dtype=torch.bool, device=device) if remember_tokens else None
        self._drawing: Drawing | None = None  # kept: steps that were captured have its memory

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: LanguageModel) -> Stream:
        """The Stream that save() wrote, of the same model: it continues with the same bits. ValueError for another."""
        return cls.of_saved(load_state(path, model), model)

    @classmethod
    def of_saved(cls, saved: SavedState, model: LanguageModel) -> Stream:
        """A Stream of what load_state read."""
        stream = cls(model, saved.batch_size, saved.state)
        stream.logits, stream.seen, stream.tokens_read = saved.logits, saved.seen, saved.tokens_read
        return stream

    def save(self, path: str | os.PathLike[str], notes: Mapping[str, Any] | None = None) -> None:
        """Writes what has been read to a file: its size does not depend on the length. notes: for load_state.

        The last token of tokens() is not yet read: feed it first.
        """
        if self.state is None:
            raise ValueError("save: expected feed() before it; nothing has been read yet")
        save_state(
            path, self.model, self.state, logits=self.logits, seen=self.seen, tokens_read=self.tokens_read, notes=notes
        )

    @torch.no_grad()
    def feed(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """tokens (B, S), mask (B, S) with False for left padding -> logits (B, V) of the token after them."""
        tokens = self._checked(tokens)
        if mask is not None:
            has_shape("mask", mask, tuple(tokens.shape), "that of the tokens")
        if tokens.shape[1] == 1 and self.state is not None:
            self._remember(tokens, mask)
            self.tokens_read += 1
            self.logits = self.model.step(tokens[:, 0], self.state, None if mask is None else mask[:, 0])
            return self.logits
        for begin in range(0, tokens.shape[1], SLICE):
            part = tokens[:, begin : begin + SLICE]
            part_mask = None if mask is None else mask[:, begin : begin + SLICE]
            self.logits, self.state = self.model.read(part, self.state, part_mask, self._replay_chunks)
            self._note_read(part, part_mask)
        assert self.logits is not None
        return self.logits

    @torch.no_grad()
    def score(self, tokens: Tensor) -> Tensor:
        """tokens (B, S) -> (B, S) float32: each token's log-probability given all before it. The tokens are then fed.

        The first token of a new Stream has no predecessor: NaN.
        """
        tokens, scores = self._checked(tokens), []
        for begin in range(0, tokens.shape[1], SLICE):
            part = tokens[:, begin : begin + SLICE]
            before = self.logits
            hidden, self.state = self.model.hidden(part, self.state, None, keep_state=True)
            self._note_read(part, None)
            logits = self.model.logits(hidden)
            self.logits = logits[:, -1]
            first = torch.full_like(logits[:, :1], torch.nan) if before is None else before.unsqueeze(1)
            ahead = torch.cat((first, logits[:, :-1]), dim=1).float().log_softmax(-1)
            scores.append(ahead.gather(-1, part.unsqueeze(-1)).squeeze(-1))
        return torch.cat(scores, dim=1)

    def tokens(
        self,
        most: int | None = None,
        sampling: Sampling | None = None,
        seed: int | Sequence[int] = 0,
        eos: Sequence[int] = (),
        stop: Stop | None = None,
    ) -> Iterator[Tensor]:
        """Yields the next tokens (B), up to `most` times (None: without end), and feeds each back before the next.

        The last token is therefore not fed: before continuing with another call, feed it with feed(token.unsqueeze(1)).
        A row that sampled a token of `eos` is finished: it yields padding, and its state does not change. Row r uses
        seed + r, or its own seed of a list, so its text does not depend on the batch. NaN logits give -1 on a GPU,
        where only reading a token syncs, and an error elsewhere. While a token is yielded, `logits` are those that it
        was sampled from.

        stop    called with each step's tokens (B) before they are yielded; the rows that it returns, by number, are
                finished as by an end token
        """
        if most is not None:
            positive_int("most", most)
        sampling = Sampling() if sampling is None else sampling
        if self.logits is None:
            raise ValueError("tokens: expected feed() before it; nothing has been read yet")
        if sampling.repetition_penalty != 1 and self.seen is None:
            raise ValueError("repetition_penalty: expected a Stream with remember_tokens=True")
        ends = _end_tokens(eos, self.model.config.vocab_size)
        if stop is not None and not callable(stop):
            raise TypeError(f"stop: expected a function of each step's tokens, or None, got {stop!r}")
        return self._tokens(most, sampling, row_seeds(seed, self.batch_size), ends, stop)

    @torch.no_grad()
    def _tokens(
        self, most: int | None, sampling: Sampling, seeds: list[int], eos: tuple[int, ...], stop: Stop | None
    ) -> Iterator[Tensor]:
        assert self.logits is not None and self.state is not None
        pad = self.model.special_tokens.pad
        pad = PAD_WITHOUT_ONE if pad is None else pad
        options = (sampling, eos, pad, stop is not None)
        if self._drawing is None or self._drawing.options != options:
            device = self.logits.device
            self._drawing = Drawing(sampling, eos, pad, self.batch_size, self.seen, device, stop is not None)
        drawing = self._drawing
        drawing.begin(seeds)
        drawing(self.logits)
        count = 1
        while True:
            if drawing.tokens.is_cpu:
                check_drawn(drawing.tokens)
            tokens = drawing.tokens.clone()
            if stop is not None:
                drawing.end(_stopped_rows(stop(tokens), self.batch_size))
            yield tokens
            if count == most or drawing.over():
                return
            self.logits = self.model.step(drawing.tokens, self.state, drawing.going, drawing)
            self.tokens_read += 1
            count += 1

    def _note_read(self, tokens: Tensor, mask: Tensor | None) -> None:
        self.tokens_read += tokens.shape[1]
        self._remember(tokens, mask)

    def _remember(self, tokens: Tensor, mask: Tensor | None) -> None:
        if self.seen is not None:
            values = self.seen.shape[1]
            taken = tokens if mask is None else torch.where(mask.bool(), tokens, values)  # padding: one column more
            marks = self.seen.new_zeros(self.batch_size, values + 1).scatter_(1, taken, True)
            self.seen |= marks[:, :values]

    def _checked(self, tokens: Tensor) -> Tensor:
        """Converts to int64. Values are checked on the CPU only: reading them on a GPU would force a device sync."""
        is_tensor("tokens", tokens)
        if tokens.dim() != 2 or tokens.shape[0] != self.batch_size or tokens.shape[1] < 1:
            raise ValueError(f"tokens: expected shape ({self.batch_size}, S >= 1), got {tuple(tokens.shape)}")
        has_integers("tokens", tokens)
        if tokens.is_cpu:
            least, most = (int(x) for x in tokens.aminmax())
            _token_ids("tokens", (least, most), self.model.config.vocab_size)
        return tokens.long()


def _is_index(x: Any, size: int) -> bool:
    return isinstance(x, (int, Integral)) and not isinstance(x, bool) and 0 <= int(x) < size  # int: sooner told


def _token_ids(name: str, ids: Any, vocab_size: int) -> list[int]:
    if isinstance(ids, Tensor):
        ids = ids.tolist()
    if not isinstance(ids, Iterable) or isinstance(ids, str):
        raise TypeError(f"{name}: expected a sequence of token ids, got {ids!r}")
    tokens = list(ids)
    for token in tokens:
        if not _is_index(token, vocab_size):
            raise ValueError(f"{name}: expected token ids from 0 to {vocab_size - 1}, got {token!r}")
    return tokens


def _end_tokens(eos: Any, vocab_size: int) -> tuple[int, ...]:
    ends = tuple(dict.fromkeys(_token_ids("eos", eos, vocab_size)))
    if len(ends) > MOST_ENDS:
        raise ValueError(f"eos: expected at most {MOST_ENDS} token ids, got {len(ends)}")
    return ends


def _stopped_rows(rows: Any, batch_size: int) -> list[int]:
    numbers = list(rows) if isinstance(rows, Iterable) else [rows]
    if not all(_is_index(row, batch_size) for row in numbers):
        raise ValueError(f"stop: expected it to return rows from 0 to {batch_size - 1}, got {rows!r}")
    return numbers


class StopSequences:
    """A Stop: a row ends when its last tokens are one of these sequences. For the steps of one call, from the first."""

    def __init__(self, sequences: Any, vocab_size: int) -> None:
        if not isinstance(sequences, Iterable) or isinstance(sequences, str):
            raise TypeError(f"stop: expected sequences of token ids, or a function of tokens, got {sequences!r}")
        self._sequences = [_token_ids(f"stop[{n}]", ids, vocab_size) for n, ids in enumerate(sequences)]
        for n, ids in enumerate(self._sequences):
            if not ids:
                raise ValueError(f"stop[{n}]: expected at least one token id")
        self._longest = max(map(len, self._sequences), default=0)
        self._last: list[deque[int]] = []  # of each row

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def __call__(self, tokens: Tensor) -> list[int]:
        if not self._last:
            self._last = [deque(maxlen=self._longest) for _ in tokens]
        for last, token in zip(self._last, tokens.tolist(), strict=True):
            last.append(token)
        return [
            row
            for row, last in enumerate(map(list, self._last))
            if any(last[-len(sequence) :] == sequence for sequence in self._sequences)
        ]


def check_logprobs(count: Any, vocab_size: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= vocab_size:
        raise ValueError(f"logprobs: expected None or an integer from 0 to {vocab_size}, got {count!r}")


def logprobs_of(logits: Tensor, tokens: Tensor, top: int = 0) -> Logprobs:
    """logits (..., V) and the tokens (...) sampled from them -> their log-probabilities, and the `top` greatest."""
    check_logprobs(top, logits.shape[-1])
    scores = logits.double().log_softmax(-1)
    most = scores.topk(top, dim=-1)
    return Logprobs(scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), most.values, most.indices)


def _rows(prompts: Any, vocab_size: int) -> list[list[int]]:
    if isinstance(prompts, Tensor):
        has_integers("prompts", has_rank("prompts", prompts, 2, "(B, S)"))
        prompts = prompts.tolist()
    elif not isinstance(prompts, Iterable) or isinstance(prompts, str):
        raise TypeError(f"prompts: expected a tensor (B, S) or lists of token ids, got {prompts!r}")
    return [_token_ids(f"prompts[{row}]", ids, vocab_size) for row, ids in enumerate(prompts)]


def padded_prompts(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Prompts as tokens (B, S), padded on the left to the longest, and their mask, or None if all have one length."""
    longest = max(map(len, prompts))
    rows = [[pad] * (longest - len(p)) + list(p) for p in prompts]
    tokens = torch.tensor(rows, dtype=torch.int64, device=device)
    if all(len(p) == longest for p in prompts):
        return tokens, None
    return tokens, torch.tensor([[n >= longest - len(p) for n in range(longest)] for p in prompts], device=device)


def with_bos(prompts: Sequence[Sequence[int]], bos: int | None) -> list[list[int]]:
    """Puts the BOS token before texts that do not begin with it, as xLSTM-7B was trained."""
    return [list(p) if bos is None or list(p[:1]) == [bos] else [bos, *p] for p in prompts]


def generate(
    model: LanguageModel,
    prompts: Tensor | Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    min_p: float = 0.0,
    seed: int | Sequence[int] = 0,
    bos: int | None | str = "model",
    eos: Sequence[int] | str = "model",
    stop: Sequence[Sequence[int]] | Stop = (),
    logprobs: int | None = None,
    state: State | None = None,
    callback: Callable[[Tensor], Any] | None = None,
) -> Generated:
    """Generates up to max_new_tokens after each prompt.

    prompts      (B, S) or lists of token ids of any lengths
    temperature  0: greedy decoding; see Sampling for this and the next four
    seed         row r uses seed + r, or its own seed of a list: its text is the same alone, batched or streamed
    bos          put before a prompt that does not begin with it, unless it continues a state; "model": the
                 checkpoint's, None: nothing
    eos          tokens that end a row, at most 64; "model": the checkpoint's
    stop         sequences of token ids that end a row too; or a function of each step's tokens (B) that returns the
                 numbers of the rows that end with them. For strings see models.text.generate_text
    logprobs     also return the log-probability of each new token, and those of so many of the most probable ones
    state        of an earlier call to continue; it is overwritten. A repetition penalty counts this call's tokens only
    callback     called with the tokens (B) of each step as soon as they are sampled
    """
    positive_int("max_new_tokens", max_new_tokens)
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty, min_p)
    tokens, vocab = model.special_tokens, model.config.vocab_size
    rows = _rows(prompts, vocab)
    if isinstance(bos, str) and bos == "model":
        bos = tokens.bos
    elif bos is not None and not _is_index(bos, vocab):
        raise ValueError(f"bos: expected 'model', None or a token id from 0 to {vocab - 1}, got {bos!r}")
    if isinstance(eos, str) and eos != "model" or not isinstance(eos, Iterable):
        raise ValueError(f"eos: expected 'model' or a sequence of token ids, got {eos!r}")
    ends = _end_tokens(tokens.eos if isinstance(eos, str) else eos, vocab)
    if state is None:
        rows = with_bos(rows, bos)  # type: ignore[arg-type]
    if not rows or not all(rows):
        raise ValueError("prompts: expected at least one, of at least one token each")
    stops: Stop | StopSequences = stop if callable(stop) else StopSequences(stop, vocab)
    if logprobs is not None:
        check_logprobs(logprobs, vocab)
    row_seeds(seed, len(rows))  # all that may be wrong is found before the state is overwritten
    device = model.embedding.weight.device
    ids, mask = padded_prompts(rows, PAD_WITHOUT_ONE if tokens.pad is None else tokens.pad, device)
    stream = Stream(model, len(rows), state, remember_tokens=repetition_penalty != 1)
    stream.feed(ids, mask)
    steps: list[Tensor] = []
    scores: list[Logprobs] = []
    stopped: dict[int, int] = {}  # after how many tokens each row that `stop` ended did

    def stop_and_note(step: Tensor) -> list[int]:
        numbers = _stopped_rows(stops(step), len(rows))
        for row in numbers:
            stopped.setdefault(row, len(steps) + 1)
        return numbers

    may_stop = callable(stop) or bool(stops)
    for step in stream.tokens(max_new_tokens, sampling, seed, ends, stop_and_note if may_stop else None):
        steps.append(step)
        if logprobs is not None:
            assert stream.logits is not None
            scores.append(logprobs_of(stream.logits, step.clamp(min=0), logprobs))
        if callback is not None:
            callback(step)
    generated = torch.stack(steps, dim=1)
    check_drawn(generated)
    ended = (
        torch.isin(generated, torch.tensor(ends, device=device))
        if ends
        else torch.zeros_like(generated, dtype=torch.bool)
    )
    lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, generated.shape[1])
    if stopped:
        most = torch.tensor([stopped.get(row, generated.shape[1]) for row in range(len(rows))], device=device)
        lengths = lengths.minimum(most)
    assert stream.state is not None
    return Generated(generated, lengths, stream.state, _stacked(scores, lengths) if scores else None)


def _stacked(steps: Sequence[Logprobs], lengths: Tensor) -> Logprobs:
    """The log-probabilities of all steps, (B, N, ...), without those of padding."""
    tokens, top, top_tokens = (torch.stack(parts, dim=1) for parts in zip(*steps, strict=True))
    over = torch.arange(tokens.shape[1], device=tokens.device) >= lengths.unsqueeze(1)
    return Logprobs(tokens.masked_fill(over, torch.nan), top.masked_fill(over.unsqueeze(-1), torch.nan), top_tokens)

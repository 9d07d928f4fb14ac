# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back: bytes, or a checkpoint's tokenizer.json with the tokenizers package."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .._core.extras import is_installed, not_installed
from .config_files import TOKENIZER_FILE
from .hub import checkpoint_folder

BYTE_VALUES = 256
CONTEXT = 16  # tokens


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back, without special tokens added."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    # Makes, of the tokens before, a function from each token to the text that it completes.
    streamer: Callable[[Sequence[int]], Callable[[int], str]]
    file: Path | None = None  # that it was read from


def load_tokenizer(path: str | os.PathLike[str], vocab_size: int) -> Tokenizer:
    """The tokenizer of a checkpoint, by its folder or by its name on the hub.

    Without a tokenizer file, a model with 256 tokens reads bytes.
    """
    folder = checkpoint_folder("path", path)
    if (folder / TOKENIZER_FILE).exists():
        return _from_file(folder / TOKENIZER_FILE)
    if vocab_size == BYTE_VALUES:
        return BYTES
    raise FileNotFoundError(f"{folder}: expected {TOKENIZER_FILE} for a vocabulary of {vocab_size}")


def _stream_bytes(before: Sequence[int] = ()) -> Callable[[int], str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be several tokens
    return lambda token: decoder.decode(bytes([token]))


BYTES = Tokenizer(
    encode=lambda text: list(text.encode()),
    decode=lambda tokens: bytes(tokens).decode("utf-8", "replace"),
    streamer=_stream_bytes,
)


def _from_file(file: Path) -> Tokenizer:
    if not is_installed("tokenizers"):
        raise not_installed("tokenizers", str(file))
    from tokenizers import Tokenizer as Loaded
    from tokenizers.decoders import DecodeStream

    try:
        loaded = Loaded.from_file(str(file))
    except Exception as error:  # the package raises nothing narrower
        raise ValueError(f"{file}: nothing that the tokenizers package reads: {error}") from None

    loaded.no_truncation()  # what a file says of training's batches is not for whole texts
    loaded.no_padding()
    # By default each thread that encodes keeps the tokens of 10,000 words, and a word of 255 bytes takes 4 to 8 KiB: a
    # server would grow for hours. To keep fewer is no faster than to keep none.
    if hasattr(loaded.model, "_resize_cache"):  # BPE and Unigram models have it
        loaded.model._resize_cache(0)

    def streamer(before: Sequence[int] = ()) -> Callable[[int], str]:
        # Some tokenizers leave out the space of a text's first word; the last few tokens tell which word that is.
        stream = DecodeStream(ids=list(before[-CONTEXT:]), skip_special_tokens=True)
        return lambda token: stream.step(loaded, token) or ""

    return Tokenizer(
        encode=lambda text: loaded.encode(text, add_special_tokens=False).ids,
        decode=lambda tokens: loaded.decode(list(tokens)),
        streamer=streamer,
        file=file,
    )

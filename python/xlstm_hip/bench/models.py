# SPDX-License-Identifier: Apache-2.0
"""Whole models with random weights: the time to the first token after a prompt, and writing after ever more text.

Ours (as they are, and with weights of 8 and 4 bits), ours with the plain-torch kernels, transformers' own xLSTM and the
official xlstm_large, all with the same weights. Their logits are held to the plain kernels' in the same dtype, and so
is each token that they write; those of rounded weights to the plain kernels with the weights that they stand for.
Before writing a text is read once, by ours: all go on from its state with its last token, and are held to the plain
kernels from there. How well it is read is asked of the time to the first token.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ..models import Stream, load_pretrained, save_pretrained, xLSTMLarge, xLSTMLargeConfig
from ..models.language_model import State
from ..models.quantize import Scheme, quantize
from ..models.read_graphs import copied
from .readers import (
    OFFICIAL_CPU_KERNELS,
    Reader,
    of_official,
    of_official_in_graph,
    of_package,
    of_transformers,
    official_model,
    transformers_model,
)
from .registry import (
    DTYPES,
    HUGGING_FACE,
    LARGE,
    PLAIN,
    XLSTM_HIP,
    Call,
    Errors,
    Implementation,
    Point,
    Prepare,
    Scale,
    Tensors,
    relative_error,
)

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"embedding_dim": 128, "num_heads": 2, "num_blocks": 2, "vocab_size": 256},
    "4m": {"embedding_dim": 256, "num_heads": 4, "num_blocks": 4, "vocab_size": 1920},
    "7b": {"embedding_dim": 4096, "num_heads": 8, "num_blocks": 32, "vocab_size": 50304, "ffn_proj_factor": 2.667},
}
WRITTEN = 16
READY_TOKENS = 128  # are read before anything is timed
BITS = {"ours int8": 8, "ours int4": 4}


@dataclass(frozen=True)
class Cell:
    work: str  # first token, write
    dtype: str
    size: str
    batch: int
    read: int  # tokens of the prompt

    @property
    def title(self) -> str:
        return f"{self.work} {self.dtype} {self.size} B{self.batch} after {self.read}"

    @property
    def tokens(self) -> int:
        """That one call makes."""
        return self.batch * (WRITTEN if self.work == "write" else 1)

    @property
    def flops(self) -> float:
        """Two for each weight and token that goes through the model, but for the embedding, which is looked up."""
        through = self.tokens if self.work == "write" else self.batch * self.read
        return 2.0 * through * weights_of(self.size)

    @property
    def bytes(self) -> float:
        """Every weight once a step."""
        return float(DTYPES[self.dtype].itemsize * weights_of(self.size) * (WRITTEN if self.work == "write" else 1))

    def bytes_of(self, contender: str) -> float:
        """The same of a contender whose weights are of fewer bits, with their groups' scales and offsets: quantize()'s
        own."""
        bits = BITS.get(contender, 0)
        return weight_bytes(self.dtype, bits) * self.bytes / DTYPES[self.dtype].itemsize if bits else self.bytes

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "tokens": self.tokens,
            "model": self.size,
            "size": self.title.partition(f"{self.dtype} ")[2],
        }


@functools.cache
def weights_of(size: str) -> int:
    return weights_in(xLSTMLargeConfig(**SIZES[size]))


def weights_in(config: xLSTMLargeConfig) -> int:
    """But for the embedding, which is looked up."""
    with torch.device("meta"):
        model = xLSTMLarge(config)
    return sum(p.numel() for p in model.parameters()) - model.embedding.weight.numel()


def weight_bytes(dtype: str, bits: int) -> float:
    """Of one weight. bits: what quantize() rounds it to; 0: it is as dtype says."""
    if not bits:
        return DTYPES[dtype].itemsize
    scheme = Scheme(bits, symmetric=bits == 8)
    return bits / 8 + (2 if scheme.symmetric else 4) / scheme.group_size


def state_bytes(config: xLSTMLargeConfig) -> int:
    """Of c, n and m of all blocks, for one sequence, in float32."""
    dqk, dhv = (int(config.embedding_dim * x) // config.num_heads for x in (config.qk_dim_factor, config.v_dim_factor))
    return 4 * config.num_blocks * config.num_heads * (dqk * dhv + dqk + 1)


# ---- one set of weights for all, made when the first asks


@dataclass(frozen=True)
class Weights:
    """A checkpoint, and as what and where its models are to be."""

    folder: Path
    dtype: torch.dtype
    device: torch.device

    def loaded(self, **options: Any) -> xLSTMLarge:
        return load_pretrained(self.folder, self.dtype, str(self.device), progress=False, **options)


@dataclass(frozen=True)
class RandomWeights(Weights):
    """In a folder that goes with them."""

    temporary: tempfile.TemporaryDirectory


def random_weights(
    config: xLSTMLargeConfig, dtype: torch.dtype, device: torch.device, beside: Path | None = None
) -> Weights:
    """beside: where that folder is to be."""
    torch.manual_seed(0)
    with torch.device(device):
        model = xLSTMLarge(config).to(dtype)
    temporary = tempfile.TemporaryDirectory(prefix="xlstm_hip_bench_", dir=beside)
    save_pretrained(model, Path(temporary.name))
    return RandomWeights(Path(temporary.name), dtype, device, temporary)


class Models:
    """The readers of one checkpoint, dtype and device, made one by one."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._readers: dict[str, Reader] = {}
        self._plain: dict[int, xLSTMLarge] = {}  # by bits of its weights

    def plain(self, bits: int = 0) -> xLSTMLarge:
        if bits not in self._plain:
            self._plain[bits] = plain_model(self.weights, bits)
        return self._plain[bits]

    def reader(self, name: str) -> Reader:
        if name not in self._readers:
            self._readers[name] = of_package(self.plain()) if name == "plain torch" else MAKERS[name](self.weights)
        return self._readers[name]


def rounded(weights: Weights, bits: int) -> xLSTMLarge:
    return quantize(weights.loaded(weight_mode="fused"), bits, progress=False)[0]


def plain_model(weights: Weights, bits: int = 0) -> xLSTMLarge:
    """With the plain kernels. bits: its weights are rounded to so many, and widened in each call; 0: as they are."""
    model = rounded(weights, bits) if bits else weights.loaded()
    for key, kernel in OFFICIAL_CPU_KERNELS.items():
        for module in (model, model.backbone):
            setattr(module.config, key, kernel)
    return model


def _official_fused(weights: Weights) -> Any:
    return official_model(weights.loaded(weight_mode="fused"), weights.dtype, weights.device)


MAKERS: dict[str, Callable[[Weights], Reader]] = {
    "ours": lambda w: of_package(w.loaded(weight_mode="fused")),
    **{name: lambda w, bits=bits: of_package(rounded(w, bits)) for name, bits in BITS.items()},  # type: ignore[misc]
    "transformers": lambda w: of_transformers(transformers_model(w.folder, w.dtype, w.device)),
    "xlstm_large": lambda w: of_official(official_model(w.loaded(), w.dtype, w.device)),
    "xlstm_large compiled": lambda w: of_official(_official_fused(w), compile=True),
    "xlstm_large eager graph": lambda w: of_official_in_graph(_official_fused(w), compile=False),
    "xlstm_large graph": lambda w: of_official_in_graph(_official_fused(w), compile=True),
}


@functools.lru_cache(maxsize=1)  # the last one's memory is needed for the next
def _models(size: str, dtype: str, device: torch.device) -> Models:
    return Models(random_weights(xLSTMLargeConfig(**SIZES[size]), DTYPES[dtype], device))


def forget() -> None:
    """Gives back the models' memory and folder."""
    _models.cache_clear()


# ---- what is written, held to the plain model


def after(model: xLSTMLarge, inputs: Tensors) -> Tensors:
    """The results of a model after these tokens: the logits of the next token, and the state by part and block."""
    x, state = inputs["tokens"], state_in(inputs)
    stream = Stream(model, x.shape[0], None if state is None else copied(state))
    logits = stream.feed(x)
    assert stream.state is not None
    return {"logits": logits} | parts_of(stream.state)


def parts_of(state: State) -> Tensors:
    """By part and block."""
    return {f"{part} {n}": x for n, layer in state.items() for part, x in zip("cnm", layer, strict=True)}


def state_in(named: Tensors) -> State | None:
    """The state that parts_of took apart; None if there is none."""
    blocks = sorted(int(name[2:]) for name in named if name.startswith("c "))
    return cast(State, {n: tuple(named[f"{part} {n}"] for part in "cnm") for n in blocks}) or None


def errors_of(plain: xLSTMLarge, true: Tensors, logits: Tensor, text: Tensor | None) -> dict[str, float]:
    """true: what the plain model has after the prompt. text: what was written in the first call after it."""
    found = {"logits": relative_error(logits, true["logits"])}
    return found if text is None else found | {"text": below_best(plain, true, text)}


def below_best(plain: xLSTMLarge, true: Tensors, written: Tensor) -> float:
    """How far the plain model's logits of written tokens (B, N) are below its best, at worst, as a share of how far the
    best is above the mean: 0 where each is its own choice, about 1 where one is any token.

    After each token it is fed what was written. So rounding, which turns two near choices round and with them the rest
    of the text, counts for no more than it does in logits.
    """
    if not bool(((written >= 0) & (written < plain.config.vocab_size)).all()):
        return math.inf  # -1 is what logits of NaN give
    state = state_in(true)
    assert state is not None
    stream = Stream(plain, written.shape[0], copied(state))
    logits, worst = true["logits"], 0.0
    for tokens in written.split(1, dim=1):
        scores = logits.double()
        best = scores.amax(-1)
        short = (best - scores.gather(-1, tokens).squeeze(-1)) / (best - scores.mean(-1))
        worst = max(worst, float(short.max()))
        logits = stream.feed(tokens)
    return worst


# ---- for the registry


def text_of(cell: Cell, device: torch.device) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(3, SIZES[cell.size]["vocab_size"], (cell.batch, cell.read), generator=rng).to(device)


def make_inputs(cell: Cell, device: torch.device) -> Tensors:
    """A prompt; before writing the state after all of it but the last token, and that."""
    text = text_of(cell, device)
    if cell.work != "write":
        return {"tokens": text}
    state = _models(cell.size, cell.dtype, device).reader("ours")(text[:, :-1]).state
    assert state is not None
    return {"tokens": text[:, -1:]} | parts_of(state)


def ready(name: str, cell: Cell, device: torch.device) -> None:
    """Makes a model and what it is held to, and lets it read, and write if that comes, a little: that compiles what it
    compiles."""
    models = _models(cell.size, cell.dtype, device)
    models.plain(BITS.get(name, 0))
    with torch.no_grad():
        read = models.reader(name)(text_of(cell, device)[:, :READY_TOKENS])
        if cell.work == "write":
            read.write(1)


def _prepared(name: str) -> Prepare:
    def prepare(cell: Cell, inputs: Tensors) -> Call:
        x = inputs["tokens"]
        read = _models(cell.size, cell.dtype, x.device).reader(name)
        if cell.work == "first token":

            def first() -> Tensors:
                with torch.no_grad():
                    logits = read(x).logits
                    return {"logits": logits, "token": logits.argmax(-1)}

            return first
        with torch.no_grad():
            written = read(x, state_in(inputs))

        def write() -> Tensors:
            with torch.no_grad():
                return {"logits": written.logits, "text": written.write(WRITTEN)}

        return write

    return prepare


INPUT_PREFIX = "given "  # what a truth calls the inputs that it is of


def truth(cell: Cell, inputs: Tensors) -> Tensors:
    plain = _models(cell.size, cell.dtype, inputs["tokens"].device).plain()
    return after(plain, inputs) | {f"{INPUT_PREFIX}{name}": x for name, x in inputs.items()}


def errors(cell: Cell, results: Tensors, true: Tensors) -> dict[str, float]:
    plain = _models(cell.size, cell.dtype, results["logits"].device).plain()
    return errors_of(plain, true, results["logits"], results.get("text"))


def _rounded_errors(bits: int) -> Errors:
    def errors(cell: Cell, results: Tensors, true: Tensors) -> dict[str, float]:
        plain = _models(cell.size, cell.dtype, results["logits"].device).plain(bits)
        tensors = {name.removeprefix(INPUT_PREFIX): x for name, x in true.items() if name.startswith(INPUT_PREFIX)}
        return errors_of(plain, after(plain, tensors), results["logits"], results.get("text"))

    return errors


IMPLEMENTATIONS = (
    Implementation("ours", XLSTM_HIP, _prepared("ours")),
    *(Implementation(name, XLSTM_HIP, _prepared(name), errors=_rounded_errors(bits)) for name, bits in BITS.items()),
    Implementation("plain torch", PLAIN, _prepared("plain torch")),
    Implementation("transformers", HUGGING_FACE, _prepared("transformers")),
    Implementation("xlstm_large", LARGE, _prepared("xlstm_large")),
    Implementation("xlstm_large graph", LARGE, _prepared("xlstm_large graph"), devices=("cuda",)),
)


def points(scale: Scale, work: str) -> list[Point]:
    size = "tiny" if scale.quick else "7b" if scale.gpu else "4m"
    reads = (16, 64) if scale.quick else (512, 2048, 8192, 32768) if scale.gpu else (64, 512, 2048)
    series = "prompt" if work == "first token" else "context"
    return [Point(series, n, Cell(work, dtype, size, 1, n)) for dtype in scale.dtypes for n in reads]

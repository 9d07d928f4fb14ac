# SPDX-License-Identifier: Apache-2.0
"""Whether a plan leaves a model's outputs as good as they were.

The model first writes texts with the shipped plans. Each trial then reads the first part of them under its own plan and
goes on from there; what it thinks of what it reads, and what it writes, is saved. Judged is how probable the texts are
to the model with the shipped plans, how varied their words are, and that the trial reads as the shipped plans do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._core.plans import AS_PLANNED, FUSED, Plan, trying
from ..models import xLSTMLarge
from ..models.decode_engine import Then
from ..models.evaluation import distinct
from ..models.generation import Stream
from ..models.language_model import LanguageModel, State
from ..models.sampling import Sampling
from ..models.tokenizer import Tokenizer
from .runs import write_json

TEXTS, READ, WRITTEN = 4, 512, 128  # tokens of each
SAMPLING = Sampling(temperature=0.8)
SHIPPED = "shipped"
JUDGED_OPS = ("mlstm_chunkwise", "mlstm_step")  # the ones that a model's outputs go through

# The loss that a plan may have against the shipped one: nats per token of the text that it reads, nats per token and
# distinct-n of the text that it writes. Texts part for good where rounding turns one draw, and are then as good as each
# other, not the same.
READ_LOSS, WRITTEN_LOSS, DISTINCT_LOSS = 0.005, 0.15, 0.1


class Refused(Exception):
    """A plan that changes the quality of results."""


class Layers:
    """A model whose steps go through its layers, where mlstm_step is, and not through the decode engine."""

    def __init__(self, model: xLSTMLarge) -> None:
        self.model, self.config, self.special_tokens = model, model.config, model.special_tokens
        self.embedding = model.embedding

    def hidden(
        self, x: Tensor, state: State | None = None, mask: Tensor | None = None, keep_state: bool = False
    ) -> tuple[Tensor, State]:
        return self.model.hidden(x, state, mask, keep_state)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)

    def read(
        self, x: Tensor, state: State | None = None, mask: Tensor | None = None, replay: bool = False
    ) -> tuple[Tensor, State]:
        return self.model.read(x, state, mask, replay)

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        state: State,
        mask: Tensor | None = None,
        then: Then | None = None,
    ) -> Tensor:
        hidden, _ = self.hidden(tokens.unsqueeze(1), state, None if mask is None else mask.unsqueeze(1), True)
        logits = self.logits(hidden)[:, 0]
        if then is not None:
            then(logits)
        return logits


def save_outputs_for_trials(
    model: xLSTMLarge,
    tokenizer: Tokenizer,
    op: str,
    trials: Mapping[str, Plan],
    folder: Path,
    *,
    texts: int = TEXTS,
    read: int = READ,
    written: int = WRITTEN,
    seed: int = 0,
) -> None:
    """Writes the outputs of each trial, by name, and of the shipped plans, to <folder>/<name>.json."""
    folder.mkdir(parents=True, exist_ok=True)
    first = torch.full((texts, 1), model.special_tokens.bos or 0, device=model.embedding.weight.device)
    with trying(op, AS_PLANNED):
        prompts = torch.cat((first, _written(model, first, read - 1, seed)), dim=1)
    reader = Layers(model) if op == "mlstm_step" else model
    for name, plan in {SHIPPED: AS_PLANNED, **trials}.items():
        with trying(op, plan), _kernel(model, op, plan):
            scores = _scores(reader, prompts, by_steps=op == "mlstm_step")
            tokens = _written(reader, prompts, written, seed + texts)
        outputs = {
            "trial": name,
            "op": op,
            "plan": dict(plan),
            "read_logprob": float(scores),
            "prompts": prompts.tolist(),
            "tokens": tokens.tolist(),
            "texts": [tokenizer.decode(row) for row in tokens.tolist()],
        }
        write_json(folder / f"{name}.json", outputs)


def judge_outputs(model: xLSTMLarge, folder: Path) -> dict[str, dict[str, Any]]:
    """The scores of each trial in the folder: avg_logprob, perplexity, distinct-2, distinct-3, read_logprob, and
    `refused`: why, or an empty text."""
    outputs_of = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    if SHIPPED not in outputs_of:
        raise ValueError(f"folder: expected outputs with {SHIPPED}.json, got {str(folder)!r}")
    judged = {name: _measured(model, outputs) for name, outputs in outputs_of.items()}
    for scores in judged.values():
        scores["refused"] = why_refused(scores, judged[SHIPPED])
    return judged


def why_refused(scores: Mapping[str, float], shipped: Mapping[str, float]) -> str:
    limits = {
        "read_logprob": READ_LOSS,
        "avg_logprob": WRITTEN_LOSS,
        "distinct-2": DISTINCT_LOSS,
        "distinct-3": DISTINCT_LOSS,
    }
    for name, most in limits.items():
        lost = shipped[name] - scores[name]
        if name == "read_logprob":
            lost = abs(lost)
        if not lost <= most and not (math.isnan(scores[name]) and math.isnan(shipped[name]) and "distinct" in name):
            return f"{name} is {scores[name]:.4f}, with the shipped plan {shipped[name]:.4f}"
    return ""


def _measured(model: xLSTMLarge, outputs: Mapping[str, Any]) -> dict[str, Any]:
    device = model.embedding.weight.device
    prompts, tokens = (torch.tensor(outputs[name], device=device) for name in ("prompts", "tokens"))
    with trying(outputs["op"], AS_PLANNED):
        scores = Stream(model, len(tokens)).score(torch.cat((prompts, tokens), dim=1))[:, prompts.shape[1] :]
    mean = float(scores.double().mean())
    return {
        "avg_logprob": mean,
        "perplexity": math.exp(-mean),
        "distinct-2": distinct(outputs["texts"], 2),
        "distinct-3": distinct(outputs["texts"], 3),
        "read_logprob": outputs["read_logprob"],
    }


def _written(model: LanguageModel, prompts: Tensor, count: int, seed: int) -> Tensor:
    stream = Stream(model, len(prompts))
    stream.feed(prompts)
    return torch.stack(list(stream.tokens(count, SAMPLING, seed)), dim=1)


def _scores(model: LanguageModel, prompts: Tensor, by_steps: bool) -> Tensor:
    """The mean log-probability of what follows the first token."""
    stream = Stream(model, len(prompts))
    if not by_steps:
        return stream.score(prompts)[:, 1:].double().mean()
    scores = []
    for n in range(prompts.shape[1] - 1):
        ahead = stream.feed(prompts[:, n : n + 1]).float().log_softmax(-1)
        scores.append(ahead.gather(-1, prompts[:, n + 1 : n + 2]))
    return torch.cat(scores, dim=1).double().mean()


class _kernel:
    """The model with the kernel that a plan names, else with the fused one; then with its own again."""

    def __init__(self, model: xLSTMLarge, op: str, plan: Plan) -> None:
        self._config, self._plan = model.config, plan
        self._field = "chunkwise_kernel" if op == "mlstm_chunkwise" else "step_kernel"
        self._name = plan.get("kernel", FUSED[op])

    def __enter__(self) -> None:
        self._before = getattr(self._config, self._field), self._config.chunk_size
        setattr(self._config, self._field, self._name)
        self._config.chunk_size = self._plan.get("chunk_size") or self._config.chunk_size

    def __exit__(self, *_: Any) -> None:
        setattr(self._config, self._field, self._before[0])
        self._config.chunk_size = self._before[1]

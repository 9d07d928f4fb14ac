# SPDX-License-Identifier: Apache-2.0
"""The table of all operators that can be measured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from . import attention, layers, mlstm, mlstm_packed, mlstm_points, models, sampling, selection
from .mlstm_contenders import SEQUENCES, STEPS
from .registry import Operator

MLSTM_EXACT = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 2e-2}
ATTENTION_EXACT = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 4e-3}
LAYER_EXACT = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 4e-3}
MODEL_EXACT = {"fp32": 1e-3, "bf16": 1e-1, "fp16": 2e-2}  # logits: rounding adds up over the blocks
DRAW_EXACT = {"fp32": 0.0, "bf16": 0.0, "fp16": 0.0}  # the same tokens
FORWARD, BACKWARD = "forward", "forward+backward"


def _mlstm(name: str, text: str, work: str) -> Operator:
    sequence = work != "step"
    return Operator(
        name,
        text,
        partial(mlstm_points.sequence_points, work=work) if sequence else mlstm_points.step_points,
        mlstm.make_inputs,
        mlstm.true_results,
        mlstm.errors_of,
        SEQUENCES if sequence else STEPS,
        MLSTM_EXACT,
        mlstm_points.trial,
    )


def _attention(name: str, text: str, work: str) -> Operator:
    points = attention.decode_points if work == "decode" else partial(attention.sequence_points, work=work)
    return Operator(
        name, text, points, attention.make_inputs, attention.truth, attention.errors, attention.IMPLEMENTATIONS,
        ATTENTION_EXACT,
    )  # fmt: skip


def _shapes(work: str) -> tuple[Operator, ...]:
    """The mLSTM and attention at shapes of models, and the mLSTM over packed sequences."""
    end = "" if work == FORWARD else "-backward"
    gradients = "" if work == FORWARD else ", with gradients"
    heads = partial(mlstm_points.shape_points, work=work)
    attention_points = partial(attention.shape_points, work=work)
    packed = Operator(
        f"packed{end}", f"the mLSTM over packed sequences{gradients}", partial(mlstm_packed.points, work=work),
        mlstm.make_inputs, mlstm.true_results, mlstm.errors_of, mlstm_packed.IMPLEMENTATIONS, MLSTM_EXACT,
        mlstm_packed.trial,
    )  # fmt: skip
    return (
        replace(_mlstm(f"mlstm-shapes{end}", f"the mLSTM with heads of models{gradients}", work),
                points=heads),
        replace(_attention(f"attention-shapes{end}", f"attention by head dim and length{gradients}", work),
                points=attention_points),
        packed,
    )  # fmt: skip


def _layers(name: str, text: str, work: str) -> Operator:
    return Operator(
        name, text, partial(layers.points, work=work), layers.named_inputs, layers.truth, layers.errors,
        layers.IMPLEMENTATIONS, LAYER_EXACT,
    )  # fmt: skip


def _model(name: str, text: str, work: str) -> Operator:
    return Operator(
        name, text, partial(models.points, work=work), models.make_inputs, models.truth, models.errors,
        models.IMPLEMENTATIONS, MODEL_EXACT, cold=False, ready=models.ready,
    )  # fmt: skip


def _draw(name: str, text: str, how: str) -> Operator:
    return Operator(
        name, text, partial(sampling.points, how=how), sampling.make_inputs, sampling.truth, sampling.errors,
        sampling.IMPLEMENTATIONS, DRAW_EXACT,
    )  # fmt: skip


def _selection(work: str) -> Operator:
    return Operator(
        f"select-{work}",
        f"what get_optimal_kernel_config chooses from: {work}",
        partial(selection.points, work=work),
        mlstm.make_inputs,
        mlstm.true_results,
        mlstm.errors_of,
        selection.KERNELS[work],
        MLSTM_EXACT,
        mlstm_points.trial,
    )


OPERATORS = {
    operator.name: operator
    for operator in (
        _mlstm("mlstm", "the mLSTM over sequences", FORWARD),
        _mlstm("mlstm-backward", "with gradients of all inputs", BACKWARD),
        _mlstm("step", "one token of the mLSTM", "step"),
        _attention("attention", "causal attention", FORWARD),
        _attention("attention-backward", "with gradients of all inputs", BACKWARD),
        _attention("decode", "attention of one token against a cache", "decode"),
        _layers("layers", "norms, gates, soft cap, SwiGLU, loss", FORWARD),
        _layers("layers-backward", "with gradients of all inputs", BACKWARD),
        _model("first-token", "a model's time to the first token after a prompt", "first token"),
        _model("write", "a model's tokens a second after a text", "write"),
        _draw("draw", "a token of each row by temperature, top-k and top-p", "sampled"),
        _draw("draw-greedy", "the likeliest token of each row", "greedy"),
        *_shapes(FORWARD),
        *_shapes(BACKWARD),
        *(_selection(work) for work in selection.KERNELS),
    )
}
# Names on the command line that stand for several operators.
GROUPS = {
    "selection": tuple(name for name in OPERATORS if name.startswith("select-")),
    "shapes": tuple(name for name in OPERATORS if "-shapes" in name or name.startswith("packed")),
}
DEFAULT = tuple(name for name in OPERATORS if not any(name in group for group in GROUPS.values()))

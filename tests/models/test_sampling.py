# SPDX-License-Identifier: Apache-2.0
"""The op that draws a token, beside plain torch in float64: kept sets and weights exactly, draws by their share."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from xlstm_hip._core import ops
from xlstm_hip.models import Sampling
from xlstm_hip.models.sampling import Drawing, check_drawn
from xlstm_hip.reference import sampling as plain
from xlstm_hip.reference.philox import uniform

CPU = torch.device("cpu")
WEIGHT = 2.0**-40  # of the likeliest token: what a weight is rounded to
SAMPLINGS = [
    Sampling(1.0),
    Sampling(0.7, top_k=5),
    Sampling(1.0, top_k=1),
    Sampling(1.3, top_p=0.8),
    Sampling(0.9, top_k=20, top_p=0.6, repetition_penalty=1.4),
    Sampling(2.0, top_k=1000, top_p=0.999),
    Sampling(1.0, top_p=1e-9),
    Sampling(0.05, top_p=0.5, repetition_penalty=0.7),
]


def logits_of(rows: int, vocab: int, seed: int = 0, levels: int = 0) -> Tensor:
    """Normal logits; with levels those are rounded to so many a unit, so that many tie."""
    x = 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))
    return (x * levels).round() / levels if levels else x


def some_seen(rows: int, vocab: int) -> Tensor:
    return torch.rand(rows, vocab, generator=torch.Generator().manual_seed(9)) < 0.1


def call_of(logits: Tensor, sampling: Sampling, seeds: list[int] | None = None, **changes: Any) -> dict[str, Any]:
    """The arguments of the op, by name, in its order."""
    rows, vocab = logits.shape
    drawn = not sampling.greedy
    call: dict[str, Any] = {
        "tokens": torch.full((rows,), -1),
        "logits": logits,
        "seeds": torch.tensor(seeds or list(range(rows))) if drawn else None,
        "numbers": torch.zeros(rows, dtype=torch.int64) if drawn else None,
        "seen": some_seen(rows, vocab) if sampling.repetition_penalty != 1 else None,
        "going": None,
        "ends": None,
        "weights": torch.full((rows, vocab), -1) if drawn else None,
        "pad": 0,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "repetition_penalty": sampling.repetition_penalty,
    }
    return call | changes


def draw(call: dict[str, Any]) -> dict[str, Any]:
    ops.OPS.draw_tokens_(*call.values())
    return call


@pytest.mark.parametrize("levels", [0, 4], ids=["", "ties"])
@pytest.mark.parametrize("vocab", [1, 7, 97, 5000])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_weights(sampling: Sampling, vocab: int, levels: int) -> None:
    """The kept tokens are plain torch's, and each has its probability."""
    logits = logits_of(3, vocab, levels=levels)
    call = draw(call_of(logits, sampling))
    want = sampling.probabilities(logits.double(), call["seen"])
    weights = call["weights"].double()
    sums = weights.sum(-1, keepdim=True)
    seen = plain.penalised(logits, call["seen"], sampling.repetition_penalty).double() / sampling.temperature
    heard = (seen - seen.amax(-1, keepdim=True)).exp() > WEIGHT  # those below may round to nothing
    assert torch.equal((weights > 0) & heard, (want > 0) & heard)
    assert ((weights / sums - want).abs() <= WEIGHT * (1 + vocab * want)).all()  # half a unit each, and in the sum
    drawn = call["tokens"]
    assert (want.gather(1, drawn.unsqueeze(1)) > 0).all()
    uniforms = uniform(call["seeds"], torch.zeros(3, dtype=torch.int64))
    assert torch.equal(plain.pick(sampling, logits, call["seen"], uniforms), drawn)


def test_boundaries() -> None:
    """Sums that meet top_p exactly, and ties around it: the first of those that tie."""
    even = torch.zeros(1, 8)
    for top_p, remaining in ((0.5, 4), (0.5 + 2**-50, 5), (0.5 - 2**-50, 4), (1e-300, 1), (1 - 2**-53, 8)):
        weights = draw(call_of(even, Sampling(1.0, top_p=top_p)))["weights"]
        assert (weights[0] > 0).tolist() == [True] * remaining + [False] * (8 - remaining), top_p
    ties = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 3.0, -0.0, 0.0]])
    for top_k, remaining in ((1, [5]), (2, [1, 3, 5]), (3, [1, 3, 5]), (4, [0, 1, 2, 3, 4, 5]), (7, list(range(8)))):
        weights = draw(call_of(ties, Sampling(1.0, top_k=top_k)))["weights"]
        assert (weights[0] > 0).nonzero().flatten().tolist() == remaining, top_k
    two = draw(call_of(ties, Sampling(1.0, top_k=2, top_p=0.6)))["weights"]
    assert (two[0] > 0).nonzero().flatten().tolist() == [1, 5]


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_greedy_is_argmax(penalty: float) -> None:
    sampling = Sampling(repetition_penalty=penalty)
    for vocab, levels in ((1, 0), (97, 1), (5000, 2), (50304, 0)):
        logits = logits_of(5, vocab, levels=levels)
        logits[0] = -math.inf
        logits[1, vocab // 2 :] = math.inf
        call = draw(call_of(logits, sampling))
        assert torch.equal(call["tokens"], plain.penalised(logits, call["seen"], penalty).argmax(-1))


def test_draws_have_their_share() -> None:
    """20,000 draws from nine tokens: chi-square of eight degrees of freedom, below its 0.999 quantile."""
    rows, sampling = 20_000, Sampling(0.8, top_p=0.97, repetition_penalty=1.2)
    logits = torch.tensor([[1.0, 3.0, 2.0, -4.0, 2.5, 0.0, 2.0, -1.0, 1.5, 0.5]]).expand(rows, -1).contiguous()
    seen = torch.tensor([[True] * 3 + [False] * 7]).expand(rows, -1).contiguous()
    want = sampling.probabilities(logits[:1].double(), seen[:1])[0]
    for call in (
        call_of(logits, sampling, list(range(rows)), seen=seen),
        call_of(logits, sampling, [5] * rows, seen=seen, numbers=torch.arange(rows)),
    ):
        counts = torch.bincount(draw(call)["tokens"], minlength=10).double()
        assert (counts[want == 0] == 0).all()
        possible = want > 0
        assert ((counts[possible] - rows * want[possible]) ** 2 / (rows * want[possible])).sum() < 26.1


def test_the_same_bits_again_in_any_company_and_on_any_threads() -> None:
    sampling = Sampling(1.0, top_k=400, top_p=0.95)
    logits = logits_of(9, 3000)
    batch = draw(call_of(logits, sampling, list(range(30, 39))))
    torch.set_num_threads(1)
    for row in range(9):
        alone = draw(call_of(logits[row : row + 1].clone(), sampling, [30 + row]))
        assert torch.equal(alone["weights"], batch["weights"][row : row + 1])
        assert alone["tokens"][0] == batch["tokens"][row] and alone["numbers"].tolist() == [1]
    next_draw = draw(call_of(logits, sampling, list(range(30, 39)), numbers=torch.ones(9, dtype=torch.int64)))
    assert not torch.equal(next_draw["tokens"], batch["tokens"])


def test_what_is_read_is_seen_and_ends_end() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.9, 0.0]] * 3)
    call = call_of(
        logits, Sampling(repetition_penalty=2.0), tokens=torch.tensor([1, -1, 1]), seen=torch.zeros(3, 4).bool(),
        going=torch.tensor([True, True, False]), ends=torch.tensor([2, 9]), pad=7,
    )  # fmt: skip
    draw(call)
    assert call["tokens"].tolist() == [2, 1, 7]
    assert call["seen"].nonzero().tolist() == [[0, 1]]
    assert call["going"].tolist() == [False, True, False]
    draw(call)
    assert call["tokens"].tolist() == [7, 2, 7] and not call["going"].any()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, 5, 0.9)], ids=str)
def test_nan(sampling: Sampling) -> None:
    """A row with NaN gives -1, others what they would; check_drawn names it."""
    logits = logits_of(3, 50)
    want = draw(call_of(logits, sampling))["tokens"]
    broken = logits.clone()
    broken[1, 17] = math.nan
    call = draw(call_of(broken, sampling))
    assert call["tokens"].tolist() == [want[0], -1, want[2]]
    with pytest.raises(ValueError, match="logits: expected numbers to draw a token from, got NaN or nothing in row 1"):
        check_drawn(call["tokens"])
    nothing = draw(call_of(torch.full((1, 50), -math.inf), sampling))
    assert nothing["tokens"].tolist() == [0 if sampling.greedy else -1]
    infinite = logits.clone()
    infinite[:, 30:32] = math.inf
    assert set(draw(call_of(infinite, sampling))["tokens"].tolist()) <= {30, 31}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        (0.0, 0, 1.0, 1.3),
        (0.8, 40, 0.9, 1.1),
        (1.0, 0, 1.0, 1.0),
        (1.0, 0, 1.0, 1.0, 0.05),
        (1.5, 20, 1.0, 1.0, 0.1),
        (1.5, 0, 0.9, 1.2, 0.02),
        (1.0, 40, 0.95, 1.0, 0.2),
    ],
    ids=str,
)
def test_drawing_is_plain_torch(monkeypatch: pytest.MonkeyPatch, options: tuple, dtype: torch.dtype) -> None:
    """Many steps, with ends and seeds of every size: the op's tokens are plain torch's."""
    seeds, sampling = [0, -1, 2**63, 2**64 - 5, 12345], Sampling(*options)
    texts = []
    for forced in (None, "reference"):
        with monkeypatch.context() as patch:
            if forced:
                patch.setenv("XLSTM_HIP_BACKEND", forced)
            drawing = Drawing(sampling, (3, 8), 1, 5, torch.zeros(5, 61, dtype=torch.bool), CPU)
            drawing.begin(seeds)
            text = []
            for step in range(40):
                drawing(logits_of(5, 61, seed=step).to(dtype))
                text.append((drawing.tokens.tolist(), drawing.going.tolist()))
            texts.append(text)
            assert drawing.over() == (not any(text[-1][1]))
    assert texts[0] == texts[1]
    assert len({tuple(t) for t, _ in texts[0]}) > 10 and not all(texts[0][-1][1])


@pytest.mark.parametrize("levels", [0, 4], ids=["", "ties"])
@pytest.mark.parametrize("options", [(0, 1.0), (7, 1.0), (0, 0.7), (30, 0.9)], ids=str)
def test_min_p_keeps_what_plain_torch_keeps(options: tuple, levels: int) -> None:
    """All that is kept is drawn at last, and nothing else; a min_p below every weight changes no token."""
    rows, (top_k, top_p) = 3000, options
    logits = logits_of(1, 60, levels=levels).expand(rows, -1).contiguous()
    for min_p in (0.3, 1.0, 1e-300):
        sampling = Sampling(3.0, top_k, top_p, min_p=min_p)
        drawing = Drawing(sampling, (), 0, rows, None, CPU)
        drawing.begin(range(rows))
        drawing(logits)
        remaining = (sampling.probabilities(logits[:1], None)[0] > 0).nonzero().flatten().tolist()
        if min_p == 1e-300:
            without = draw(call_of(logits, Sampling(3.0, top_k, top_p), list(range(rows))))
            assert torch.equal(drawing.tokens, without["tokens"])
        else:
            assert drawing.tokens.unique().tolist() == remaining and 1 <= len(remaining) < 60


def test_min_p_and_nan() -> None:
    for options in ((0, 1.0), (5, 0.9)):
        logits = logits_of(3, 50)
        logits[1, 17] = math.nan
        drawing = Drawing(Sampling(1.0, *options, min_p=0.1), (), 0, 3, None, CPU)
        drawing.begin(range(3))
        drawing(logits)
        assert (drawing.tokens < 0).tolist() == [False, True, False]


def test_rows_that_are_given_up_end() -> None:
    drawing = Drawing(Sampling(), (), 7, 3, None, CPU, may_end=True)
    drawing.begin([0, 1, 2])
    drawing(torch.eye(3))
    assert drawing.tokens.tolist() == [0, 1, 2] and not drawing.over()
    drawing.end([1])
    drawing(torch.eye(3))
    assert drawing.tokens.tolist() == [0, 7, 2] and drawing.going.tolist() == [True, False, True]
    drawing.end([0, 2])
    assert drawing.over()


def test_opcheck() -> None:
    for sampling in (Sampling(), SAMPLINGS[4]):
        call = call_of(logits_of(2, 9), sampling, going=torch.tensor([True, True]), ends=torch.tensor([4]))
        utils = ("test_schema", "test_faketensor")
        torch.library.opcheck(ops.OPS.draw_tokens_, tuple(call.values()), test_utils=utils)


@pytest.mark.parametrize(
    ("sampling", "changes", "words"),
    [
        (Sampling(1.0), {"logits": torch.zeros(2, 5).double()}, "logits: expected a contiguous float32 matrix"),
        (Sampling(1.0), {"logits": torch.zeros(5, 2).t()}, "logits: expected a contiguous float32 matrix"),
        (Sampling(1.0), {"tokens": torch.zeros(3, dtype=torch.int64)}, r"tokens: expected shape \( 2 \), got \( 3 \)"),
        (Sampling(1.0), {"seeds": torch.zeros(2)}, "seeds: expected a contiguous tensor of int64"),
        (Sampling(1.0), {"seeds": None}, "seeds, numbers: expected data, got NULL"),
        (Sampling(1.0), {"temperature": -1.0}, "temperature: expected a finite number >= 0"),
        (Sampling(1.0), {"temperature": math.nan}, "temperature: expected a finite number >= 0"),
        (Sampling(1.0), {"temperature": 0.0}, "temperature: expected above 0 with seeds"),
        (Sampling(1.0), {"top_k": -1}, "top_k: expected 0 to 9223372036854775807, got -1"),
        (Sampling(1.0), {"top_p": 0.0}, "top_p: expected a finite number above 0, got 0"),
        (Sampling(1.0), {"top_p": 1.5}, "top_p: expected at most 1, got 1.5"),
        (Sampling(1.0), {"repetition_penalty": 1.5}, "seen: expected with a repetition_penalty, and only with one"),
        (Sampling(1.0), {"seen": torch.zeros(2, 5).bool()}, "seen: expected with a repetition_penalty"),
        (Sampling(1.0), {"going": torch.ones(2).bool()}, "going, ends: expected both, or neither"),
        (
            Sampling(1.0),
            {"going": torch.ones(2).bool(), "ends": torch.arange(65)},
            "ends_count: expected 0 to 64, got 65",
        ),
        (Sampling(1.0), {"weights": torch.zeros(2, 4).long()}, r"weights: expected shape \( 2 5 \), got \( 2 4 \)"),
    ],
)
def test_wrong_calls(sampling: Sampling, changes: dict, words: str) -> None:
    call = call_of(torch.zeros(2, 5), sampling) | changes
    with pytest.raises(RuntimeError, match=words):
        draw(call)

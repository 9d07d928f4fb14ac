# SPDX-License-Identifier: Apache-2.0
"""Packed sequences in accelerated models of transformers, by each name that collators and users have for them; and
keywords that would do nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from support.peer_models import hf_model, relative, tokens

transformers = pytest.importorskip("transformers")
from xlstm_hip.integrations import hf  # noqa: E402

LENGTHS = (7, 1, 20)
SAME = 1e-12  # float64: the order of sums
ENDS = torch.tensor([0, 7, 8, 28])
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS])[None]
NUMBERS = torch.cat([torch.full((length,), n) for n, length in enumerate(LENGTHS)])[None]


def parts() -> list[Tensor]:
    return [tokens(1, length, seed=length) for length in LENGTHS]


def cache_of(out: Any) -> Any:
    return getattr(out, hf.CACHE)


@pytest.mark.parametrize(
    "named",
    [
        {"position_ids": POSITIONS},
        {"position_ids": POSITIONS[0]},
        {"position_ids": POSITIONS + 3},
        {"seq_idx": NUMBERS},
        {"seq_idx": NUMBERS.int()},
        {"cu_seqlens": ENDS},
        {"cu_seq_lens_q": ENDS.int(), "cu_seq_lens_k": ENDS.int(), "max_length_q": 20, "max_length_k": 20},
    ],
    ids=lambda named: "-".join(named),
)
def test_each_sequence_is_as_by_itself(named: dict[str, Any]) -> None:
    model = hf.accelerate(hf_model(torch.float64))
    with torch.no_grad():
        out = model(torch.cat(parts(), 1), use_cache=True, **named)
        alone = [model(part, use_cache=True) for part in parts()]
        assert relative(out.logits, torch.cat([alone_output.logits for alone_output in alone], 1)) < SAME
        # The cache goes on with the last sequence.
        states = zip(cache_of(out).rnn_state.values(), cache_of(alone[-1]).rnn_state.values(), strict=True)
        assert all(
            relative(x, y) < SAME for alone_output, same in states for x, y in zip(alone_output, same, strict=True)
        )
        step = model(tokens(1, 1), cache_params=cache_of(out), use_cache=True).logits
        assert relative(step, model(tokens(1, 1), cache_params=cache_of(alone[-1]), use_cache=True).logits) < 1e-6


def test_rows_of_a_batch_that_are_packed_differently() -> None:
    model = hf.accelerate(hf_model(torch.float64))
    row = torch.cat(parts(), 1)
    x = torch.cat((row, row.flip(1)))
    positions = torch.cat((POSITIONS, torch.cat((torch.arange(20), torch.arange(8)))[None]))
    with torch.no_grad():
        out = model(x, position_ids=positions, use_cache=True)
        second = [model(part).logits for part in (x[1:, :20], x[1:, 20:])]
        first = [model(part).logits for part in parts()]
        assert relative(out.logits, torch.cat((torch.cat(first, 1), torch.cat(second, 1)))) < SAME
        want = model(x[1:, 20:], use_cache=True)
        assert relative(cache_of(out).rnn_state[2][0][1:], cache_of(want).rnn_state[2][0]) < SAME
        # Positions that go on pack nothing, wherever they begin.
        plain = model(x).logits
        assert torch.equal(model(x, position_ids=torch.arange(28)[None] + 5).logits, plain)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_begins_no_sequence(side: str) -> None:
    """As generate makes positions of a mask: 1 where there is padding."""
    model = hf.accelerate(hf_model(torch.float64))
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, slice(0, 4) if side == "left" else slice(8, 12)] = 0
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    x = tokens(2, 12)
    with torch.no_grad():
        actual = model(x, attention_mask=mask, position_ids=positions, use_cache=True)
        want = model(x, attention_mask=mask, use_cache=True)
    assert relative(actual.logits[mask.bool()], want.logits[mask.bool()]) < SAME
    assert relative(cache_of(actual).rnn_state[0][0], cache_of(want).rnn_state[0][0]) < SAME


def test_transformers_own_collator_and_gradients() -> None:
    """A step of training on its row is one on the sequences apart."""
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch = collate([{"input_ids": part[0].tolist()} for part in parts()])
    assert {"position_ids", "cu_seq_lens_q", "seq_idx"} <= batch.keys()
    model = hf.accelerate(hf_model(torch.float64)).train()
    model(**batch).loss.backward()
    actual = {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}
    model.zero_grad()
    losses = [model(part, labels=part).loss * (part.shape[1] - 1) for part in parts() if part.shape[1] > 1]
    (sum(losses) / sum(length - 1 for length in LENGTHS)).backward()
    assert all(relative(actual[name], x.grad) < 1e-10 for name, x in model.named_parameters() if x.grad is not None)


def test_long_rows_are_not_cut_inside_a_sequence() -> None:
    model = hf.accelerate(hf_model(torch.float64, max_inference_chunksize=16))
    with torch.no_grad():
        actual = model.backbone(torch.cat(parts(), 1), cu_seqlens=ENDS, use_cache=True).last_hidden_state
        want = torch.cat([model.backbone(part, use_cache=True).last_hidden_state for part in parts()], 1)
    assert relative(actual, want) < SAME


@pytest.mark.parametrize(
    "named, error, text",
    [
        ({"foo": 3}, TypeError, "foo: unknown to this model"),
        ({"output_attentions": True}, TypeError, "output_attentions: unknown to this model"),
        ({"token_type_ids": NUMBERS}, TypeError, "token_type_ids: unknown to this model"),
        ({"past_key_values": 3}, TypeError, "past_key_values: unknown to this model"),
        ({"position_ids": POSITIONS[:, 1:]}, ValueError, r"position_ids: expected shape \(1, 28\)"),
        ({"position_ids": POSITIONS.float()}, TypeError, "position_ids: expected int32 or int64"),
        ({"seq_idx": NUMBERS.expand(2, -1)}, ValueError, r"seq_idx: expected shape \(1, 28\)"),
        ({"cu_seq_lens_q": torch.tensor([0, 5])}, ValueError, "cu_seqlens: expected to end at S = 28, got 5"),
    ],
)
def test_bad_input(named: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        hf.accelerate(hf_model())(torch.cat(parts(), 1), **named)


def test_what_cannot_be_packed() -> None:
    model = hf.accelerate(hf_model())
    row = torch.cat(parts(), 1)
    with pytest.raises(ValueError, match="cu_seqlens: expected packed sequences in one row, got a batch of 2"):
        model(row.expand(2, -1), cu_seqlens=ENDS)
    cache = cache_of(model(row, use_cache=True))
    with pytest.raises(ValueError, match="cache: expected none, or an empty one, beside packed sequences"):
        model(row, cu_seqlens=ENDS, cache_params=cache, use_cache=True)

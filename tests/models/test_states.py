# SPDX-License-Identifier: Apache-2.0
"""Files of states: the same bits afterwards, one size for any length, other models and damaged files refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from support.peer_models import small_model, tokens
from xlstm_hip.models import (
    Sampling,
    Stream,
    generate,
    load_pretrained,
    load_state,
    save_pretrained,
    save_state,
    xLSTMLarge,
)
from xlstm_hip.models.quantize import quantize
from xlstm_hip.models.states import weights_mark

SAMPLING = Sampling(0.9, 40, repetition_penalty=1.2)


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    return small_model(dtype=torch.bfloat16)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model_of_states(request: pytest.FixtureRequest) -> xLSTMLarge:
    return small_model(dtype=torch.bfloat16, inference_state_dtype=request.param)


def begun(model: xLSTMLarge, length: int = 9) -> Stream:
    """It has read two rows, the first with padding, and then its own text."""
    stream = Stream(model, 2, remember_tokens=True)
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[0, :3] = False
    stream.feed(tokens(2, length), mask)
    for token in stream.tokens(5, SAMPLING, 1):
        last = token
    stream.feed(last.unsqueeze(1))
    return stream


def test_a_stream_continues_with_the_same_bits(model_of_states: xLSTMLarge, tmp_path: Path) -> None:
    stream = begun(model_of_states)
    stream.save(tmp_path / "state", notes={"who": ["any", 1]})
    loaded = Stream.load(tmp_path / "state", model_of_states)
    assert loaded.tokens_read == stream.tokens_read == 14
    assert load_state(tmp_path / "state", model_of_states).notes == {"who": ["any", 1]}
    for _ in range(2):  # steps of the engine, and a prompt through the layers
        pairs = zip(stream.tokens(20, SAMPLING, 7), loaded.tokens(20, SAMPLING, 7), strict=True)
        assert all(torch.equal(a, b) and torch.equal(stream.logits, loaded.logits) for a, b in pairs)
        assert torch.equal(stream.feed(tokens(2, 6, seed=5)), loaded.feed(tokens(2, 6, seed=5)))
    assert torch.equal(stream.seen, loaded.seen)
    assert all(torch.equal(a, b) for n in stream.state for a, b in zip(stream.state[n], loaded.state[n], strict=True))


def test_the_state_of_generate(model_of_states: xLSTMLarge, tmp_path: Path) -> None:
    full = generate(model_of_states, [[5, 6, 7]], 20, eos=())
    first = generate(model_of_states, [[5, 6, 7]], 12, eos=())
    save_state(tmp_path / "state", model_of_states, first.state)
    saved = load_state(str(tmp_path / "state"), model_of_states)
    assert saved.logits is None and saved.seen is None and saved.batch_size == 1
    continued = generate(model_of_states, first.tokens[:, -1:], 8, eos=(), state=saved.state)
    assert torch.equal(torch.cat((first.tokens, continued.tokens), 1), full.tokens)


def test_a_file_is_replaced_whole(model: xLSTMLarge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state"
    begun(model, 4).save(file)
    size = file.stat().st_size
    stream = Stream.load(file, model)
    copies = [x.clone() for layer in stream.state.values() for x in layer]
    with file.open("r+b") as opened:  # in place: a stream's memory is not the file's
        opened.write(b"\0" * size)
    begun(model, 400).save(file)
    assert abs(file.stat().st_size - size) < 16
    loaded = [x for layer in load_state(file, model).state.values() for x in layer]
    assert not any(torch.equal(a, b) for a, b in zip(copies, loaded, strict=True))
    stream.save(file)
    assert all(torch.equal(a, b) for a, b in zip(copies, (x for n in stream.state.values() for x in n), strict=True))
    before = file.read_bytes()
    umask = os.umask(0)
    os.umask(umask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~umask

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            begun(model).save(file)
    assert file.read_bytes() == before and [x.name for x in tmp_path.iterdir()] == ["state"]


def test_weights_mark(tmp_path: Path) -> None:
    """One for weights however they are kept, another for others."""
    single = small_model()
    save_pretrained(single, tmp_path)
    fused = load_pretrained(tmp_path, weight_mode="fused", progress=False)
    assert weights_mark(single) == weights_mark(fused)
    mark = weights_mark(single)
    for name, x in single.state_dict().items():
        original = x.clone()
        x[-1] += 0.01
        assert weights_mark(single) != mark, name
        x.copy_(original)
    assert weights_mark(single) == mark


@pytest.mark.parametrize(
    ("make_model", "words"),
    [
        (lambda: small_model(dtype=torch.float32), "a state of a model with dtype float32, got bfloat16"),
        (lambda: small_model(dtype=torch.bfloat16, num_blocks=2), "a state of a model with num_blocks 2, got 3"),
        (lambda: small_model(dtype=torch.bfloat16, num_heads=2), "a state of a model with num_heads 2, got 4"),
        (lambda: quantize(small_model(dtype=torch.bfloat16), 8, progress=False)[0], "a model with bits 8, got None"),
        (
            lambda: small_model(seed=5, dtype=torch.bfloat16),
            "of these weights; other weights of the same shape made it",
        ),
    ],
    ids=["dtype", "blocks", "heads", "bits", "weights"],
)
def test_another_model_is_refused(model: xLSTMLarge, tmp_path: Path, make_model, words: str) -> None:
    begun(model).save(tmp_path / "state")
    with pytest.raises(ValueError, match=f"state: expected .*{words}"):
        Stream.load(tmp_path / "state", make_model())


def test_files_that_are_none(model: xLSTMLarge, tmp_path: Path) -> None:
    file = tmp_path / "state"
    with pytest.raises(FileNotFoundError, match="expected a file of a state, got .*state"):
        load_state(file, model)
    begun(model).save(file)
    saved = file.read_bytes()
    for contents in (b"", b"not a state", saved[:-100]):
        file.write_bytes(contents)
        with pytest.raises(ValueError, match="state: damaged, or no file of a state: "):
            load_state(file, model)
    file.write_bytes(saved.replace(b"xlstm_hip state 2", b"xlstm_hip state 1"))
    with pytest.raises(ValueError, match="state: expected a state that this version saved, got 'xlstm_hip state 1'"):
        load_state(file, model)
    file.write_bytes(saved[:-9] + bytes([saved[-9] ^ 1]) + saved[-8:])  # one bit of a tensor
    with pytest.raises(ValueError, match="state: damaged: its tensors have another hash than when they were written"):
        load_state(file, model)
    file.write_bytes(saved.replace(b'"1.n"', b'"1.x"'))
    with pytest.raises(ValueError, match="state: damaged, or no file of a state: '1.n'"):
        load_state(file, model)


def test_wrong_calls(model: xLSTMLarge, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"save: expected feed\(\) before it; nothing has been read yet"):
        Stream(model).save(tmp_path / "state")
    for state in ({}, {0: None, 1: None}, 5):
        with pytest.raises(
            ValueError, match=r"state: expected a model's last state, \(c, n, m\) of block 0 in it, got"
        ):
            save_state(tmp_path / "state", model, state)
    with pytest.raises(TypeError, match="notes: expected values that JSON can hold"):
        begun(model).save(tmp_path / "state", notes={"x": model})
    assert not list(tmp_path.iterdir())

# SPDX-License-Identifier: Apache-2.0
"""Whole models on a GPU: loaded there, read by there, trained there, swapped into transformers' there. Beside the same
weights in float64 on the CPU, with the CPU's own error as the measure. Without a GPU it is skipped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.engine_calls import copied
from support.peer_models import at_every_split, hf_model, relative, small_model, tokens
from xlstm_hip.models import decode_engine, generate, load_pretrained, save_pretrained, staging, xLSTMLarge
from xlstm_hip.models.quantize import quantize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
]
DEVICE = "cuda"
LENGTH = 150  # more than two chunks
WIDE: dict[str, Any] = {"embedding_dim": 512, "num_heads": 2, "vocab_size": 301}  # head dims of 128 and 256
HF_CONFIG = {"hidden_size": 512, "num_heads": 2, "num_hidden_layers": 2, "vocab_size": 301, "chunk_size": 64}
DTYPES = (torch.float32, torch.bfloat16)


def on_device(model: nn.Module) -> Any:
    return copy.deepcopy(model).to(DEVICE)


def no_worse(actual: Tensor, plain: Tensor, true: Tensor) -> None:
    """Twice the error that the same dtype has on the CPU, which can be little by luck: a rounding is always allowed."""
    assert actual.device.type == torch.device(DEVICE).type
    assert relative(actual.cpu(), true) <= 2 * relative(plain, true) + 2 * torch.finfo(plain.dtype).eps


@pytest.mark.parametrize("buffer", [5000, staging.BUFFER_BYTES])  # which is used again and again, or once
@pytest.mark.parametrize("weight_mode", ["single", "fused"])
@pytest.mark.parametrize("scheme", ["hf", "xlstm_large"])
def test_what_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, weight_mode: str, buffer: int
) -> None:
    monkeypatch.setattr(staging, "BUFFER_BYTES", buffer)
    save_pretrained(small_model(dtype=torch.bfloat16, **WIDE), tmp_path, scheme, max_shard_bytes=2 << 20)
    for dtype in (None, torch.float16, torch.float32):
        cpu_weights = load_pretrained(tmp_path, dtype, "cpu", weight_mode, progress=False).state_dict()
        gpu_weights = load_pretrained(tmp_path, dtype, DEVICE, weight_mode, progress=False).state_dict()
        assert cpu_weights.keys() == gpu_weights.keys()
        for name, x in gpu_weights.items():
            assert x.device.type == torch.device(DEVICE).type and torch.equal(x.cpu(), cpu_weights[name]), name


@pytest.mark.parametrize("bits", [8, 4])
def test_what_is_loaded_of_few_bits(tmp_path: Path, bits: int) -> None:
    model, _ = quantize(small_model(dtype=torch.bfloat16, weight_mode="fused", **WIDE), bits, progress=False)
    save_pretrained(model, tmp_path)
    gpu_model, x = load_pretrained(tmp_path, "auto", DEVICE, "fused", progress=False), tokens(2, LENGTH, 301)
    for name, weights in model.state_dict().items():
        assert torch.equal(gpu_model.state_dict()[name].cpu(), weights), name
    with torch.no_grad():
        cpu_logits = load_pretrained(tmp_path, "auto", "cpu", "fused", progress=False)(x)[0]
        actual = gpu_model(x.to(DEVICE))[0].cpu()
    assert relative(actual, cpu_logits) <= 8 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reading(dtype: torch.dtype) -> None:
    """Logits and the state after a prompt; and after it in two parts."""
    model, x = small_model(dtype=dtype, mode="inference", return_last_states=True, **WIDE), tokens(3, LENGTH, 301)
    with torch.no_grad():
        true, true_state = copy.deepcopy(model).double()(x)
        plain, plain_state = model(x)
        gpu_model = on_device(model)
        actual, state = gpu_model(x.to(DEVICE))
        first, between = gpu_model(x[:, :70].to(DEVICE))
        second, _ = gpu_model(x[:, 70:].to(DEVICE), between)
    no_worse(actual, plain, true)
    no_worse(torch.cat((first, second), 1), plain, true)
    for n, layer in true_state.items():
        for a, b, c in zip(state[n], plain_state[n], layer, strict=True):
            no_worse(a, b, c)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chunks_in_graphs(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one shape are captured, without states and with, and have the bits of chunks that are not."""
    model, captures, original = on_device(small_model(dtype=dtype, **WIDE)), [], decode_engine.captured

    def captured(call: Callable) -> Callable:
        captures.append(call)
        return original(call)

    monkeypatch.setattr(decode_engine, "captured", captured)
    for seed in range(4):
        state, want_state = None, None
        for chunk in tokens(3, 4 * 40, 301, seed=seed).to(DEVICE).split(40, 1):
            with torch.no_grad():
                want, want_state = model._read(chunk, want_state)
            actual, state = model.read(chunk, state, replay=True)
            assert torch.equal(actual, want)
        assert state is not None and want_state is not None
        assert all(torch.equal(a, b) for n in state for a, b in zip(state[n], want_state[n], strict=True))
    assert len(captures) == 2


@pytest.mark.parametrize("rows", [1, 9, 64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_a_step_with_a_chunk_in_a_graph(dtype: torch.dtype, rows: int) -> None:
    """Beside the CPU; captured and replayed it has the bits of the call by itself, and masked rows those of before."""
    model = small_model(dtype=dtype, **WIDE)
    wide, gpu_model = copy.deepcopy(model).double(), on_device(model)
    mask = torch.arange(rows) % 4 != 3
    first: dict[int, Any] = {}
    results: list[list[list[Tensor]]] = [[], [], []]  # of float64, the CPU and the GPU
    for turn in range(3):
        x, chunk = tokens(rows, 1, 301, seed=turn)[:, 0], tokens(1, 40, 301, seed=turn)
        for found, one in zip(results, (wide, model, gpu_model), strict=True):
            device = one.embedding.weight.device
            state = first.setdefault(id(one), one.read(tokens(rows, 30, 301).to(device))[1])
            before = copied(state)
            of_chunk = one.read(tokens(1, 5, 301, seed=9).to(device))[1]
            again = copied(state), copied(of_chunk)
            given = [part.to(device) for part in (x, mask, chunk, torch.arange(40).unsqueeze(0) >= 5 * turn)]
            logits = one.step_and_read(given[0], state, given[1], given[2], of_chunk, given[3], True)
            eager = one.step_and_read(given[0], again[0], given[1], given[2], again[1], given[3])
            for kept, other in zip((state, of_chunk), again, strict=True):
                assert all(torch.equal(a, b) for n in kept for a, b in zip(kept[n], other[n], strict=True))
            assert all(torch.equal(a, b) for a, b in zip(logits, eager, strict=True))
            for n, layer in state.items():
                assert all(torch.equal(a[~given[1]], b[~given[1]]) for a, b in zip(layer, before[n], strict=True))
            states = [layer for s in (state, of_chunk) for layer in s.values()]
            parts = [*logits, *(torch.cat([layer[n].flatten() for layer in states]) for n in range(3))]
            found.append([part.clone().flatten() for part in parts])
    # Over all turns and blocks: one small tensor's rounding on the CPU may be little by luck.
    for true, plain, actual in zip(*(map(torch.cat, zip(*one, strict=True)) for one in results), strict=True):
        no_worse(actual, plain, true)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_sequences(dtype: torch.dtype) -> None:
    """Logits and the states of sequences in one row, each compared with itself alone; and a step of all of them."""
    model = small_model(dtype=dtype, mode="inference", return_last_states=True, **WIDE)
    parts = [tokens(1, length, 301, seed=length) for length in (70, 1, 3, LENGTH)]
    row = torch.cat(parts, 1)
    ends = torch.tensor([0, *(part.shape[1] for part in parts)]).cumsum(0)
    with torch.no_grad():
        wide, gpu_model = copy.deepcopy(model).double(), on_device(model)
        true, plain = [wide(part) for part in parts], [model(part) for part in parts]
        actual, state = gpu_model(row.to(DEVICE), cu_seqlens=ends.to(DEVICE))
        no_worse(actual, torch.cat([x for x, _ in plain], 1), torch.cat([x for x, _ in true], 1))
        for n, layer in state.items():
            for part in range(3):
                a, b = (torch.cat([last[n][part] for _, last in outputs]) for outputs in (plain, true))
                no_worse(layer[part], a, b)
        following = row[0, ends[1:] - 1]
        truth = torch.cat([wide.step(token[None], last) for token, (_, last) in zip(following, true, strict=True)])
        cpu_logits = torch.cat(
            [model.step(token[None], last) for token, (_, last) in zip(following, plain, strict=True)]
        )
        no_worse(gpu_model.step(following.to(DEVICE), state), cpu_logits.to(dtype), truth)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_prefill_then_steps_at_every_split(dtype: torch.dtype) -> None:
    """The worst split is no worse than the CPU's worst: at one of them n all but cancels."""
    model, x = small_model(dtype=dtype, mode="inference", return_last_states=True, **WIDE), tokens(2, 13, 301)
    with torch.no_grad():
        logits, last = copy.deepcopy(model).double()(x)
        true = [logits, logits, *(part for n in sorted(last) for part in last[n])]
        errors = []
        for one_model, to in ((model, "cpu"), (on_device(model), DEVICE)):
            outputs = [
                [at_once, one_by_one, *(part for n in sorted(state) for part in state[n])]
                for _, at_once, one_by_one, state in at_every_split(one_model, x.to(to))
            ]
            assert all(part.device.type == torch.device(to).type for parts in outputs for part in parts)
            errors.append([max(relative(parts[j].cpu(), right) for parts in outputs) for j, right in enumerate(true)])
    for plain, actual in zip(*errors, strict=True):
        assert actual <= 2 * plain + 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_k": 40, "repetition_penalty": 1.1}], ids=str)
def test_the_same_text_however_it_is_asked_for(options: dict[str, Any], dtype: torch.dtype) -> None:
    """Twice, streamed and in a batch; in bfloat16, whose prompts round otherwise in company, in a batch of its own."""
    model, prompts = on_device(small_model(dtype=dtype, **WIDE)), [[5, 6, 7], [8], [9, 10, 11, 12, 13], [14, 15]]
    arguments = {"eos": (), **options}
    batch = generate(model, prompts, 24, seed=3, **arguments)
    assert torch.equal(generate(model, prompts, 24, seed=3, **arguments).tokens, batch.tokens)
    for row, prompt in enumerate(prompts):
        streamed: list[int] = []
        alone = generate(
            model, [prompt], 24, seed=3 + row, **arguments, callback=lambda step, to=streamed: to.extend(step.tolist())
        )
        assert alone.tokens[0].tolist() == streamed
        if dtype == torch.float32:
            assert torch.equal(alone.tokens[0], batch.tokens[row])


def gradients(model: xLSTMLarge, x: Tensor) -> dict[str, Tensor]:
    logits = model(x[:, :-1])
    logits = logits[0] if isinstance(logits, tuple) else logits
    model.zero_grad()
    nn.functional.cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_gradients() -> None:
    model, x = small_model(**WIDE), tokens(2, LENGTH, 301)
    true, plain = gradients(copy.deepcopy(model).double(), x), gradients(model, x)
    actual = gradients(on_device(model), x.to(DEVICE))
    assert actual.keys() == true.keys() and len(actual) > 20
    worst = max(relative(plain[name], true[name]) for name in true)  # gates all but cancel: over all of them
    for name, gradient in actual.items():
        assert relative(gradient.cpu(), true[name]) <= 2 * worst, name


def losses(device: str, autocast: bool, seed: int | None = None) -> list[float]:
    """The losses of some steps of AdamW, which at first makes a full step of each rounding error. With a seed each
    weight is moved by about half a unit of bfloat16's last place."""
    model, x = small_model(**WIDE), tokens(4, LENGTH, 301).to(device)
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + 2**-9 * torch.randn(weight.shape, generator=generator))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    results = []
    for _ in range(6):
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            logits = model(x[:, :-1])
        logits = logits[0] if isinstance(logits, tuple) else logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.append(float(loss.detach()))
    return results


def test_training() -> None:
    """Under autocast the loss falls as in float32: no further from it than twice what autocast does on the CPU at its
    worst, of some runs whose weights differ by roundings, since one run can be close by luck."""
    true, actual = losses("cpu", False), losses(DEVICE, True)
    plain = [losses("cpu", True, seed) for seed in (None, 0, 1, 2)]
    assert actual[-1] < 0.5 * actual[0]

    def apart(x: list[float]) -> float:
        return max(abs(a - b) for a, b in zip(x, true, strict=True))

    assert apart(actual) <= 2 * max(map(apart, plain)), (true, plain, actual)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_transformers_model(dtype: torch.dtype) -> None:
    model, x = hf_model(dtype, **HF_CONFIG), tokens(2, LENGTH, 301)
    from xlstm_hip import hf

    with torch.no_grad():
        plain = model(x).logits
        true = hf.accelerate(copy.deepcopy(model).double())(x).logits
        gpu_model = hf.accelerate(on_device(model))
        no_worse(gpu_model(x.to(DEVICE)).logits, plain, true)
    if dtype == torch.float32:
        greedy = {"max_new_tokens": 12, "do_sample": False}
        for beams in (1, 4):
            want = model.generate(x, **greedy, num_beams=beams, use_cache=beams == 1)  # it cannot reorder its own
            assert torch.equal(gpu_model.generate(x.to(DEVICE), **greedy, num_beams=beams).cpu(), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_left_padding(dtype: torch.dtype) -> None:
    """A padded row, and what is written behind it, as an unpadded one."""
    model, x = hf_model(dtype, **HF_CONFIG), tokens(2, LENGTH, 301)
    from xlstm_hip import hf

    mask = torch.ones_like(x)
    mask[1, :20] = 0
    with torch.no_grad():
        true = hf.accelerate(copy.deepcopy(model).double())(x[1:, 20:]).logits
        plain = model(x[1:, 20:]).logits
        gpu_model, padded = hf.accelerate(on_device(model)), x.masked_fill(mask == 0, 1).to(DEVICE)
        no_worse(gpu_model(padded, attention_mask=mask.to(DEVICE)).logits[1:, 20:], plain, true)
    if dtype == torch.float32:
        greedy = {"max_new_tokens": 12, "do_sample": False}
        actual = gpu_model.generate(padded, attention_mask=mask.to(DEVICE), **greedy).cpu()
        assert torch.equal(actual[1:, LENGTH:], model.generate(x[1:, 20:], **greedy)[:, LENGTH - 20 :])

# SPDX-License-Identifier: Apache-2.0
"""accelerate() on transformers' xLSTM: the same numbers and texts, and what transformers' own lacks.

Runs with the xlstm package, whose blocks transformers then uses, and once more without it.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from support.peer_models import hf_model, relative, tokens

transformers = pytest.importorskip("transformers")
from transformers.models.xlstm import modeling_xlstm  # noqa: E402

from xlstm_hip.integrations import hf  # noqa: E402
from xlstm_hip.models import decode_engine, save_pretrained, xLSTMLarge, xLSTMLargeConfig  # noqa: E402
from xlstm_hip.models.quantize import quantize  # noqa: E402

WITHOUT = "WITHOUT_XLSTM_PACKAGE"
RELEASED = {  # what the released config.json names
    "chunkwise_kernel": "chunkwise--triton_limit_chunk",
    "sequence_kernel": "native_sequence__triton",
    "step_kernel": "triton",
}
LENGTH = 33


def greedy(model: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
    return model.generate(x, max_new_tokens=12, do_sample=False, **options)


def cache_of(out: Any) -> Any:
    return getattr(out, hf.CACHE)


@pytest.mark.parametrize("name", ["cache", "cache_params"])
def test_a_cache_goes_by_both_of_its_names(name: str) -> None:
    """transformers 5.24 hands the backbone `cache`, older ones `cache_params`."""
    backbone, x = hf.accelerate(hf_model()).backbone, tokens(2, 7)
    with torch.no_grad():
        first = cache_of(backbone(x[:, :5], use_cache=True))
        out = backbone(x[:, 5:], use_cache=True, **{name: first})
        want = backbone(x, use_cache=False).last_hidden_state[:, 5:]
    assert cache_of(out) is first
    assert relative(out.last_hidden_state, want) < 1e-5
    with pytest.raises(ValueError, match="cache: expected either cache or cache_params, got both"):
        backbone(x, cache=first, cache_params=first)


def test_which_blocks_these_are() -> None:
    assert modeling_xlstm.external_xlstm or WITHOUT in os.environ or not modeling_xlstm.is_xlstm_available()


@pytest.mark.rows("ci")
@pytest.mark.skipif(WITHOUT in os.environ, reason="this is the run without it")
def test_without_the_xlstm_package() -> None:
    if not modeling_xlstm.external_xlstm:
        pytest.skip("the xlstm package is not installed: this run was the one without it")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, WITHOUT: "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("op_rows", [64, 1])  # of two: the engine's op, or the engine's call of the layers
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_decode_engine_makes_single_tokens(
    dtype: torch.dtype, op_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_engine, "MOST_ROWS", op_rows)
    model, x = hf.accelerate(hf_model(dtype)), tokens(2, 6)
    calls, original = [], decode_engine.DecodeEngine.step
    monkeypatch.setattr(decode_engine.DecodeEngine, "step", lambda *arguments: calls.append(1) or original(*arguments))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    with torch.no_grad():
        true = hf.accelerate(hf_model(torch.float64))(x, attention_mask=mask).logits
        last = model(x, attention_mask=mask).logits
        cache = cache_of(model(x[:, :4], attention_mask=mask[:, :4], use_cache=True))
        for t in (4, 5):
            out = model(x[:, t : t + 1], attention_mask=mask[:, : t + 1], cache_params=cache, use_cache=True)
            assert relative(out.logits[:, 0], true[:, t]) <= 2 * relative(last[:, t], true[:, t]) + 1e-6
        assert len(calls) == 2 and int(cache.seqlen_offset) == 6
        text = greedy(model, x)
        assert len(calls) > 10
        hf.restore(model)
        if dtype == torch.float32:
            assert torch.equal(greedy(model, x), text)


def test_states_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache holds c in bfloat16, and the engine's step calls the layers, which write it in place."""
    model, x = hf.accelerate(hf_model(inference_state_dtype="bfloat16")), tokens(2, 6)
    calls, original = [], decode_engine.DecodeEngine.step
    monkeypatch.setattr(decode_engine.DecodeEngine, "step", lambda *arguments: calls.append(1) or original(*arguments))
    with torch.no_grad():
        true = hf.accelerate(hf_model(torch.float64))(x).logits
        cache = cache_of(model(x[:, :3], use_cache=True))
        places = [part.data_ptr() for state in cache.rnn_state.values() for part in state]
        for t in (3, 4, 5):
            out = model(x[:, t : t + 1], cache_params=cache, use_cache=True)
            assert relative(out.logits[:, 0], true[:, t]) < 2**-6
    assert len(calls) == 3
    assert places == [part.data_ptr() for state in cache.rnn_state.values() for part in state]
    assert [part.dtype for part in cache.rnn_state[0]] == [torch.bfloat16, torch.float32, torch.float32]
    assert "states of bfloat16" in str(hf.status(model).no_engine)


def test_logits_within_float32() -> None:
    model, x = hf_model(), tokens(2, LENGTH)
    with torch.no_grad():
        before = model(x).logits
        true = hf.accelerate(hf_model(torch.float64))(x).logits
        actual = hf.accelerate(model)(x).logits
        assert relative(actual, true) <= 2 * relative(before, true)
        assert relative(before, true) < 1e-5
        assert torch.equal(hf.restore(model)(x).logits, before)


def test_logits_within_bfloat16() -> None:
    model, x = hf_model(torch.bfloat16), tokens(2, LENGTH)
    with torch.no_grad():
        true = hf.accelerate(hf_model(torch.bfloat16).double())(x).logits
        before = model(x).logits
        assert relative(hf.accelerate(model)(x).logits, true) <= 2 * relative(before, true)


@pytest.mark.parametrize("weight_mode", ["single", "fused"])
def test_generate_is_unchanged(weight_mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its initialisation of fused weights fails; every weight is set afterwards anyway.
    monkeypatch.setattr(modeling_xlstm.xLSTMPreTrainedModel, "_init_weights", lambda self, module: None)
    model, x = hf_model(weight_mode=weight_mode), tokens(2, LENGTH)
    want = greedy(model, x)
    hf.accelerate(model)
    assert torch.equal(greedy(model, x), want)
    assert torch.equal(greedy(model, x, use_cache=False), want)
    torch.manual_seed(5)
    drawn = model.generate(x, max_new_tokens=12, do_sample=True, top_k=20)
    hf.restore(model)
    torch.manual_seed(5)
    assert torch.equal(model.generate(x, max_new_tokens=12, do_sample=True, top_k=20), drawn)


def test_beam_search_is_transformers_own() -> None:
    """With a cache, where transformers has none that it could reorder and must go without."""
    model, x = hf_model(), tokens(2, LENGTH)
    want = greedy(model, x, num_beams=4, use_cache=False)
    actual = greedy(hf.accelerate(model), x, num_beams=4)
    assert torch.equal(actual, want)
    assert not torch.equal(actual, greedy(model, x))


def test_left_padding_changes_nothing() -> None:
    model, x = hf.accelerate(hf_model(torch.float64)), tokens(2, LENGTH)
    mask = torch.ones_like(x)
    mask[1, :20] = 0
    padded = x.masked_fill(mask == 0, 1)
    with torch.no_grad():
        alone = model(x[1:, 20:]).logits
        assert relative(model(padded, attention_mask=mask).logits[1:, 20:], alone) < 1e-12
    actual = greedy(model, padded, attention_mask=mask)
    assert torch.equal(actual[1:, LENGTH:], greedy(model, x[1:, 20:])[:, LENGTH - 20 :])
    assert torch.equal(actual[:1], greedy(model, x[:1]))
    with pytest.raises(ValueError, match="attention_mask: expected shape"):
        model(x, attention_mask=mask[:, 1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_states_are_float32(dtype: torch.dtype) -> None:
    model, x = hf.accelerate(hf_model(dtype)), tokens(2, LENGTH)
    with torch.no_grad():
        cache = cache_of(model(x, use_cache=True))
        passed_cache = modeling_xlstm.xLSTMCache(model.config, 2, dtype=dtype)
        model(x, use_cache=True, cache_params=passed_cache)
        for one_cache in (cache, passed_cache):
            assert {s.dtype for state in one_cache.rnn_state.values() for s in state} == {torch.float32}
            positions = [s.data_ptr() for s in one_cache.rnn_state[0]]
            model(x[:, :1], use_cache=True, cache_params=one_cache)
            assert [s.data_ptr() for s in one_cache.rnn_state[0]] == positions
            assert int(one_cache.seqlen_offset) == LENGTH + 1


def test_long_prompts_in_slices() -> None:
    model, x = hf.accelerate(hf_model(torch.float64)), tokens(1, 50)
    with torch.no_grad():
        full = model(x, use_cache=True)
        model.config.max_inference_chunksize = 16
        sliced = model(x, use_cache=True)
    assert relative(sliced.logits, full.logits) < 1e-12


def test_training() -> None:
    """Loss and gradients are those of transformers' own model, with gradient checkpointing too."""
    model, x = hf_model(torch.float32), tokens(2, LENGTH)
    model.train()
    found = []
    for step in ("theirs", "ours", "checkpointed"):
        if step == "ours":
            hf.accelerate(model)
        if step == "checkpointed":
            model.activation_checkpointing_enable()
        model.zero_grad()
        loss = model(x, labels=x, use_cache=False).loss
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for gradients in found[1:]:
        assert all(relative(a, b) < 2e-3 for a, b in zip(gradients, found[0], strict=True))
    assert all(torch.allclose(a, b) for a, b in zip(found[1], found[2], strict=True))


def test_gradients_flow_through_the_cache() -> None:
    model, x = hf.accelerate(hf_model(torch.float64)), tokens(1, 20)
    found = []
    for cut in (None, 8):
        model.zero_grad()
        if cut is None:
            logits = model(x).logits
        else:
            first = model(x[:, :cut], use_cache=True)
            second = model(x[:, cut:], use_cache=True, cache_params=cache_of(first))
            logits = torch.cat((first.logits, second.logits), 1)
        logits.sin().sum().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    # Logits are float32 in transformers, whatever the model is.
    assert all(relative(a, b) < 1e-5 for a, b in zip(*found, strict=True))


def test_hidden_states() -> None:
    model, x = hf_model(), tokens(1, LENGTH)
    with torch.no_grad():
        want = model(x, output_hidden_states=True).hidden_states
        actual = hf.accelerate(model)(x, output_hidden_states=True).hidden_states
    assert len(actual) == len(want)
    assert all(relative(a, b) < 1e-5 for a, b in zip(actual, want, strict=True))


def test_released_kernel_names_load(tmp_path: Path) -> None:
    hf_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | RELEASED))
    loaded = transformers.AutoConfig.from_pretrained(tmp_path)
    assert loaded.chunkwise_kernel == RELEASED["chunkwise_kernel"]
    with pytest.raises(Exception, match="Did you mean 'triton'"):
        transformers.xLSTMConfig(step_kernel="tritn")
    if not modeling_xlstm.external_xlstm:  # the package would look for Triton
        model, x = transformers.xLSTMForCausalLM.from_pretrained(tmp_path), tokens(1, LENGTH)
        with torch.no_grad():
            assert relative(hf.accelerate(model)(x).logits, hf_model()(x).logits) < 1e-5


def test_quantised_checkpoints_are_refused(tmp_path: Path) -> None:
    """It would make their weights up, with a warning."""
    model, _ = quantize(xLSTMLarge(xLSTMLargeConfig(64, 2, 2, 97, ffn_proj_factor=1.0)), 4, progress=False)
    save_pretrained(model, tmp_path)
    with pytest.raises(ValueError, match="model type `xlstm_hip_quantised` but Transformers does not recognize"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_pickled_and_copied() -> None:
    model, x = hf.accelerate(hf_model()), tokens(1, LENGTH)
    with torch.no_grad():
        want = model(x).logits
        for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert torch.equal(again(x).logits, want) and type(again.backbone) is type(model.backbone)
            assert type(hf.restore(again).backbone) is transformers.models.xlstm.modeling_xlstm.xLSTMModel


def test_the_gate_that_the_configuration_names_is_kept() -> None:
    names = ("chunkwise--native_siging_autograd", "native_sequence__native_siging", "native_siging")
    model, x = hf_model(), tokens(1, LENGTH)
    model.config.chunkwise_kernel = names[0]  # mlstm_kernels makes no such model where there is no Triton
    with torch.no_grad():
        want = hf.accelerate(model, **dict(zip(hf.KERNEL_KINDS, names, strict=True)))(x).logits
        assert relative(hf.accelerate(model)(x).logits, want) < 1e-5
        assert relative(hf.accelerate(hf_model())(x).logits, want) > 0.1


def hang(module: Any) -> list[int]:
    """As the hooks of a device map hang on a module: before what its forward was."""
    calls: list[int] = []
    module._old_forward = module.forward

    def forward(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return module._old_forward(*args, **options)

    module.forward = functools.update_wrapper(forward, module._old_forward)
    return calls


def test_device_maps() -> None:
    x = tokens(2, LENGTH)
    with torch.no_grad():
        expected, fast = hf_model()(x).logits, hf.accelerate(hf_model())(x).logits
        for late in (False, True):
            model = hf_model()
            if late:
                hf.accelerate(model)
            calls = [hang(module) for module in model.modules() if not isinstance(module, torch.nn.ModuleList)]
            if not late:
                hf.accelerate(model)
            assert relative(model(x).logits, fast) < 1e-5
            assert sum(map(len, calls)) > len(calls) // 2
            assert torch.equal(hf.restore(model)(x).logits, expected)
    model = hf_model()
    model.backbone.blocks[1].forward = lambda *arguments: arguments
    with pytest.raises(ValueError, match="model: expected transformers' own forward of xLSTMBlock, got another"):
        hf.accelerate(model)
    assert type(model.backbone) is type(hf_model().backbone)


def test_reentrant_checkpointing_leaves_a_given_cache() -> None:
    gradients = []
    for reentrant in (False, True):
        model, x = hf.accelerate(hf_model()), tokens(1, 9)
        with torch.no_grad():
            cache = cache_of(model.backbone(x, use_cache=True))
        model.train().gradient_checkpointing_enable({"use_reentrant": reentrant})
        embedded = model.backbone.embeddings(x).detach().requires_grad_()
        model.backbone(inputs_embeds=embedded, use_cache=False, cache_params=cache).last_hidden_state.sum().backward()
        gradients.append(embedded.grad)
    assert relative(gradients[1], gradients[0]) < 1e-6


def test_kernels_by_name_and_wrong_calls() -> None:
    model, x = hf_model(), tokens(1, LENGTH)
    with torch.no_grad():
        want = hf.accelerate(model)(x).logits
        native = {"chunkwise_kernel": "chunkwise--native_autograd", "sequence_kernel": "fused", "step_kernel": "native"}
        assert relative(hf.accelerate(model, **native)(x).logits, want) < 1e-5
    assert type(model.backbone).__name__ == "xLSTMModel"
    with pytest.raises(TypeError, match="expected chunkwise_kernel, sequence_kernel, step_kernel or none"):
        hf.accelerate(model, step_kernel="native")
    with pytest.raises(ValueError, match="Unknown mLSTM step kernel 'fast'"):
        hf.accelerate(model, **native | {"step_kernel": "fast"})
    hf.restore(model)
    with pytest.raises(ValueError, match=r"model: expected one that accelerate\(\) was called on"):
        hf.restore(model)
    with pytest.raises(TypeError, match="model: expected transformers' xLSTMForCausalLM or xLSTMModel, got Linear"):
        hf.accelerate(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"input_ids: expected 2 dimensions \(B, S\), got 1"):
        hf.accelerate(model)(x[0])
    with pytest.raises(ImportError, match=r"expected transformers 5\.13 or newer, got 5\.9\.0"):
        hf._check_version("5.9.0")


def test_the_class_of_an_accelerated_backbone_makes_accelerated_ones(tmp_path: Path) -> None:
    """Libraries copy a model by type(model)(config), and read it again by type(model).from_pretrained."""
    plain = hf_model().backbone
    model, x = hf.accelerate(copy.deepcopy(plain)), tokens(2, 9)
    new_model = type(model)(plain.config).eval()
    new_model.load_state_dict(plain.state_dict())
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = model(x).last_hidden_state
        for again in (new_model, loaded, hf.accelerate(new_model), copy.deepcopy(loaded)):
            assert type(again) is type(model) and torch.equal(again(x).last_hidden_state, expected)
        assert type(hf.restore(new_model)) is type(plain)
        assert relative(new_model(x).last_hidden_state, expected) < 1e-4


class Prefill(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        out = self.model(x, use_cache=True)
        return out.logits, cache_of(out)


def test_a_cache_goes_through_torch_export() -> None:
    model, x = hf.accelerate(hf_model()), tokens(2, 9)
    with torch.no_grad():
        logits, cache = torch.export.export(Prefill(model), (x,)).module()(x)
        expected = model(x, use_cache=True)
        assert relative(logits, expected.logits) < 1e-5 and isinstance(cache, hf.FloatStateCache)
        token = logits[:, -1:].argmax(-1)
        follows = model(token, cache_params=cache, use_cache=True).logits
        assert relative(follows, model(token, cache_params=cache_of(expected), use_cache=True).logits) < 1e-5


def test_generate_goes_on_with_a_cache_of_an_earlier_call() -> None:
    """generate asks whether a cache can be compiled, which transformers' own does not say."""
    model, x = hf.accelerate(hf_model()), tokens(1, 9)
    with torch.no_grad():
        cache = cache_of(model(x[:, :-1], use_cache=True))
        assert torch.equal(greedy(model, x[:, -1:], **{hf.CACHE: cache}), greedy(model, x)[:, 8:])

# SPDX-License-Identifier: Apache-2.0
"""The parts of xlstm.xlstm_large beside the real ones: constructors, names of weights, results; generate_tokens."""

from __future__ import annotations

import dataclasses
import inspect
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.compat_parts import compat_part
from support.peer_models import NATIVE, SMALL, official, relative, scramble, small_model, tokens
from xlstm_hip.mlstm.backend import mLSTMBackendConfig
from xlstm_hip.models import MultiHeadLayerNorm, norms, xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.models.hooks import known

PARTS = compat_part("xlstm_large")
CONTENTS = PARTS.contents()
CLOSE = 1e-12  # relative, in float64, where both are the same formulas
NORMS = ("NormLayer", "RMSNorm", "LayerNorm", "MultiHeadRMSNorm", "MultiHeadLayerNorm")


def real(module: str) -> ModuleType:
    pytest.importorskip("xlstm", reason="the official package comes with the test extra")
    import importlib

    return importlib.import_module(f"xlstm.xlstm_large.{module}")


def parameters(function: Any) -> list[tuple[str, Any]]:
    """Names and defaults, of functions the names."""
    parameters_of_function = inspect.signature(function).parameters.items()
    return [(name, getattr(p.default, "__name__", p.default)) for name, p in parameters_of_function]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_equal_weights(model: nn.Module, peer: nn.Module) -> tuple[nn.Module, nn.Module]:
    scramble(model)
    assert {n: x.shape for n, x in model.state_dict().items()} == {n: x.shape for n, x in peer.state_dict().items()}
    peer.load_state_dict(model.state_dict())
    return model.double(), peer.double()


@torch.no_grad()
@pytest.mark.parametrize("name", NORMS[1:])
@pytest.mark.parametrize(("weight", "bias"), [(True, True), (True, False), (False, True), (False, False)])
def test_norms(name: str, weight: bool, bias: bool) -> None:
    sizes = (3, 8) if "MultiHead" in name else (24,)
    peer_class, norm_class = getattr(real("components"), name), CONTENTS[".components"][name]
    assert parameters(norm_class.__init__) == parameters(peer_class.__init__)
    # Their float32 reductions take float64 down to float32.
    options = {"eps": 0.1, "use_weight": weight, "use_bias": bias, "force_float32_reductions": False}
    norm, peer = with_equal_weights(norm_class(*sizes, **options), peer_class(*sizes, **options))
    x = random(2, 5, *sizes)
    assert relative(norm(x), peer(x)) < CLOSE
    if "MultiHead" not in name:
        assert relative(norm(x[0, 0]), peer(x[0, 0])) < CLOSE
    assert isinstance(norm, CONTENTS[".components"]["NormLayer"])
    if "MultiHead" in name:
        assert isinstance(norm, CONTENTS[".components"][name.removeprefix("MultiHead")])
        with pytest.raises(ValueError, match=r"x: expected shape \(B, S, NH, DH\) = \(B, S, 3, 8\), got"):
            norm(random(2, 5, 8, 3))


def test_the_model_is_made_of_them() -> None:
    model = small_model(use_bias=True)
    block = model.backbone.blocks[0]
    assert type(block.mlstm_layer.multihead_norm) is CONTENTS[".components"]["MultiHeadLayerNorm"] is MultiHeadLayerNorm
    assert type(block.norm_ffn) is type(model.backbone.out_norm) is CONTENTS[".model"]["RMSNorm"]
    assert isinstance(model.backbone, CONTENTS[".model"]["xLSTMLargeBlockStack"])
    with pytest.raises(TypeError, match="abstract"):
        norms.NormLayer(3)
    for wrong, words in (({"eps": -1.0}, "eps: expected a finite"), ({"use_bias": 2}, "use_bias: expected one of")):
        with pytest.raises(ValueError, match=words):
            norms.RMSNorm(3, **wrong)


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_another_norm_in_a_block_is_called(whose: str) -> None:
    """It is not taken for the RMSNorm that the block's function would compute in its place."""
    model, x = small_model(mode="inference", return_last_states=True).double(), tokens(1, 5)
    classes = norms if whose == "ours" else real("components")
    block = model.backbone.blocks[1]
    block.norm_ffn = classes.LayerNorm(SMALL["embedding_dim"], eps=1e-6, force_float32_reductions=False).double()
    assert known(block.norm_mlstm) and not known(block.norm_ffn)
    reference = small_model(mode="inference", return_last_states=True).double()
    reference.backbone.blocks[1].norm_ffn = nn.LayerNorm(SMALL["embedding_dim"], eps=1e-6).double()
    with torch.no_grad():
        (actual, state), (want, state_too) = model(x), reference(x)
        assert relative(actual, want) < CLOSE
        assert relative(model(x[:, :1], state)[0], reference(x[:, :1], state_too)[0]) < CLOSE


@torch.no_grad()
@pytest.mark.parametrize("weight_mode", ["single", "fused"])
@pytest.mark.parametrize("use_bias", [False, True])
def test_feed_forward(weight_mode: str, use_bias: bool) -> None:
    fields = {**SMALL, "weight_mode": weight_mode, "use_bias": use_bias}
    layer = CONTENTS[".model"]["FeedForward"](xLSTMLargeConfig(**fields))
    layer, peer = with_equal_weights(layer, real("model").FeedForward(real("model").xLSTMLargeConfig(**fields)))
    assert layer.up_proj_dim == peer.up_proj_dim
    x = random(2, 5, SMALL["embedding_dim"])
    assert relative(layer(x), peer(x)) < CLOSE


def layers(**changes: Any) -> tuple[Any, Any]:
    """mLSTMLayer here and there."""
    fields = {"embedding_dim": 64, "num_heads": 4, "norm_reduction_force_float32": False, **changes}
    backend = {"chunk_size": 16, "eps": 0.01, "mode": "train", "inference_state_dtype": "float32"}
    peer_backend = real("model").mLSTMBackendConfig(**backend, **NATIVE)
    layer = CONTENTS[""]["mLSTMLayer"](
        CONTENTS[""]["mLSTMLayerConfig"](**fields, mlstm_backend=mLSTMBackendConfig(**backend))
    )
    peer = real("model").mLSTMLayer(real("model").mLSTMLayerConfig(**fields, mlstm_backend=peer_backend))
    return with_equal_weights(layer, peer)


@pytest.mark.parametrize("changes", [{}, {"weight_mode": "fused"}, {"use_bias": True}, {"gate_soft_cap": 3.0}], ids=str)
def test_mlstm_layer(changes: dict[str, Any]) -> None:
    layer, peer = layers(**changes)
    x = random(2, 32, 64)
    (y, state), (y_too, state_too) = layer(x), peer(x)
    assert relative(y, y_too) < CLOSE
    assert all(relative(a, b) < CLOSE for a, b in zip(state, state_too, strict=True))
    with torch.no_grad():
        before = [s.clone() for s in state]
        again = layer(x, state)
        assert all(map(torch.equal, before, state)), "a given state stays as it is, as theirs does"
        assert relative(again[0], peer(x, state_too)[0]) < CLOSE


def test_mlstm_layer_config() -> None:
    config_class, peer = CONTENTS[""]["mLSTMLayerConfig"], real("model").mLSTMLayerConfig
    assert [f.name for f in dataclasses.fields(config_class)] == [f.name for f in dataclasses.fields(peer)]
    fields, peer_fields = (dataclasses.asdict(of(embedding_dim=64, num_heads=4)) for of in (config_class, peer))
    assert fields.pop("mlstm_backend") == peer_fields.pop("mlstm_backend") | {
        "chunkwise_kernel": "chunkwise--fused", "sequence_kernel": "fused", "step_kernel": "fused",
    }  # fmt: skip
    assert fields == peer_fields
    with pytest.raises(ValueError, match="qk_dim_factor: expected embedding_dim"):
        config_class(embedding_dim=64, num_heads=5)
    with pytest.raises(TypeError, match="mlstm_backend: expected mLSTMBackendConfig, got dict"):
        config_class(embedding_dim=64, num_heads=4, mlstm_backend={})


def test_a_layer_without_normaliser() -> None:
    """normalize_siging reaches the kernel, in steps, too."""
    outputs = []
    for normalize in (True, False):
        backend = mLSTMBackendConfig(chunkwise_kernel="chunkwise--fused_siging", normalize_siging=normalize)
        layer = PARTS.mLSTMLayer(PARTS.mLSTMLayerConfig(embedding_dim=64, num_heads=4, mlstm_backend=backend))
        scramble(layer)
        layer.multihead_norm = nn.Flatten(2)  # else it makes good what the normaliser divides by
        layer.double()
        with torch.no_grad():
            x = random(1, 6, 64)
            full, _ = layer(x)
            begun, state = layer(x[:, :5])
            assert relative(layer(x[:, 5:], state)[0], full[:, 5:]) < CLOSE
        outputs.append(full)
    assert relative(*outputs) > 0.1


def test_the_block_leaves_a_given_state_as_it_is() -> None:
    config = xLSTMLargeConfig(**SMALL, mode="inference")
    block, x = PARTS.mLSTMBlock(config), torch.randn(1, 4, SMALL["embedding_dim"])
    with torch.no_grad():
        _, state = block(x)
        before = [s.clone() for s in state]
        assert torch.equal(block(x[:, :1], state)[0], block(x[:, :1], state)[0])
    assert all(map(torch.equal, before, state))


# ---- generate


GENERATE = CONTENTS[".generate"]


def generating_model() -> xLSTMLarge:
    return small_model(mode="inference", return_last_states=True)


@pytest.mark.parametrize("name", ["generate_tokens", "get_sampling_fn", "greedy_sampling"])
def test_generate_has_their_signatures(name: str) -> None:
    assert parameters(GENERATE[name]) == parameters(getattr(real("generate"), name))


def test_generate_tokens_writes_what_theirs_does() -> None:
    model, x = generating_model(), tokens(2, 7)
    peer_module = real("generate")
    for prefill in (x, x[:, 0], None):
        calls = [
            module(model.forward, prefill, 5, bos_token_id=4, batch_size_no_prefill=3, device="cpu")
            for module in (GENERATE["generate_tokens"], peer_module.generate_tokens)
        ]
        assert torch.equal(calls[0][0], calls[1][0]) and calls[0][0].shape == (3 if prefill is None else 2, 5)
        for block, state in calls[0][1].items():
            assert all(map(torch.equal, state, calls[1][1][block]))
    # and on the official model
    peer = official(model, mode="inference")
    expected, _ = peer_module.generate_tokens(peer.forward, x, 5, device="cpu")
    assert torch.equal(GENERATE["generate_tokens"](peer.forward, x, 5, device="cpu")[0], expected)


def test_generate_tokens_goes_on_and_fills_a_tensor() -> None:
    model, x = generating_model(), tokens(1, 7)
    generate_tokens = GENERATE["generate_tokens"]
    full, _ = generate_tokens(model.forward, x, 6, device="cpu")
    begun, state = generate_tokens(model.forward, x, 2, device="cpu")
    buffer = torch.empty(1, 4, dtype=torch.int64)
    continued, _ = generate_tokens(model.forward, begun[:, -1], 4, state=state, generated_tokens=buffer, device="cpu")
    assert continued is buffer and torch.equal(torch.cat((begun, continued), 1), full)
    assert generate_tokens(model.forward, x, 0, state=state, device="cpu") == (None, state)
    assert not torch.equal(generate_tokens(model.forward, x, 6, lambda y: y.argmin(-1), device="cpu")[0], full)
    with pytest.raises(ValueError, match=r"generated_tokens: expected shape \(B, max_length\) = \(1, 3\), got"):
        generate_tokens(model.forward, x, 3, generated_tokens=buffer, device="cpu")
    with pytest.raises(ValueError, match="max_length: expected an integer >= 0, got -1"):
        generate_tokens(model.forward, x, -1, device="cpu")
    with pytest.raises(ValueError, match="sampling_fn_name: expected one of 'greedy', got 'nucleus'"):
        GENERATE["get_sampling_fn"]("nucleus")
    assert GENERATE["get_sampling_fn"]("greedy") is GENERATE["greedy_sampling"]


# ---- what is not offered


def test_without_xlstm_its_other_names_say_that_they_are_not_offered() -> None:
    finder = compat_part("modules").Offered({"xlstm": PARTS.package()}, ("xlstm.xlstm_block_stack",))
    module = ModuleType("xlstm")
    finder.exec_module(module)
    words = "xlstm.xlstm_block_stack: xlstm_hip.compat has xlstm.xlstm_large alone. sLSTM is not offered yet"
    with pytest.raises(ModuleNotFoundError, match=words):
        finder.find_spec("xlstm.xlstm_block_stack")
    with pytest.raises(ImportError, match="xlstm.xLSTMBlockStack: .* sLSTM is not offered yet"):
        _ = module.xLSTMBlockStack
    assert module.__version__ and not hasattr(module, "something_else")
    assert finder.find_spec("xlstm").loader is finder and finder.find_spec("xlstm.other") is None


def test_every_public_name_of_the_real_package_is_answered() -> None:
    """Offered or refused by name."""
    pytest.importorskip("xlstm")
    import xlstm

    public = {name for name in vars(xlstm) if not name.startswith("_")} - {"xlstm_large"}
    assert public <= {*PARTS.NOT_OFFERED_NAMES, *PARTS.NOT_OFFERED_MODULES}
    for module in ("model", "components", "generate", "utils"):
        defined = [
            name
            for name, value in vars(real(module)).items()
            if not name.startswith("_") and getattr(value, "__module__", "").startswith("xlstm.")
        ]
        assert set(defined) <= set(CONTENTS[f".{module}"]), module

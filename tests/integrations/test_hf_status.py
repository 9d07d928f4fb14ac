# SPDX-License-Identifier: Apache-2.0
"""status(): which path each part takes and why; leaving the decode engine is logged once."""

from __future__ import annotations

import logging

import pytest
import torch

from support.peer_models import hf_model, small_model, tokens

pytest.importorskip("transformers")
from xlstm_hip import hf  # noqa: E402
from xlstm_hip._core import warn_once  # noqa: E402

FAST = """\
model      float32 on cpu
kernels    chunkwise--fused, fused, fused
runs in    this package's kernels
blocks     norms, gates and feed-forwards fused
one token  the decode engine"""


def test_the_fast_path() -> None:
    status = hf.status(hf.accelerate(hf_model()))
    assert status.fast and str(status) == FAST
    status = small_model().status()
    assert status.fast and str(status) == FAST


def test_hooks_are_named() -> None:
    model = hf.accelerate(hf_model())
    handle = model.backbone.blocks[1].norm_ffn.register_forward_hook(lambda *arguments: None)
    status = hf.status(model)
    assert status.unfused == {"blocks.1.norm_ffn": "a hook, or a forward of its own"} and not status.fast
    assert status.no_engine == "blocks.1.norm_ffn has a forward hook, or a forward of its own"
    assert "           blocks.1.norm_ffn: a hook, or a forward of its own\n" in str(status)
    handle.remove()
    assert hf.status(model).fast
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *arguments: None)
    try:
        status = hf.status(model)
        assert status.no_engine == "hooks for all modules" and len(status.unfused) == 12
    finally:
        handle.remove()


def test_dtypes_kernels_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "float64" in str(hf.status(hf.accelerate(hf_model(torch.float64))).no_engine)
    native = small_model(step_kernel="native").status()
    assert native.no_engine == "kernels chunkwise--fused and native, states of float32"
    assert small_model(inference_state_dtype="bfloat16").status().no_engine is not None
    monkeypatch.setenv("XLSTM_HIP_BACKEND", "reference")
    status = hf.status(hf.accelerate(hf_model()))
    assert status.plain_torch == "XLSTM_HIP_BACKEND=reference" == status.no_engine
    assert "runs in    plain torch: XLSTM_HIP_BACKEND=reference" in str(status)


def test_models_that_are_not_accelerated() -> None:
    with pytest.raises(ValueError, match=r"model: expected one that accelerate\(\) was called on"):
        hf.status(hf_model())
    with pytest.raises(TypeError, match="model: expected transformers' xLSTMForCausalLM"):
        hf.status(torch.nn.Linear(2, 2))


def test_leaving_the_engine_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warn_once, "_logged", set())
    model = hf.accelerate(hf_model())
    with caplog.at_level(logging.WARNING, "xlstm_hip"):
        model.generate(tokens(1, 4), max_new_tokens=5, do_sample=False)
        assert not caplog.records
        model.backbone.blocks[0].ffn.register_forward_hook(lambda *arguments: None)
        for _ in range(2):
            model.generate(tokens(1, 4), max_new_tokens=5, do_sample=False)
    (record,) = caplog.records
    assert (
        "single tokens run layer by layer, not on the decode engine: blocks.0.ffn has a forward hook" in record.message
    )

# SPDX-License-Identifier: Apache-2.0
"""Users' code type-checks: the examples of README and the quickstart, and calls whose result depends on a flag.

mypy runs here as scripts/test's stage lint runs it, with the same settings, so it finds that stage's cache.
"""

from __future__ import annotations

import inspect
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
from test_readme import ROOT, blocks

import xlstm_hip
from xlstm_hip import attention, models

mypy = pytest.importorskip("mypy.api")

# One file each: later blocks of the quickstart use names of earlier ones.
EXAMPLES = {f"readme_{n}": code for n, code in enumerate(blocks("README.md", "python"))}
EXAMPLES["quickstart"] = "\n".join(blocks("docs/quickstart.md", "python"))

RESULTS = """
import torch
from torch import Tensor
from typing_extensions import assert_type
from xlstm_hip import mLSTMBackend, mLSTMBackendConfig, get_mlstm_kernel, get_optimal_kernel_config, mlstm_interface
from xlstm_hip import wrap_chunkwise__arbitrary_sequence_length as any_length, wrap_chunkwise__pad_zeros as pad_zeros
from xlstm_hip.attention import FlashAttention, flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func
from xlstm_hip.attention import flash_attn_varlen_func, flash_attn_varlen_kvpacked_func
from xlstm_hip.attention import flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache
from xlstm_hip.models import load_pretrained

State = tuple[Tensor, Tensor, Tensor]
x: Tensor
some: list[Tensor]
flag: bool

assert_type(mlstm_interface(x, x, x, x, x), Tensor)
assert_type(mlstm_interface(*some), Tensor)
assert_type(mlstm_interface(*some, return_last_states=False, layout="bshd"), Tensor)
assert_type(mlstm_interface(*some, return_last_states=True, plan=None), tuple[Tensor, State])
assert_type(mlstm_interface(x, x, x, x, x, return_last_states=flag), Tensor | tuple[Tensor, State])
h, (c, n, m) = mlstm_interface(x, x, x, x, x, None, None, None, True, 1e-6)

kernel = get_mlstm_kernel("chunkwise--fused")
assert_type(pad_zeros(kernel, x, x, x, x, x), Tensor)
assert_type(pad_zeros(kernel, x, x, x, x, x, return_last_states=True), tuple[Tensor, State])
assert_type(any_length(kernel, kernel, kernel, x, x, x, x, x), tuple[Tensor, State])
assert_type(any_length(kernel, kernel, kernel, x, x, x, x, x, return_last_states=False), Tensor)

backend = mLSTMBackend(mLSTMBackendConfig(**get_optimal_kernel_config(1, 1), mode="inference"))
assert_type(backend(x, x, x, x, x), Tensor | tuple[Tensor, State])
assert_type(backend(query=x, key=x, value=x, igate=x, fgate=x, return_last_states=True), tuple[Tensor, State])
assert_type(backend(x, x, x, x, x, return_last_states=False), Tensor)

Probs = tuple[Tensor, Tensor, Tensor]
assert_type(flash_attn_func(x, x, x, causal=True), Tensor)
assert_type(flash_attn_func(x, x, x, return_attn_probs=True), Probs)
assert_type(flash_attn_func(x, x, x, return_attn_probs=flag), Tensor | Probs)
assert_type(flash_attn_kvpacked_func(x, x), Tensor)
assert_type(flash_attn_qkvpacked_func(x, 0.0, None, True), Tensor)
assert_type(flash_attn_varlen_func(x, x, x, x, x, 1, 1, block_table=x), Tensor)
assert_type(flash_attn_varlen_func(x, x, x, x, x, 1, 1, return_attn_probs=True), Probs)
assert_type(flash_attn_varlen_kvpacked_func(x, x, x, x, 1, 1), Tensor)
assert_type(flash_attn_varlen_qkvpacked_func(x, x, 1, return_attn_probs=True), Probs)
assert_type(flash_attn_with_kvcache(x, x, x, cache_seqlens=0), Tensor)
assert_type(flash_attn_with_kvcache(x, x, x, return_softmax_lse=True), tuple[Tensor, Tensor])
assert_type(FlashAttention(causal=True)(x, x, x), Tensor)

model = load_pretrained("models/demo", torch.bfloat16)
model(x).argmax(-1)  # a tuple with return_last_states
assert_type(model.generate(x, 5), tuple[Tensor, dict[int, State]])
assert_type(model.generate(x, 0), tuple[None, dict[int, State] | None])
"""


def errors_in(folder: Path, sources: dict[str, str]) -> str:
    for name, code in sources.items():
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    files = [str(folder / f"{name}.py") for name in sources]
    settings = ("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"))
    report, failed, status = mypy.run([*settings, "--no-error-summary", *files])
    assert status < 2, report + failed
    return report


def test_examples_and_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # the settings name folders
    assert errors_in(tmp_path, {**EXAMPLES, "results": RESULTS}) == ""


def test_planted_errors_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    planted = "import torch\nfrom xlstm_hip import mlstm_interface\nx = torch.ones(1)\n"
    planted += "mlstm_interface(x, x, x, x, x, return_last_states=True).square()\n"
    planted += "mlstm_interface(x, x, x, x, x, layout=1)\n"
    found = errors_in(tmp_path, {"planted": planted})
    assert 'planted.py:4: error: "tuple[Tensor, tuple[Tensor, Tensor, Tensor]]" has no attribute "square"' in found
    assert "planted.py:5: error: No overload variant" in found


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.get_overloads is of Python 3.11")
def test_overloads_have_the_parameters_of_their_function() -> None:
    """Type checkers see the overloads alone: one without a parameter refuses a call that works."""
    found = {}
    for module in (xlstm_hip, attention, models):
        for name in module.__all__:
            x = getattr(module, name)
            for f in (x, *(vars(x).values() if isinstance(x, type) else ())):
                overloads = typing.get_overloads(f) if inspect.isfunction(f) else ()
                different = [set(parameters(f)) ^ set(parameters(o)) for o in overloads]
                found |= {f"{f.__module__}.{f.__qualname__}": set().union(*different)} if overloads else {}
    assert len(found) > 10
    assert {name: missing for name, missing in found.items() if missing} == {}


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)

# SPDX-License-Identifier: Apache-2.0
"""The torch.compile kernels as they are compiled, and the arguments they refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.compiled_kernels import SCHEDULE, SIZES, check, make
from support.reference import doubled, outputs_and_gradients, relative_error, truth
from xlstm_hip.mlstm.compiled import (
    metal,
    mlstm_chunkwise__native_compiled_autograd,
    mlstm_chunkwise__queued_compiled_steps,
    mlstm_chunkwise__ray_compiled_steps,
    mlstm_recurrent_sequence__metal,
    mlstm_recurrent_step__metal,
)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (mlstm_chunkwise__native_compiled_autograd, {}),
        pytest.param(mlstm_chunkwise__queued_compiled_steps, SCHEDULE, marks=pytest.mark.rows("ci")),
    ],
)
def test_compiled_kernels_match_the_truth(kernel: Callable[..., Any], options: dict[str, int]) -> None:
    check(kernel, *make(*SIZES), chunk_size=8, **options)


@pytest.mark.parametrize(
    "kernel",
    [
        mlstm_chunkwise__native_compiled_autograd,
        pytest.param(mlstm_chunkwise__queued_compiled_steps, marks=pytest.mark.rows("ci")),
    ],
)
def test_other_sizes_and_eps_compile_nothing_new(kernel: Callable[..., Any]) -> None:
    inputs, cotangents = make(*SIZES)
    outputs_and_gradients(kernel, inputs, cotangents, return_last_states=True, chunk_size=8)
    with torch._dynamo.config.patch(error_on_recompile=True):
        check(kernel, *make(2, 4, 55, 9, 7), chunk_size=16)
        inputs, cotangents = make(4, 4, 8, 4, 4)
        outputs_and_gradients(kernel, inputs, cotangents, return_last_states=True, chunk_size=4, eps=1e-3)


def test_compiled_step_and_sequence_for_metal() -> None:
    def sequence(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **states: Tensor) -> Any:
        states.pop("return_last_states", None)
        return metal._compiled_sequence(q, k, v, i, f, tuple(states.values()), 1e-6)

    check(sequence, *make(2, 3, 5, 4, 6))
    inputs, cotangents = make(2, 3, 4, 4, 6, torch.bfloat16)
    outputs, _ = outputs_and_gradients(sequence, inputs, cotangents)
    expected, _ = truth(**doubled(inputs))
    assert outputs["h"].dtype == torch.bfloat16 and outputs["c"].dtype == outputs["m"].dtype == torch.float32
    # float32 but for the last rounding
    assert relative_error(outputs["h"], expected) < torch.finfo(torch.bfloat16).eps


def test_metal_runs_on_apple_gpus_only() -> None:
    inputs, _ = make(1, 2, 3, 4, 4)
    with pytest.raises(RuntimeError, match="'mps', got 'cpu'"):
        mlstm_recurrent_sequence__metal(**inputs)
    token = {name[0]: x[:, :, 0] if x.dim() == 4 and name in "qkv" else x for name, x in inputs.items()}
    token |= {name: inputs[name][:, :, :1] for name in "if"}
    with pytest.raises(RuntimeError, match="'mps', got 'cpu'"):
        mlstm_recurrent_step__metal(**token)


def test_a_missing_cpp_compiler_is_named(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "from xlstm_hip.mlstm.compiled import mlstm_chunkwise__native_compiled_autograd as kernel\n"
        "x = torch.ones(2, 2, 3, 4)\n"
        "kernel(x, x, x, x[..., 0], x[..., 0])\n"
    )
    environment = os.environ | {"CXX": str(tmp_path / "missing"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert "RuntimeError: torch.compile cannot build this kernel: no C++ compiler was found" in done.stderr


def test_import_compiles_nothing_and_leaves_ray_alone() -> None:
    program = "import sys, xlstm_hip.mlstm.compiled; print({'ray', 'torch._inductor.compile_fx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("kernel", [mlstm_chunkwise__queued_compiled_steps, mlstm_chunkwise__ray_compiled_steps])
@pytest.mark.parametrize("name", ["chunk_size", "heads_per_band", "workers"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True])
def test_bad_schedule_arguments_are_named(kernel: Callable[..., Any], name: str, value: Any) -> None:
    inputs, _ = make(1, 2, 3, 4, 4)
    with pytest.raises(ValueError, match=f"{name}: expected an integer >= 1, got"):
        kernel(**inputs, **{name: value})


@pytest.mark.parametrize(
    ("kernel", "unknown"),
    [
        (mlstm_chunkwise__native_compiled_autograd, "workers"),
        (mlstm_chunkwise__queued_compiled_steps, "normalize"),
        (mlstm_chunkwise__ray_compiled_steps, "streams"),
        (mlstm_recurrent_sequence__metal, "normalize"),
    ],
)
def test_unknown_keywords_and_bad_tensors_are_named(kernel: Callable[..., Any], unknown: str) -> None:
    inputs, _ = make(1, 2, 3, 4, 4)
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
        kernel(**inputs, **{unknown: 1})
    with pytest.raises(ValueError, match="m_initial: expected all three states or none"):
        kernel(**(inputs | {"m_initial": None}))

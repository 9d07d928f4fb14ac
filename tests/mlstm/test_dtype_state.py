# SPDX-License-Identifier: Apache-2.0
"""dtype_state, mlstm_kernels' keyword of step and sequence kernels, at its position too: after eps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from xlstm_hip import get_mlstm_kernel, get_mlstm_sequence_kernel, get_mlstm_step_kernel

STEPS = ("native", "fused", "fused_siging", "triton")
SEQUENCES = ("native_sequence__native", "fused", "fused_siging", "native_sequence__triton")


def one_token() -> list[Tensor]:
    tokens = [torch.randn(2, 3, size) for size in (4, 4, 5, 1, 1)]
    return [*tokens, torch.randn(2, 3, 4, 5), torch.rand(2, 3, 4) + 1, torch.zeros(2, 3, 1)]


@pytest.mark.parametrize("name", STEPS)
def test_a_step(name: str) -> None:
    step, inputs = get_mlstm_step_kernel(name), one_token()
    before = [x.clone() for x in inputs]
    h, (c, n, m) = step(*inputs, 1e-6, torch.bfloat16)
    assert all(map(torch.equal, inputs, before)), "the tenth argument once was in_place"
    assert (c.dtype, n.dtype, m.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    h_wide, (c_wide, n_wide, m_wide) = step(*inputs)
    assert torch.equal(h, h_wide) and torch.equal(m, m_wide)
    assert torch.equal(c, c_wide.bfloat16()) and torch.equal(n, n_wide.bfloat16()) and c_wide.dtype == torch.float32


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype_state": True}, "dtype_state: expected one of torch.float32, .*, got True"),
        (
            {"dtype_state": torch.bfloat16, "in_place": True},
            "dtype_state: expected torch.float32, which in_place writes",
        ),
    ],
)
def test_a_wrong_one(name: str, options: dict[str, Any], words: str) -> None:
    inputs = one_token()
    before = [x.clone() for x in inputs]
    with pytest.raises(ValueError, match=words):
        get_mlstm_step_kernel(name)(*inputs, **options)
    assert all(map(torch.equal, inputs, before))


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence(name: str) -> None:
    inputs = [torch.randn(2, 3, 7, 4) for _ in range(3)] + [torch.randn(2, 3, 7) for _ in range(2)]
    kernel = get_mlstm_sequence_kernel(name)
    h, states = kernel(*inputs, return_last_states=True, dtype_state=torch.float16)
    assert [x.dtype for x in states] == [torch.float16, torch.float16, torch.float32]
    expected, wide = kernel(*inputs, return_last_states=True)
    assert torch.equal(h, expected) and torch.equal(states[0], wide[0].half())


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize(
    ("dtype", "dtype_state"), [(torch.float32, torch.float64), (torch.float64, torch.float32)], ids=str
)
def test_m_is_as_the_kernel_has_it(name: str, dtype: torch.dtype, dtype_state: torch.dtype) -> None:
    """As the wrappers and mLSTMBackend return it."""
    inputs = [torch.randn(2, 3, 7, 4, dtype=dtype) for _ in range(3)]
    inputs += [torch.randn(2, 3, 7, dtype=dtype) for _ in range(2)]
    _, states = get_mlstm_sequence_kernel(name)(*inputs, return_last_states=True, dtype_state=dtype_state)
    assert [x.dtype for x in states] == [dtype_state, dtype_state, dtype]


def test_xl_chunk_has_tuning_keywords_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    inputs = [torch.randn(1, 2, 64, 16) for _ in range(3)] + [torch.randn(1, 2, 64) for _ in range(2)]
    kernel = get_mlstm_kernel("chunkwise--triton_xl_chunk")
    tuned = kernel(*inputs, chunk_size_inter=128, siz_b_L_parallel=64, num_stages_intra=1)
    assert torch.equal(tuned, kernel(*inputs))
    assert "alone has a use for chunk_size_inter, siz_b_L_parallel, num_stages_intra" in caplog.text
    with pytest.raises(TypeError, match="siz_b_L_paralel"):
        kernel(*inputs, siz_b_L_paralel=64)

# SPDX-License-Identifier: Apache-2.0
"""States in blocks of vLLM's memory: in place or copied, for either layout."""

from __future__ import annotations

import types
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("vllm", reason="vLLM has an environment of its own: ./scripts/test vllm")

from xlstm_hip.integrations.vllm.states import BatchRows, BatchRowsBuilder, BlockState  # noqa: E402

SHAPES = ((2, 4, 3), (2, 4), (2, 1))
BLOCKS = 9


def memory(other_layers_between: bool) -> Tensor:
    """As vLLM has it for a layer: (blocks, 1, 1, bytes)."""
    size = 4 * sum(map(prod, SHAPES))
    whole = torch.zeros(BLOCKS, 3 if other_layers_between else 1, size, dtype=torch.int8)
    return whole[:, -1].view(BLOCKS, 1, 1, size)


def rows_of(lengths: list[int], read: list[int], blocks: list[int]) -> BatchRows:
    """What the builder makes of requests with tokens in this batch, tokens before it, and blocks; the last pads it."""
    builder = object.__new__(BatchRowsBuilder)
    builder.device = torch.device("cpu")
    lengths_, read_, blocks_ = (torch.tensor([*x, 0]) for x in (lengths, read, blocks))
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), lengths_.cumsum(0)))
    batch: Any = types.SimpleNamespace(
        query_start_loc_cpu=starts.int(),
        seq_lens_cpu_upper_bound=(lengths_ + read_).int(),
        block_table_tensor=blocks_.int().unsqueeze(1),
    )
    return builder.build(0, batch)


def test_which_rows_step_and_which_are_packed() -> None:
    made = rows_of([1, 1, 1, 5, 1, 2], [7, 0, 3, 0, 4, 8], [6, 4, 5, 1, 8, 2])
    stepping, packed = made.stepping, made.packed
    assert stepping is not None and packed is not None
    assert torch.as_tensor(stepping.tokens).tolist() == [1, 2, 0]  # by block
    assert stepping.blocks.tolist() == [4, 5, 6] and stepping.run == slice(4, 7) and stepping.new.tolist() == [0]
    assert packed.tokens == slice(3, 11) and packed.offsets.tolist() == [0, 5, 6, 8]
    assert packed.blocks.tolist() == [1, 8, 2] and packed.run is None and packed.new.tolist() == [0]
    assert rows_of([1, 1], [3, 3], [5, 7]).packed is None
    assert rows_of([2], [0], [5]).stepping is None


@pytest.mark.parametrize("between", (False, True), ids=("layer after layer", "block after block"))
@pytest.mark.parametrize("blocks", ([2, 3, 4], [4, 2, 3], [1, 5, 8], [7]), ids=str)
def test_states_are_read_and_written(between: bool, blocks: list[int]) -> None:
    layer = BlockState(SHAPES)
    layer.bind_kv_cache(memory(between))
    for part in layer.kv_cache:
        part.copy_(torch.randn(part.shape))
    before = [x.clone() for x in layer.kv_cache]
    rows = rows_of([1] * len(blocks), [0, *[9] * (len(blocks) - 1)], blocks).stepping
    assert rows is not None
    state = layer.read(rows)
    in_place = state[0].data_ptr() == layer.kv_cache[0][rows.blocks[0]].data_ptr()
    assert in_place == (rows.run is not None and (not between or len(blocks) == 1))
    for x, old in zip(state, before, strict=True):
        assert x.is_contiguous()
        for row, block in enumerate(rows.blocks.tolist()):
            torch.testing.assert_close(x[row], torch.zeros_like(x[row]) if block == blocks[0] else old[block])
        x.add_(1)
    layer.write(rows, state)
    for x, cached, old in zip(state, layer.kv_cache, before, strict=True):
        torch.testing.assert_close(cached[rows.blocks], x)
        others = [block for block in range(BLOCKS) if block not in blocks]
        torch.testing.assert_close(cached[others], old[others])

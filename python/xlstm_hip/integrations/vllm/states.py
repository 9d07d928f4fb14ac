# SPDX-License-Identifier: Apache-2.0
"""States in the blocks of vLLM's cache. A request has one block, whose number it keeps until it ends or is preempted;
then vLLM has its text read again, into another block.

One batch holds requests at any point. Those with one token in it go first, which vLLM's runner sees to: they are the
rows of a decode step. The others, parts of prompts, are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backend import AttentionBackend, AttentionMetadataBuilder
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from ...models.language_model import State
from ...models.mlstm_call import LayerState
from .config import STATE_DTYPE


class Rows(NamedTuple):
    """Some requests of a batch."""

    tokens: slice | Tensor  # of the batch, by place
    blocks: Tensor  # (N) int64
    run: slice | None  # the blocks, where they follow each other; None on a GPU, where the host would have to wait
    new: Tensor  # (some of N) int64: those whose state is the initial one, whatever is in the block
    offsets: Tensor  # (N + 1) int32: where the tokens of each begin in those of all N


@dataclass
class BatchRows:
    """What the builder makes of a batch, and all layers share."""

    stepping: Rows | None
    packed: Rows | None


class StateBackend(AttentionBackend):
    """For vLLM, which asks each layer with a cache for one; its builder is all that is used."""

    @staticmethod
    def get_name() -> str:
        return "XLSTM_STATE"

    @staticmethod
    def get_impl_cls() -> Any:
        raise NotImplementedError("an xLSTM has no attention")

    @staticmethod
    def get_builder_cls() -> type[BatchRowsBuilder]:
        return BatchRowsBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        return True


class BatchRowsBuilder(AttentionMetadataBuilder[BatchRows]):
    # Single tokens go first. No graphs of vLLM's, which is the default: the host decides which rows there are.
    reorder_batch_threshold: int | None = 1

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> BatchRows:
        batch = common_attn_metadata
        starts: Tensor = batch.query_start_loc_cpu
        lengths = starts.diff()
        count = int((lengths > 0).sum())  # rows of no token pad the batch
        # Exact for all but guesses of speculative decoding, by vLLM's own word.
        is_new = batch.seq_lens_cpu_upper_bound[: len(lengths)] == lengths
        longer = (lengths[:count] > 1).nonzero()
        stepping = int(longer[0]) if len(longer) else count
        blocks = batch.block_table_tensor[:, 0].long()
        rows = (self._rows(starts, is_new, blocks, *part) for part in ((0, stepping), (stepping, count)))
        return BatchRows(*rows)

    def _rows(self, starts: Tensor, is_new: Tensor, blocks: Tensor, begin: int, end: int) -> Rows | None:
        if begin == end:
            return None
        first, last = int(starts[begin]), int(starts[end])
        tokens: slice | Tensor = slice(first, last)
        blocks, is_new = blocks[begin:end], is_new[begin:end]
        run = None
        if blocks.device.type == "cpu":
            if last - first == end - begin:  # any order will do for single tokens
                blocks, order = blocks.sort()
                tokens, is_new = order + first, is_new[order]
            run = _run_of(blocks)
        offsets = (starts[begin : end + 1] - first).to(self.device)
        return Rows(tokens, blocks, run, is_new.nonzero().flatten().to(self.device), offsets)


def _run_of(blocks: Tensor) -> slice | None:
    first, count = int(blocks[0]), len(blocks)
    return slice(first, first + count) if blocks.tolist() == list(range(first, first + count)) else None


class BlockState(MambaBase):
    """The cache of one block of the model. vLLM finds it by its name among those that have one."""

    def __init__(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        self.shapes = shapes
        self.kv_cache: tuple[Tensor, ...] = ()

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return self.shapes

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return (STATE_DTYPE,) * len(self.shapes)

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return MambaAttentionBackendEnum.LINEAR

    def get_attn_backend(self) -> type[AttentionBackend]:
        return StateBackend

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """c of all blocks, then n, then m, where vLLM has the three of one block together: blocks that follow each
        other then have their states in one tensor, which a step reads and overwrites in place. Nothing else reads this
        memory.
        """
        if not kv_cache.is_contiguous():  # a layout with other layers' blocks in between
            return super().bind_kv_cache(kv_cache)
        memory, blocks, begin = kv_cache.view(-1).view(STATE_DTYPE), kv_cache.shape[0], 0
        parts = []
        for shape in self.shapes:
            end = begin + blocks * prod(shape)
            parts.append(memory[begin:end].view(blocks, *shape))
            begin = end
        self.kv_cache = tuple(parts)

    def _in_place(self, rows: Rows) -> LayerState | None:
        if rows.run is None:
            return None
        c, n, m = (x[rows.run] for x in self.kv_cache)
        return (c, n, m) if c.is_contiguous() else None

    def read(self, rows: Rows) -> LayerState:
        """The rows' states (N, ...), contiguous; new ones are zero."""
        c, n, m = self._in_place(rows) or (x.index_select(0, rows.blocks) for x in self.kv_cache)
        if len(rows.new):
            for x in (c, n, m):
                x.index_fill_(0, rows.new, 0)
        return c, n, m

    def write(self, rows: Rows, state: LayerState) -> None:
        in_place = self._in_place(rows)
        if in_place is None:
            for cached, x in zip(self.kv_cache, state, strict=True):
                cached.index_copy_(0, rows.blocks, x)
            return
        for own, x in zip(in_place, state, strict=True):
            if own.data_ptr() != x.data_ptr():  # else it was overwritten where it lay
                own.copy_(x)


def read_states(layers: Sequence[BlockState], rows: Rows) -> State:
    return {number: layer.read(rows) for number, layer in enumerate(layers)}


def write_states(layers: Sequence[BlockState], rows: Rows, state: State) -> None:
    for number, layer in enumerate(layers):
        layer.write(rows, state[number])

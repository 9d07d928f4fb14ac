# SPDX-License-Identifier: Apache-2.0
"""The model in vLLM's form: weights by transformers' names, rows of a batch to the kernels, hidden states back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.models.interfaces import HasInnerState, IsAttentionFree

from ...models.blocks import mLSTMBlock
from ...models.decode_engine import DecodeEngine, Numbers, engine_runs_kernels, may_step, usable_engine
from ...models.language_model import State
from ...models.mapping import EMBEDDING, HF_EMBEDDING, CheckpointError
from ...models.xlstm_large import xLSTMLarge, xLSTMLargeBlockStack
from .config import STATE_DTYPE, config_of, state_shapes
from .states import BatchRows, BlockState, Rows, read_states, write_states


class XLSTMForCausalLM(nn.Module, HasInnerState, IsAttentionFree):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = config_of(vllm_config)
        device = torch.device(vllm_config.device_config.device)
        with torch.device("meta"):  # the values come by load_weights
            self.language_model = xLSTMLarge(self.config)
        self.language_model.to_empty(device=device).requires_grad_(False)
        self.language_model.select_optimal_kernels(1, 1)
        shapes, layers = state_shapes(self.config), vllm_config.compilation_config.static_forward_context
        self.states = [BlockState(shapes) for _ in range(self.config.num_blocks)]
        names = [f"{prefix}{'.' if prefix else ''}blocks.{number}.state" for number in range(len(self.states))]
        layers.update(zip(names, self.states, strict=True))
        self._rows_by = names[0]  # all layers have the same

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> tuple[tuple[int, ...], ...]:
        return state_shapes(config_of(vllm_config))

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> tuple[torch.dtype, ...]:
        return (STATE_DTYPE,) * 3

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Returns the names that it has filled; vLLM's loader complains of the others."""
        parameters, filled = dict(self.language_model.named_parameters()), set()
        for name, x in weights:
            own = EMBEDDING if name == HF_EMBEDDING else name
            parameter = parameters.get(own)
            if parameter is None:
                raise CheckpointError(f"{name}: in the checkpoint but not in the model")
            if parameter.shape != x.shape:
                raise CheckpointError(f"{name}: expected shape {tuple(parameter.shape)}, got {tuple(x.shape)}")
            parameter.copy_(x)
            filled.add(f"language_model.{own}")
        return filled

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.language_model.embedding(input_ids)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,  # (T)
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """The head's input (T, D) of the batch's tokens. An xLSTM has no use for positions; the other two come with
        options that XLSTMConfig refuses.
        """
        tokens = input_ids.long()
        by_name = get_forward_context().attn_metadata
        if by_name is None:  # vLLM warms up, without a cache
            return self._through_blocks(tokens.unsqueeze(0), None, None)[0].squeeze(0)
        rows: BatchRows = by_name[self._rows_by]
        embedding = self.language_model.embedding.weight
        hidden = embedding.new_zeros(len(tokens), embedding.shape[1])
        if rows.stepping is not None:
            hidden[rows.stepping.tokens] = self._stepped(tokens[rows.stepping.tokens], rows.stepping)
        if rows.packed is not None:
            hidden[rows.packed.tokens] = self._read(tokens[rows.packed.tokens], rows.packed)
        return hidden

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        return self.language_model.logits(hidden_states)

    def _read(self, tokens: Tensor, rows: Rows) -> Tensor:
        """Parts of prompts, one after the other in `tokens`."""
        state = read_states(self.states, rows)
        hidden, state = self._through_blocks(tokens.unsqueeze(0), state, rows.offsets)
        write_states(self.states, rows, state)
        return hidden.squeeze(0)

    def _stepped(self, tokens: Tensor, rows: Rows) -> Tensor:
        """One token of each row, by the decode engine if it takes the model."""
        state = read_states(self.states, rows)
        config, model = self.config, self.language_model

        def layers(out: Tensor, tokens: Tensor, keep: Tensor | None) -> None:
            out.copy_(self._through_blocks(tokens.unsqueeze(1), state, None)[0].squeeze(1))

        tensors = [x for layer in state.values() for x in layer]
        kernels = engine_runs_kernels(config.chunkwise_kernel, config.step_kernel, config.inference_state_dtype)
        engine = None
        if kernels and may_step(tokens, tensors, config.inference_state_dtype):
            engine = usable_engine(self, self._new_engine)
        if engine is None:
            hidden = model.embedding.weight.new_empty(len(tokens), config.embedding_dim)
            layers(hidden, tokens, None)
        else:
            numbers = Numbers(config.num_heads, config.eps, config.gate_soft_cap or 0.0, 0.0)
            hidden = engine.step(tokens, tensors, None, numbers, layers)
        write_states(self.states, rows, state)
        return hidden.to(model.embedding.weight.dtype)

    def _through_blocks(self, x: Tensor, state: State | None, offsets: Tensor | None) -> tuple[Tensor, State]:
        """Tokens (B, S) -> the head's input (B, S, D), and the states; given ones are overwritten."""
        return self.language_model.hidden(x, state, None, state is not None, offsets)

    def _new_engine(self) -> DecodeEngine:
        model = self.language_model
        backbone: xLSTMLargeBlockStack = model.backbone
        parts = ((backbone, "blocks"), (model, "embedding"), (backbone, "out_norm"))
        return DecodeEngine(*parts, None, lambda block: type(block).forward is mLSTMBlock.forward)

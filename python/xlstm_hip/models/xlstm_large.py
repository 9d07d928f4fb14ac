# SPDX-License-Identifier: Apache-2.0
"""xLSTMLarge: embedding, blocks, norm and head of the official xlstm_large model, on this package's kernels."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .. import layers
from .._core.checks import has_integers, has_rank, has_shape, is_cu_seqlens, is_tensor, one_of
from .._core.device import is_amd_gpu
from ..distributed.collectives import from_last_rank, mean_over_ranks
from ..distributed.context import context_of, group_of
from ..distributed.divided import capped_cross_entropy, is_divided, is_of_some_tokens, whole
from ..mlstm.select import KernelNames, get_optimal_kernel_config
from .blocks import add_and_norm, mLSTMBlock, norm_options, run_block_in_stack, to_be_called
from .checkpoint import read_model, write_model
from .config import xLSTMLargeConfig
from .config_files import SpecialTokens
from .decode_engine import DecodeEngine, Numbers, Then, engine_of, engine_runs_kernels, may_step, usable_engine
from .generation import generate
from .initial_weights import fill_initial_weights
from .language_model import State
from .mlstm_call import LayerState, MLSTMCall, StepAndReadCall
from .norms import RMSNorm
from .quantize import Scheme, count_weights
from .read_graphs import ReadGraphs, StepAndReadInputs, read_graphs_of, suits_graph
from .status import Status, status_of
from .widened_products import product

logger = logging.getLogger("xlstm_hip")
ModelClass = TypeVar("ModelClass", bound="xLSTMLarge")


class xLSTMLargeBlockStack(nn.Module):
    config_class = xLSTMLargeConfig

    def __init__(self, config: xLSTMLargeConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(mLSTMBlock(config) for _ in range(config.num_blocks))
        self.out_norm: nn.Module = nn.Identity()
        if config.add_out_norm:
            self.out_norm = RMSNorm(config.embedding_dim, **norm_options(config))
        self.activation_checkpointing = False

    def forward(
        self,
        x: Tensor,  # (B, S, D)
        state: State | None = None,
        mask: Tensor | None = None,  # (B, S)
        keep_state: bool = False,
        cu_seqlens: Tensor | None = None,  # (N + 1): the sequences of one row; states are of N
        call: Any = None,  # in the place of MLSTMCall; its state is a block's in `state`
    ) -> tuple[Tensor, State]:
        if call is None:
            call = MLSTMCall.of_model(self.config, x, keep_state, cu_seqlens)
        last: State = {}
        y: Tensor | None = None  # of the last block, still to be added to x
        checkpointed = self.activation_checkpointing and torch.is_grad_enabled()
        for number, block in enumerate(self.blocks):
            layer_state = None if state is None else state[number]
            if not checkpointed and not to_be_called(block):
                x, y, new = run_block_in_stack(block, call, x, y, layer_state, mask)
            else:
                x, y = x if y is None else x + y, None
                if checkpointed:
                    x, new = checkpoint(block, x, layer_state, mask, call, use_reentrant=False)
                else:
                    x, new = block(x, layer_state, mask, call)
            if new is not None:
                last[number] = new
        if state is not None and not x.requires_grad:
            state.update(last)  # as the official model does, so that a caller may keep its dict
        if isinstance(self.out_norm, nn.Identity):  # a model without it
            return self.out_norm(x if y is None else x + y), last
        return add_and_norm(self.out_norm, x, y, None)[1], last


class xLSTMLarge(nn.Module):
    """The official xlstm_large model, with the same parameter names, on these kernels."""

    config_class = xLSTMLargeConfig

    def __init__(self, config: xLSTMLargeConfig) -> None:
        super().__init__()
        self.config = config
        embedding = config.vocab_size, config.embedding_dim
        # Weights that are to be read need no values, and torch would import its compiler to draw these without memory.
        on_meta = torch.get_default_device().type == "meta"
        self.embedding = nn.Embedding(*embedding, _weight=torch.empty(embedding) if on_meta else None)
        self.backbone = xLSTMLargeBlockStack(config)
        self.lm_head = nn.Linear(config.embedding_dim, config.vocab_size, bias=False)
        self.special_tokens = SpecialTokens()
        self.quantization: Scheme | None = None  # how its weights are kept, of xlstm_hip.quantize
        self._told_kernels: KernelNames | None = None
        if self.lm_head.weight.device.type != "meta":
            fill_initial_weights(self)

    @classmethod
    def from_pretrained(
        cls: type[ModelClass],
        path: str | os.PathLike[str],
        dtype: torch.dtype | str | None = None,
        device: torch.device | str = "cpu",
        weight_mode: str = "single",
        **options: Any,
    ) -> ModelClass:
        """The model of a checkpoint: a folder, or a name on the Hugging Face hub. The arguments are those of
        load_pretrained.
        """
        return read_model(cls, path, dtype, device, weight_mode, **options)

    def save_pretrained(
        self,
        path: str | os.PathLike[str],
        scheme: str = "hf",
        weight_mode: str | None = None,
        max_shard_bytes: int = 5_000_000_000,
    ) -> None:
        """Writes a checkpoint. The arguments are those of the function save_pretrained."""
        write_model(xLSTMLarge, self, path, scheme, weight_mode, max_shard_bytes)

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """The number of weights; a quantised weight counts as one. The arguments are those of transformers."""
        trained = [p.numel() for p in self.parameters() if p.requires_grad]
        count = sum(trained) if only_trainable else count_weights(self)
        embedding = self.embedding.weight
        counted = embedding.requires_grad or not only_trainable
        return count - (embedding.numel() if exclude_embeddings and counted else 0)

    def forward(
        self,
        x: Tensor,  # (B, S) token ids
        state: State | None = None,
        *,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cp_group: Any = None,
    ) -> Any:  # which of the two, the configuration says
        """Logits (B, S, V), or with config.return_last_states (logits, state).

        state       of an earlier call. Without gradient its tensors are overwritten, as the official model does;
                    with gradient they are left alone and the new ones carry it
        mask        (B, S), False or 0 for padding: such tokens leave the state as it is, wherever they stand
        cu_seqlens  (N + 1) int offsets 0 .. S of N sequences packed in one row (B = 1), each with a state of its own:
                    the state has N rows. On a GPU its values are not checked
        cp_group    a process group, or a distributed.ContextParallel: x and mask are this rank's tokens of rows over
                    its ranks, and so are the logits. cu_seqlens and state are those of the whole, on every rank
        """
        decoded = None
        one_token = x.dim() == 2 and x.shape[1] == 1 and cu_seqlens is None and cp_group is None
        if state is not None and one_token and not torch.is_grad_enabled():
            decoded = self._decoded(x[:, 0], state, None if mask is None else self._checked_mask(mask, x)[:, 0])
        if decoded is not None and state is not None:
            logits, last = decoded.unsqueeze(1).to(self.embedding.weight.dtype), state
        else:
            hidden, last = self.hidden(x, state, mask, cu_seqlens=cu_seqlens, cp_group=cp_group)
            logits = self.logits(hidden)
        return (logits, last) if self.config.return_last_states else logits

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights that are not quantised."""
        return self.embedding.weight.dtype

    @property
    def own_heads(self) -> int:
        """The heads of this rank, which its states are of: all, unless distributed.tensor_parallel has divided them."""
        blocks: Any = self.backbone.blocks
        return blocks[0].mlstm_layer.multihead_norm.num_heads

    @property
    def is_amd(self) -> bool:
        """Whether its weights are on an AMD GPU."""
        return self.device.type == "cuda" and is_amd_gpu(self.device)

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        state: State,
        mask: Tensor | None = None,
        then: Then | None = None,
    ) -> Tensor:
        """One token of each row: tokens (B), mask (B) -> logits (B, V). The state is overwritten.

        then    called with the logits before they are returned. On a GPU it is captured with the step, which then reads
                tokens and mask where they lie in this call, and writes its logits to the same memory in every one

        Runs in float32 on the decode engine (models.decode_engine) if that supports the model, else like forward.
        """
        has_rank("tokens", tokens, 1, "(B)")
        mask = None if mask is None else self._checked_mask(mask, tokens)
        decoded = self._decoded(tokens, state, mask, then)
        if decoded is not None:
            return decoded
        logits = self._stepped_by_layers(tokens, state, mask)
        if then is not None:
            then(logits)
        return logits

    @torch.no_grad()
    def read(
        self,
        x: Tensor,
        state: State | None = None,
        mask: Tensor | None = None,
        replay: bool = False,
        cp_group: Any = None,
    ) -> tuple[Tensor, State]:
        """Tokens (B, S), mask (B, S) -> logits (B, V) of the token after them, and the state. A given state is
        overwritten.

        replay    on a GPU, replay calls of up to 2048 tokens, of a shape that came before, as a graph
                  (models.read_graphs)
        cp_group  as in forward: each rank reads its part of the rows, and every rank gets the logits and the state that
                  come after the whole. Not with replay
        """
        if cp_group is not None and replay:
            raise ValueError("replay: expected False with cp_group: exchanges between ranks are not in a graph")
        if cp_group is not None:
            hidden, last = self.hidden(x, state, mask, keep_state=True, cp_group=cp_group)
            return self.logits(from_last_rank(hidden[:, -1], group_of(cp_group))), last
        graphs = self._read_graphs(x, state) if replay else None
        if graphs is None:
            return self._read(x, state, mask)
        mask = None if mask is None else self._checked_mask(mask, x)
        return graphs.read(self._read, x, state, mask, repr(self.config))

    def _read(self, x: Tensor, state: State | None, mask: Tensor | None = None) -> tuple[Tensor, State]:
        hidden, last = self.hidden(x, state, mask, keep_state=True)
        return self.logits(hidden[:, -1]), last

    @torch.no_grad()
    def step_and_read(
        self,
        tokens: Tensor,
        state: State,
        mask: Tensor | None,
        x: Tensor,
        read_state: State,
        read_mask: Tensor | None = None,
        replay: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """step and read in one pass over the weights: one token of each row, tokens (B) and mask (B), and another
        sequence, x (1, S) and read_mask (1, S) -> logits (B, V) and (1, V). Both states are overwritten.

        replay    as in read
        """
        has_rank("tokens", tokens, 1, "(B)")
        if has_rank("x", x, 2, "(1, S)").shape[0] != 1:
            raise ValueError(f"x: expected one sequence, got shape {tuple(x.shape)}")
        mask = None if mask is None else self._checked_mask(mask, tokens)
        read_mask = None if read_mask is None else self._checked_mask(read_mask, x, "read_mask")
        for name, one, rows in (("state", state, tokens.shape[0]), ("read_state", read_state, 1)):
            if None in self._checked_state(one):
                raise ValueError(f"{name}: expected tensors in each block, not None for its beginning")
            self._check_tensors(one, x, rows)
        graphs = self._read_graphs(x, None) if replay else None  # the states were checked
        given = StepAndReadInputs(tokens, state, mask, x, read_state, read_mask)
        if graphs is None:
            return self._step_and_read(given)
        return graphs.step_and_read(self._step_and_read, given, repr(self.config))

    def _step_and_read(self, given: StepAndReadInputs) -> tuple[Tensor, Tensor]:
        tokens, state, mask, x, read_state, read_mask = given
        rows = tokens.shape[0]
        embedded = self._embedded(torch.cat((tokens, x[0])))
        of_step, of_read = (
            MLSTMCall.of_model(self.config, part, keep_state=True)
            for part in (embedded[:rows].unsqueeze(1), embedded[rows:].unsqueeze(0))
        )
        call = StepAndReadCall(rows, of_step, of_read, mask, read_mask)
        both: Any = {block: (state[block], read_state[block]) for block in state}
        hidden, _ = self.backbone(embedded.unsqueeze(0), both, call=call)
        for part, kept in enumerate((state, read_state)):
            for block, lasts in both.items():
                if lasts[part] is not kept[block]:
                    for old, new in zip(kept[block], lasts[part], strict=True):
                        old.copy_(new)
        logits = self.logits(torch.cat((hidden[0, :rows], hidden[0, -1:])))
        return logits[:rows], logits[rows:]

    def _read_graphs(self, x: Tensor, state: State | None) -> ReadGraphs | None:
        """None for calls that no graph takes."""
        if not suits_graph(x) or not may_step(x, (), self.config.inference_state_dtype):
            return None
        if state is not None:
            self._check_tensors(state, x, x.shape[0])
            if None in state.values():
                return None
        config = self.config
        kernels = config.kernels(x.shape[0], x.shape[1], x.device)
        if not engine_runs_kernels(kernels["chunkwise_kernel"], kernels["step_kernel"], config.inference_state_dtype):
            return None
        engine = usable_engine(self, self._new_engine)
        return None if engine is None or engine.is_divided else read_graphs_of(engine)

    def _stepped_by_layers(self, tokens: Tensor, state: State, mask: Tensor | None) -> Tensor:
        ahead = None if mask is None else mask.unsqueeze(1)
        hidden, _ = self.hidden(tokens.unsqueeze(1), state, ahead, keep_state=True)
        return self.logits(hidden)[:, 0]

    def _decoded(self, tokens: Tensor, state: State, keep: Tensor | None, then: Then | None = None) -> Tensor | None:
        """Logits (B, V) from the decode engine, or None if it does not support this call."""
        config = self.config
        blocks = self._checked_state(state)
        if None in blocks:  # of the beginning
            return None
        states = [x for layer_state in blocks if layer_state is not None for x in layer_state]
        if not may_step(tokens, states, config.inference_state_dtype):
            return None
        kernels = config.kernels(tokens.shape[0], 1, tokens.device)
        if not engine_runs_kernels(kernels["chunkwise_kernel"], kernels["step_kernel"], config.inference_state_dtype):
            return None
        engine = usable_engine(self, self._new_engine)
        if engine is None:
            return None
        caps = (config.gate_soft_cap or 0.0, config.output_logit_soft_cap or 0.0)

        def layers(out: Tensor, tokens: Tensor, keep: Tensor | None) -> None:
            out.copy_(self._stepped_by_layers(tokens, state, keep))

        return engine.step(tokens, states, keep, Numbers(self.own_heads, config.eps, *caps), layers, then)

    def _new_engine(self) -> DecodeEngine:
        backbone = self.backbone
        parts = ((backbone, "blocks"), (self, "embedding"), (backbone, "out_norm"), (self, "lm_head"))
        return DecodeEngine(*parts, lambda block: type(block).forward is mLSTMBlock.forward, [(self, "backbone")])

    def hidden(
        self,
        x: Tensor,
        state: State | None = None,
        mask: Tensor | None = None,
        keep_state: bool = False,
        cu_seqlens: Tensor | None = None,
        cp_group: Any = None,
    ) -> tuple[Tensor, State]:
        """The head's input (B, S, D), and the state if keep_state or the mode asks for it, else an empty dict."""
        has_rank("x", x, 2, "(B, S)")
        if x.shape[1] < 1:
            raise ValueError(f"x: expected S >= 1, got shape {tuple(x.shape)}")
        if is_of_some_tokens(self.backbone.blocks[0].norm_mlstm):
            self._check_tokens(x, keep_state)
        if mask is not None:
            mask = self._checked_mask(mask, x)
        sequences, context = x.shape[0], None
        if cp_group is not None:
            context = context_of(cp_group, x.shape[1], cu_seqlens)
            sequences, cu_seqlens = context.rows_of_states(x), None
        elif cu_seqlens is not None:
            sequences = is_cu_seqlens("cu_seqlens", cu_seqlens, "x", x).shape[0] - 1
        if state is not None:
            self._check_tensors(state, x, sequences)
        # Of the tokens: where ranks share them between products, they are more than those of a rank's activations.
        call = MLSTMCall.of_model(self.config, x, keep_state, cu_seqlens, context)
        return self.backbone(self._embedded(x), state, mask, keep_state, cu_seqlens, call)

    def _check_tokens(self, x: Tensor, keep_state: bool) -> None:
        """Of a model that is divided with sequence_parallel."""
        ranks = self.config.num_heads // self.own_heads
        if keep_state:
            raise ValueError("model: expected one that is divided without sequence_parallel, which is for training")
        if x.shape[1] % ranks:
            raise ValueError(
                f"x: expected S to be a multiple of the {ranks} ranks of sequence_parallel, got {x.shape[1]}"
            )

    def _embedded(self, x: Tensor) -> Tensor:
        has_integers("x", x)
        most = self.config.vocab_size - 1
        # Of a CPU: a GPU cannot say it in time. To torch, ids of no rank of a divided embedding are zeros.
        out_of_range = f"x: expected token ids from 0 to {most}, got {{}} to {{}}"
        if is_divided(self.embedding.weight) and x.device.type == "cpu" and (x.min() < 0 or x.max() > most):
            raise IndexError(out_of_range.format(int(x.min()), int(x.max())))
        try:
            return self.embedding(x)
        except IndexError:
            raise IndexError(out_of_range.format(int(x.min()), int(x.max()))) from None

    def _checked_mask(self, mask: Tensor, like: Tensor, name: str = "mask") -> Tensor:
        return has_shape(name, is_tensor(name, mask), tuple(like.shape), "that of the tokens").bool()

    def _checked_state(self, state: State) -> list[LayerState | None]:
        """The state by block. None is the initial state, as in the official model."""
        if not isinstance(state, Mapping):
            raise TypeError(f"state: expected a dict of (c, n, m) by block, got {type(state).__name__}")
        if state.keys() != set(range(self.config.num_blocks)):
            raise ValueError(f"state: expected blocks 0 to {self.config.num_blocks - 1}, got {list(state)}")
        for block, layer_state in state.items():
            if layer_state is None:
                continue
            if (
                not isinstance(layer_state, tuple | list)
                or len(layer_state) != 3
                or not all(isinstance(x, Tensor) for x in layer_state)
            ):
                actual = (
                    f"({', '.join(type(x).__name__ for x in layer_state)})"
                    if isinstance(layer_state, tuple | list)
                    else repr(layer_state)
                )
                raise TypeError(f"state[{block}]: expected three tensors (c, n, m), got {actual}")
        return [state[n] for n in range(self.config.num_blocks)]

    def _check_tensors(self, state: State, x: Tensor, batch: int) -> None:
        """Checks all tensors before any is overwritten."""
        config = self.config
        heads, dqk, dhv = self.own_heads, config.qk_dim // config.num_heads, config.v_dim // config.num_heads
        shapes = {"c": (batch, heads, dqk, dhv), "n": (batch, heads, dqk), "m": (batch, heads, 1)}
        for block, layer_state in enumerate(self._checked_state(state)):
            if layer_state is None:
                continue
            for (name, shape), tensor in zip(shapes.items(), layer_state, strict=True):
                name_in_state = f"state[{block}]: {name}"
                has_shape(name_in_state, tensor, shape, "of this model and batch")
                if tensor.device != x.device or not tensor.dtype.is_floating_point:
                    actual = f"{str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
                    raise ValueError(f"{name_in_state}: expected floats on {x.device}, as the tokens, got {actual}")

    def logits(self, hidden: Tensor) -> Tensor:
        return layers.soft_cap(whole(product(self.lm_head, hidden)), self.config.output_logit_soft_cap)

    def loss(
        self,
        x: Tensor,
        targets: Tensor,
        *,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cp_group: Any = None,
    ) -> Tensor:
        """The mean negative log-probability of targets (B, S) after x (B, S), in nats. Targets of -100 do not count.

        mask, cu_seqlens and cp_group are those of forward. The last token of each sequence has no target: give it -100.
        Over ranks it is the mean of all, the same number on each; a rank's gradients are its part of the sum over them.
        """
        has_shape("targets", is_tensor("targets", targets), tuple(x.shape), "that of x")
        logits = product(self.lm_head, self.hidden(x, mask=mask, cu_seqlens=cu_seqlens, cp_group=cp_group)[0])
        cap = self.config.output_logit_soft_cap
        if cp_group is not None:
            total = capped_cross_entropy(logits.flatten(0, 1), targets.flatten(), cap, "sum")
            return mean_over_ranks(total, (targets.long() != -100).sum(), group_of(cp_group))
        return capped_cross_entropy(logits.flatten(0, 1), targets.flatten(), cap)

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prefill_tokens: Tensor | None, max_length: Literal[0], sampling_type: str = ...,
        state: State | None = ..., **options: Any,
    ) -> tuple[None, State | None]: ...  # fmt: skip
    @overload
    def generate(
        self, prefill_tokens: Tensor | None, max_length: int, sampling_type: str = ...,
        state: State | None = ..., **options: Any,
    ) -> tuple[Tensor, State]: ...  # fmt: skip
    def generate(
        self,
        prefill_tokens: Tensor | None,  # (B, S); (B): one token each; None: the BOS token
        max_length: int,
        sampling_type: str = "greedy",
        state: State | None = None,
        **options: Any,
    ) -> tuple[Tensor | None, State | None]:
        """The official call: max_length new tokens (B, max_length) and the state, without BOS or end token.

        sampling_type "sample" draws them, at temperature 1 unless options say otherwise. options: those of
        xlstm_hip.models.generate, which is the fuller function; with eos rows may end earlier. max_length 0 gives
        (None, state).
        """
        one_of("sampling_type", sampling_type, ("greedy", "sample"))
        if options.get("logprobs") is not None:
            raise ValueError("logprobs: expected a call of xlstm_hip.models.generate, as this one returns none")
        temperature = options.get("temperature")
        if sampling_type == "greedy" and temperature:
            raise ValueError(f"sampling_type: expected 'sample' with temperature={temperature}, got 'greedy'")
        if max_length == 0 and not isinstance(max_length, bool):
            return None, state
        if prefill_tokens is None:
            bos = self.special_tokens.bos
            if bos is None:
                raise ValueError("prefill_tokens: expected tokens for a model without a BOS token, got None")
            prefill_tokens = torch.tensor([[bos]], device=self.embedding.weight.device)
        elif isinstance(prefill_tokens, Tensor) and prefill_tokens.dim() == 1:
            prefill_tokens = prefill_tokens.unsqueeze(1)
        arguments = {"bos": None, "eos": (), "temperature": 0.0 if sampling_type == "greedy" else 1.0} | options
        generated = generate(self, prefill_tokens, max_length, state=state, **arguments)
        return generated.tokens, generated.state

    def status(self) -> Status:
        """Returns the path that each part takes, and why. Autocast also leaves the decode engine."""
        return status_of(
            self, self.embedding.weight, self.backbone.blocks, "backbone.blocks",
            self.config.kernels(device=self.device), self.config.inference_state_dtype,
            engine_of(self, self._new_engine),
        )  # fmt: skip

    def select_optimal_kernels(self, batch_size: int, seq_len: int) -> KernelNames:
        """Switches to the best kernels for this model, its gate, its device and this shape; logs a change."""
        config = self.config
        head_dim = max(config.qk_dim, config.v_dim) // config.num_heads
        device = self.embedding.weight.device
        chosen = get_optimal_kernel_config(batch_size, seq_len, head_dim, device=device, gate=config.gate)
        for name, kernel in chosen.items():
            setattr(config, name, kernel)
        if chosen != self._told_kernels:
            self._told_kernels = chosen
            names = ", ".join(map(str, chosen.values()))
            logger.info("kernels for batch %d, length %d: %s", batch_size, seq_len, names)
        return chosen

# SPDX-License-Identifier: Apache-2.0
"""transformers' xLSTM on this package's kernels and layers: accelerate(model), and restore(model) to undo it.

The model keeps its weights, class and interface. Its backbone and blocks become subclasses of themselves that run the
blocks of models/blocks.py. This adds float32 states, attention_mask (left padding), packed sequences, caches that beam
search can reorder, and gradients through states. Keywords that mean nothing to this model are errors. status(model)
says which path each part takes. Importing this module also allows any registered kernel name in an xLSTMConfig
(hf_config.py).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from .._core.extras import not_installed

try:
    from transformers import __version__ as transformers_version
except ModuleNotFoundError:
    raise not_installed("transformers", "xlstm_hip.hf") from None
from transformers.models.xlstm.modeling_xlstm import xLSTMCache, xLSTMModel, xLSTMOutput
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .._core.checks import accumulate_dtype, has_rank, is_cu_seqlens
from ..mlstm.backend import mLSTMBackendConfig
from ..mlstm.registry import LAYER_KINDS, kernel_info
from ..mlstm.select import KernelNames, get_optimal_kernel_config
from ..models import packing
from ..models.blocks import normed, run_block, run_mlstm_layer
from ..models.decode_engine import (
    DecodeEngine,
    Numbers,
    drop_engine,
    engine_of,
    engine_runs_kernels,
    may_step,
    usable_engine,
)
from ..models.hooks import known
from ..models.mlstm_call import LayerState, MLSTMCall
from ..models.status import Status, status_of
from .hf_config import KERNEL_KINDS, accept_registered_kernels, check_kernel

Model = TypeVar("Model", bound=nn.Module)

# Older ones do not reorder this model's cache, and end beam search with another text than they should.
OLDEST_TRANSFORMERS = "5.13"
# Keywords of transformers that concern the loss, or that mean nothing for this model unless they are set.
_FOR_THE_LOSS = ("num_items_in_batch", "ignore_index", "shift_labels")
_IDLE = ("output_hidden_states", "return_dict", "cache_position", "max_length_q", "max_length_k", *_FOR_THE_LOSS)
# The name of the cache in outputs.
CACHE = "cache" if hasattr(xLSTMOutput, "cache") else "cache_params"


def _check_version(version: str) -> None:
    numbers = [tuple(map(int, text.split(".")[:2])) for text in (version, OLDEST_TRANSFORMERS)]
    if numbers[0] < numbers[1]:
        raise ImportError(f"xlstm_hip.hf: expected transformers {OLDEST_TRANSFORMERS} or newer, got {version}")


_check_version(transformers_version)
accept_registered_kernels()


class FloatStateCache(xLSTMCache):
    """transformers' cache with c, n and m in float32 for any dtype of the model, also for beam search."""

    is_compileable = False  # generate asks, and xLSTMCache does not say

    def __init__(self, backbone: Any, x: Tensor) -> None:
        batch, heads, layer = x.shape[0], backbone.config.num_heads, backbone.blocks[0].mlstm_layer
        own_heads = layer.multihead_norm.num_heads  # of this rank, where distributed.tensor_parallel has divided them
        self.config, self.dtype = backbone.config, accumulate_dtype(x.dtype)
        self.seqlen_offset = torch.zeros(1, dtype=torch.int64, device=x.device)
        dqk, dhv = layer.qk_dim // heads, layer.v_dim // heads  # transformers' cache rounds them up to multiples of 64
        sizes = ((batch, own_heads, dqk, dhv), (batch, own_heads, dqk), (batch, own_heads, 1))
        self.rnn_state: Any = {
            number: tuple(torch.zeros(size, dtype=self.dtype, device=x.device) for size in sizes)
            for number in range(len(backbone.blocks))
        }

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.rnn_state = {
            number: tuple(x.index_select(0, beam_idx.to(x.device)) for x in layer)
            for number, layer in self.rnn_state.items()
        }


def _flattened(cache: FloatStateCache) -> tuple[list[Tensor], list[int]]:
    """For torch.export, which takes and returns caches as their tensors."""
    numbers = sorted(cache.rnn_state)
    return [cache.seqlen_offset, *(x for number in numbers for x in cache.rnn_state[number])], numbers


def _flattened_with_keys(cache: FloatStateCache) -> tuple[list[tuple[Any, Tensor]], list[int]]:
    tensors, numbers = _flattened(cache)
    return [(_pytree.SequenceKey(index), x) for index, x in enumerate(tensors)], numbers


def _unflattened(tensors: Iterable[Tensor], numbers: list[int]) -> FloatStateCache:
    cache = FloatStateCache.__new__(FloatStateCache)
    cache.seqlen_offset, *states = tensors
    cache.rnn_state = {number: tuple(states[3 * at : 3 * at + 3]) for at, number in enumerate(numbers)}
    cache.dtype = getattr(states[0], "dtype", torch.float32)  # a tree of other things has none
    return cache


_pytree.register_pytree_node(
    FloatStateCache,
    _flattened,
    _unflattened,
    serialized_type_name="xlstm_hip.FloatStateCache",
    flatten_with_keys_fn=_flattened_with_keys,
)


@merge_with_config_defaults
@capture_outputs
def _backbone_forward(
    self: Any,
    input_ids: Tensor | None = None,  # (B, S)
    inputs_embeds: Tensor | None = None,  # (B, S, D)
    cache_params: xLSTMCache | None = None,
    use_cache: bool | None = None,
    attention_mask: Tensor | None = None,  # (B, S or more): the last S are of these tokens
    cache: xLSTMCache | None = None,  # the same, as transformers 5.24 and newer call it
    position_ids: Tensor | None = None,  # (B, S): packed sequences begin where they do not go on by 1
    seq_idx: Tensor | None = None,  # (B, S): packed sequences begin where it changes
    cu_seq_lens_q: Tensor | None = None,  # (N + 1): offsets of the sequences in one row
    cu_seq_lens_k: Tensor | None = None,  # the same, as transformers' collator has it for attention
    cu_seqlens: Tensor | None = None,  # the same
    **kwargs: Any,
) -> xLSTMOutput:
    _refuse_unknown(kwargs)
    if cache is not None and cache_params is not None:
        raise ValueError("cache: expected either cache or cache_params, got both")
    prior = cache = cache_params if cache is None else cache
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("input_ids: expected either input_ids or inputs_embeds, got both or neither")
    if input_ids is not None:
        has_rank("input_ids", input_ids, 2, "(B, S)")
    capturing = kwargs.get("output_hidden_states") or self.config.output_hidden_states
    if input_ids is not None and cache is not None and input_ids.shape[1] == 1 and not capturing:
        decoded = _decoded(self, input_ids, attention_mask, cache)
        if decoded is not None:
            if use_cache:
                cache.seqlen_offset += 1
            return _output(decoded, cache)
    x = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
    length = x.shape[1]
    mask = None if attention_mask is None else _mask_of(attention_mask, x)
    if use_cache and cache is None:
        cache = FloatStateCache(self, x)
    ends = _packed(x, mask, position_ids, seq_idx, cu_seq_lens_q, cu_seq_lens_k, cu_seqlens)
    if ends is not None and prior is not None and int(prior.seqlen_offset):
        raise ValueError("cache: expected none, or an empty one, beside packed sequences, whose states are new")
    call = _call(self, x, keep_state=cache is not None, cu_seqlens=ends)
    # Long prompts go through in slices, which bounds what the layers need; hidden states are wanted whole, and a packed
    # sequence may reach over the end of a slice.
    one_chunk = torch.is_grad_enabled() or capturing or cache is None or ends is not None
    size = length if one_chunk else self.config.max_inference_chunksize
    slices = []
    for begin in range(0, length, size):
        part = x[:, begin : begin + size]
        part_mask = None if mask is None else mask[:, begin : begin + size]
        slices.append(_through_blocks(self, part, part_mask, cache, call))
    x = slices[0] if len(slices) == 1 else torch.cat(slices, dim=1)
    if use_cache and cache is not None:
        cache.seqlen_offset += length
    return _output(normed(self.out_norm, x, None), cache)


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    unknown = [name for name, value in kwargs.items() if name not in _IDLE and value is not None and value is not False]
    if unknown:
        raise TypeError(f"{', '.join(unknown)}: unknown to this model, which was accelerated by xlstm_hip.hf")


def _packed(
    x: Tensor,
    mask: Tensor | None,
    position_ids: Tensor | None,
    seq_idx: Tensor | None,
    *cu_seqlens: Tensor | None,  # cu_seq_lens_q, cu_seq_lens_k, cu_seqlens
) -> Tensor | None:
    """Offsets of packed sequences in the tokens of all rows; None for whole rows. Offsets go before the other names."""
    for name, ends in zip(("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens"), cu_seqlens, strict=True):
        if ends is not None:
            return is_cu_seqlens(name, ends, "tokens", x)
    if seq_idx is not None:
        return packing.of_sequence_numbers(seq_idx, x)
    return None if position_ids is None else packing.of_positions(position_ids, x, mask)


def _output(hidden: Tensor, cache: xLSTMCache | None) -> xLSTMOutput:
    named: dict[str, Any] = {CACHE: cache}
    return xLSTMOutput(last_hidden_state=hidden, **named)


def _decoded(backbone: Any, input_ids: Tensor, attention_mask: Tensor | None, cache: xLSTMCache) -> Tensor | None:
    """The head's input (B, 1, D) from the decode engine, or None if the engine does not support this call."""
    states = [x for layer in range(len(backbone.blocks)) for x in cache.rnn_state[layer]]
    state_dtype = backbone.config.inference_state_dtype
    if not may_step(input_ids, states, state_dtype):
        return None
    kernels = _kernels(backbone, input_ids)
    if not engine_runs_kernels(kernels["chunkwise_kernel"], kernels["step_kernel"], state_dtype):
        return None
    engine = usable_engine(backbone, functools.partial(_new_engine, backbone))
    if engine is None:
        return None
    keep = None if attention_mask is None else _mask_of(attention_mask, input_ids)[:, 0].contiguous()
    config = backbone.config
    numbers = Numbers(states[0].shape[1], config.eps, config.gate_soft_cap or 0.0, 0.0)

    def layers(out: Tensor, tokens: Tensor, keep: Tensor | None) -> None:
        x = backbone.embeddings(tokens.unsqueeze(1))
        mask = None if keep is None else keep.unsqueeze(1)
        x = _through_blocks(backbone, x, mask, cache, _call(backbone, x, keep_state=True, cu_seqlens=None))
        out.copy_(normed(backbone.out_norm, x, None)[:, 0])

    hidden = engine.step(input_ids[:, 0], states, keep, numbers, layers)
    return hidden.to(backbone.embeddings.weight.dtype).unsqueeze(1)


def _new_engine(backbone: Any) -> DecodeEngine:
    blocks, embedding, out_norm = ((backbone, name) for name in ("blocks", "embeddings", "out_norm"))
    return DecodeEngine(blocks, embedding, out_norm, None, lambda block: "_xlstm_hip" in vars(type(block)))


def _through_blocks(backbone: Any, x: Tensor, mask: Tensor | None, cache: xLSTMCache | None, call: MLSTMCall) -> Tensor:
    packed, last = call.cu_seqlens, None
    if packed is not None and cache is not None:
        last = packing.last_of_rows(packed, *x.shape[:2])
    for layer, block in enumerate(backbone.blocks):
        x, state = block(x, None if cache is None or packed is not None else cache.rnn_state[layer], mask, call)
        if cache is not None:
            # A cache of packed rows goes on with the last sequence of each.
            cache.rnn_state[layer] = state if last is None else tuple(part.index_select(0, last) for part in state)
    return x


def _block_forward(self: Any, x: Tensor, state: LayerState | None, mask: Tensor | None, call: MLSTMCall) -> Any:
    if state is not None and self.training and getattr(self, "gradient_checkpointing", False):
        state = (state[0].clone(), state[1].clone(), state[2].clone())  # it is read again when this is made again
    return run_block(self, call, x, state, mask)


def _layer_forward(self: Any, x: Tensor, state: LayerState | None, mask: Tensor | None, call: MLSTMCall) -> Any:
    return run_mlstm_layer(self, self.config, call, x, state, mask)


def _mask_of(attention_mask: Tensor, x: Tensor) -> Tensor:
    has_rank("attention_mask", attention_mask, 2, "(B, S)")
    if attention_mask.shape[0] != x.shape[0] or attention_mask.shape[1] < x.shape[1]:
        raise ValueError(
            f"attention_mask: expected shape ({x.shape[0]}, {x.shape[1]} or more), got {tuple(attention_mask.shape)}"
        )
    return attention_mask[:, -x.shape[1] :].bool()


def _kernels(backbone: Any, x: Tensor) -> KernelNames:
    if backbone._xlstm_hip_kernels:
        return backbone._xlstm_hip_kernels
    layer, config = backbone.blocks[0].mlstm_layer, backbone.config
    head_dim = max(layer.qk_dim, layer.v_dim) // config.num_heads
    gate = kernel_info(config.chunkwise_kernel, LAYER_KINDS).gate
    return get_optimal_kernel_config(x.shape[0], x.shape[1], head_dim, device=x.device, gate=gate)


def _call(backbone: Any, x: Tensor, keep_state: bool, cu_seqlens: Tensor | None) -> MLSTMCall:
    config = backbone.config
    backend = mLSTMBackendConfig(
        **_kernels(backbone, x),
        return_last_states=keep_state,
        chunk_size=config.chunk_size,
        eps=config.eps,
        autocast_kernel_dtype=config.autocast_kernel_dtype,
        inference_state_dtype=config.inference_state_dtype,
    )
    return MLSTMCall.of(backend, cu_seqlens=cu_seqlens)


@functools.cache
def _subclass(base: Any, forward: Any) -> Any:
    """A subclass with the same name, which device maps, hooks for hidden states and config.architectures look for."""
    names: dict[str, Any] = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    if issubclass(base, xLSTMModel):
        names |= {"__init__": _constructed, "_xlstm_hip_kernels": {}}
    return type(base.__name__, (base,), {**names, "forward": forward, "_xlstm_hip": base, "__reduce_ex__": _reduced})


def _constructed(self: Any, *arguments: Any, **keywords: Any) -> None:
    """type(model)(config) and type(model).from_pretrained(folder): a new backbone, whose blocks must change, too."""
    base = type(self)._xlstm_hip
    base.__init__(self, *arguments, **keywords)
    self.__class__ = base
    accelerate(self)


def _reduced(self: Any, protocol: int) -> Any:
    """For pickle, which would otherwise look up the class by its name and find transformers' own."""
    base = type(self)._xlstm_hip
    return _revived, (base, type(self).forward.__name__), self.__dict__


def _revived(base: Any, forward: str) -> Any:
    kind = _subclass(base, globals()[forward])
    return kind.__new__(kind)


def _backbone(model: nn.Module) -> Any:
    backbone = getattr(model, "backbone", model)
    if not isinstance(backbone, xLSTMModel):
        raise TypeError(f"model: expected transformers' xLSTMForCausalLM or xLSTMModel, got {type(model).__name__}")
    return backbone


def _become(module: Any, kind: Any) -> None:
    """Changes a module's class. A device map's hooks call the forward that the module had when they were attached."""
    before: Any = type(module).forward
    module.__class__ = kind
    hooked = vars(module).get("_old_forward")
    if hooked is not None and getattr(hooked, "__func__", None) is before:
        module._old_forward = types.MethodType(kind.forward, module)


def accelerate(model: Model, **kernels: str) -> Model:
    """Replaces the kernels and layers of transformers' xLSTM in place. Returns the model.

    kernels: the registry names chunkwise_kernel, sequence_kernel and step_kernel, all three, instead of the best
    kernels for the device. The kernels in the model's configuration are transformers' own; only their input gate is
    kept.
    """
    backbone = _backbone(model)
    if kernels and kernels.keys() != KERNEL_KINDS.keys():
        raise TypeError(f"accelerate: expected {', '.join(KERNEL_KINDS)} or none of them, got {', '.join(kernels)}")
    for field, name in kernels.items():
        check_kernel(field, KERNEL_KINDS[field], name)
    if hasattr(type(backbone), "_xlstm_hip"):
        restore(model)
    swaps = [(backbone, _backbone_forward)]
    for block in backbone.blocks:
        swaps += [(block, _block_forward), (block.mlstm_layer, _layer_forward)]
    for module, _ in swaps:
        if not known(module) or ("forward" in vars(module) and "_old_forward" not in vars(module)):
            raise ValueError(f"model: expected transformers' own forward of {type(module).__name__}, got another")
    backbone._xlstm_hip_kernels = kernels
    for module, forward in swaps:
        kind: Any = type(module)
        _become(module, _subclass(kind, forward))
    return model


def restore(model: Model) -> Model:
    """Undoes accelerate. Returns the model."""
    backbone = _backbone(model)
    if not hasattr(type(backbone), "_xlstm_hip"):
        raise ValueError("model: expected one that accelerate() was called on")
    for module in (backbone, *backbone.blocks, *(block.mlstm_layer for block in backbone.blocks)):
        if hasattr(type(module), "_xlstm_hip"):  # else it was put there since
            _become(module, type(module)._xlstm_hip)
    vars(backbone).pop("_xlstm_hip_kernels", None)
    drop_engine(backbone)
    return model


def status(model: nn.Module) -> Status:
    """Returns the path that each part of an accelerated model takes, and why: a hook, an adapter, a dtype, a kernel's
    name.

    A call of more than 64 rows, under autocast or with gradient also runs single tokens layer by layer.
    """
    backbone = _backbone(model)
    if not hasattr(type(backbone), "_xlstm_hip"):
        raise ValueError("model: expected one that accelerate() was called on")
    embedding = backbone.embeddings.weight
    return status_of(
        backbone, embedding, backbone.blocks, "blocks", _kernels(backbone, embedding.new_empty(1, 1)),
        backbone.config.inference_state_dtype, engine_of(backbone, functools.partial(_new_engine, backbone)),
    )  # fmt: skip

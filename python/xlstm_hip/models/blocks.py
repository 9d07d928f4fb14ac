# SPDX-License-Identifier: Apache-2.0
"""One block of xLSTM-7B: norm, mLSTM, norm, feed-forward.

The functions here work on the parts of a block by the names that the official package, transformers and this package
share, so the same code runs a block of any of them. Norms and feed-forwards are fused with neighbouring work. One that
has hooks, or that is not the standard module, is called by itself instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import layers
from .._core.autocast import product_dtype
from .._core.checks import promoted_dtype
from ..distributed.divided import is_divided, own_weights
from .config import xLSTMLargeConfig
from .graph_branches import in_branches
from .hooks import all_watched, known, watched, watches_gradients
from .joined_products import joined, may_join
from .mlstm_call import LayerState, MLSTMCall
from .norms import MultiHeadLayerNorm, RMSNorm
from .widened_products import product


def to_be_called(module: nn.Module) -> bool:
    return watched(module) or watches_gradients(module) or not known(module) or all_watched()


def normed(norm: Any, x: Tensor, then: Any) -> Tensor:
    """The norm of x, which `then` reads, None: anyone. Under autocast it is of the dtype of the products there, unless
    others may see it."""
    if to_be_called(norm):
        return norm(x)
    return layers.rms_norm(x, *own_weights(norm), norm.eps, _dtype_for(then, norm, x))


def add_and_norm(norm: Any, x: Tensor, y: Tensor | None, then: Any) -> tuple[Tensor, Tensor]:
    """x + y and its norm, which `then` reads; without y, x and its norm."""
    if y is None:
        return x, normed(norm, x, then)
    if to_be_called(norm):
        x = x + y
        return x, norm(x)
    return layers.add_rms_norm(x, y, *own_weights(norm), norm.eps, _dtype_for(then, norm, x, y))


def _dtype_for(then: Any, norm: Any, *normed: Tensor) -> torch.dtype | None:
    """The dtype of a norm that only products read, where torch's promotion would make it float32."""
    if then is None or to_be_called(then) or promoted_dtype(*normed, norm.weight, norm.bias) != torch.float32:
        return None
    return product_dtype(normed[0])


def project(layer: Any, x: Tensor, qk_dim: int, v_dim: int, cap: float | None) -> tuple[Tensor, ...]:
    """q, k, v, output gate, and capped input and forget gate from single or fused weights; (B, S, features) each."""
    if hasattr(layer, "qkv_opreact"):
        wide_product, gate_product = in_branches(
            x, lambda: product(layer.qkv_opreact, x), lambda: layers.soft_cap(product(layer.ifgate_preact, x), cap)
        )
        return (*wide_product.split((qk_dim, qk_dim, v_dim, v_dim), dim=-1), *gate_product.chunk(2, dim=-1))
    wide, gates = (layer.q, layer.k, layer.v, layer.ogate_preact), (layer.igate_preact, layer.fgate_preact)
    if may_join(*wide) and may_join(*gates):
        q, k, v, o = joined(x, *wide).split((qk_dim, qk_dim, v_dim, v_dim), dim=-1)
        i, f = layers.soft_cap(joined(x, *gates), cap).chunk(2, dim=-1)
        return q, k, v, o, i, f
    (q, k, o), v, (i, f) = in_branches(
        x,
        lambda: (product(layer.q, x), product(layer.k, x), product(layer.ogate_preact, x)),
        lambda: product(layer.v, x),
        lambda: [layers.soft_cap(product(gate, x), cap) for gate in gates],
    )
    return q, k, v, o, i, f


def run_mlstm_layer(
    layer: Any,
    config: Any,
    call: MLSTMCall,
    x: Tensor,  # (B, S, D)
    state: LayerState | None,
    mask: Tensor | None,  # (B, S)
) -> tuple[Tensor, LayerState | None]:
    norm, ranks = layer.multihead_norm, getattr(layer, "ranks", None)
    if ranks is not None:
        x = ranks.enter(x)
    # Of as many heads as this rank has.
    heads = config.num_heads if ranks is None else config.num_heads // ranks.mesh.size()
    keys, values = (dim * heads // config.num_heads for dim in (layer.qk_dim, layer.v_dim))
    q, k, v, o, i, f = project(layer, x, keys, values, config.gate_soft_cap)
    q, k, v = (y.unflatten(-1, (heads, -1)) for y in (q, k, v))
    h, state = call(q, k, v, i, f, state, mask)
    if to_be_called(norm):
        h = norm(h).flatten(2) * torch.sigmoid(o)
    else:
        h = layers.head_norm_gate(h, o, *own_weights(norm), norm.eps, out_dtype=_dtype_for(layer.out_proj, norm, h, o))
    y = product(layer.out_proj, h)
    return (y if ranks is None else ranks.leave(y, _bias_of_sum(layer.out_proj))), state


def run_feed_forward(ffn: Any, x: Tensor) -> Tensor:
    ranks = getattr(ffn, "ranks", None)
    if ranks is None:
        return _feed_forward(ffn, x)
    return ranks.leave(_feed_forward(ffn, ranks.enter(x)), _bias_of_sum(ffn.proj_down))


def _bias_of_sum(layer: Any) -> Any:
    """What is added when ranks have summed a layer's outputs: of quantised weights, the first rank's part has it."""
    return layer.bias if is_divided(layer.bias) else None


def _feed_forward(ffn: Any, x: Tensor) -> Tensor:
    if hasattr(ffn, "proj_up_gate_z"):
        return product(ffn.proj_down, layers.swiglu_fused(product(ffn.proj_up_gate_z, x)))
    if may_join(ffn.proj_up_gate, ffn.proj_up):
        return product(ffn.proj_down, layers.swiglu_fused(joined(x, ffn.proj_up_gate, ffn.proj_up)))
    gate_and_up = in_branches(x, lambda: product(ffn.proj_up_gate, x), lambda: product(ffn.proj_up, x))
    return product(ffn.proj_down, layers.swiglu(*gate_and_up))


def run_block_in_stack(
    block: Any,  # its mlstm_layer takes what mLSTMLayer's forward does
    call: MLSTMCall,
    x: Tensor,  # (B, S, D)
    y: Tensor | None,  # of the block before, still to be added to x
    state: LayerState | None,
    mask: Tensor | None,  # (B, S)
) -> tuple[Tensor, Tensor, LayerState | None]:
    """The block of x + y: x and y again, so that the next norm does this addition, too."""
    x, y = add_and_norm(block.norm_mlstm, x, y, block.mlstm_layer)
    y, state = block.mlstm_layer(y, state, mask, call)
    x, y = add_and_norm(block.norm_ffn, x, y, block.ffn)
    return x, block.ffn(y) if to_be_called(block.ffn) else run_feed_forward(block.ffn, y), state


def run_block(
    block: Any, call: MLSTMCall, x: Tensor, state: LayerState | None, mask: Tensor | None
) -> tuple[Tensor, LayerState | None]:
    x, y, state = run_block_in_stack(block, call, x, None, state, mask)
    return x + y, state


def norm_options(config: Any) -> dict[str, Any]:
    """The base class of every norm of a model."""
    return {
        "eps": config.norm_eps,
        "use_bias": config.use_bias,
        "force_float32_reductions": config.norm_reduction_force_float32,
    }


class mLSTMLayer(nn.Module):
    def __init__(self, config: Any) -> None:  # xLSTMLargeConfig, or the part of it that concerns this layer
        super().__init__()
        self.config = config
        d, qk, v, heads, bias = config.embedding_dim, config.qk_dim, config.v_dim, config.num_heads, config.use_bias
        self.qk_dim, self.v_dim = qk, v
        if config.weight_mode == "fused":
            self.qkv_opreact = nn.Linear(d, 2 * qk + 2 * v, bias=bias)
            self.ifgate_preact = nn.Linear(d, 2 * heads)
        else:
            self.q, self.k = nn.Linear(d, qk, bias=bias), nn.Linear(d, qk, bias=bias)
            self.v, self.ogate_preact = nn.Linear(d, v, bias=bias), nn.Linear(d, v, bias=bias)
            self.igate_preact, self.fgate_preact = nn.Linear(d, heads), nn.Linear(d, heads)
        self.multihead_norm = MultiHeadLayerNorm(heads, v // heads, **norm_options(config))
        self.out_proj = nn.Linear(v, d, bias=bias)

    def forward(
        self,
        x: Tensor,  # (B, S, D)
        state: LayerState | None = None,
        mask: Tensor | None = None,  # (B, S)
        call: MLSTMCall | None = None,
    ) -> tuple[Tensor, LayerState | None]:
        call = MLSTMCall.of_model(self.config, x) if call is None else call
        return run_mlstm_layer(self, self.config, call, x, state, mask)


class FeedForward(nn.Module):
    def __init__(self, config: xLSTMLargeConfig) -> None:
        super().__init__()
        d, up, bias = config.embedding_dim, config.ffn_dim, config.use_bias
        if config.weight_mode == "fused":
            self.proj_up_gate_z = nn.Linear(d, 2 * up, bias=bias)
        else:
            self.proj_up_gate, self.proj_up = nn.Linear(d, up, bias=bias), nn.Linear(d, up, bias=bias)
        self.proj_down = nn.Linear(up, d, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return run_feed_forward(self, x)


class mLSTMBlock(nn.Module):
    def __init__(self, config: xLSTMLargeConfig) -> None:
        super().__init__()
        self.config = config
        self.norm_mlstm = RMSNorm(config.embedding_dim, **norm_options(config))
        self.mlstm_layer = mLSTMLayer(config)
        self.norm_ffn = RMSNorm(config.embedding_dim, **norm_options(config))
        self.ffn = FeedForward(config)

    def forward(
        self,
        x: Tensor,  # (B, S, D)
        state: LayerState | None = None,
        mask: Tensor | None = None,  # (B, S)
        call: MLSTMCall | None = None,
    ) -> tuple[Tensor, LayerState | None]:
        call = MLSTMCall.of_model(self.config, x) if call is None else call
        return run_block(self, call, x, state, mask)

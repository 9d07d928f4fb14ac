# SPDX-License-Identifier: Apache-2.0
"""One model over several ranks: each has some of the heads and of the features between the products of a block."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from .._core.checks import one_of
from .divided import LayerRanks, Part, note_hooks, own_span

Model = TypeVar("Model", bound=nn.Module)
OF_TOKENS = Shard(1)  # of activations (B, S, D)
BY_ROWS = ("q", "k", "v", "ogate_preact", "igate_preact", "fgate_preact")  # of a block's mLSTM


def is_quantized(module: nn.Module) -> bool:
    """Whether it is a models.QuantizedLinear. This module imports no models: they import this folder."""
    return hasattr(module, "qweight")


class ByRows(ParallelStyle):
    """A linear layer of a divided layer, of whose outputs each rank has some: its rows.

    whole_groups  divides quantised weights by groups of outputs, which are the columns of another layer
    """

    def __init__(self, whole_groups: bool = False) -> None:
        super().__init__()
        self.whole_groups = whole_groups

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> nn.Module:
        if not is_quantized(module):
            return _with_weights(module, device_mesh, {"weight": Shard(0), "bias": Shard(0)})
        unit = module.scheme.group_size if self.whole_groups else 1
        _keep_part(module, Part(own_span(module.out_features, device_mesh, unit)))
        return module


class ByColumns(ParallelStyle):
    """One of whose inputs each rank has some: its columns. The layer around it sums its outputs over ranks."""

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> nn.Module:
        if not is_quantized(module):
            return _with_weights(module, device_mesh, {"weight": Shard(1), "bias": Replicate()})
        columns = own_span(module.in_features, device_mesh, module.scheme.group_size)
        _keep_part(module, Part((0, module.out_features), columns))
        if device_mesh.get_local_rank() != 0:
            module.bias = None  # added once
        return module


class DividedHead(ColwiseParallel):
    """The last layer, which is called by itself: its logits are a DTensor, or whole on every rank."""

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> nn.Module:
        if not is_quantized(module):
            return super()._apply(module, device_mesh)
        full = module.out_features
        _keep_part(module, Part(own_span(full, device_mesh)))

        def before(_: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
            x = inputs[0]
            if not isinstance(x, DTensor):
                x = DTensor.from_local(x, device_mesh, [Replicate()], run_check=False)
            return x.to_local(grad_placements=[Partial()])

        def after(_: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> Tensor:
            shape = torch.Size((*y.shape[:-1], full))
            stride = torch.empty(shape, device="meta").stride()
            logits = DTensor.from_local(y, device_mesh, [Shard(-1)], run_check=False, shape=shape, stride=stride)
            return logits.full_tensor() if self.use_local_output else logits

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
        return module


class DividedLayer(ParallelStyle):
    """The mLSTM layer or the feed-forward of a block, whose products are divided by rows, then by columns."""

    def __init__(self, of_tokens: bool) -> None:
        super().__init__()
        self.of_tokens = of_tokens

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> nn.Module:
        module.ranks = LayerRanks(device_mesh, self.of_tokens)
        return module


class DividedNorm(ParallelStyle):
    """The norm of each head: a rank has its heads."""

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> nn.Module:
        for name in ("num_heads", "num_features"):
            setattr(module, name, getattr(module, name) // device_mesh.size())
        return _with_weights(module, device_mesh, {"weight": Shard(0), "bias": Shard(0)})


class WholeNorm(ParallelStyle):
    """A norm of all features, with the same weights on every rank.

    of_some_tokens  whether a rank gives it a part of the tokens: the weights' gradients are then summed over ranks
    """

    def __init__(self, of_some_tokens: bool) -> None:
        super().__init__()
        self.of_some_tokens = of_some_tokens

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> nn.Module:
        module.of_some_tokens = self.of_some_tokens
        return _with_weights(module, device_mesh, {"weight": Replicate(), "bias": Replicate()})


def _with_weights(module: nn.Module, mesh: DeviceMesh, placements: dict[str, Placement]) -> nn.Module:
    def divide(_: str, part: nn.Module, mesh: DeviceMesh) -> None:
        for name, weight in list(part.named_parameters(recurse=False)):
            divided = distribute_tensor(weight, mesh, [placements[name]])
            part.register_parameter(name, nn.Parameter(divided, requires_grad=weight.requires_grad))

    return distribute_module(module, mesh, divide)


def tensor_parallel_plan(config: Any, sequence_parallel: bool = False) -> dict[str, ParallelStyle]:
    """How torch's parallelize_module divides a model of this configuration, by the names of its modules.

    config             an xLSTMLargeConfig, or the xLSTMConfig of transformers, whose model xlstm_hip.hf has accelerated
    sequence_parallel  for training: between the products of a block, which need all features, a rank has a part of the
                       tokens, so that norms and additions are divided, too
    """
    one_of("sequence_parallel", sequence_parallel, (True, False))
    if config.weight_mode != "single":
        raise ValueError(f"weight_mode: expected 'single', whose matrices are divided each, got {config.weight_mode!r}")
    of_transformers = hasattr(config, "hidden_size")
    if of_transformers and sequence_parallel:
        raise ValueError("sequence_parallel: expected False for a model of transformers, got True")
    between: Placement = OF_TOKENS if sequence_parallel else Replicate()
    layer, ffn = "backbone.blocks.*.mlstm_layer", "backbone.blocks.*.ffn"
    plan: dict[str, ParallelStyle] = {
        "backbone.embeddings" if of_transformers else "embedding": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=between
        ),
        "backbone.blocks.*.norm_mlstm": WholeNorm(sequence_parallel),
        layer: DividedLayer(sequence_parallel),
        **{f"{layer}.{name}": ByRows() for name in BY_ROWS},
        f"{layer}.multihead_norm": DividedNorm(),
        f"{layer}.out_proj": ByColumns(),
        "backbone.blocks.*.norm_ffn": WholeNorm(sequence_parallel),
        ffn: DividedLayer(sequence_parallel),
        f"{ffn}.proj_up_gate": ByRows(whole_groups=True),
        f"{ffn}.proj_up": ByRows(whole_groups=True),
        f"{ffn}.proj_down": ByColumns(),
    }
    if of_transformers:  # whose loss and generate take all logits
        plan["lm_head"] = DividedHead(output_layouts=Replicate())
    else:
        plan["lm_head"] = DividedHead(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
    if config.add_out_norm:
        plan["backbone.out_norm"] = WholeNorm(sequence_parallel)
    return plan


def tensor_parallel(model: Model, mesh: DeviceMesh, sequence_parallel: bool = False) -> Model:
    """Divides a model over the ranks of a mesh of one dimension, by tensor_parallel_plan. Returns the model, an
    xLSTMLarge or transformers' xLSTMForCausalLM that xlstm_hip.hf has accelerated.

    Every rank makes the same calls with the same tokens, and gets the same logits and loss. States are those of a
    rank's own heads. FSDP, activation checkpointing and the optimizer come after it.
    """
    backbone = getattr(model, "backbone", None)
    if not hasattr(model, "own_heads") and not (hasattr(model, "lm_head") and hasattr(type(backbone), "_xlstm_hip")):
        expected = "an xLSTMLarge, or an xLSTMForCausalLM after xlstm_hip.hf.accelerate"
        raise TypeError(f"model: expected {expected}, got {type(model).__name__}")
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh: expected a torch.distributed DeviceMesh, got {type(mesh).__name__}")
    if mesh.ndim != 1:
        raise ValueError(f"mesh: expected one dimension, as of mesh['tensor'], got {mesh.ndim} of {mesh}")
    if any(isinstance(x, DTensor) for x in model.parameters()):
        raise ValueError("model: expected one that is not divided yet: tensor_parallel comes before FSDP")
    for x in model.parameters():
        if x.device.type not in (mesh.device_type, "meta"):
            raise ValueError(f"mesh: expected one of {x.device.type}, where the weights are, got {mesh.device_type}")
    plan = tensor_parallel_plan(model.config, sequence_parallel)
    _check_sizes(model, mesh.size(), sequence_parallel)
    parallelize_module(model, mesh, plan)
    note_hooks(model)
    return model


def _check_sizes(model: Any, ranks: int, sequence_parallel: bool) -> None:
    config, block = model.config, model.backbone.blocks[0]
    quantized = {name: part for name, part in block.named_modules() if is_quantized(part)}
    if sequence_parallel and quantized:
        raise ValueError("sequence_parallel: expected False with quantised weights, as it is for training")
    features, v_dim = block.ffn.proj_down.in_features, block.mlstm_layer.v_dim
    group = next((part.scheme.group_size for part in quantized.values()), 1)
    groups = -(-features // group)
    in_groups = {"ffn.proj_up_gate", "ffn.proj_up", "ffn.proj_down"} & quantized.keys()
    if in_groups and len(in_groups) < 3 and features % (ranks * group):
        raise ValueError(
            f"mesh: expected ranks that divide the {groups} groups of the feed-forward, of which some matrices are not "
            f"quantised, got {ranks}"
        )
    counts = {"num_heads": config.num_heads} | ({} if in_groups else {"ffn_dim": features})
    for name, count in counts.items():
        if count % ranks:
            raise ValueError(f"mesh: expected a number of ranks that divides {name} = {count}, got {ranks}")
    if in_groups and -(-groups // ranks) * (ranks - 1) >= groups:
        raise ValueError(f"mesh: expected ranks that each have some of {groups} groups of ffn_dim, got {ranks}")
    if "mlstm_layer.out_proj" in quantized and (v_dim // ranks) % group:
        raise ValueError(f"mesh: expected ranks of whole groups of {group} of v_dim = {v_dim}, got {ranks}")
    if -(-config.vocab_size // ranks) * (ranks - 1) >= config.vocab_size:
        raise ValueError(f"mesh: expected ranks that each have some of vocab_size = {config.vocab_size}, got {ranks}")


def _keep_part(layer: Any, part: Part) -> None:
    for name, whole in list(layer.named_buffers(recurse=False)):
        setattr(layer, name, part.of_stored(layer, name).of(whole).clone())
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias[slice(*part.rows)].clone(), requires_grad=layer.bias.requires_grad)
    layer.out_features = part.rows[1] - part.rows[0]
    if part.columns is not None:
        layer.in_features = part.columns[1] - part.columns[0]
    layer.part = part

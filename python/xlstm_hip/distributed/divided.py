# SPDX-License-Identifier: Apache-2.0
"""What a rank computes with of weights and logits that are divided over ranks (DTensor).

The ops of this package take plain tensors: DTensors end here. torch.distributed.tensor is not imported for models that
have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .. import layers
from .._core.ops import OPS, OpFunction, first_order
from .collectives import gathered, own_of_sum, sum_of


def own_span(size: int, mesh: Any, unit: int = 1) -> tuple[int, int]:
    """The part of a dimension that this rank of a DeviceMesh has, in whole units: all but the last ones alike, as torch
    divides."""
    each = -(-size // (unit * mesh.size())) * unit
    begin = min(size, mesh.get_local_rank() * each)
    return begin, min(size, begin + each)


class Part(NamedTuple):
    """What a rank has of a matrix, rows or columns of all rows, or of a vector, rows."""

    rows: tuple[int, int]
    columns: tuple[int, int] | None = None  # all

    def of(self, whole: Tensor) -> Tensor:
        own = whole[slice(*self.rows)]
        return own if self.columns is None else own[:, slice(*self.columns)]

    def of_stored(self, layer: Any, name: str) -> Part:
        """The same in what a QuantizedLinear stores by this name. Columns are whole groups."""
        if self.columns is None or name == "bias":
            return Part(self.rows)
        size = layer.scheme.group_size
        each = 1 if name != "qweight" else size * layer.scheme.bits // 8  # of a group
        first, last = self.columns[0] // size, -(-self.columns[1] // size)
        return Part(self.rows, (first * each, last * each))


def parts_of(model: nn.Module) -> Iterator[tuple[str, Part]]:
    """What this rank has of each tensor that is divided, by its name."""
    for name, x in model.named_parameters():
        divided: Any = x
        if is_divided(x) and divided.placements[0].is_shard():
            dim = divided.placements[0].dim
            span = own_span(x.shape[dim], divided.device_mesh)
            yield name, Part(span) if dim == 0 else Part((0, x.shape[0]), span)
    for prefix, layer in model.named_modules():
        part = getattr(layer, "part", None)
        if isinstance(part, Part):
            for name, _ in (*layer.named_buffers(recurse=False), *layer.named_parameters(recurse=False)):
                yield f"{prefix}.{name}", part.of_stored(layer, name)


def own(x: Any) -> Tensor:
    """This rank's part of a tensor, as a plain one."""
    return x.to_local() if is_divided(x) else x


def as_part_of(like: Any, x: Tensor) -> Tensor:
    """A plain tensor in the place of this rank's part of another."""
    if not is_divided(like):
        return x
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        x, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def is_divided(x: Tensor | None) -> bool:
    return x is not None and type(x) not in (Tensor, nn.Parameter) and hasattr(x, "device_mesh")


def note_hooks(model: nn.Module) -> None:
    """The hooks that modules have now are those of tensor_parallel."""
    for module in model.modules():
        module.tensor_parallel_hooks = frozenset((*module._forward_hooks, *module._forward_pre_hooks))  # type: ignore


def hooks_of_ranks(module: nn.Module) -> frozenset[int]:
    """The ids of a module's hooks that tensor_parallel registered."""
    return module.__dict__.get("tensor_parallel_hooks", frozenset())


def mesh_of(embedding: nn.Module) -> Any:
    """The mesh over which tensor_parallel has divided the model of an embedding; None if it has not."""
    weight: Any = embedding.weight
    return weight.device_mesh if "tensor_parallel_hooks" in embedding.__dict__ and is_divided(weight) else None


def is_of_some_tokens(norm: Any) -> bool:
    """Whether a rank gives a norm of all features only a part of the tokens: sequence_parallel."""
    return getattr(norm, "of_some_tokens", False)


def own_weights(norm: Any) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias of a norm, as this rank needs them."""
    some_tokens = is_of_some_tokens(norm)
    return own_with_gradient(norm.weight, some_tokens), own_with_gradient(norm.bias, some_tokens)


def own_with_gradient(x: Any, of_some_tokens: bool = False) -> Any:
    """This rank's part of a weight, whose gradient is that of the weight. of_some_tokens: each rank has the whole of it
    for a part of the tokens, and its gradient is the sum over ranks."""
    return _Own.apply(x, of_some_tokens) if is_divided(x) else x


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, of_some_tokens: bool) -> Tensor:
        ctx.spec, ctx.of_some_tokens = x._spec, of_some_tokens
        return x._local_tensor.view_as(x._local_tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        from torch.distributed.tensor import DTensor

        if ctx.of_some_tokens:
            gradient = sum_of(gradient, ctx.spec.mesh.get_group())
        # As FSDP makes its own: from_local takes 100 us more, for each weight of each step.
        return DTensor(gradient, ctx.spec, requires_grad=False), None


class LayerRanks:
    """The ranks that each have some of a layer's heads or features, between its first products and its last.

    of_tokens  outside of the layer a rank has a part of the tokens: sequence_parallel
    """

    def __init__(self, mesh: Any, of_tokens: bool) -> None:
        self.mesh, self.of_tokens = mesh, of_tokens

    def enter(self, x: Tensor) -> Tensor:
        """x (B, S, D) of all tokens. Its gradient is the sum over ranks."""
        there, back = (_all_tokens, _own_tokens_of_sum) if self.of_tokens else (_same, sum_of)
        return _Exchanged.apply(x, self.mesh.get_group(), there, back)

    def leave(self, y: Tensor, bias: Any) -> Tensor:
        """The sum over ranks of y (B, S, D), and bias."""
        there, back = (_own_tokens_of_sum, _all_tokens) if self.of_tokens else (sum_of, _same)
        y = _Exchanged.apply(y, self.mesh.get_group(), there, back)
        return y if bias is None else y + own_with_gradient(bias, self.of_tokens).to(y.dtype)


class _Exchanged(OpFunction):
    """An exchange between ranks, and the one that its gradient takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, there: Any, back: Any) -> Tensor:
        ctx.group, ctx.back = group, back
        return there(x, group)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.back(gradient, ctx.group), None, None, None


def _same(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return x.view_as(x)


def _all_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(B, S, D) of each rank -> (B, ranks S, D)"""
    return gathered(x, group).transpose(0, 1).flatten(1, 2)


def _own_tokens_of_sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return own_of_sum(x.unflatten(1, (dist.get_world_size(group), -1)).transpose(0, 1), group)


def whole(x: Any) -> Tensor:
    """All of a tensor on every rank, where all of them go on with it in the same way."""
    return x.full_tensor() if is_divided(x) else x


def on_first_rank(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The whole tensors in the host memory of the first rank, on the others nothing."""
    gathered_ones = {}
    for name, x in tensors.items():
        one = whole(x.detach())
        if dist.get_rank() == 0:
            gathered_ones[name] = one.cpu()
    return gathered_ones


def run_on_first_rank(function: Callable[[], None]) -> None:
    """Every rank comes back when the first one has run it, and raises what it raised there."""
    outcome: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            function()
        except Exception as error:
            outcome = [error]
    dist.broadcast_object_list(outcome)
    if outcome[0] is not None:
        raise outcome[0]


def capped_cross_entropy(logits: Tensor, targets: Tensor, cap: float | None, reduction: str = "mean") -> Tensor:
    """layers.capped_cross_entropy of logits (N, V) of which each rank has some of the classes; the same loss on each.
    Backward writes the gradient over the logits.
    """
    if not is_divided(logits):
        return layers.capped_cross_entropy(logits, targets, cap, -100, reduction, in_place=True)
    if not layers.functional.has_kernel(own(logits), "capped_cross_entropy"):
        return layers.capped_cross_entropy(whole(logits), targets, cap, -100, reduction)
    divided: Any = logits
    first, _ = own_span(divided.shape[1], divided.device_mesh)
    group = divided.device_mesh.get_group()
    rows = _DividedCrossEntropy.apply(divided.to_local(), targets.long(), first, cap, group)
    return rows.sum() if reduction == "sum" else rows.sum() / (targets.long() != -100).sum()


class _DividedCrossEntropy(OpFunction):
    """The loss of each row. The op gives a rank's greatest logit and its sum of exps, of which those of all follow."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, first: int, cap: float | None, group: dist.ProcessGroup):
        counts = targets != -100
        here = counts & (targets >= first) & (targets < first + logits.shape[1])
        # Rows whose target another rank has need a class, too: the first one.
        classes = torch.where(here, targets - first, 0)
        nearest = torch.where(counts, classes, -100)
        loss, exps = OPS.cross_entropy(logits, nearest, cap, -100)
        highest, total = exps.unbind(1)
        of_target = torch.where(here, highest + total.log() - loss, 0)
        every = gathered(torch.stack((highest, total, of_target)), group)  # (ranks, 3, N)
        most = every[:, 0].amax(0)
        sums = (every[:, 1] * (every[:, 0] - most).exp()).sum(0)
        ctx.save_for_backward(logits, nearest, classes, here, torch.stack((most, sums), 1))
        ctx.cap = cap
        return torch.where(counts, most + sums.log() - every[:, 2].sum(0), 0)

    @staticmethod
    def backward(ctx: Any, dloss: Tensor):
        logits, nearest, classes, here, exps = ctx.saved_tensors
        dloss = dloss.contiguous()
        # The op subtracts 1 at each row's class. Where that class stands for a target of another rank, its gradient is
        # computed here, without the 1.
        y = logits.gather(1, classes.unsqueeze(1))[:, 0].to(exps.dtype)
        z = layers.soft_cap(y, ctx.cap)
        slope = 1 if ctx.cap is None else 1 - (z / ctx.cap) ** 2
        of_class = torch.where(nearest == -100, 0, (z - exps[:, 0]).exp() / exps[:, 1] * slope * dloss)
        OPS.cross_entropy_backward_(dloss, logits, nearest, exps, ctx.cap, -100)
        torch.autograd.graph.increment_version(logits)  # a second backward through them is then an error
        dlogits = logits.detach()
        given = dlogits.gather(1, classes.unsqueeze(1))
        other = torch.where(here, given[:, 0], of_class.to(logits.dtype)).unsqueeze(1)
        dlogits.scatter_(1, classes.unsqueeze(1), other)
        return dlogits, None, None, None, None

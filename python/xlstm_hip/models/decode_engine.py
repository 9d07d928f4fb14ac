# SPDX-License-Identifier: Apache-2.0
"""The decode engine: one token of each row through a whole model, in one op.

Layer by layer, a decode step is some thirty small ops per block, whose overhead exceeds the work. The engine calls
csrc/engine instead: the same maths, float32 between the weights, and a row's result does not depend on the other rows.
The op reads every weight in place, without a copy, so changes made in place by training or loading take effect in the
next step. If a parameter or module is replaced, the engine is rebuilt. For a layer with unmerged LoRA adapters it forms
the sum of the matrices (models/adapters.py). A model with parts that it does not know (hooks, other classes, float64,
other kernels) runs layer by layer, and one log line says why.

Many rows are matrix products, at which torch's are faster than the op: the engine then calls the model's layers, on a
GPU as part of the same graph. So it does for states with c in bfloat16, which the op does not take.

Of a model that distributed.tensor_parallel has divided, a rank runs its part of each half block by an op, and between
them the ranks sum (distributed/step_sums.py).
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .._core import ops
from .._core.environment import decode_op_rows, plain_torch_forced
from .._core.plans import BY_LAYERS, PATHS, plan_for
from .._core.warn_once import log_once
from ..distributed.divided import hooks_of_ranks, is_divided, mesh_of, own_span
from ..distributed.step_sums import StepSums
from ..mlstm.registry import LAYER_KINDS, kernel_info
from . import adapters
from .hooks import all_watched, known, watched
from .quantize import STORED, QuantizedLinear

WEIGHT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PROJECTIONS = ("q", "k", "v", "ogate_preact", "igate_preact", "fgate_preact")
FUSED_PROJECTIONS = ("qkv_opreact", None, None, None, "ifgate_preact", None)
OF_GATES = (*PROJECTIONS[4:], FUSED_PROJECTIONS[4])  # a thousandth of the weights
ENGINE_STATES = ("float32", "bfloat16")  # of inference_state_dtype
SUMMED = ("out_proj", "proj_down")  # over ranks, so that one of them adds the bias
SLOTS_OF_BLOCK = 46  # in the index of weights
MLSTM, FEED_FORWARD, HEAD = 1, 2, 3  # parts of a step, as csrc/torch/register.cpp numbers them
Part = tuple[nn.Module, str]
# The largest batch of the op; and beside layers whose products NVIDIA's tensor cores make of weights as they lie in
# memory, as measured (docs/lab/decode-h200.md). Other layers widen quantised weights first.
MOST_ROWS = 64
MOST_ROWS_BESIDE_FAST_LAYERS = 8


@torch.library.register_fake("xlstm_hip::decode_step_")
def _(out, tokens, keep, weights, weight_index, states, heads, norm_eps, eps, gate_cap, output_cap):
    return None


@torch.library.register_fake("xlstm_hip::decode_part_")
def _(out, x, keep, weights, weight_index, states, part, heads, norm_eps, eps, gate_cap, output_cap):
    return None


class Numbers(NamedTuple):
    """The op's scalar arguments."""

    heads: int  # of this rank
    eps: float
    gate_cap: float  # 0: none
    output_cap: float


class Unknown(Exception):
    """A part of a model that the engine does not support."""


class _Parts:
    """The weights of a model in the order in which the op reads them, and how to notice that one was replaced."""

    def __init__(self, device: torch.device, mesh: Any) -> None:
        self.device = device  # of all of its tensors
        self.mesh = mesh  # over which tensor_parallel has divided them, or None
        self.tensors: list[Tensor] = []
        self.weight_index: list[int] = []
        self.sources: list[tuple[dict[str, Any], str, Any]] = []  # where each part was found, and what it was
        self.counted: tuple[dict[str, Any], int] = ({}, 0)  # the blocks, and how many they were
        self.called: dict[nn.Module, type] = {}  # those that going layer by layer would call, and what they were
        self.eps: set[float] = set()
        self.stored: set[str] = set()  # the dtypes of linear layers' weights, without the gates'
        self.quantised: list[QuantizedLinear] = []
        self.adapted: list[tuple[nn.Module, tuple]] = []  # layers with adapters, and what those were
        self.formed = 0  # how many of the tensors were formed for adapters

    def module(self, parent: nn.Module, name: str, called: bool = False) -> Any:
        child = parent._modules.get(name)
        if child is None:
            raise Unknown(f"{type(parent).__name__} without {name}")
        self.sources.append((parent._modules, name, child))
        if called:
            self.called[child] = type(child)
            if not known(child) and not adapters.is_lora(child):
                raise Unknown(f"{name} is a {type(child).__name__} with a forward of its own")
        return child

    def tensor(self, owner: dict[str, Any], name: str, dtypes: tuple[torch.dtype, ...] = WEIGHT_DTYPES) -> None:
        value = owner.get(name)
        self.sources.append((owner, name, value))
        if value is None and name in ("weight", "qweight"):
            raise Unknown(f"no {name} of its own")
        if value is not None and self.mesh is not None and is_divided(value):
            if value.device_mesh != self.mesh or self.mesh.ndim != 1:
                raise Unknown(f"{name} is divided over other ranks than the heads")
            value = value._local_tensor
        if value is not None and (type(value) not in (Tensor, nn.Parameter) or value.dtype not in dtypes):
            raise Unknown(f"{name} is a {type(value).__name__} of {value.dtype}")
        if value is not None and value.device != self.device:
            raise Unknown(f"{name} on {value.device}, beside an embedding on {self.device}")
        self.weight_index.append(-1 if value is None else len(self.tensors))
        if value is not None:
            self.tensors.append(value)

    def absent(self, count: int) -> None:
        self.weight_index.extend([-1] * count)

    def norm(self, norm: Any) -> None:
        self.sources.append((norm.__dict__, "eps", norm.eps))
        self.eps.add(float(norm.eps))
        self.tensor(norm._parameters, "weight")
        self.tensor(norm._parameters, "bias")

    def linear(self, parent: nn.Module, name: str | None) -> None:
        if name is None:
            self.absent(4)
            return
        layer = self.module(parent, name, called=True)
        if name not in OF_GATES:
            dtype = getattr(getattr(layer, "weight", None), "dtype", "")
            self.stored.add(layer.scheme.q_name if type(layer) is QuantizedLinear else str(dtype))
        if type(layer) is QuantizedLinear:
            self.quantised.append(layer)
            for stored in STORED:
                self.tensor(layer._buffers, stored, (layer.scheme.q_dtype,) if stored == "qweight" else WEIGHT_DTYPES)
        elif type(layer) is nn.Linear:
            self.tensor(layer._parameters, "weight")
            self.absent(2)
        elif adapters.is_lora(layer) and self.mesh is None:
            layer = self.lora(layer)
        else:
            raise Unknown(f"{name} is a {type(layer).__name__}")
        if self.mesh is not None and name in SUMMED and self.mesh.get_local_rank() != 0:
            self.absent(1)
        else:
            self.tensor(layer._parameters, "bias")

    def lora(self, layer: Any) -> nn.Module:
        """Adds the weight of a layer with adapters; returns the linear layer below, whose bias it has."""
        reason = adapters.why_not(layer)
        self.adapted.append((layer, adapters.fingerprint(layer)))
        if reason is not None:
            raise Unknown(reason)
        self.called.update((part, type(part)) for part in adapters.parts(layer))
        self.sources.append((layer._modules, "base_layer", layer.base_layer))
        self.tensor({"weight": layer.base_layer.weight}, "weight")  # checks it
        self.sources.pop()  # its fingerprint says when it is replaced
        self.tensors[-1] = adapters.weight_of(layer)
        self.formed += self.tensors[-1] is not layer.base_layer.weight
        self.absent(2)
        return layer.base_layer

    def block(self, block: Any) -> None:
        layer, ffn = self.module(block, "mlstm_layer", called=True), self.module(block, "ffn", called=True)
        for parent, name in ((block, "norm_mlstm"), (layer, "multihead_norm"), (block, "norm_ffn")):
            self.norm(self.module(parent, name, called=True))
        for projection in FUSED_PROJECTIONS if "qkv_opreact" in layer._modules else PROJECTIONS:
            self.linear(layer, projection)
        self.linear(layer, "out_proj")
        fused = "proj_up_gate_z" in ffn._modules
        for up in ("proj_up_gate_z", None) if fused else ("proj_up_gate", "proj_up"):
            self.linear(ffn, up)
        self.linear(ffn, "proj_down")


def captured(call: Callable[[], None], errors: str = "global") -> Callable[[], None]:
    """Captures the work of a call as a GPU graph without running it; returns its replay. errors: which threads' calls
    that a capture forbids are errors (capture_error_mode of torch.cuda.graph).
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=errors):
        call()
    return graph.replay


Call = Callable[[Tensor, Tensor, "Tensor | None"], None]  # out, tokens, keep


class Then(Protocol):
    """A function applied to a step's logits. `key` identifies it: numbers, and addresses of its memory."""

    @property
    def key(self) -> tuple: ...

    def __call__(self, logits: Tensor) -> None: ...


class StepGraph:
    """A decode step on a GPU as one graph, for fixed weights, states and batch, which the graph holds by address.

    The first step runs normally, which does one-time loading; the second is captured. Tokens and mask are copied into
    the graph's own memory, and logits out of it. With `then`, its work on the logits is part of the graph, and tokens
    and mask are read where they were in the first step: a step that samples the next token is then a single replay.
    """

    def __init__(self, errors: str = "global") -> None:
        self._steps, self._errors = 0, errors
        self._replay: Callable[[], None] | None = None

    def step(
        self, call: Call, shape: tuple[int, int], tokens: Tensor, keep: Tensor | None, then: Then | None = None
    ) -> Tensor:
        self._steps += 1
        copied = then is None
        if self._steps == 1:
            self._out = torch.empty(shape, dtype=torch.float32, device=tokens.device)
            self._tokens, self._keep = tokens, keep
            if copied:
                self._tokens, self._keep = tokens.clone(), None if keep is None else keep.clone()
            self._all(call, then)
            return self._out.clone() if copied else self._out
        if copied:
            self._tokens.copy_(tokens)
            if keep is not None and self._keep is not None:
                self._keep.copy_(keep)
        if self._replay is None:
            self._replay = captured(functools.partial(self._all, call, then), self._errors)
        self._replay()
        return self._out.clone() if copied else self._out

    def _all(self, call: Call, then: Then | None) -> None:
        call(self._out, self._tokens, self._keep)
        if then is not None:
            then(self._out)


class DecodeEngine:
    """The parts of a model in the order of csrc/torch/engine.cpp.

    blocks, embedding, out_norm, head   the parent module and the name in it; head None: step() returns the head's input
    knows_block                         whether the engine computes what this block's forward computes
    around                              modules whose forward calls the blocks, and which the engine bypasses
    why_not                             why the engine cannot run the model; None if it can
    """

    def __init__(
        self,
        blocks: Part,
        embedding: Part,
        out_norm: Part,
        head: Part | None,
        knows_block: Callable[[nn.Module], bool],
        around: Sequence[Part] = (),
    ) -> None:
        self.why_not: str | None = None
        self._table = getattr(*embedding)
        self._mesh = mesh_of(self._table)
        self._sums: dict[int, StepSums] = {}  # by the most rows
        self._of_block: list[tuple[list[Tensor], Tensor]] = []  # over ranks: each block's weights, and their index
        self._parts = parts = _Parts(self._table.weight.device, self._mesh)
        self._head = None if head is None else getattr(*head)
        self._first = self._placed()
        try:
            for module, name in around:
                parts.module(module, name, called=True)
            self._take_apart(blocks, embedding, out_norm, head, knows_block)
        except Unknown as reason:
            self.why_not = str(reason)
        stored = {id(x) for layer in parts.quantised for x in layer.stored()}
        dtypes = {x.dtype for x in parts.tensors if id(x) not in stored}
        self._fast: dict[int, bool] = {}  # by rows: whether each quantised layer has a kernel for them
        self._all_16_bits = not parts.adapted and len(dtypes) == 1 and dtypes <= {torch.bfloat16, torch.float16}
        self._weight_index = torch.tensor(parts.weight_index, device="cpu")
        self._graphs: OrderedDict[tuple, StepGraph] = OrderedDict()  # the used last at the end
        self.most_graphs = 1

    def _take_apart(
        self, blocks: Part, embedding: Part, out_norm: Part, head: Part | None, knows_block: Callable[[nn.Module], bool]
    ) -> None:
        parts = self._parts
        device = self._table.weight.device.type
        if device not in ops.devices_with_kernels("decode_step_"):
            raise Unknown(f"no kernel for {device}")
        stack = parts.module(*blocks)
        parts.counted = (stack._modules, len(stack._modules))
        for name in stack._modules:
            block = parts.module(stack, name, called=True)
            if not knows_block(block):
                raise Unknown(f"block {name} is a {type(block).__name__} with a forward of its own")
            parts.block(block)
        table = parts.module(embedding[0], embedding[1], called=True)
        if type(table) is not nn.Embedding or table.max_norm is not None:
            raise Unknown(f"{embedding[1]} is a {type(table).__name__}, or renormalises")
        parts.tensor(table._parameters, "weight")
        norm = parts.module(out_norm[0], out_norm[1], called=True)
        if type(norm) is nn.Identity:
            parts.absent(2)
        else:
            parts.norm(norm)
        if head is None:
            parts.absent(4)
        else:
            parts.linear(*head)
        if len(parts.eps) != 1:
            raise Unknown(f"norms of different eps: {sorted(parts.eps)}")
        (self._norm_eps,) = parts.eps

    def _placed(self) -> tuple[torch.dtype, torch.device]:
        return self._table.weight.dtype, self._table.weight.device

    def is_of_now(self) -> bool:
        """Whether the model still has the parts that the engine was built from."""
        sources, (blocks, count) = self._parts.sources, self._parts.counted
        return (
            all(owner.get(name) is part for owner, name, part in sources)
            and all(type(module) is kind for module, kind in self._parts.called.items())
            and len(blocks) == count
            and all(adapters.fingerprint(layer) == before for layer, before in self._parts.adapted)
            and self._placed() == self._first
        )

    def obstacle(self, model: nn.Module) -> str | None:
        """Why the engine cannot run the model now; None if it can."""
        if self.why_not is not None:
            return self.why_not
        if all_watched():
            return "hooks for all modules"
        called = self._parts.called
        hooked = next((module for module in called if watched(module, hooks_of_ranks(module))), None)
        if hooked is None:
            return None
        name = next((name for name, module in model.named_modules() if module is hooked), type(hooked).__name__)
        return f"{name} has a forward hook, or a forward of its own"

    @property
    def is_divided(self) -> bool:
        """Whether ranks have parts of the model."""
        return self._mesh is not None

    @property
    def adapted(self) -> int:
        """The number of layers whose adapters the engine has merged into weights of its own."""
        return self._parts.formed

    def runs_layers(self, c_shape: Sequence[int]) -> bool:
        """Whether a step goes through the model's layers, for states c of shape (B, NH, DHQK, DHHV): as the environment
        says, else the table of tuned plans, else what was measured here."""
        rows, heads, dqk, dhv = c_shape
        asked = decode_op_rows()
        if asked is not None:
            return rows > asked
        if self.is_divided:
            return rows > MOST_ROWS
        if len(self._parts.stored) == 1:
            (dtype,) = self._parts.stored
            plan = plan_for("decode_step", self._first[1], dtype, batch=rows, heads=heads, dqk=dqk, dhv=dhv)
            if plan.get("path"):
                return PATHS[plan["path"]] == BY_LAYERS
        by_tensor_cores = self._all_16_bits and self._first[1].type == "cuda" and torch.version.hip is None
        if rows <= MOST_ROWS_BESIDE_FAST_LAYERS or rows > MOST_ROWS or not by_tensor_cores:
            return rows > MOST_ROWS
        if rows not in self._fast:
            self._fast[rows] = all(layer.takes(rows, self._first[0]) for layer in self._parts.quantised)
        return self._fast[rows]

    def step(
        self,
        tokens: Tensor,  # (B)
        states: Sequence[Tensor],  # c, n, m of each block, float32, or c in bfloat16; overwritten
        keep: Tensor | None,  # (B) bool: False for rows whose states stay as they are
        numbers: Numbers,
        layers: Call,  # the same step by the model's layers, which overwrite the states, too
        then: Then | None = None,  # what is done with the logits, in the same graph
    ) -> Tensor:  # (B, V), or (B, D) without a head; float32
        if self._head is None:
            features = self._table.weight.shape[1]
        else:  # a divided layer may count its own alone
            features = self._table.weight.shape[0] if self.is_divided else self._head.out_features
        shape = (tokens.shape[0], features)
        by_layers = states[0].dtype == torch.bfloat16 or self.runs_layers(states[0].shape)
        whole_step = self._call_over_ranks if self.is_divided else self._call
        call = layers if by_layers else functools.partial(whole_step, states=states, numbers=numbers)
        graph = not (by_layers and self.is_divided)  # whose exchanges are torch's
        if graph and tokens.is_cuda and not torch.cuda.is_current_stream_capturing():
            tensors = [*self._parts.tensors, *states]
            if then is not None:
                tensors += [tokens] if keep is None else [tokens, keep]
            done = None if then is None else then.key
            key = (shape, by_layers, keep is None, done, numbers, *(x.data_ptr() for x in tensors))
            return self._graph_of(key).step(call, shape, tokens, keep, then)
        out = torch.empty(shape, dtype=torch.float32, device=tokens.device)
        call(out, tokens.contiguous(), keep)
        if then is not None:
            then(out)
        return out

    def _graph_of(self, key: tuple) -> StepGraph:
        """The graph of steps of this key, a new one if need be; the graph unused for longest makes room."""
        if key not in self._graphs:
            while len(self._graphs) >= self.most_graphs:
                self._graphs.popitem(last=False)
            # Threads of torch.distributed look after the GPU's work meanwhile.
            self._graphs[key] = StepGraph("thread_local" if self.is_divided else "global")
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def _call(
        self, out: Tensor, tokens: Tensor, keep: Tensor | None, states: Sequence[Tensor], numbers: Numbers
    ) -> None:
        ops.OPS.decode_step_(
            out, tokens, keep, self._parts.tensors, self._weight_index, states, numbers.heads, self._norm_eps,
            numbers.eps, numbers.gate_cap, numbers.output_cap,
        )  # fmt: skip

    def _weights_of(self, block: int, blocks: int) -> tuple[list[Tensor], Tensor]:
        """The weights of a block and those that are of none, and the index of them by themselves."""
        index, begin = self._parts.weight_index, block * SLOTS_OF_BLOCK
        slots = (*index[begin : begin + SLOTS_OF_BLOCK], *index[blocks * SLOTS_OF_BLOCK :])
        count = itertools.count()
        own = torch.tensor([-1 if slot < 0 else next(count) for slot in slots], device="cpu")
        return [self._parts.tensors[slot] for slot in slots if slot >= 0], own

    def _call_over_ranks(
        self, out: Tensor, tokens: Tensor, keep: Tensor | None, states: Sequence[Tensor], numbers: Numbers
    ) -> None:
        table = self._table.weight
        vocabulary, features = table.shape
        if tokens.is_cpu and not ((tokens >= 0) & (tokens < vocabulary)).all():
            raise IndexError(f"tokens: expected token ids from 0 to {vocabulary - 1}, got {tokens.tolist()}")
        blocks = len(states) // 3
        rows = 1 << (len(tokens) - 1).bit_length()
        if rows not in self._sums:
            self._sums[rows] = StepSums(self._mesh, 2 * blocks, rows, features, vocabulary, tokens.device)
        sums = self._sums[rows]

        if not self._of_block:
            self._of_block = [self._weights_of(block, blocks) for block in range(blocks)]

        def run(to: Tensor, part: int, block: int) -> None:
            weights, index = self._of_block[block]
            ops.OPS.decode_part_(
                to, sums.x, keep, weights, index, states[3 * block : 3 * block + 3], part, numbers.heads,
                self._norm_eps, numbers.eps, numbers.gate_cap, numbers.output_cap,
            )  # fmt: skip

        sums.begin(tokens, table._local_tensor)
        for block in range(blocks):
            for part in (MLSTM, FEED_FORWARD):
                run(sums.sum, part, block)
                sums.exchange()
        if self._head is None:
            run(out, HEAD, 0)
            return
        first, last = own_span(vocabulary, self._mesh)
        own = out.new_empty(len(tokens), last - first)
        run(own, HEAD, 0)
        sums.whole_logits(own, out)


_ENGINES: weakref.WeakKeyDictionary[nn.Module, DecodeEngine] = weakref.WeakKeyDictionary()
_MOST_GRAPHS: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()


def engine_of(model: nn.Module, make: Callable[[], DecodeEngine]) -> DecodeEngine:
    """The current engine of a model; `make` creates one."""
    engine = _ENGINES.get(model)
    if engine is None or not engine.is_of_now():
        drop_engine(model)
        engine = None
        engine = _ENGINES[model] = make()
        engine.most_graphs = _MOST_GRAPHS.get(model, 1)
    return engine


def keep_step_graphs(model: nn.Module, most: int) -> None:
    """Of how many kinds of step (batch, states, mask) a GPU keeps graphs. Each has memory for what a step computes, so
    by default only the last kind is kept: for whoever takes turns between some.
    """
    _MOST_GRAPHS[model] = most
    engine = _ENGINES.get(model)
    if engine is not None:
        engine.most_graphs = most


def drop_engine(model: nn.Module) -> None:
    """Frees the engine of a model, with the weights that it made for adapters."""
    _ENGINES.pop(model, None)


def usable_engine(model: nn.Module, make: Callable[[], DecodeEngine]) -> DecodeEngine | None:
    """The current engine, or None if it cannot run the model as it is now, with one log line that says why."""
    engine = engine_of(model, make)
    reason = engine.obstacle(model)
    if reason is None:
        return engine
    log_once(f"{type(model).__name__}: single tokens run layer by layer, not on the decode engine: {reason}")
    return None


def may_step(tokens: Tensor, states: Sequence[Tensor], state_dtype: str) -> bool:
    """Whether the engine supports a call: int64 tokens, no gradient, autocast or tracing, and states that a step
    overwrites: float32, or with state_dtype "bfloat16" c in bfloat16.
    """
    device = tokens.device.type
    c_dtype = torch.bfloat16 if state_dtype == "bfloat16" else torch.float32
    return (
        not torch.is_grad_enabled()
        and tokens.dtype == torch.int64
        and not torch.compiler.is_compiling()
        and not plain_torch_forced()
        and not torch.is_autocast_enabled(device)
        and all(x.dtype == c_dtype for x in states[::3])
        and all(x.dtype == torch.float32 for x in (*states[1::3], *states[2::3]))
        and all(x.is_contiguous() and x.device == tokens.device for x in states)
    )


def engine_runs_kernels(chunkwise_kernel: str, step_kernel: str, state_dtype: str) -> bool:
    """Whether a model's configuration asks for the kernels that the engine contains, or may call in a graph."""
    if state_dtype not in ENGINE_STATES or step_kernel != "fused":
        return False
    return kernel_info(chunkwise_kernel, LAYER_KINDS).gate == "exp"

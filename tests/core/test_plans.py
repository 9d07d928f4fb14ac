# SPDX-License-Identifier: Apache-2.0
"""The table of tuned plans: what a file may hold, which calls read it, and that a call given a plan does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from xlstm_hip import get_optimal_kernel_config, mlstm_interface, mlstm_step_interface
from xlstm_hip._core import plans
from xlstm_hip._core.plans import arch_of, check_plan, plan_for, read_table, trying, use_plans
from xlstm_hip.attention import (
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
    get_mla_metadata,
)

CLASS = {"dtype": "float32", "batch": 1, "heads": 2, "length": 128, "dqk": 16, "dhv": 32}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _tables_after() -> Iterator[None]:
    yield
    use_plans(*plans.default_tables())


def entry(op: str = "mlstm_chunkwise", plan: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    sizes = {name: value for name, value in CLASS.items() if name in plans.CLASSES[op]} | changed
    return {"op": op, "arch": arch_of("cpu"), "class": sizes, "plan": {"chunk_size": 16} if plan is None else plan}


def table(folder: Path, *entries: Any, **changed: Any) -> Path:
    path = folder / "plans.json"
    path.write_text(json.dumps({"format": 1, "entries": list(entries)} | changed))
    return path


def tensors(length: int = 100, gradient: bool = False) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = {"q": (16,), "k": (16,), "v": (32,), "i": (), "f": ()}
    return {
        name: torch.randn(1, 2, length, *size, generator=generator).requires_grad_(gradient)
        for name, size in sizes.items()
    }


def same_bits(a: Any, b: Any) -> bool:
    return torch.equal(a, b)


def test_the_shipped_table_is_read() -> None:
    read_table(plans.SHIPPED)


def test_a_call_is_cut_up_as_its_class_says(tmp_path: Path) -> None:
    x = tensors()
    before, expected = mlstm_interface(**x), mlstm_interface(**x, plan={"chunk_size": 16})
    assert not same_bits(before, expected)
    use_plans(table(tmp_path, entry()))
    assert same_bits(mlstm_interface(**x), expected)
    assert same_bits(mlstm_interface(**x, plan={}), before)  # what is given comes before the table
    assert not same_bits(mlstm_interface(**x, chunk_size=32), expected)
    offsets = torch.tensor([0, 100])
    assert same_bits(mlstm_interface(**x, cu_seqlens=offsets), before)  # packed calls have no class
    for length in (64, 129):  # other classes
        other_inputs = tensors(length)
        assert same_bits(mlstm_interface(**other_inputs), mlstm_interface(**other_inputs, plan={}))
    torch.set_num_threads(torch.get_num_threads() + 1)  # and another arch
    assert same_bits(mlstm_interface(**x), before)


def test_the_last_table_comes_first(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    use_plans(table(tmp_path / "a", entry(plan={"segments": 2})), table(tmp_path, entry(plan={"segments": 3})))
    sizes = {"batch": 1, "heads": 2, "length": 128, "dqk": 16, "dhv": 32}
    assert plan_for("mlstm_chunkwise", CPU, torch.float32, **sizes) == {"segments": 3}
    use_plans()
    assert plan_for("mlstm_chunkwise", CPU, torch.float32, **sizes) == {}


def test_backward_has_entries_of_its_own(tmp_path: Path) -> None:
    def gradients(**more: Any) -> Tensor:
        x = tensors(gradient=True)
        h = mlstm_interface(**x, **more)
        return torch.cat([g.flatten() for g in torch.autograd.grad(h.square().sum(), list(x.values()))])

    before, expected = gradients(), gradients(backward_plan={"chunk_size": 16})
    assert not same_bits(before, expected)
    use_plans(table(tmp_path, entry("mlstm_backward")))
    assert same_bits(gradients(), expected)
    assert same_bits(gradients(backward_plan={}), before)


def test_a_sequence_reads_the_table(tmp_path: Path) -> None:
    """Whose one choice is a GPU's: a CPU's kernel says that it came."""
    x, packed = tensors(), torch.tensor([0, 100])
    before = mlstm_interface(**x, kernel="fused")
    use_plans(table(tmp_path, entry("mlstm_sequence", {"step_columns": 8})))
    for arguments in (x, tensors(gradient=True)):
        with pytest.raises(RuntimeError, match="step_columns: expected 0 on a CPU"):
            mlstm_interface(**arguments, kernel="fused")
        with pytest.raises(RuntimeError, match="step_columns: expected 0 on a CPU"):
            mlstm_interface(**arguments, kernel="fused", plan={"step_columns": 16}, cu_seqlens=packed)
    assert same_bits(mlstm_interface(**x, kernel="fused", plan={}), before)
    assert same_bits(mlstm_interface(**x, kernel="fused", cu_seqlens=packed), before)  # packed calls have no class
    mlstm_interface(**x)  # nor has the chunkwise kernel this one
    with pytest.raises(ValueError, match="plan: expected choices of step_columns for mlstm_sequence, got 'segments'"):
        mlstm_interface(**x, kernel="fused", plan={"segments": 2})


def test_a_compiled_call_reads_the_table(tmp_path: Path) -> None:
    x = tensors()
    use_plans(table(tmp_path, entry()))
    compiled = torch.compile(mlstm_interface, backend="eager", fullgraph=True)
    assert same_bits(compiled(**x), mlstm_interface(**x, plan={"chunk_size": 16}))


def test_attention_reads_the_table(tmp_path: Path) -> None:
    q, k, v = torch.randn(1, 3, 4, 16), torch.randn(1, 500, 2, 16), torch.randn(1, 500, 2, 8)
    sizes = {"heads": 4, "heads_k": 2, "queries": 4, "length": 512, "dhv": 8, "causal": False}
    before = flash_attn_func(q, k, v, num_splits=1)
    use_plans(table(tmp_path, entry("attention_forward", {"block_size": 32, "splits": 3}, **sizes)))
    expected = flash_attn_func(q, k, v, block_size=32, num_splits=3)
    assert same_bits(flash_attn_func(q, k, v), expected) and not same_bits(expected, before)
    assert same_bits(flash_attn_with_kvcache(q, k, v), expected)
    assert same_bits(flash_attn_func(q, k, v, num_splits=1), before)
    with pytest.raises(ValueError, match="num_splits: expected 0 or 1 with dropout and return_attn_probs, got 2"):
        flash_attn_func(q, k, v, 0.1, return_attn_probs=True, num_splits=2)


def test_attentions_backward_pass_reads_the_table(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 100, 2, n, generator=generator).requires_grad_() for n in (16, 16, 8))

    def gradients(call: Any = flash_attn_func, **more: Any) -> Tensor:
        out = call(q, k, v, causal=True, **more)
        return torch.cat([g.flatten() for g in torch.autograd.grad(out.square().sum(), (q, k, v))])

    plan = {"block_size": 32, "row_panels": 1, "parts": 2}
    before, expected = gradients(), gradients(backward_plan=plan)
    assert not same_bits(before, expected)
    sizes = {"heads_k": 2, "queries": 128, "dhv": 8, "causal": True}
    use_plans(table(tmp_path, entry("attention_backward", plan, **sizes)))
    assert same_bits(gradients(), expected) and same_bits(gradients(block_size=128), expected)
    assert same_bits(gradients(torch.compile(flash_attn_func, backend="eager", fullgraph=True)), expected)
    assert same_bits(gradients(backward_plan={}), before)  # what is given comes before the table
    use_plans(table(tmp_path, entry("attention_backward", plan, **sizes | {"causal": False})))
    assert same_bits(gradients(), before)  # another class
    ends = torch.tensor([0, 100])

    def packed(*x: Tensor, **more: Any) -> Tensor:
        return flash_attn_varlen_func(*(y[0] for y in x), ends, ends, 100, 100, **more)

    use_plans(table(tmp_path, entry("attention_backward", plan, **sizes)))
    assert same_bits(gradients(packed), before)  # packed calls have none
    assert same_bits(gradients(packed, backward_plan=plan), expected)


def test_mla_reads_the_table(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    q, cache = torch.randn(2, 1, 8, 24, generator=generator), torch.randn(2, 500, 1, 24, generator=generator)
    used = torch.tensor([500, 300])

    def out(*schedule: Any, **more: Any) -> Tensor:
        return flash_mla_with_kvcache(q, cache, None, used, 16, *schedule, **more)[0]

    plan = {"block_size": 32, "splits": 3}
    before, older = out(), get_mla_metadata(used, 8, 1)
    scheduled, expected = out(*older), out(plan=plan)
    assert not same_bits(before, expected)
    sizes = {"batch": 2, "heads": 8, "heads_k": 1, "queries": 1, "length": 512, "dqk": 24, "dhv": 16}
    use_plans(table(tmp_path, entry("mla_decode", plan, **sizes, causal=False)))
    assert same_bits(out(), expected) and same_bits(out(plan={}), before)
    newer = get_mla_metadata()[0]
    assert same_bits(out(newer), expected) and newer.splits == 3
    assert same_bits(out(*older), scheduled)  # which says how the keys are cut
    assert same_bits(out(causal=True), before)  # another class; one query sees all
    paged = flash_mla_with_kvcache(q, cache.reshape(20, 50, 1, 24), torch.arange(20).reshape(2, 10), used, 16)[0]
    assert same_bits(paged, expected)


def test_selection_reads_the_table(tmp_path: Path) -> None:
    def chosen(length: int = 100, head_dim: int = 32) -> list[str]:
        return list(get_optimal_kernel_config(1, length, head_dim, device="cpu").values())

    native = {"kernel": "chunkwise--native_autograd"}
    fused_names = ["chunkwise--fused", "fused", "fused"]
    use_plans(table(tmp_path, entry(plan=native), entry("mlstm_step", {"kernel": "native"})))
    assert chosen() == ["chunkwise--native_autograd", "fused", "native"]
    assert chosen(length=200) == ["chunkwise--fused", "fused", "native"]
    assert chosen(head_dim=64) == fused_names
    x = tensors()
    assert same_bits(mlstm_interface(**x), mlstm_interface(**x, plan={}))  # it says nothing to the fused kernel
    use_plans(table(tmp_path, entry(plan=native), entry(plan={}, heads=4)))
    assert chosen() == fused_names  # two entries that differ
    use_plans(table(tmp_path, entry(plan={"kernel": "chunkwise--none"})))
    with pytest.raises(ValueError, match="chunkwise--none"):
        chosen()


def test_trying_is_for_every_shape_and_ends() -> None:
    x = tensors()
    before = mlstm_interface(**x)
    with trying("mlstm_chunkwise", {"chunk_size": 16}):
        assert same_bits(mlstm_interface(**x), mlstm_interface(**x, plan={"chunk_size": 16}))
        with trying("mlstm_chunkwise", {}):
            assert same_bits(mlstm_interface(**x), before)
        assert not same_bits(mlstm_interface(**x), before)
    assert same_bits(mlstm_interface(**x), before)


@pytest.mark.parametrize(
    ("plan", "error", "text"),
    [
        ([], TypeError, "plan: expected a mapping of kernel, chunk_size, .*, got list"),
        ({"splits": 1}, ValueError, "plan: expected choices of .* for mlstm_chunkwise, got 'splits'"),
        ({"segments": -1}, ValueError, "plan.segments: expected an integer >= 0, got -1"),
        ({"segments": True}, ValueError, "plan.segments: expected an integer >= 0, got True"),
        ({"segments": 1.5}, ValueError, "plan.segments: expected an integer >= 0, got 1.5"),
        ({"kernel": ""}, ValueError, "plan.kernel: expected a registry name, got ''"),
        (
            {"kernel": "chunkwise--native_autograd"},
            ValueError,
            "plan.kernel: expected none in a call, which has kernel=",
        ),
        ({"workers": 2}, ValueError, "plan.workers: expected none without a kernel that runs in bands, got 2"),
        ({"walk_chunk": 16}, RuntimeError, "walk_chunk: expected 0 on a CPU"),
    ],
)
def test_bad_plans(plan: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        mlstm_interface(**tensors(), plan=plan)


def test_bad_plans_of_a_step() -> None:
    x = {name: y[:, :, 0] if y.dim() == 4 else y[:, :, :1] for name, y in tensors().items()}
    states = {"c": torch.zeros(1, 2, 16, 32), "n": torch.zeros(1, 2, 16), "m": torch.zeros(1, 2, 1)}
    with pytest.raises(RuntimeError, match="step_columns: expected 0 on a CPU"):
        mlstm_step_interface(**x, **states, plan={"step_columns": 8})
    with pytest.raises(ValueError, match="plan: expected choices of kernel, step_columns for mlstm_step"):
        mlstm_step_interface(**x, **states, plan={"segments": 8})
    with pytest.raises(ValueError, match="backward_plan: expected choices"):
        mlstm_interface(**tensors(gradient=True), backward_plan={"kernel": "fused"})


@pytest.mark.parametrize(
    ("where", "value", "text"),
    [
        (("op",), "mlstm", r"entries\[0\].op: expected one of mlstm_chunkwise, .*, got 'mlstm'"),
        (("arch",), "gfx942", r"entries\[0\].arch: expected a name and a number .*, got 'gfx942'"),
        (("arch",), 7, r"entries\[0\].arch: .* got 7"),
        (("class",), [], r"entries\[0\].class: expected dtype, .* got \[\]"),
        (("class", "causal"), True, r"entries\[0\].class: expected dtype"),
        (("class", "dtype"), "int8", r"entries\[0\].class.dtype: expected one of float32, .* got 'int8'"),
        (("class", "heads"), 0, r"entries\[0\].class.heads: expected an integer >= 1, got 0"),
        (("class", "length"), 100, r"entries\[0\].class.length: expected a power of two, got 100"),
        (("plan",), None, r"entries\[0\].plan: expected a mapping"),
        (("plan", "segments"), "2", r"entries\[0\].plan.segments: expected an integer >= 0, got '2'"),
        (("plan", "splits"), 2, r"entries\[0\].plan: expected choices of .* got 'splits'"),
        (("note",), "x", r"entries\[0\].note: expected one of op, arch, class, plan, speedup, run"),
    ],
)
def test_errors_name_the_field(tmp_path: Path, where: tuple[str, ...], value: Any, text: str) -> None:
    bad = copy.deepcopy(entry())
    index = bad
    for name in where[:-1]:
        index = index[name]
    index[where[-1]] = value
    with pytest.raises(ValueError, match=rf"plans.json: {text}"):
        use_plans(table(tmp_path, bad))


def test_errors_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (("{", "expected a table of plans as JSON"), ("[]", "format: expected 1, got 'list'"),
                         ('{"format": 2}', "format: expected 1, got 2"), ('{"format": 1}', "entries: expected a list"),
                         ('{"format": 1, "entries": [3]}', "op: expected an object .*, got int")):  # fmt: skip
        (tmp_path / "plans.json").write_text(text)
        with pytest.raises(ValueError, match=expected):
            use_plans(tmp_path / "plans.json")
    no_plan = entry()
    del no_plan["plan"]
    with pytest.raises(ValueError, match="plan: expected choices of .*, got none"):
        use_plans(table(tmp_path, no_plan))
    monkeypatch.setenv(plans.ENVIRONMENT, str(tmp_path / "nowhere.json"))
    with pytest.raises(ValueError, match="XLSTM_HIP_PLANS: expected the path of a table of plans, got .*nowhere"):
        plans.default_tables()
    monkeypatch.setenv(plans.ENVIRONMENT, str(table(tmp_path)))
    assert plans.default_tables() == [plans.SHIPPED, tmp_path / "plans.json"]


def test_a_plan_is_what_csrc_says_where_it_is_zero() -> None:
    x = tensors()
    zero = {"kernel": "chunkwise--fused", "chunk_size": 0, "segments": 0, "walk_chunk": 0}
    assert check_plan("plan", "mlstm_chunkwise", zero) is zero
    assert same_bits(mlstm_interface(**x, plan=zero), mlstm_interface(**x, plan={}))

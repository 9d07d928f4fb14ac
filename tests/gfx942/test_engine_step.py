# SPDX-License-Identifier: Apache-2.0
"""The decode step run as gfx942 code, beside the same step on the CPU: formats, batches, masks, odd widths."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from builds import has_code
from kernels_ran import check_every_kernel_ran

FUSED = {"use_bias": True, "weight_mode": "fused"}
ODD = {"embedding_dim": 36, "num_heads": 3, "qk_dim_factor": 0.25, "ffn_round_up_to_multiple_of": 7}
BARE = {"gate_soft_cap": None, "output_logit_soft_cap": None, "add_out_norm": False}
HEAD = {"embedding_dim": 64, "num_heads": 2, "num_blocks": 1, "vocab_size": 19457}  # blocks of 96 rows for 304 CUs
HEAD_48 = {**HEAD, "vocab_size": 14592}  # blocks of 48 rows
WIDE = {"embedding_dim": 256, "num_heads": 1, "v_dim_factor": 2.0, "num_blocks": 1, "ffn_proj_factor": 20.0}
COMPANY = {"embedding_dim": 320, "num_heads": 2, "num_blocks": 1}
HEADS = {"embedding_dim": 128, "num_heads": 4, "num_blocks": 1, "use_bias": True}  # of 32 values
FLOAT8 = tuple({"format": name} for name in ("float8_e4m3fn", "float8_e4m3fnuz"))  # OCP; what the chip converts
# The dtype; 0, bits or what quantize() is called with; rows; changes of the model
CASES: tuple[tuple[str, torch.dtype, int | dict[str, Any], int, dict[str, Any]], ...] = (
    ("one row", torch.float32, 0, 1, {}),
    ("one row, biases, fused", torch.float32, 0, 1, FUSED),
    ("five rows, biases, fused", torch.float32, 0, 5, FUSED),
    ("bfloat16", torch.bfloat16, 0, 1, {}),
    ("bfloat16, three rows, fused", torch.bfloat16, 0, 3, {"weight_mode": "fused"}),
    ("float16, two rows", torch.float16, 0, 2, {}),
    ("int8", torch.float32, 8, 1, {}),
    ("int4", torch.float32, 4, 1, {}),
    ("int4, bfloat16", torch.bfloat16, 4, 1, {}),
    ("int4, six rows, fused", torch.bfloat16, 4, 6, {"weight_mode": "fused"}),
    ("rows that are no pieces of 16 bytes", torch.float32, 0, 2, ODD),
    ("no caps, no last norm", torch.bfloat16, 0, 1, BARE),
    ("no caps, no last norm, three rows", torch.bfloat16, 0, 3, BARE),
    ("no caps, no last norm, floats", torch.float32, 0, 1, BARE),
    ("no caps, no last norm, floats, two rows", torch.float32, 0, 2, BARE),
    ("more columns than a tile", torch.bfloat16, 0, 1, WIDE),
    ("more columns than a tile, floats", torch.float32, 0, 1, WIDE),
    ("more columns than a tile, int4, eight rows", torch.bfloat16, 4, 8, WIDE),
    # Products that blocks share.
    *((f"more columns than a tile, {n} rows", torch.bfloat16, 0, n, WIDE) for n in (5, 16, 17)),
    *((f"more columns than a tile, float16, {n} rows", torch.float16, 0, n, WIDE) for n in (5, 9)),
    *((f"more columns than a tile, int8, {n} rows", torch.bfloat16, 8, n, WIDE) for n in (5, 9)),
    ("more columns than a tile, int4, nine rows", torch.bfloat16, 4, 9, WIDE),
    *(
        (f"more columns than a tile, {kind['format']}, {n} rows", torch.bfloat16, kind, n, WIDE)
        for kind in FLOAT8
        for n in (5, 9)
    ),
    ("seventeen rows", torch.bfloat16, 0, 17, {}),
    ("64 rows, biases, fused", torch.bfloat16, 0, 64, FUSED),
    ("float16, 33 rows", torch.float16, 0, 33, {}),
    ("40 rows, tiles of 16 columns", torch.bfloat16, 0, 40, HEADS),
    ("80 rows, tiles of 32 columns", torch.bfloat16, 0, 80, HEADS),
    ("int8, 32 rows", torch.bfloat16, 8, 32, {}),
    ("int4, 40 rows", torch.float16, 4, 40, {}),
    ("int8, 40 rows", torch.bfloat16, 8, 40, {}),
    ("int4, 20 rows", torch.bfloat16, 4, 20, {}),
    # Offsets, groups of two steps, rows that end within a line of 128 bytes, more rows than one pass has.
    (
        "int4 with offsets, groups of 128, 9 rows",
        torch.bfloat16,
        {"bits": 4, "symmetric": False, "group_size": 128},
        9,
        WIDE,
    ),
    ("int8 with offsets, 3 rows", torch.bfloat16, {"bits": 8, "symmetric": False}, 3, COMPANY),
    ("int4, v of bfloat16, 12 rows", torch.bfloat16, {"bits": 4, "skip": ("v", "ogate_preact")}, 12, COMPANY),
    ("int8, 70 rows, fused", torch.bfloat16, 8, 70, {"weight_mode": "fused"}),
    *(
        (f"{kind['format']}, {n} rows, {name}", torch.bfloat16, kind, n, changes)
        for kind in FLOAT8
        for name, n, changes in (("", 1, {}), ("fused", 6, {"weight_mode": "fused"}), ("", 17, {}), ("", 40, {}))
    ),
    *((f"{kind['format']}, groups of 32", torch.bfloat16, kind | {"group_size": 32}, 2, {}) for kind in FLOAT8),
    *((f"many words, {kind['format']}, {n} rows", torch.bfloat16, kind, n, HEAD) for kind in FLOAT8 for n in (1, 5, 9)),
    *((f"fewer words, {kind['format']}, 5 rows", torch.bfloat16, kind, 5, HEAD_48) for kind in FLOAT8),
    *((f"many words, {n} rows", torch.bfloat16, 0, n, HEAD) for n in (1, 5, 9, 17, 33)),
    *((f"many words, float16, {n} rows", torch.float16, 0, n, HEAD) for n in (1, 5, 9, 17, 33)),
    *((f"many words, int8, {n} rows", torch.bfloat16, 8, n, HEAD) for n in (1, 5, 9)),
    *((f"many words, int4, {n} rows", torch.float16, 4, n, HEAD) for n in (1, 5, 9)),
    *((f"fewer words, {n} rows", torch.bfloat16, 0, n, HEAD_48) for n in (5, 9, 17, 33)),
    *((f"fewer words, float16, {n} rows", torch.float16, 0, n, HEAD_48) for n in (5, 9, 17, 33)),
    *((f"fewer words, int8, {n} rows", torch.bfloat16, 8, n, HEAD_48) for n in (5, 9)),
    *((f"fewer words, int4, {n} rows", torch.float16, 4, n, HEAD_48) for n in (5, 9)),
)
ERROR = 1e-5  # both are float between the weights; 2.1e-6 was the worst
SPLIT_ERROR = 1e-4  # where weights are not floats, x's are multiplied as 16 bits of a float, 256 times coarser


def quantised(model: Any, bits: int | dict[str, Any]) -> None:
    from xlstm_hip.models.quantize import quantize

    if bits:
        quantize(model, **(bits if isinstance(bits, dict) else {"bits": bits}), progress=False)


_ran: set[tuple] = set()


@pytest.fixture(scope="module", autouse=True)
def _counted(device: ModuleType) -> None:
    device.reset_counters()


@pytest.mark.parametrize(("dtype", "bits", "batch", "changes"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
@pytest.mark.parametrize("head", [True, False], ids=["logits", "hidden"])
def test_step(package: ModuleType, dtype: torch.dtype, bits: int | dict, batch: int, changes: dict, head: bool) -> None:
    _ran.add((dtype, str(bits), batch, head, str(changes)))
    check_step(dtype, bits, batch, changes, head)


@pytest.mark.parametrize(
    "case",
    [
        "bfloat16",
        "int8",
        "40 rows, tiles of 16 columns",
        "rows that are no pieces of 16 bytes",
        "more columns than a tile, 5 rows",
        "more columns than a tile, 17 rows",
    ],
)
def test_step_of_workgroups_that_take_turns(package: ModuleType, device: ModuleType, case: str) -> None:
    """Nothing that waves pass to each other depends on which of them is faster."""
    dtype, bits, batch, changes = next(c[1:] for c in CASES if c[0] == case)
    with device.schedule(3):
        check_step(dtype, bits, batch, changes, True)


PERSISTENT = {"embedding_dim": 1024, "num_blocks": 2, "ffn_proj_factor": 1.0}
TWO_ROUNDS = {**PERSISTENT, "num_heads": 2, "num_blocks": 1, "vocab_size": 19457}
UNEVEN = {**PERSISTENT, "num_blocks": 1, "ffn_proj_factor": 1.0625}  # 17 steps of 64 features in two slices
FOUR_SLICES = {**UNEVEN, "ffn_proj_factor": 2.0625}  # 33 steps
PERSISTENT_CASES: dict[str, tuple[torch.dtype, int | dict[str, Any], dict[str, Any]]] = {
    "two blocks": (torch.bfloat16, 0, PERSISTENT),
    "two heads, many words": (torch.bfloat16, 0, TWO_ROUNDS),
    "features that slices do not share": (torch.bfloat16, 0, UNEVEN),
    "four slices": (torch.bfloat16, 0, FOUR_SLICES),
    "float16": (torch.float16, 0, PERSISTENT),
    "int8": (torch.bfloat16, 8, PERSISTENT),
    "int8, two heads, many words": (torch.bfloat16, 8, TWO_ROUNDS),
    "int8, features that slices do not share": (torch.bfloat16, 8, UNEVEN),
    "int8, four slices": (torch.bfloat16, 8, FOUR_SLICES),
    "int8 of gates too": (torch.bfloat16, {"bits": 8, "skip": ()}, PERSISTENT),
    "int4": (torch.bfloat16, 4, PERSISTENT),
    "int4, four slices": (torch.bfloat16, 4, FOUR_SLICES),
    "int4 with offsets, groups of 128": (
        torch.bfloat16,
        {"bits": 4, "symmetric": False, "group_size": 128},
        PERSISTENT,
    ),
    **{kind["format"]: (torch.bfloat16, kind, PERSISTENT) for kind in FLOAT8},
}


def launches_of(device: ModuleType, kernel: str) -> int:
    return sum(shape.launches for c in device.counters(kernel, instructions=False) for shape in c.shapes)


PERMUTED = ("two blocks", "two heads, many words", "int8", "int4 with offsets, groups of 128")  # by three schedules


@pytest.mark.parametrize(
    ("case", "seed"), [(case, seed) for case in PERSISTENT_CASES for seed in ((1, 2, 3) if case in PERMUTED else (1,))]
)
def test_step_in_one_launch(
    package: ModuleType, device: ModuleType, monkeypatch: pytest.MonkeyPatch, case: str, seed: int
) -> None:
    """Whichever workgroup is faster: what one passes to another has the device's scope, and is waited for."""
    monkeypatch.setenv("XLSTM_HIP_GPU_SCHEDULE", "persistent")
    dtype, bits, changes = PERSISTENT_CASES[case]
    before = launches_of(device, "megakernel_cdna")
    with device.schedule(seed):
        check_step(dtype, bits, 1, changes, True)
    assert launches_of(device, "megakernel_cdna") == before + 1


@pytest.mark.parametrize("case", PERSISTENT_CASES)
def test_one_row(package: ModuleType, device: ModuleType, case: str) -> None:
    """The megakernel's products as launches: all of a step's."""
    dtype, bits, changes = PERSISTENT_CASES[case]
    before = launches_of(device, "gemm_row_cdna_kernel")
    check_step(dtype, bits, 1, changes, True)
    assert launches_of(device, "gemm_row_cdna_kernel") == before + 4 * changes["num_blocks"] + 1


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (torch.float16, 8),
        (torch.bfloat16, {"bits": 8, "skip": ("v",)}),
        (torch.bfloat16, {"bits": 8, "group_size": 32}),
    ],
    ids=["gates of float16", "v of bfloat16", "groups of 32"],
)
def test_formats_that_take_launches(
    package: ModuleType, device: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bits: int | dict
) -> None:
    monkeypatch.setenv("XLSTM_HIP_GPU_SCHEDULE", "persistent")
    before = launches_of(device, "megakernel_cdna")
    check_step(dtype, bits, 1, PERSISTENT | {"num_blocks": 1}, True)
    assert launches_of(device, "megakernel_cdna") == before


def test_a_batch_takes_launches(package: ModuleType, device: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule is a permission: what one launch does not take is computed as ever."""
    monkeypatch.setenv("XLSTM_HIP_GPU_SCHEDULE", "persistent")
    check_step(torch.bfloat16, 0, 2, {}, True)
    monkeypatch.setenv("XLSTM_HIP_GPU_SCHEDULE", "other")
    expected = "auto, common, persistent or launches"
    with pytest.raises(RuntimeError, match=f"XLSTM_HIP_GPU_SCHEDULE: expected {expected}, got other"):
        check_step(torch.bfloat16, 0, 1, {}, True)


def check_step(dtype: torch.dtype, bits: int | dict, batch: int, changes: dict[str, Any], head: bool) -> None:
    from support.peer_models import relative, small_model, tokens
    from xlstm_hip._core.ops import OPS
    from xlstm_hip.models.decode_engine import DecodeEngine

    model = small_model(dtype=dtype, **changes)
    quantised(model, bits)
    engine = model._new_engine()
    backbone = model.backbone
    if not head:
        parts = ((backbone, "blocks"), (model, "embedding"), (backbone, "out_norm"))
        engine = DecodeEngine(*parts, None, lambda block: True)
    assert engine.why_not is None
    x = tokens(batch, 1, seed=2)[:, 0]
    keep = torch.tensor([row % 3 != 1 for row in range(batch)])
    with torch.no_grad():
        _, state = model.hidden(tokens(batch, 5), keep_state=True)
    states = [s for n in sorted(state) for s in state[n]]
    on_gpu = [s.to("cuda") for s in states]
    config = model.config
    out = torch.full((batch, config.vocab_size if head else config.embedding_dim), torch.nan)
    numbers = (
        config.num_heads, engine._norm_eps, config.eps, config.gate_soft_cap or 0.0, config.output_logit_soft_cap or 0.0
    )  # fmt: skip
    weights = [w.detach() for w in engine._parts.tensors]
    actual = out.to("cuda")
    OPS.decode_step_(out, x, keep, weights, engine._weight_index, states, *numbers)
    moved = [w.to("cuda") for w in weights]
    OPS.decode_step_(actual, x.to("cuda"), keep.to("cuda"), moved, engine._weight_index, on_gpu, *numbers)
    error = SPLIT_ERROR if bits or dtype != torch.float32 else ERROR
    assert relative(actual.cpu(), out) < error
    for a, b in zip(on_gpu, states, strict=True):
        assert relative(a.cpu(), b) < error


def test_every_float8(package: ModuleType) -> None:
    """Every code, in every place of a word: as the CPU has them, NaN too, by matrix units and one row at a time."""
    from support.peer_models import relative, small_model, tokens
    from xlstm_hip._core.ops import OPS

    for kind in FLOAT8:
        for group_size in (64, 32):
            model = small_model(dtype=torch.bfloat16, num_blocks=1, vocab_size=256, output_logit_soft_cap=None)
            quantised(model, kind | {"group_size": group_size})
            q = model.lm_head.qweight
            codes = (torch.arange(256)[:, None] + torch.arange(128) // 16 * 37).to(torch.uint8)
            codes[codes == 0x80 if kind["format"].endswith("fnuz") else codes & 0x7F == 0x7F] = 1
            nan = torch.arange(0, 256, 8)
            codes[nan, nan // 8] = 0x80 if kind["format"].endswith("fnuz") else 0x7F
            q.copy_(codes.view(q.dtype))
            engine, x = model._new_engine(), tokens(1, 1, seed=2)[:, 0]
            with torch.no_grad():
                _, state = model.hidden(tokens(1, 5), keep_state=True)
            states, out = [s for n in sorted(state) for s in state[n]], torch.full((1, 256), 7.0)
            numbers = (model.config.num_heads, engine._norm_eps, model.config.eps, model.config.gate_soft_cap, 0.0)
            weights, moved = [w.detach() for w in engine._parts.tensors], out.to("cuda")
            on_gpu = [s.to("cuda") for s in states]
            OPS.decode_step_(out, x, None, weights, engine._weight_index, states, *numbers)
            gpu_weights = [w.to("cuda") for w in weights]
            OPS.decode_step_(moved, x.to("cuda"), None, gpu_weights, engine._weight_index, on_gpu, *numbers)
            actual, is_nan = moved.cpu()[0], torch.arange(256) % 8 == 0
            assert torch.equal(actual.isnan(), is_nan) and torch.equal(out[0].isnan(), is_nan)
            assert relative(actual[~is_nan], out[0][~is_nan]) < SPLIT_ERROR


SHAPES: tuple[tuple[str, torch.dtype, int | dict[str, Any]], ...] = (
    ("bfloat16", torch.bfloat16, 0),
    ("float16", torch.float16, 0),
    ("int8", torch.bfloat16, 8),
    ("int4", torch.bfloat16, 4),
    *((kind["format"], torch.bfloat16, kind) for kind in FLOAT8),
)


@pytest.mark.parametrize(
    ("dtype", "bits", "changes"),
    [*((*s[1:], COMPANY) for s in SHAPES), (torch.bfloat16, 0, WIDE), (torch.bfloat16, 4, WIDE)],
    ids=[*(s[0] for s in SHAPES), "bfloat16, more columns than a tile", "int4, more columns than a tile"],
)
def test_company(package: ModuleType, dtype: torch.dtype, bits: int | dict, changes: dict[str, Any]) -> None:
    """A row of the batch has the same logits and states among others and a second time: bit for bit alone, among few
    rows, 2 to 8 of them, and among many. Each of the three has an order of sums of its own; to integers 2 are many."""
    from support.peer_models import relative, small_model, tokens
    from xlstm_hip._core.ops import OPS

    model = small_model(dtype=dtype, **changes)
    quantised(model, bits)
    engine = model._new_engine()
    moved = [w.detach().to("cuda") for w in engine._parts.tensors]
    x = tokens(35, 1, seed=2)[:, 0]
    with torch.no_grad():
        _, state = model.hidden(tokens(35, 5), keep_state=True)
    states = [s for n in sorted(state) for s in state[n]]
    numbers = (model.config.num_heads, engine._norm_eps, model.config.eps, 15.0, 30.0)

    def step(rows: slice) -> list[torch.Tensor]:
        row_states = [s[rows].contiguous().to("cuda") for s in states]
        out = torch.full((len(x[rows]), 97), torch.nan).to("cuda")
        OPS.decode_step_(out, x[rows].contiguous().to("cuda"), None, moved, engine._weight_index, row_states, *numbers)
        return [t.cpu() for t in (out, *row_states)]

    few = 1 if bits in (8, 4) else 8
    of_many, of_few, of_one = step(slice(0, 35)), step(slice(27, 35)), step(slice(33, 34))
    for first, last in ((0, 35), (2, 4), (31, 35), (27, 33), (2, 10), (3, 23), (5, 14), (33, 34)):
        rows, count = slice(first, last), last - first
        for part, many, several, one in zip(step(rows), of_many, of_few, of_one, strict=True):
            assert relative(part, many[rows]) < SPLIT_ERROR
            if count > few:
                assert torch.equal(part, many[rows])
            elif count == 1:
                assert torch.equal(part, one)
            elif first >= 27:
                assert torch.equal(part, several[first - 27 : last - 27])


def test_errors(package: ModuleType) -> None:
    from support.peer_models import small_model, tokens
    from xlstm_hip._core.ops import OPS

    model = small_model(num_heads=64, embedding_dim=128, num_blocks=1)
    engine = model._new_engine()
    weights = [w.detach().to("cuda") for w in engine._parts.tensors]
    x = tokens(1, 1)[:, 0].to("cuda")
    sizes = ((1, 64, 1, 2), (1, 64, 1), (1, 64, 1))
    states = [torch.zeros(size).to("cuda") for size in sizes]
    out = torch.empty(1, 97).to("cuda")
    with pytest.raises(RuntimeError, match="norm_eps: expected a finite number >= 0"):
        OPS.decode_step_(out, x, None, weights, engine._weight_index, states, 64, -1.0, 1e-6, 15.0, 30.0)
    nowhere = torch.full((1,), 97).to("cuda")
    OPS.decode_step_(out, nowhere, None, weights, engine._weight_index, states, 64, 1e-6, 1e-6, 15.0, 30.0)
    assert out.cpu().isnan().all()


def test_every_kernel_ran(package: ModuleType, device: ModuleType) -> None:
    left_out = 2 * sum(has_code(case[1]) for case in CASES) - len(_ran)
    if left_out > 0:
        pytest.skip(f"{left_out} of the tests above were not chosen")
    check_every_kernel_ran(device, "test_engine_step.py")

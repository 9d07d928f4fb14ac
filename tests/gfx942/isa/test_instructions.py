# SPDX-License-Identifier: Apache-2.0
"""Every instruction that the interpreter implements, in every encoding that the assembler knows, against what the ISA
says: edge values and random ones, 64 lanes at a time, with lanes off, in the MODEs that floats depend on."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest

import expected_cdna2
import expected_cdna4
import expected_conversions
import expected_floats
import expected_integers
import expected_packed
import expected_scalars
from assembly import kernel_text
from builds import CHIP
from expected import Op
from instruction_forms import Form, forms_of
from instruction_results import difference
from instruction_runs import Family, few_waves, legal, thorough_waves
from scalar_runs import scalar_difference, scalar_forms, scalar_waves
from written_cases import CASES, case_waves

# Of what the interpreter implements, what a chip has none of.
CDNA4 = {*expected_cdna4.TABLE, "v_bitop3_b16", "v_bitop3_b32", "v_permlane16_swap_b32", "v_permlane32_swap_b32"}
CDNA2 = set(expected_cdna2.TABLE)
BYTES = {"v_cvt_pk_f32_fp8", "v_cvt_pk_fp8_f32"}
NOT_ON: dict[str, set[str]] = {
    "gfx90a": {"v_mov_b64", "v_lshl_add_u64", "v_fmaak_f32", "v_fmamk_f32", *BYTES, *CDNA4},
    "gfx942": {*CDNA2, *CDNA4},
    "gfx950": {*CDNA2},
}
TABLES = {
    "floats": expected_floats.TABLE,
    "integers": expected_integers.TABLE,
    "conversions": expected_conversions.TABLE,
    "packed": expected_packed.TABLE,
    "cdna2": expected_cdna2.TABLE,
    "cdna4": expected_cdna4.TABLE,
}
VECTOR = {
    name: (family, op) for family, table in TABLES.items() for name, op in table.items() if name not in NOT_ON[CHIP]
}
# What a test of its own shows: test_ends() here, memory, LDS and matrices in other files.
ENDS = {"s_endpgm", "s_trap", "s_barrier"}
ELSEWHERE = (
    "global_",
    "flat_",
    "scratch_",
    "buffer_",
    "s_load_",
    "s_store_",
    "s_atomic_",
    "s_buffer_",
    "ds_",
    "v_mfma_",
    "v_smfmac_",
)
WORST = 3  # differences that a failure shows


@dataclass
class Kernels:
    """A family's kernels, and which of them are of which instruction."""

    family: Family
    forms: dict[str, list[tuple[int, Form]]]


def _comparison_like_another(name: str) -> bool:
    """All forms of one comparison of each type are enough: what differs is the relation."""
    return name.startswith("v_cmp") and name.split("_")[:3] not in (["v", "cmp", "lt"], ["v", "cmp", "class"])


@functools.cache
def _kernels(device: ModuleType, family: str) -> Kernels:
    candidates = []
    for name, op in TABLES[family].items():
        forms = forms_of(name, op)
        candidates += [(name, f, op) for f in (forms[::9] + forms[-4:-2] if _comparison_like_another(name) else forms)]
    known = legal([f.text(op) for _, f, op in candidates])
    candidates = [c for ok, c in zip(known, candidates, strict=True) if ok]
    forms_by_name = defaultdict(list)
    for index, (name, form, _) in enumerate(candidates):
        forms_by_name[name].append((index, form))
    return Kernels(Family(device, [f.text(op) for _, f, op in candidates]), forms_by_name)


def _is_refused(device: ModuleType, kernels: Kernels, index: int, op: Op, form: Form) -> bool:
    try:
        kernels.family.run(index, few_waves(op, form))
    except device.Fault as fault:
        return "not implemented" in str(fault)
    return False


@pytest.mark.parametrize("name", VECTOR)
def test_vector(device: ModuleType, name: str) -> None:
    family, op = VECTOR[name]
    kernels = _kernels(device, family)
    assert kernels.forms[name], f"the assembler knows no form of {name}"
    wrong = []
    for k, (index, form) in enumerate(kernels.forms[name]):
        if form.refused:
            if not _is_refused(device, kernels, index, op, form):
                wrong.append(f"{form.text(op)}\n  is not refused")
            continue
        thorough = k == 0 and not op.sets_exec  # the same comparison without it has been through all of that
        waves = thorough_waves(op) if thorough else few_waves(op, form)
        found = (difference(form, op, w, left) for w, left in zip(waves, kernels.family.run(index, waves), strict=True))
        wrong += [f"{form.text(op)}\n  {d}" for d in found if d][:1]
    assert not wrong, f"{len(wrong)} forms of {name}\n" + "\n".join(wrong[:WORST])


@functools.cache
def _scalars(device: ModuleType) -> tuple[Family, dict[str, list]]:
    forms = [(name, f) for name, op in expected_scalars.TABLE.items() for f in scalar_forms(name, op)]
    by_name = defaultdict(list)
    for index, (name, form) in enumerate(forms):
        by_name[name].append((index, form))
    return Family(device, [f.text for _, f in forms]), by_name


@pytest.mark.parametrize("name", expected_scalars.TABLE)
def test_scalar(device: ModuleType, name: str) -> None:
    op = expected_scalars.TABLE[name]
    family, forms = _scalars(device)
    wrong = []
    for k, (index, form) in enumerate(forms[name]):
        waves = scalar_waves(op, 8 if k else 96)
        found = (scalar_difference(form, op, w, left) for w, left in zip(waves, family.run(index, waves), strict=True))
        wrong += [f"{form.text}\n  {d}" for d in found if d][:1]
    assert not wrong, f"{len(wrong)} forms of {name}\n" + "\n".join(wrong[:WORST])


WRITTEN = [case for case in CASES if not NOT_ON[CHIP] & set(case.covers.split())]


@functools.cache
def _written(device: ModuleType) -> Family:
    return Family(device, [c.text for c in WRITTEN])


@pytest.mark.parametrize(
    "index", range(len(WRITTEN)), ids=[f"{k}-{c.covers.split()[0]}" for k, c in enumerate(WRITTEN)]
)
def test_written(device: ModuleType, index: int) -> None:
    waves = case_waves()
    for wave, left in zip(waves, _written(device).run(index, waves), strict=True):
        assert left == WRITTEN[index].after(wave), f"{WRITTEN[index].text}\nEXEC {wave.exec:016x}, SCC {wave.scc}"


def test_ends(device: ModuleType) -> None:
    """A wave ends, traps, waits for the others: the second wave's number goes through LDS to the first."""
    body = """
  s_load_dwordx2 s[6:7], s[0:1], 0x0
  v_lshlrev_b32 v1, 2, v0
  v_xor_b32 v2, 0x100, v1
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v3, v2
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v3, s[6:7]
  s_endpgm
  s_trap 2"""
    out = np.zeros(128, dtype=np.uint32)
    device.Module(device.assemble(kernel_text(body, ["*"], lds=512))).launch("kernel", 1, 128, (out,))
    assert (out == np.arange(128) ^ 64).all()
    for text, words in (("s_trap 2", "trapped"), ("s_sethalt 1", "halts")):
        with pytest.raises(device.Fault, match=words):
            device.Module(device.assemble(kernel_text(f"  {text}"))).launch("kernel", 1, 64)


def test_encodings() -> None:
    """That the assembler refuses what does not exist is how forms are found; it must not refuse these."""
    for name, suffixes in {
        "v_add_f32": {"_e32", "_e64", "_sdwa", "_dpp"},
        "v_lshlrev_b16": {"_e32", "_e64", "_sdwa", "_dpp"},
        "v_cmp_lt_f16": {"_e32", "_e64", "_sdwa"},
        "v_fma_f64": {"_e64"},
        "v_rcp_f32": {"_e32", "_e64", "_sdwa", "_dpp"},
    }.items():
        op = VECTOR[name][1]
        forms = forms_of(name, op)
        known = legal([f.text(op) for f in forms])
        assert {f.suffix for f, ok in zip(forms, known, strict=True) if ok} == suffixes, name


def test_complete(device: ModuleType) -> None:
    """Each instruction that is implemented has a test."""
    tested = {*VECTOR, *expected_scalars.TABLE, *ENDS, *(m for c in WRITTEN for m in c.covers.split())}
    implemented = {x for x in device.operations() if not x.startswith(ELSEWHERE)} - NOT_ON[CHIP]
    assert implemented - tested == set()
    assert tested - implemented == set()

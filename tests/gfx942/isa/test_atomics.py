# SPDX-License-Identifier: Apache-2.0
"""Atomics of LDS and of memory against one lane after the other."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from atomic_models import INTEGERS, Function, added, apply, chosen, float_bits, pair
from builds import CHIP
from lds_programs import PARTS, on_lds
from lds_programs import content as lds_content
from memory_models import LANES, LOADS, SIZE, STORES, WAIT, content, descriptor, masked, with_descriptor
from wave_programs import WAVE, in_dwords, lanes_on, registers, run, span

# What a chip has none of.
LACKS: dict[str, set[str]] = {"ds": set(), "global": set(), "flat": set(), "buffer": {"pk_add_bf16"}}
if CHIP == "gfx90a":
    LACKS["ds"] = {"pk_add_f16", "pk_add_bf16"}
    LACKS["global"] = {"pk_add_bf16"}
    LACKS["flat"] = {"add_f32", "pk_add_f16", "pk_add_bf16"}
RETURNS = " glc" if CHIP == "gfx90a" else " sc0"  # the modifier that brings the old value back

# ---- of LDS


def lds_cases() -> list[tuple[str, int, int, Function]]:
    """Name without its suffixes, bits, sources, what it does."""
    cases: list[tuple[str, int, int, Function]] = []
    names = {"add": "add_u", "sub": "sub_u", "rsub": "rsub_u", "smin": "min_i", "smax": "max_i", "umin": "min_u"}
    names |= {"umax": "max_u", "and": "and_b", "or": "or_b", "xor": "xor_b", "inc": "inc_u", "dec": "dec_u"}
    for bits, functions in INTEGERS.items():
        cases += [(f"{name}{bits}", bits, 1, functions[key]) for key, name in names.items()]
        cases.append((f"mskor_b{bits}", bits, 2, functions["mskor"]))
        cases.append((f"cmpst_b{bits}", bits, 2, lambda old, x, y: y if old == x else old))
        cases.append((f"add_f{bits}", bits, 1, added(f"f{bits}", bits)))
    cases += [("pk_add_f16", 32, 1, added("f16", 32)), ("pk_add_bf16", 32, 1, added("bf16", 32))]
    cases += [(f"{m}_f{bits}", bits, 1, chosen(m, bits)) for bits in (32, 64) for m in ("min", "max")]
    return cases


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("case", [c for c in lds_cases() if c[0] not in LACKS["ds"]], ids=lambda c: c[0])
def test_lds_atomics(device: ModuleType, case: tuple[str, int, int, Function], returns: bool) -> None:
    name, bits, sources, f = case
    random, size = np.random.default_rng(bits), bits // 8
    memory = lds_content()
    words = memory.view(np.uint32 if bits == 32 else np.uint64)
    data = random.integers(0, 1 << bits, (2, WAVE), np.uint64)
    if "_f" in name or "bf16" in name:
        kind = name.rsplit("_", 1)[1]
        words[:] = float_bits(kind, words.shape, random)
        data = float_bits(kind, (2, WAVE), random).astype(np.uint64)
    # Eight words, each of several lanes; some lanes give what the word holds, for those that compare.
    address = (random.integers(0, 8, WAVE) * size).astype(np.uint32)
    data[0, ::3] = words[address[::3] // size]
    count = size // 4
    loads: dict[str, Any] = {"v3": address}
    for k in range(2):
        for r in range(count):
            loads[f"v{30 + 2 * k + r}"] = (data[k] >> np.uint64(32 * r)).astype(np.uint32)
    parts = name.rsplit("_", 1)
    mnemonic = f"ds_{parts[0]}_rtn_{parts[1]}" if returns else f"ds_{name}"
    operands = [span("v", 20, count)] * returns + ["v3", span("v", 30, count), span("v", 32, count)][: 1 + sources]
    mask = 0xFFFF_FFFF_FFFF_0FFF
    stores = registers("v", 20, 2) if returns else []
    old = dict.fromkeys(registers("v", 20, 2), 0) if returns else {}
    found, after = on_lds(device, f"{mnemonic} {', '.join(operands)}", memory, loads | old, stores, mask)
    expected = memory.copy()
    was = apply(expected, address, size, f, data, lanes_on(mask))
    assert np.array_equal(after, expected)
    if returns:
        assert np.array_equal(pair(found[0], found[1]), was)


@pytest.mark.parametrize("bits", [32, 64])
def test_exchange(device: ModuleType, bits: int) -> None:
    memory, count = lds_content(), bits // 32
    address = (LANES[::-1] * (bits // 8)).astype(np.uint32)
    data = np.random.default_rng(1).integers(0, 1 << 32, (2, WAVE), np.uint32)
    loads = {"v3": address, "v30": data[0], "v31": data[1], "v20": 0, "v21": 0}
    body = f"ds_wrxchg_rtn_b{bits} {span('v', 20, count)}, v3, {span('v', 30, count)}"
    found, after = on_lds(device, body, memory, loads, registers("v", 20, 2))
    words = memory.view(np.uint32).reshape(-1, count)
    assert np.array_equal(found[:count].T, words[:WAVE][::-1])
    assert np.array_equal(after.view(np.uint32).reshape(-1, count)[:WAVE][::-1], data[:count].T)


# ---- of memory


def memory_cases() -> list[tuple[str, int, Function]]:
    names = ("add", "sub", "smin", "smax", "umin", "umax", "and", "or", "xor", "inc", "dec", "swap")
    cases: list[tuple[str, int, Function]] = [(name, 32, INTEGERS[32][name]) for name in names]
    cases += [(f"{name}_x2", 64, INTEGERS[64][name]) for name in names]
    cases += [(f"cmpswap{s}", bits, lambda old, x, y: x if old == y else old) for s, bits in (("", 32), ("_x2", 64))]
    cases += [("add_f32", 32, added("f32", 32)), ("add_f64", 64, added("f64", 64))]
    cases += [("pk_add_f16", 32, added("f16", 32)), ("pk_add_bf16", 32, added("bf16", 32))]
    cases += [(f"{m}_f64", 64, chosen(m, 64)) for m in ("min", "max")]
    return cases


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("segment", ["global", "flat", "flat to LDS", "buffer"])
def test_memory_atomics(device: ModuleType, segment: str, returns: bool) -> None:
    for name, bits, f in memory_cases():
        if name in LACKS[segment.split()[0]]:
            continue
        random, size, count = np.random.default_rng(bits), bits // 8, bits // 32
        memory = content()
        words = memory.view(np.uint32 if bits == 32 else np.uint64)
        data = random.integers(0, 1 << bits, (2, WAVE), np.uint64)
        if "_f" in name or "bf16" in name:
            kind = name.rsplit("_", 1)[1]
            words[:] = float_bits(kind, words.shape, random)
            data = float_bits(kind, (2, WAVE), random).astype(np.uint64)
        at = random.integers(0, 8, WAVE) * size
        data[1, ::3] = words[at[::3] // size]  # what some lanes compare with is there
        sources = 2 if "cmpswap" in name else 1
        value = span("v", 30, count * sources)
        loads: dict[str, Any] = {"v20": 0, "v21": 0, "v40": at.astype(np.uint32)}
        for k in range(sources):
            for r in range(count):
                loads[f"v{30 + count * k + r}"] = (data[k] >> np.uint64(32 * r)).astype(np.uint32)
        loads |= in_dwords(at.astype(np.uint64) + np.uint64(memory.ctypes.data), "v", 4)
        mask, on = 0xFFFF_FFFF_FFFF_0FFF, lanes_on(0xFFFF_FFFF_FFFF_0FFF)
        result = f"{span('v', 20, count)}, " if returns else ""
        modifier = RETURNS if returns else ""
        arrays, options, before = [memory], {}, ""
        if segment == "global":
            instruction = f"global_atomic_{name} {result}v[4:5], {value}, off{modifier}"
        elif segment == "flat":
            instruction = f"flat_atomic_{name} {result}v[4:5], {value}{modifier}"
        elif segment == "flat to LDS":
            # LDS is filled from memory, and goes back to it.
            before = f"""s_mov_b64 s[16:17], src_shared_base
  v_mov_b32 v4, v40
  v_mov_b32 v5, s17
  v_lshlrev_b32 v41, 2, v0
  global_load_dword v42, v41, s[12:13]
{WAIT}
  ds_write_b32 v41, v42"""
            instruction = f"flat_atomic_{name} {result}v[4:5], {value}{modifier}"
            options = {"lds": 256}
        else:
            if returns:
                result = ""
            arrays.append(descriptor(memory, SIZE))
            before = with_descriptor("")
            instruction = f"buffer_atomic_{name} {value}, v40, s[16:19], 0 offen{modifier}"
        after = f"  ds_read_b32 v42, v41\n{WAIT}\n  global_store_dword v41, v42, s[12:13]" if options else ""
        body = "\n".join([before, WAIT, masked(mask, instruction), after])
        expected = memory.copy()
        was = apply(expected, at, size, f, data, on)
        first = 30 if segment == "buffer" else 20
        found = run(device, body, loads, registers("v", first, count) if returns else [], arrays=arrays, **options)
        assert np.array_equal(memory, expected), name
        if returns:
            old = found[0].astype(np.uint64) if count == 1 else pair(found[0], found[1])
            assert np.array_equal(old[on], was[on]), name


def test_atomics_of_many_workgroups(device: ModuleType) -> None:
    """They run on several threads of the host, and none of them is lost."""
    source = """#include <hip/hip_runtime.h>
extern "C" __global__ void count(unsigned* sums, float* totals, unsigned long long* most) {
  const unsigned slot = threadIdx.x % 3;
  atomicAdd(sums + slot, 1u);
  unsafeAtomicAdd(totals + slot, 0.5f);
  atomicMax(most + slot, (unsigned long long)(blockIdx.x * blockDim.x + threadIdx.x) << 32);
}"""
    sums, totals, most = np.zeros(3, np.uint32), np.zeros(3, np.float32), np.zeros(3, np.uint64)
    with device.Module(device.compile_hip(source)) as module:
        module.launch("count", 256, 96, (sums, totals, most))
    assert sums.tolist() == [256 * 32] * 3 and totals.tolist() == [128 * 32] * 3
    assert (most >> np.uint64(32)).tolist() == [256 * 96 - 3, 256 * 96 - 2, 256 * 96 - 1]


@pytest.mark.parametrize("name", [x for x in ("pk_add_f16", "pk_add_bf16") if x not in LACKS["global"]])
def test_denormals_in_packed_atomics_stop(device: ModuleType, name: str) -> None:
    memory = np.zeros(SIZE, np.uint8)
    loads = {"v4": (4 * LANES).astype(np.uint32), "v30": np.where(LANES == 5, 1, 0).astype(np.uint32)}
    with pytest.raises(device.Fault, match="denormals[^$]*lane 5"):
        run(device, f"global_atomic_{name} v4, v30, s[12:13]", loads, [], arrays=[memory])


@pytest.mark.parametrize("name", ["min_f64", "max_f64"])
@pytest.mark.parametrize("old, value", [(float("nan"), 1.0), (1.0, float("nan")), (0.0, -0.0)])
def test_unequal_documents_stop(device: ModuleType, name: str, old: float, value: float) -> None:
    """What NaN and zeros of both signs give."""
    memory = np.full(8, old)
    loads = {"v4": 0} | in_dwords(np.float64(value).view(np.uint64), "v", 30)
    with pytest.raises(device.Fault, match="signed zeros"):
        run(device, f"global_atomic_{name} v4, v[30:31], s[12:13]", loads, [], arrays=[memory])


def test_lds_denormals_obey_the_mode(device: ModuleType) -> None:
    memory = np.full(512, 0x00400000, np.uint32).view(np.uint8)
    loads = {"v3": (4 * LANES).astype(np.uint32), "v30": 0x00400001}
    _, after = on_lds(device, "ds_add_f32 v3, v30", memory, loads, [])
    assert np.all(after.view(np.uint32)[:WAVE] == 0x00800001)
    off = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0\n  ds_add_f32 v3, v30"
    _, after = on_lds(device, off, memory, loads, [])
    assert np.all(after.view(np.uint32)[:WAVE] == 0)


def test_complete(device: ModuleType) -> None:
    """Each instruction of LDS and memory that is implemented has a test, here or in the file of its kind."""
    names = {"ds_nop", "ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32"}
    names |= {f"ds_{does}_b{bits}" for does in ("read", "write") for bits in (32, 64, 96, 128)}
    names |= {f"ds_{does}2{st}_b{bits}" for does in ("read", "write") for st in ("", "st64") for bits in (32, 64)}
    names |= {f"ds_read_{x}" for x in PARTS} | {f"ds_write_{x}" for x in ("b8", "b16", "b8_d16_hi", "b16_d16_hi")}
    names |= {"ds_wrxchg_rtn_b32", "ds_wrxchg_rtn_b64", "ds_read_b64_tr_b16"}
    for name, *_ in lds_cases():
        operation, kind = name.rsplit("_", 1)
        names |= {f"ds_{name}", f"ds_{operation}_rtn_{kind}"}
    for segment in ("global", "flat", "scratch", "buffer"):
        names |= {f"{segment}_load_{x}" for x in LOADS} | {f"{segment}_store_{x}" for x in STORES}
    names |= {f"{segment}_atomic_{x}" for segment in ("global", "flat", "buffer") for x, *_ in memory_cases()}
    names |= {f"s_load_dword{x}" for x in ("", "x2", "x4", "x8", "x16")} | CACHES
    names.remove("buffer_atomic_pk_add_bf16")
    prefixes = ("ds_", "global_", "flat_", "scratch_", "buffer_", "s_load_")
    assert {x for x in device.operations() if x.startswith(prefixes)} == names


CACHES = {"buffer_wbl2", "buffer_inv", "buffer_invl2", "buffer_wbinvl1", "buffer_wbinvl1_vol"}


def test_caches_need_nothing(device: ModuleType) -> None:
    of_caches = ["buffer_wbl2 sc1", "buffer_inv sc0 sc1"]
    if CHIP == "gfx90a":
        of_caches = ["buffer_wbl2", "buffer_invl2", "buffer_wbinvl1", "buffer_wbinvl1_vol"]
    run(device, "\n  ".join([*of_caches, "ds_nop"]), {}, [])

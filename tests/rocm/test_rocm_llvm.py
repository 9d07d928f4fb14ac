# SPDX-License-Identifier: Apache-2.0
"""The GPU kernels as ROCm 7.2's LLVM makes them of sources with HIP 7.1's headers: no scratch, no spills, and as many
blocks at once as plans count on. Of the chips, gfx950 and gfx1201 are not in the build of tests/amd.

No GPU is needed, and no ROCm. `./scripts/test rocm` downloads what is needed.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import rocm_llvm
from code_objects import Kernel, NoCompiler
from kernel_notes import OF_CDNA, WITHOUT_MATRICES, may_spill
from kernel_shapes import shape_of
from occupancy import waves_and_blocks
from rocm_llvm import ARCHS, is_for_bfloat16

pytestmark = pytest.mark.amd
OUTPUTS = rocm_llvm.ROOT / "test_outputs"

# The sources that are compiled by default: of sources that there are for several types of elements the one for
# bfloat16, and of these, for the chips that tests/amd compiles for, the sources that take seconds. With all rows,
# everything. LLVM needs more than a minute for the walk: by default gfx950 alone has it, and gfx1201 only clang's part.
WALK = "chunk_walk_BFloat16"
IN_WALK = {  # templates of that source
    "backward_walks_cdna",
    "chunk_walk",
    "chunk_walk_cdna",
    "chunk_walk_wide",
    "dot_last_states",
    "scan_segment_states",
    "segment_states",
}
DECODING = ("decode_kernels_", "mla_kernels_", "gemm_mma_")
USUAL = {
    "gfx950": lambda stem: True,
    "gfx942": lambda stem: stem.startswith(DECODING),
    "gfx1100": lambda stem: stem.startswith(DECODING),
    "gfx1201": lambda stem: stem != WALK,
}


def is_usual(source: Path, arch: str) -> bool:
    return arch in USUAL and is_for_bfloat16(source) and USUAL[arch](source.stem)


@pytest.fixture(scope="session")
def kernels(level: str) -> list[Kernel]:
    try:
        sources = rocm_llvm.sources()
    except NoCompiler as error:
        pytest.skip(str(error))
    expected = [(x, arch) for arch in ARCHS for x in sources if level == "everything" or is_usual(x, arch)]
    found = rocm_llvm.compile_kernels(expected)
    folder = OUTPUTS / time.strftime("rocm_%Y-%m-%d_%H-%M-%S")
    folder.mkdir(parents=True)
    (folder / "rocm_kernels.md").write_text(rocm_llvm.table(found))
    print(f"written to {folder}")
    return [kernel for kernel in found if not kernel.is_empty and shape_of(kernel) is not None]  # that are launched


def test_every_family_is_there(kernels: list[Kernel]) -> None:
    templates = {arch: {x.template for x in kernels if x.arch == arch} for arch in USUAL}
    assert {"chunk_walk", "forward_kernel", "dkdv_kernel", "decode_kernel", "mla_kernel"} <= templates["gfx950"]
    assert {"gemm_mma_kernel", "norm_forward_rows", "pointwise", "recurrent_step"} <= templates["gfx950"]
    assert {"decode_kernel", "mla_kernel", "gemm_mma_kernel"} <= templates["gfx942"] & templates["gfx1100"]
    assert templates["gfx950"] - templates["gfx1201"] <= IN_WALK | OF_CDNA


def test_no_scratch_and_no_spills(kernels: list[Kernel]) -> None:
    facts = ("vgpr_spill_count", "private_segment_fixed_size")
    spilling = [x for x in kernels if any(x.note(fact) for fact in facts) and not may_spill(x.arch, x.name)]
    bad = {(x.arch, x.name): [x.note(fact) for fact in facts] for x in spilling}
    assert not bad, "spills and bytes of scratch"


def test_as_many_blocks_fit_a_compute_unit_as_plans_count_on(kernels: list[Kernel]) -> None:
    bad = []
    for kernel in kernels:
        shape = shape_of(kernel)
        lds = kernel.note("group_segment_fixed_size") + shape.lds
        threads, vgprs = kernel.note("max_flat_workgroup_size"), kernel.note("vgpr_count")
        _, blocks = waves_and_blocks(kernel.family, threads, vgprs, lds)
        if blocks < shape.blocks:
            bad.append(
                f"{kernel.arch} {kernel.name}: {blocks} blocks of {shape.blocks}, {vgprs} registers, {lds} of LDS"
            )
    assert not bad, "\n" + "\n".join(bad)


def test_matrix_products_are_made_by_the_matrix_unit(kernels: list[Kernel]) -> None:
    multiplying = [x for x in kernels if x.template not in WITHOUT_MATRICES]
    assert multiplying
    idle = [x for x in multiplying if not any(i.name.startswith(("v_mfma", "v_wmma")) for i in x.instructions)]
    assert not idle, [f"{x.arch} {x.name}" for x in idle]


def test_the_walk_for_rdna4_passes_clang() -> None:
    try:
        sources = rocm_llvm.sources()
    except NoCompiler as error:
        pytest.skip(str(error))
    ((source, flags),) = ((path, flags) for path, flags in sources.items() if path.stem == WALK)
    assert "@llvm.amdgcn.wmma.f32.16x16x16.bf16" in rocm_llvm.text_of(source, "gfx1201", flags)


def test_halves_of_a_wave_exchange_strips_on_rdna3_alone(kernels: list[Kernel]) -> None:
    """arch/layouts.h: on RDNA4 an accumulated strip is the next product's operand as it lies."""
    chaining = [x for x in kernels if x.template in ("forward_kernel", "decode_kernel", "mla_kernel", "dkdv_kernel")]
    exchanging = {x.arch for x in chaining if any(i.name.startswith("v_permlanex16") for i in x.instructions)}
    assert exchanging == {"gfx1100"}


SPILLING = """\
#include <hip/hip_runtime.h>
extern "C" __global__ void __launch_bounds__(1024) many_values(float* x) {
  float value[300];
  #pragma unroll
  for (int i = 0; i < 300; ++i) value[i] = x[threadIdx.x + 1024 * i];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 300; ++i) x[threadIdx.x + 1024 * (i * 7 % 300)] = value[i] * value[(i + 37) % 300];
}
"""


@pytest.mark.parametrize("arch", ["gfx950", "gfx1100", "gfx1201"])
def test_spills_are_seen(tmp_path: Path, arch: str) -> None:
    source = tmp_path / "many_values.hip"
    source.write_text(SPILLING)
    try:
        rocm_llvm.sources()
    except NoCompiler as error:
        pytest.skip(str(error))
    (kernel,) = rocm_llvm.kernels_of(rocm_llvm.assembly_of(rocm_llvm.text_of(source, arch), arch), arch)
    assert kernel.name == "many_values" and kernel.note("vgpr_spill_count") > 0
    assert any(i.name.startswith("scratch_") for i in kernel.instructions)

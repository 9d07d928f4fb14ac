# SPDX-License-Identifier: Apache-2.0
"""Which kernels the library holds, which test file must run each, and whether it has: on gfx942 every instantiation,
on other chips each kernel with each format of keys and weights, in any instantiation."""

from __future__ import annotations

import functools
import re
from types import ModuleType

from builds import CHIP, ROOT
from support.representative import LEVELS

# The parts of csrc/ by the test file that runs every instantiation of their kernels; of some parts, by the kernels.
PARTS: dict[str, str | frozenset[str]] = {
    "test_mlstm.py": "mlstm",
    "test_layer_kernels.py": "layer",
    "test_slstm.py": "slstm",
    "test_engine_step.py": frozenset(
        (
            "gemv_kernel",
            "gemm_mma_kernel",
            "gemm_batch_kernel",
            "gemm_cdna_kernel",
            "gemm_row_cdna_kernel",
            "pack_cdna_kernel",
            "heads_step",
            "megakernel_cdna",
            "write_records_kernel",
            "embed_kernel",
            "copy_output_kernel",
        )
    ),
    "test_sampling_kernels.py": frozenset(("sample_kernel",)),
    "test_attention.py": frozenset(("forward_kernel", "probabilities_kernel", "combine_forward_kernel")),
    "test_attention_backward.py": frozenset(
        (
            "dkdv_kernel",
            "dq_kernel",
            "delta_kernel",
            "dsink_kernel",
            "sum_dkdv_kernel",
            "one_pass_kernel",
            "round_dq_kernel",
        )
    ),
    "test_attention_decode.py": frozenset(
        (
            "decode_kernel",
            "mla_kernel",
            "mla_cdna_kernel",
            "append_kernel",
            "combine_kernel",
            "combine_forward_kernel",
        )
    ),
}


# These run where caches are tested when their keys are in float8.
WITH_FLOAT8_KEYS = frozenset(("forward_kernel", "probabilities_kernel"))


def must_run(test_file: str, mangled: str, kernel: str) -> bool:
    if kernel in WITH_FLOAT8_KEYS and re.search("E4m3fn(uz)?Keys", mangled):
        return test_file == "test_attention_decode.py"
    return kernel in kernels_of(test_file)


@functools.cache
def kernels_of(test_file: str) -> frozenset[str]:
    """The names of the kernels that it must run."""
    part = PARTS[test_file]
    if not isinstance(part, str):
        return part
    sources = [path for path in (ROOT / "csrc" / part).rglob("*") if path.suffix in (".h", ".hip")]
    found = (re.findall(r"__global__[^;]*?\bvoid\s+(\w+)\(", path.read_text()) for path in sources)
    return frozenset(name for names in found for name in names)


def function_of(mangled: str) -> str:
    """The innermost name in a mangled one: `chunk_walk` of _ZN5xlstm3gpu5mlstm10chunk_walkI..."""
    name, remainder = "", mangled.removeprefix("_ZN")
    while length := re.match(r"\d+", remainder):
        begin = length.end()
        end = begin + int(length[0])
        name, remainder = remainder[begin:end], remainder[end:]
    return name


def library_kernels(device: ModuleType) -> dict[str, str]:
    """The library's instantiations, as mangled, and the kernel that each is of. Those with no code for gfx942 are an
    instruction long; the one that is only asked for is no kernel of a call."""
    found = {k.name: function_of(k.name) for k in device.kernels() if k.instructions_in_code > 1}
    return {name: kernel for name, kernel in found.items() if name.startswith("_ZN5xlstm") and kernel != "nothing"}


# Up to which level a table's rows must have run before the check can tell.
LEAST_LEVEL = "representative" if CHIP == "gfx942" else "quick"


def is_enough(level: str) -> bool:
    return LEVELS.index(level) >= LEVELS.index(LEAST_LEVEL)


def counted_as(mangled: str) -> str:
    """An instantiation counts as itself on gfx942, as its kernel and format on other chips."""
    if CHIP == "gfx942":
        return mangled
    return " ".join((function_of(mangled), *re.findall(r"\d([A-Z][A-Za-z0-9]*?(?:Keys|Products|Weights))", mangled)))


def check_every_kernel_ran(device: ModuleType, test_file: str) -> None:
    in_library = {name for name, kernel in library_kernels(device).items() if must_run(test_file, name, kernel)}
    ran = {counted_as(counted.kernel.name) for counted in device.counters(instructions=False)}
    assert in_library, f"the library holds no kernel of {test_file}"
    never = {counted_as(name) for name in in_library} - ran
    assert not never, "never ran: " + ", ".join(sorted(never))

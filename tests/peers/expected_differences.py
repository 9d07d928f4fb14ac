# SPDX-License-Identifier: Apache-2.0
"""Other projects' tests that fail with xlstm_hip on purpose, with the reason. Nothing else may fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    tests: str  # a regular expression of the tests' ids
    message: str  # one of what they fail with
    reason: str


DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "transformers": (),
    "flash_attn": (
        Difference(
            r"test_rotary\.py::test_compilation_count", "triton", "counts compilations of a Triton kernel"
        ),
    ),
    "flash_mla": (),
    "xlstm": (
        Difference(
            r"test_load_from_pretrained_reads_yaml_config", "load_file",
            "replaces functions inside xlstm's loader, which ours has not",
        ),
    ),
    "notebooks": (),
}  # fmt: skip

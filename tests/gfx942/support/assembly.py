# SPDX-License-Identifier: Apache-2.0
"""A few instructions as a whole kernel, for device.assemble()."""

from __future__ import annotations

from collections.abc import Sequence

from builds import CHIP

KERNARG, WORKGROUP_X, WORKGROUP_Y, WORKGROUP_Z = "s[0:1]", "s2", "s3", "s4"  # when the kernel begins; v0: the thread


def kernel_text(
    body: str,
    arguments: Sequence[int | str] = (),  # sizes in bytes; "*" for a pointer
    *,
    name: str = "kernel",
    vgprs: int = 128,
    agprs: int = 128,
    sgprs: int = 96,
    lds: int = 0,
    scratch: int = 0,
    threads: int = 256,
    round_32: int = 0,
    round_64: int = 0,
    denormals_32: int = 3,  # 0 flushes inputs and outputs
    denormals_64: int = 3,
    ieee: bool = True,
    dx10_clamp: bool = True,
) -> str:
    """The file of one kernel, which ends by itself after the body."""
    offset, described = 0, []
    for argument in arguments:
        size, kind = (8, "global_buffer") if argument == "*" else (int(argument), "by_value")
        offset = -(-offset // min(size, 8)) * min(size, 8)
        space = ", .address_space: global" if kind == "global_buffer" else ""
        described.append(f"      - {{.offset: {offset}, .size: {size}, .value_kind: {kind}{space}}}")
        offset += size
    kernarg = -(-offset // 8) * 8
    listed = "\n".join(["    .args:", *described]) if described else "    .args: []"
    return f"""\
.amdgcn_target "amdgcn-amd-amdhsa--{CHIP}"
.amdhsa_code_object_version 5
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
{body}
  s_endpgm
.L{name}_end:
.size {name}, .L{name}_end-{name}
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_private_segment_fixed_size {scratch}
  .amdhsa_kernarg_size {kernarg}
  .amdhsa_user_sgpr_count 2
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
{"  .amdhsa_enable_private_segment 1" if scratch else ""}
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_system_sgpr_workgroup_id_y 1
  .amdhsa_system_sgpr_workgroup_id_z 1
  .amdhsa_system_vgpr_workitem_id 2
  .amdhsa_next_free_vgpr {vgprs + agprs}
  .amdhsa_next_free_sgpr {sgprs}
  .amdhsa_accum_offset {vgprs}
  .amdhsa_reserve_vcc 1
  .amdhsa_float_round_mode_32 {round_32}
  .amdhsa_float_round_mode_16_64 {round_64}
  .amdhsa_float_denorm_mode_32 {denormals_32}
  .amdhsa_float_denorm_mode_16_64 {denormals_64}
  .amdhsa_ieee_mode {int(ieee)}
  .amdhsa_dx10_clamp {int(dx10_clamp)}
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--{CHIP}
amdhsa.kernels:
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: {kernarg}
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: {scratch}
    .wavefront_size: 64
    .sgpr_count: {sgprs}
    .vgpr_count: {vgprs + agprs}
    .agpr_count: {agprs}
    .max_flat_workgroup_size: {threads}
{listed}
...
.end_amdgpu_metadata
"""

# SPDX-License-Identifier: Apache-2.0
"""Known facts about kernels: which ones multiply matrices, and why some need more vector instructions and moves
between register files than the aim."""

from __future__ import annotations

import re

# Kernels that have no matrix product: scans and sums over gates, vectors, states and segments, what stands around
# attention's backward pass and decoding, the recurrent ones and a model's step, whose products are of few vectors, the
# draw of a token, and the layers. Every other kernel must use the matrix unit.
WITHOUT_MATRICES = {
    "append_kernel",
    "delta_kernel",
    "chunk_gate_flows",
    "chunk_gate_sums",
    "combine_forward_kernel",
    "combine_kernel",
    "copy_output_kernel",
    "cross_entropy_backward_rows",
    "cross_entropy_rows",
    "dot_last_states",
    "embed_kernel",
    "gate_gradients",
    "gemv_kernel",
    "heads_step",
    "norm_backward_rows",
    "norm_forward_rows",
    "pack_cdna_kernel",
    "parallel_gate_gradients",
    "normalisers",
    "pointwise",
    "recurrent_step",
    "recurrent_tokens",
    "recurrent_tokens_any_shape",
    "round_dq_kernel",
    "sample_kernel",
    "scan_gate_flows",
    "scan_segment_states",
    "scan_normaliser_states",
    "copy_n_and_m",
    "dsink_kernel",
    "sum_dkdv_kernel",
    "sum_slices",
    "write_records_kernel",
}

# Templates that CDNA alone has: on other chips they are empty, or not there.
OF_CDNA = {
    "backward_walks_cdna",
    "chunk_scores_cdna",
    "chunk_walk_cdna",
    "gemm_batch_kernel",
    "gemm_cdna_kernel",
    "gemm_row_cdna_kernel",
    "heads_step",
    "megakernel_cdna",
    "mla_cdna_kernel",
    "one_pass_kernel",
    "pack_cdna_kernel",
    "parallel_gate_gradients",
    "parallel_products",
    "parallel_scores",
    "round_dq_kernel",
    "segment_states_cdna",
    "write_records_kernel",
}

# Kernels that may spill: (arch, kernel), as regular expressions.
SPILLING = [
    # 256 registers are all that RDNA has, and a lane's eight units take 40 for what is carried, 40 for what is loaded
    # and 16 for the gradients. Some 26 are spilled, once a token, beside the matrix that is read from L2.
    (r"gfx1[12]\d\d", r"cell_backward<\w+, 0>"),
]


def may_spill(arch: str, kernel: str) -> bool:
    return any(re.fullmatch(a, arch) and re.fullmatch(k, kernel) for a, k in SPILLING)


# (arch, kernel, what the vector instructions are for), as regular expressions; the first that fits.
CDNA = "gfx90a|gfx942"
NOTES: list[tuple[str, str, str]] = [
    (
        f"{CDNA}|gfx1100",
        r"(gemm_(mma|batch|cdna|row_cdna)_kernel|megakernel_cdna)<.*",
        "few rows share the fixed cost of the weights: addresses, the conversion of float16, bytes and nibbles to "
        "bfloat16, scales of groups, and inputs that each block computes again. Memory binds.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"cell_(forward|backward)<.*",
        "a token is a small product, and then the gates of its units: eight transcendentals each, three divisions, "
        "loads and stores of what backward needs. The chain from token to token binds.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"chunk_walk_wide<.*",
        "each chunk reads a slice of the state from memory and writes it back, and also reads a, x and scores. Memory "
        "binds.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"decode_kernel<.*",
        "16 rows share the fixed cost of a key: its location, addresses, the transposition of values in registers, "
        "masks. Memory binds: loading the bytes of a tile takes several times as long.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"mla_(cdna_)?kernel<.*",
        "16 rows share the fixed cost of a tile: the copy through registers into LDS, the transposition of values, "
        "the sum of partial scores. On gfx1100 the halves of a wave also exchange probabilities.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"(forward|probabilities)_kernel<.*",
        "online softmax: an exp, a fused multiply-add, a maximum, a sum and half a packing for each score; loops that "
        "gather tails, pages and narrow heads; for modified scores tanh, slopes, and forty integer instructions of "
        "Philox for eight probabilities. On gfx1100 a float is split into three bfloat16.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"(dkdv|dq)_kernel<.*, true>",
        "softcap, ALiBi, dropout and masks are branches in the loop, taken only by calls that use them; the count is "
        "for a pass that takes all of them. On gfx1100 a float is also split into three bfloat16.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"(dkdv|dq)_kernel<.*",
        "masks, in a branch that only border tiles take; the bounds-checked load of a last tile; and for each "
        "score an exp, a multiply-add, a difference, a product and two roundings, which do not shrink with the head "
        "dim. On gfx1100 the halves of a wave also exchange probabilities.",
    ),
    (
        CDNA,
        r"(chunk_walk|segment_states|backward_walks)(_cdna)?<fp16, .*",
        "the cost of bfloat16, the maximum of the state, by which operands are scaled to stay below 65504, "
        "and packing, which takes two conversions per pair.",
    ),
    (
        CDNA,
        r"(chunk_walk|segment_states|backward_walks)(_cdna)?<bf16, .*",
        "costs of a chunk that hardly grow with the rows of a wave: weighting and rounding of operands, addresses in "
        "LDS, outputs that pass through LDS.",
    ),
    (
        CDNA,
        r"chunk_scores<(bf16|fp16), .*",
        "the addresses of each slice of 64 features, and of the one strip that a wave has of the slice.",
    ),
    (
        CDNA,
        r"chunk_scores_cdna<.*",
        "each token of k, in backward of q too, is weighted and summed over tokens in floats, and dh h is a sum over "
        "features: as many multiply-adds beside the products as a row of the state would take.",
    ),
    (
        "gfx1100",
        r"(chunk_walk|segment_states)<(bf16|fp16), .*",
        "the exchange between the halves of a wave that turns accumulators into an operand (one permlanex16 and two "
        "selects for each register), rounding and packing. WMMA shares its issue slots with all of these.",
    ),
    (
        "gfx1100",
        r"(chunk_walk|segment_states|chunk_scores)<fp32, .*",
        "WMMA takes no floats, so each float is split into three bfloat16 by a mask, a difference and a test for "
        "infinity.",
    ),
    (
        "gfx1100",
        r"chunk_scores<(bf16|fp16), .*",
        "addresses and moves of a slice of 64 features, for the one strip (four WMMA) that a wave has of it.",
    ),
]

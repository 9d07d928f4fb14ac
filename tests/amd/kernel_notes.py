# SPDX-License-Identifier: Apache-2.0
"""What is known of kernels: which ones multiply matrices, and why some need more vector instructions and moves
between register files than the aim."""

from __future__ import annotations

# Kernels that have no matrix product: scans and sums over gates, vectors, states and segments, what stands around
# attention's backward pass and decoding, the recurrent ones and a model's step, whose products are of few vectors, the
# draw of a token, and the layers. Every other kernel must use the matrix unit.
WITHOUT_MATRICES = {
    "append_kernel",
    "border_flows",
    "chunk_gates",
    "combine_forward_kernel",
    "combine_kernel",
    "cross_entropy_backward_rows",
    "cross_entropy_rows",
    "delta_kernel",
    "dot_states",
    "draw_token",
    "dsink_kernel",
    "embed",
    "gate_gradients",
    "hand_over",
    "norm_backward_rows",
    "norm_forward_rows",
    "normalisers",
    "pointwise",
    "products",
    "recurrent_step",
    "recurrent_tokens",
    "recurrent_tokens_any",
    "scan_flows",
    "scan_segments",
    "scan_vectors",
    "settle",
    "stabilisers",
    "sum_chunk_flows",
    "sum_dkdv_kernel",
    "sum_slices",
}

# (arch, kernels that may have scratch and spill vector registers): floats' operands on RDNA3 are of 24, beside a state
# in accumulators.
SPILLING = [("gfx1100", r"walk(_wide)?<fp32, .*")]

# (arch, kernel, what the vector instructions are for), as regular expressions; the first that fits.
CDNA = "gfx90a|gfx942"
NOTES: list[tuple[str, str, str]] = [
    (
        f"{CDNA}|gfx1100",
        r"matrix_products<.*",
        "few rows share what weights cost whatever their number: addresses, float16, bytes and nibbles turned into "
        "bfloat16, scales of groups, and x's made anew by each block. Memory binds.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"walk_wide<.*",
        "a slice of the state comes from memory and goes back in each chunk, and with it a, x, scores: memory binds.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"decode_kernel<.*",
        "16 rows share what a key costs whatever their number: where it lies, addresses of its pieces, values turned "
        "in registers, masks. Memory binds: a tile's bytes take several times as long.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"mla_kernel<.*",
        "with 16 rows, what a tile costs whatever their number: it goes through registers into LDS, values are turned, "
        "parts of the scores added up. On gfx1100 weights are exchanged between the halves of a wave.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"(forward|probabilities)_kernel<.*",
        "softmax: an exp, a fused multiply-add, a maximum, a sum and half a packing for each score; loops that gather "
        "tails, pages and narrow heads; where scores are bent, tanh, slopes, and forty integer instructions of Philox "
        "for eight weights. gfx1100's floats are split into three bfloat16.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"(dkdv|dq)_kernel<.*, true>",
        "softcap, ALiBi, dropout and masks stand in the loop behind branches, each for calls that ask for it; counted "
        "is a pass that takes all of them. On gfx1100 floats are split into three bfloat16 beside that.",
    ),
    (
        f"{CDNA}|gfx1100",
        r"(dkdv|dq)_kernel<.*",
        "masks, behind a branch that only tiles at a border take, the careful way to bring a last tile, and for each "
        "score an exp, a multiply-add, a difference, a product and two roundings, which do not shrink with the head "
        "dim. On gfx1100 weights are exchanged between the halves of a wave too.",
    ),
    (
        CDNA,
        r"walk<fp16, .*",
        "what is said of bfloat16, the greatest of the state, by which operands are scaled to stay below 65504, "
        "and packing, which takes two conversions a pair.",
    ),
    (
        CDNA,
        r"walk<bf16, .*",
        "a chunk's costs that hardly grow with a wave's rows: operands weighted and rounded, addresses in LDS, outputs "
        "on their way through it.",
    ),
    (
        CDNA,
        r"scores<(bf16|fp16), .*",
        "addresses of a slice of 64 features, made anew for each, and of the one strip that a wave has of it.",
    ),
    (
        "gfx1100",
        r"walk<(bf16|fp16), .*",
        "the exchange between the halves of a wave that makes accumulators an operand (one permlanex16 and two selects "
        "for each register), rounding and packing. WMMA shares its issue slots with all of these.",
    ),
    (
        "gfx1100",
        r"(walk|scores)<fp32, .*",
        "floats are split into three bfloat16, each by a mask, a difference and a test for infinity: WMMA takes no "
        "floats.",
    ),
    (
        "gfx1100",
        r"scores<(bf16|fp16), .*",
        "addresses and moves of a slice of 64 features, for the one strip (four WMMA) that a wave has of it.",
    ),
]

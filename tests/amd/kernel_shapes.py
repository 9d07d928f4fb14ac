# SPDX-License-Identifier: Apache-2.0
"""The shape of a kernel, from its template's arguments: the LDS that a launch asks for, the blocks of a multiprocessor
that plans count on, and the products that it must make on the matrix unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from code_objects import Kernel
from control_flow import MACS_OF_A_UNIT
from occupancy import FAMILIES, LDS_BYTES
from xlstm_hip import _native

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
# Of q, where keys and values are floats of 8 bits; tiles are q's.
ELEMENT_BYTES |= {f"{keys}<{q}>": 2 for keys in ("E4m3fnKeys", "E4m3fnuzKeys") for q in ("bf16", "fp16")}
# Q and keys in floats of 8 bits; of out.
ELEMENT_BYTES |= {f"{products}<bf16>": 1 for products in ("E4m3fnProducts", "E4m3fnuzProducts")}
PRODUCTS_OF_8_BITS = {"gfx942": "E4m3fnuzProducts", "gfx950": "E4m3fnProducts"}
WIDE_ROWS = 64  # of a state that is walked in slices
COLUMNS_OF_A_WAVE = 32  # of a walk's state
STRIP_COLUMNS = 16
SLICE_COLUMNS = 64  # features that the scores take at a time
STEP_FEATURES = 64  # of a wave of gemm_mma_kernel at a time
SCORE_WAVES = 4
GATES = 4  # of a recurrent cell

STATES = ("c", "dc")  # outputs of walks that compute the states between segments alone


@dataclass(frozen=True)
class Shape:
    lds: int = 0  # bytes that a launch asks for
    blocks: int = 1  # of a multiprocessor, that plans and bounds on registers count on
    macs: int = 0  # of a wave on the matrix unit, in one pass through each loop that has any
    staged: int | None = None  # bytes of a lane that the loop has to write to LDS, operands and outputs, if counted
    double_buffered: bool = False  # in LDS: the next chunk's operands are written while products are made

    @property
    def units(self) -> float:
        return self.macs / MACS_OF_A_UNIT


def times(kernel: Kernel, element: str) -> int:
    """Of a product of floats: CDNA's own instruction takes 8 times as long, RDNA3 makes 6 products of parts."""
    return 1 if ELEMENT_BYTES[element] == 2 else 8 if kernel.family == "cdna" else 6


def waves(kernel: Kernel) -> int:
    return kernel.note("max_flat_workgroup_size") // FAMILIES[kernel.family].lanes


def strip_step(kernel: Kernel, element: str) -> int:
    return 32 if kernel.family == "cdna" and ELEMENT_BYTES[element] == 2 else 16


def walk_at(
    kernel: Kernel, element: str, rows: int, chunk: int, output: str, blocks: int | None = None
) -> Shape | None:
    bytes_of = ELEMENT_BYTES[element]
    shape = _native.walk_shape(kernel.family, bytes_of, rows, chunk)
    if not shape or shape["lds_bytes"] > LDS_BYTES:
        return None
    rows = rows // 64 * 64  # of a class
    threads, y_tile = shape["threads"], shape["y_tile"]
    macs = chunk * rows * y_tile // waves(kernel)  # x^T y
    if output not in STATES:
        step = strip_step(kernel, element)
        strips = chunk // step
        # a C, and scores y without the strips above the diagonal
        macs = 2 * macs + strips * (strips + 1) // 2 * step * step * COLUMNS_OF_A_WAVE
    elements_per_load = 16 // bytes_of

    def straight(elements: int) -> int:
        return 16 * ceil(elements / elements_per_load / threads)

    def turned(elements: int) -> int:  # four pieces at a time
        return 64 * ceil(elements / elements_per_load / 4 / threads)

    factors = 16 * ceil(chunk / threads) + 4 * ceil(y_tile / threads)  # four of a token, one of a column
    outputs = 4 * chunk * COLUMNS_OF_A_WAVE // FAMILIES[kernel.family].lanes
    operands = straight(chunk * rows) + turned(chunk * rows) + turned(chunk * y_tile)
    operands += 2 * straight(chunk * chunk)  # scores of a walk forward, or in as many bytes turned, of one back
    return Shape(
        shape["lds_bytes"],
        shape["blocks"] if blocks is None else blocks,
        macs * times(kernel, element),
        operands + factors + outputs,
    )


def chunk_walk(kernel: Kernel, element: str, rows: str, chunk: str, output: str) -> Shape | None:
    return walk_at(kernel, element, int(rows), int(chunk), output)


def chunk_walk_cdna(kernel: Kernel, element: str, rows: str, chunk: str, output: str) -> Shape | None:
    shape = walk_at(kernel, element, int(rows), int(chunk), output)
    return shape and replace(shape, double_buffered=True)


def segment_states(kernel: Kernel, element: str, rows: str, chunk: str) -> Shape | None:
    """The loops of both directions, one of which a wave runs."""
    shape = walk_at(kernel, element, int(rows), int(chunk), STATES[0])
    return shape and replace(shape, macs=2 * shape.macs, staged=None)


def segment_states_cdna(kernel: Kernel, element: str, rows: str, chunk: str) -> Shape | None:
    return segment_states(kernel, element, rows, chunk)


def backward_walks_cdna(kernel: Kernel, element: str, value_rows: str, key_rows: str, chunk: str) -> Shape | None:
    """The loops of the walks for dq, dk and dv, one of which a wave runs."""
    of_values = walk_at(kernel, element, int(value_rows), int(chunk), "dq")
    of_keys = walk_at(kernel, element, int(key_rows), int(chunk), "dv")
    if not of_values or not of_keys:
        return None
    macs = 2 * of_values.macs + of_keys.macs
    return replace(of_keys, lds=max(of_values.lds, of_keys.lds), macs=macs, staged=None)


def chunk_walk_wide(kernel: Kernel, element: str, chunk: str, output: str) -> Shape | None:
    """Its plan counts on one block, and nothing bounds its registers for a second."""
    return walk_at(kernel, element, WIDE_ROWS, int(chunk), output, blocks=1)


def chunk_scores(kernel: Kernel, element: str, chunk: str, backward: str) -> Shape | None:
    bytes_of, tokens, step = ELEMENT_BYTES[element], int(chunk), strip_step(kernel, element)
    if not _native.walk_shape(kernel.family, bytes_of, WIDE_ROWS, tokens):
        return None
    strips = sum(  # with a pair of tokens of which one sees the other
        column * STRIP_COLUMNS < (row + 1) * step
        for row in range(tokens // step)
        for column in range(tokens // STRIP_COLUMNS)
    )
    macs = ceil(strips / SCORE_WAVES) * step * STRIP_COLUMNS * SLICE_COLUMNS
    products = 2 if backward == "true" else 1  # q k^T, and dh v^T
    lds = _native.scores_lds_bytes(kernel.family, bytes_of, tokens, backward == "true")
    return Shape(lds, macs=products * macs * times(kernel, element))


def chunk_scores_cdna(kernel: Kernel, element: str, chunk: str, backward: str) -> Shape:
    """A wave has a chunk; a loop's turn takes two steps of features, as many as a strip has rows."""
    tokens, step = int(chunk), strip_step(kernel, element)
    macs = 2 * tokens * tokens * step
    products = 2 if backward == "true" else 1  # q k^T, and dh v^T
    return Shape(0, macs=products * macs * times(kernel, element))


def parallel_scores(kernel: Kernel, element: str, backward: str) -> Shape:
    """A wave has a tile of the pairs of two chunks of 32 tokens, and multiplies as chunk_scores_cdna does."""
    of_chunk = chunk_scores_cdna(kernel, element, "32", backward)
    return replace(of_chunk, lds=_native.parallel_scores_lds_bytes(backward == "true"))


def parallel_products(kernel: Kernel, element: str) -> Shape:
    """A block has 64 tokens by 128 columns; half of its waves have a chunk of 32 tokens in a turn."""
    return Shape(_native.PARALLEL_PRODUCTS_LDS_BYTES, blocks=2, macs=64 * 128 * 32 // 4 * times(kernel, element))


def forward_kernel(kernel: Kernel, element: str, dqk: str, dv: str, score_mod: str) -> Shape:
    shape = _native.attend_shape(kernel.family, ELEMENT_BYTES[element], int(dqk), int(dv), score_mod == "true")
    macs = shape["rows"] * shape["keys"] * (int(dqk) + int(dv)) // waves(kernel)
    return Shape(shape["lds_bytes"], shape["blocks"], macs * times(kernel, element))


def probabilities_kernel(kernel: Kernel, element: str, dqk: str, dv: str) -> Shape:
    shape = _native.attend_shape(kernel.family, ELEMENT_BYTES[element], int(dqk), int(dv), True)
    macs = shape["rows"] * shape["keys"] * int(dqk) // waves(kernel)
    return Shape(shape["lds_bytes"], macs=macs * times(kernel, element))


def decode_kernel(kernel: Kernel, element: str, dqk: str, dv: str, _score_mod: str) -> Shape | None:
    shape = _native.decode_shape(kernel.family, ELEMENT_BYTES[element], int(dqk), int(dv))
    if not shape:
        return None
    macs = shape["rows"] * shape["keys"] * (int(dqk) + int(dv))  # each wave has keys of its own
    return Shape(shape["lds_bytes"], shape["blocks"], macs * times(kernel, element))


def cell(kernel: Kernel, element: str, units: str, gates: int) -> Shape:
    """A wave has a strip's units: for each token all k of the gates, or as many as a turn of its loop loads."""
    step = strip_step(kernel, element)  # also a turn's k, of one gate
    k = GATES * int(units) if units != "0" else gates * step
    return Shape(macs=step * STRIP_COLUMNS * k * times(kernel, element))


def cell_forward(kernel: Kernel, element: str, units: str) -> Shape:
    return cell(kernel, element, units, GATES)


def cell_backward(kernel: Kernel, element: str, units: str) -> Shape:
    return cell(kernel, element, units, 1)


def mla_kernel(kernel: Kernel, element: str, rows: str, features: str, ahead: str) -> Shape | None:
    bytes_of = ELEMENT_BYTES[element]
    if bytes_of == 1 and PRODUCTS_OF_8_BITS.get(kernel.arch) != element.partition("<")[0]:
        return None
    shape = _native.mla_shape(kernel.family, int(rows), int(features), ahead == "true", bytes_of)
    if not shape:
        return None
    macs = shape["rows"] * shape["keys"] * (int(features) + shape["values"]) // waves(kernel)
    return Shape(shape["lds_bytes"], shape["blocks"], macs * bytes_of // 2)  # 8 bits take half as long


def mla_cdna_kernel(kernel: Kernel, element: str, features: str) -> Shape | None:
    return mla_kernel(kernel, element, str(_native.MLA_CDNA_ROWS), features, "false")


def backward_at(kernel: Kernel, element: str, dqk: str, dv: str, of_keys: bool) -> Shape:
    both, sums = int(dqk) + int(dv), int(dqk) + (int(dv) if of_keys else 0)
    shape = _native.attention_gradients_shape(kernel.family, ELEMENT_BYTES[element], int(dqk), int(dv), of_keys)
    across = shape["waves_across"]  # these share the sums, and each make the scores
    columns = shape["owned"] * across // waves(kernel)
    macs = shape["tile"] * columns * (both + sums // across)
    return Shape(shape["lds_bytes"], shape["blocks"], macs * times(kernel, element))


def dkdv_kernel(kernel: Kernel, element: str, dqk: str, dv: str, _score_mod: str) -> Shape:
    return backward_at(kernel, element, dqk, dv, of_keys=True)


def one_pass_kernel(kernel: Kernel, element: str, features: str) -> Shape | None:
    shape = _native.one_pass_shape(kernel.family, int(features))
    if not shape:
        return None
    macs = 5 * shape["tile"] * shape["owned"] * int(features) // waves(kernel)
    return Shape(shape["lds_bytes"], shape["blocks"], macs * times(kernel, element))


def dq_kernel(kernel: Kernel, element: str, dqk: str, dv: str, _score_mod: str) -> Shape:
    return backward_at(kernel, element, dqk, dv, of_keys=False)


WEIGHT_BITS = {"ByteWeights": 8, "E4m3fnWeights": 8, "E4m3fnuzWeights": 8, "NibbleWeights": 4}  # others: 16


def gemm_mma_kernel(kernel: Kernel, weights: str, batch: str, rows: str) -> Shape | None:
    """As for the inputs of xLSTM-7B's blocks; the products of one step, of which a pass may have several."""
    lds = _native.matrix_lds_bytes(kernel.family, WEIGHT_BITS.get(weights, 16), int(batch), int(rows), 4096)
    if lds is None:
        return None
    inputs = 16 if batch == "1" else 2 * int(batch)  # rows of x's, each in two parts
    parts = 2 if weights == "Float16Weights" else 1
    return Shape(lds, macs=STEP_FEATURES * int(rows) * inputs * parts)


def gemm_batch_kernel(kernel: Kernel, weights: str, sets: str) -> Shape | None:
    """The products of a wave in the four steps of a round, with LDS for the inputs of xLSTM-7B's blocks."""
    lds = _native.batch_lds_bytes(kernel.family, 4096)
    if lds is None:
        return None
    parts = 2 if weights == "Float16Weights" else 1
    return Shape(lds if sets == "4" else 0, macs=4 * STEP_FEATURES * 32 * 2 * 8 * parts)


def gemm_cdna_kernel(kernel: Kernel, weights: str, batch: str, chains: str) -> Shape | None:
    """The products of a wave in its loop's body, with LDS for xLSTM-7B's projections, a quarter of the features."""
    digits = weights in ("ByteWeights", "NibbleWeights")
    bits = WEIGHT_BITS.get(weights, 16)
    shape = _native.cdna_gemm_shape(kernel.family, bits, digits, int(batch), 162, 16)
    if not shape:
        return None
    parts = 3 if digits else 4 if weights == "Float16Weights" else 2  # of x, times those of weights
    rows = max(int(batch), 16)  # of a matrix instruction, which 8 rows of x fill by half
    return Shape(shape["lds_bytes"], macs=shape["body_steps"] * STEP_FEATURES * 16 * int(chains) * rows * parts)


def megakernel_cdna(kernel: Kernel, weights: str) -> Shape | None:
    """The products of one step of a wave, with LDS for xLSTM-7B: x of 10944 features, sums of two groups."""
    if kernel.family != "cdna":
        return None
    rows, steps = 32, 12 * 16  # 171 steps, filled up to 12 of each wave's four slices
    x, sums = steps * STEP_FEATURES * 4, 2 * 2 * 4 * rows * 4
    scales = 0 if weights in ("Bfloat16Weights", "Float16Weights") else steps * 2 * 4  # with the sums of x
    parts = 2 if weights == "Float16Weights" else 1
    return Shape(x + scales + sums, macs=STEP_FEATURES * rows * 16 * parts)


def gemm_row_cdna_kernel(kernel: Kernel, weights: str) -> Shape | None:
    """The same of a product as a launch: down, the widest."""
    return megakernel_cdna(kernel, weights)


SHAPES: dict[str, Callable[..., Shape | None]] = {
    make.__name__: make
    for make in (
        cell_forward,
        cell_backward,
        chunk_walk,
        chunk_walk_cdna,
        segment_states,
        segment_states_cdna,
        backward_walks_cdna,
        chunk_walk_wide,
        chunk_scores,
        chunk_scores_cdna,
        parallel_scores,
        parallel_products,
        forward_kernel,
        probabilities_kernel,
        decode_kernel,
        mla_kernel,
        mla_cdna_kernel,
        dkdv_kernel,
        dq_kernel,
        one_pass_kernel,
        gemm_mma_kernel,
        gemm_batch_kernel,
        gemm_cdna_kernel,
        gemm_row_cdna_kernel,
        megakernel_cdna,
    )
}


def shape_of(kernel: Kernel) -> Shape | None:
    """None where no plan launches this kernel on its family."""
    make = SHAPES.get(kernel.template)
    return make(kernel, *kernel.arguments) if make else Shape()

# SPDX-License-Identifier: Apache-2.0
"""The rows of the table that miss a limit for all kernels; the tests show that they can."""

from __future__ import annotations

from kernel_notes import WITHOUT_MATRICES
from kernel_table import Row

MOST_FMA_SHARE = 0.05
# Sums that are no products: what a chunk of 32 tokens adds to n and dn is a row more of each operand, in float.
MOST_FMA_SHARE_OF = {"chunk_scores_cdna": 0.07}


def products_beside_the_matrix_unit(table: list[Row]) -> list[Row]:
    """Less matrix work in the loops than the products take, or many multiply-adds one by one beside it."""
    return [
        row
        for row in table
        if (template := row.kernel.partition("<")[0]) not in WITHOUT_MATRICES
        if row.units < row.least_units or row.fma_share > MOST_FMA_SHARE_OF.get(template, MOST_FMA_SHARE)
    ]


def crowded_out(table: list[Row]) -> list[Row]:
    """Registers or LDS hold fewer blocks than the plan counts on."""
    return [row for row in table if row.blocks < row.planned_blocks]


def round_trips(table: list[Row]) -> list[Row]:
    """More goes to LDS than operands and outputs, or, beside the next chunk's, some of it while products are made."""
    counted = [row for row in table if row.staged is not None]
    return [
        row
        for row in counted
        if row.lds_written > row.staged or (row.lds_writes_beside_products and not row.double_buffered)
    ]

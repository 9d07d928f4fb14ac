# SPDX-License-Identifier: Apache-2.0
"""The cost of a kernel's loops: its instructions as blocks and loops, and one pass through a loop's body.

A body has branches: a transposed walk or a straight one, rows that lie at multiples of 16 bytes or not. One pass is
the way through it that has the most matrix work, of those the one that loads the most bytes by wide loads, and of those
the one with the fewest vector instructions: what runs for every chunk of aligned inputs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from code_objects import Instruction

MACS_OF_A_UNIT = 32 * 32 * 8  # what the matrix unit of a gfx942 does in 32 cycles with 2-byte operands
# v_mfma_f32_16x16x16_bf16, v_mfma_f32_16x16x16bf16_1k, v_wmma_f32_16x16x16_f16, v_mfma_f32_16x16x4_f32,
# v_mfma_f32_16x16x32_fp8_fp8
MATRIX = re.compile(r"v_(?:mfma|smfmac|wmma)_\w*?(\d+)x(\d+)x(\d+)_?(\w+)")
LDS_WRITE = re.compile(r"ds_(?:write|store)(2|_2addr)?(?:st64|_stride64)?_b(\d+)")
FMA = re.compile(r"v_(pk_|dual_)?(?:fma|fmac|fmamk|fmaak|mac|mad|madmk|madak|fma_mix|dot2c?)_(?:legacy_)?(?:f32|f16)")


@dataclass(frozen=True, order=True)
class Cost:
    """Compared in this order, which is what a pass is chosen by."""

    units: float = 0  # of matrix work
    wide_bytes: int = 0  # of a lane, loaded from memory 12 or 16 at a time
    less_vector: int = 0  # minus the vector instructions, moves between register files among them
    matrix: int = 0
    vector: int = 0
    moves: int = 0  # v_accvgpr_*
    fmas: int = 0  # multiply-adds of single elements
    flat: int = 0  # loads and stores that do not know whether they mean LDS, and so wait for both
    lds_written: int = 0  # bytes of a lane

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in Cost.__dataclass_fields__))


def cost_of(instruction: Instruction) -> Cost:
    name = instruction.name
    matrix = MATRIX.match(name)
    if matrix:
        macs = int(matrix[1]) * int(matrix[2]) * int(matrix[3])
        slower = 8 if matrix[4].startswith("f32") else 0.5 if matrix[4].startswith("fp8") else 1  # operands
        return Cost(units=macs * slower / MACS_OF_A_UNIT, matrix=1)
    wide = re.match(r"(?:global|buffer|flat)_load_(dwordx3|dwordx4|b96|b128)", name)
    if wide or name.startswith("flat_"):
        bytes_ = {"dwordx3": 12, "b96": 12, "dwordx4": 16, "b128": 16}[wide[1]] if wide else 0
        return Cost(wide_bytes=bytes_, flat=int(name.startswith("flat_")))
    written = LDS_WRITE.match(name)
    if written:
        return Cost(lds_written=int(written[2]) // 8 * (2 if written[1] else 1))
    if not name.startswith("v_") or name == "v_nop":
        return Cost()
    if name.startswith("v_accvgpr_"):
        return Cost(less_vector=-1, moves=1)
    fma = FMA.match(name)
    return Cost(less_vector=-1, vector=1, fmas=(2 if fma[1] == "pk_" else 1) if fma else 0)


@dataclass
class Block:
    first: int  # address
    cost: Cost
    next: list[int]  # addresses


@dataclass
class Loop:
    head: int
    blocks: set[int]
    one_pass: Cost
    all_ways: Cost  # the whole body, branches that exclude each other included


def jump(instructions: list[Instruction], i: int) -> tuple[int, bool] | None:
    """The target of instruction i's jump, and whether it always jumps; None if it does not. Far jumps add to the
    program counter."""
    x = instructions[i]
    if x.name.startswith(("s_branch", "s_cbranch")):
        words = int(x.operands)  # a signed number of them beyond the next instruction
        return x.address + 4 + 4 * (words - 0x10000 if words >= 0x8000 else words), x.name == "s_branch"
    if x.name == "s_setpc_b64" and i >= 3:
        get_pc, low, high = instructions[i - 3 : i]
        if [get_pc.name, low.name, high.name] == ["s_getpc_b64", "s_add_u32", "s_addc_u32"]:
            distance = int(low.operands.split(",")[-1], 0)
            return get_pc.address + 4 + (distance - (1 << 32) if distance >= 1 << 31 else distance), True
    if x.name.startswith(("s_setpc", "s_swappc", "s_call")):
        raise ValueError(f"{x.name} at {x.address:x}: calls are not followed")
    return None


def blocks_of(instructions: list[Instruction]) -> dict[int, Block]:
    """By first address."""
    jumps = {x.address: jump(instructions, i) for i, x in enumerate(instructions)}
    starts = {instructions[0].address}
    for x, after in zip(instructions, instructions[1:], strict=False):
        if jumps[x.address] or x.name == "s_endpgm":
            starts.add(after.address)
    starts |= {to[0] for to in jumps.values() if to}
    blocks: dict[int, Block] = {}
    block = Block(instructions[0].address, Cost(), [])
    for x, after in zip(instructions, [*instructions[1:], None], strict=True):
        if x.address in starts:
            block = blocks[x.address] = Block(x.address, Cost(), [])
        block.cost = block.cost + cost_of(x)
        to = jumps[x.address]
        if to:
            block.next = [to[0]]
        if after and after.address in starts and x.name != "s_endpgm" and not (to and to[1]):
            block.next.append(after.address)
    return blocks


def order_of(blocks: dict[int, Block], entry: int) -> list[int]:
    """Reverse postorder of what is reached."""
    seen, order = {entry}, []
    stack = [(entry, iter(blocks[entry].next))]
    while stack:
        at, following = stack[-1]
        to = next((x for x in following if x in blocks and x not in seen), None)
        if to is None:
            order.append(at)
            stack.pop()
        else:
            seen.add(to)
            stack.append((to, iter(blocks[to].next)))
    return order[::-1]


def loops_of(instructions: list[Instruction]) -> list[Loop]:
    """The natural loops, each with everything inside it."""
    blocks = blocks_of(instructions)
    order = order_of(blocks, instructions[0].address)
    position = {at: i for i, at in enumerate(order)}
    before: dict[int, list[int]] = {at: [] for at in order}
    for at in order:
        for to in blocks[at].next:
            before[to].append(at)
    dominators: dict[int, set[int]] = {order[0]: {order[0]}}
    changed = True
    while changed:
        changed = False
        for at in order[1:]:
            known = [dominators[x] for x in before[at] if x in dominators]
            new = set.intersection(*known) | {at}
            if dominators.get(at) != new:
                dominators[at] = new
                changed = True
    bodies: dict[int, set[int]] = {}
    for at in order:
        for head in blocks[at].next:
            if head in dominators[at]:
                body = bodies.setdefault(head, {head})
                todo = [at]
                while todo:
                    x = todo.pop()
                    if x not in body:
                        body.add(x)
                        todo += before[x]
    return [Loop(head, body, *costs_of(blocks, position, head, body)) for head, body in bodies.items()]


def costs_of(blocks: dict[int, Block], position: dict[int, int], head: int, body: set[int]) -> tuple[Cost, Cost]:
    """One pass from the head back to it; edges back inside the body are left out, so that inner loops run once."""
    best: dict[int, Cost] = {}
    for at in sorted(body, key=lambda x: -position[x]):
        ways = [Cost()] if head in blocks[at].next else []
        ways += [best[to] for to in blocks[at].next if to in best and position[to] > position[at]]
        if ways:
            best[at] = blocks[at].cost + max(ways)
    total = Cost()
    for at in body:
        total = total + blocks[at].cost
    return best[head], total


def matrix_loops(instructions: list[Instruction]) -> list[Loop]:
    """The innermost loops with matrix work: those that hold no other such loop."""
    working = [loop for loop in loops_of(instructions) if loop.all_ways.matrix]
    return [x for x in working if not any(y.head != x.head and y.blocks < x.blocks for y in working)]


def lds_writes_beside_products(instructions: list[Instruction], loop: Loop) -> int:
    """How many there are between two barriers of the loop, as its instructions lie, that have matrix work between them.
    Operands and outputs go through LDS for other lanes, behind barriers; a wave's own sums would need none."""
    starts, inside = set(blocks_of(instructions)), False
    beside = writes = matrix = 0
    for x in instructions:
        if x.address in starts:
            inside = x.address in loop.blocks
        if not inside:
            continue
        cost = cost_of(x)
        matrix, writes = matrix + cost.matrix, writes + (cost.lds_written > 0)
        if x.name == "s_barrier":
            beside += writes if matrix else 0
            writes = matrix = 0
    return beside + (writes if matrix else 0)

# SPDX-License-Identifier: Apache-2.0
"""This package's calls beside those of others, predicted: docs/amd_time.md, from docs/amd_time.json.

export PYTHONPATH=build_backend:tests:tests/amd:tests/gfx942/support:tests/gfx942/roofline:tests/gfx942/clock
python tests/gfx942/clock/peer_page.py --write           goes on: what the same code would make again stays
python tests/gfx942/clock/peer_page.py --write 'MLA'     makes again what has this in its title, and nothing else
python tests/gfx942/clock/peer_page.py --page            writes the page from the figures that there are

AITER, Triton and FLA come from PyPI; mlstm_kernels must be installed, and MOONMATH_AMD_KERNELS name a clone of
moonmath-ai/amd-kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import builds
import peer_figures
import roofline
import trust
from call_time import KernelTime
from peer_figures import Figures, Row, Side, TokenRow

PAGE = builds.ROOT / "docs" / "amd_time.md"
SHOWN = 0.05  # of a call's time: kernels that take less have no say in its error bar
CLEARLY = 1.15  # times as many, for a count to be named
NAMED = 4  # counts
COUNTS = {
    "products": "products",
    "vector": "VALU",
    "scalar": "SALU",
    "waits": "waits",
    "lds": "LDS",
    "memory": "memory",
    "barriers": "barriers",
    "moved": "bytes moved",
    "far": "bytes beyond L2",
}

HEAD = """\
# AMD: predicted times on an MI300X, beside the peers'

Made by `tests/gfx942/clock/peer_page.py --write`. **Every time here is predicted by a model; nothing was measured on
AMD hardware.** An interpreter runs gfx942 code, this package's and the peers' own
([AMD without an AMD GPU](amd-without-amd.md)), and records what waves do; the model (`tests/gfx942/clock`) gives each
instruction its time on one compute unit, and the launch its share of caches and memory. Peers are timed by the same
model. [amd_time_kernels.md](amd_time_kernels.md) has the time of each kernel.

"""

BESIDE = """\
## This package's calls beside others'

Tensors are bfloat16, states float32. Rates are those of the products that the definition needs, or, where bytes need
longer at the chip's peaks, of each input and result once. Of a peer the fastest variant counts, named in the last
column but one; *speed*: the peer's time over this package's, so more than 1 is faster than the peer.

- TFLA: mlstm_kernels' `chunkwise--triton_xl_chunk` in chunks of 128, its default, compiled by Triton; what torch does
  between its kernels (gates, and the gates' gradients, which read q, k, dq and dk again) is left out, in its favour.
- FLA: `simple_gla` has no input gate and no normaliser, so it does less; of each tuned kernel {tried} configurations
  are tried. `parallel_attn` is FLA's causal attention.
- AITER: AMD's code objects. Backward is without the launches that make delta, zero dq and round it, MLA without the
  launch that adds parts, in its favour. Roundings of probabilities to bfloat16: rtne (nearest even), rtna (away from
  zero), rtz (towards zero, with twice the error); a32, a16: dq is added up in float32 or in bfloat16.
- moonmath: with its launch that turns V. Its split of the last round of workgroups is taken as a last round that is
  cut short.
"""

TOKEN = """\
## A token of xLSTM-7B

The engine's launches for one token of each sequence, cold: no cache holds weights from one step to the next. *floor*:
each weight once, the states read and written, at 5.3 TB/s. Of 32 equal blocks one is predicted, of the rest of the
model all. Sampling, and what the host does, are not in it.

*One launch*: what `XLSTM_HIP_GPU_SCHEDULE=persistent` asks for. It is timed as if no workgroup waited for another; for
the way of a value from one to the next, {hand_overs} times a block of the model, {hand_over:.2f} us each are added by
hand. How far workgroups drift apart is not in it.
"""

BINDS = """\
## What binds

Of each call's longest kernel: its share of the call, the unit that most cycles of waves are spent on or wait for, and
where these cycles go.
"""

FEWER = """\
## Where a peer's schedule is better, and where this package's is

Totals of the same call, by executed code: how many times as many of this package's waves execute or move as the
peer's ("VALU 1.5x": the peer needs two thirds), and the other way round. *waves*: of a SIMD at once, of the longest
kernel. What differs by less than 15% is left out.
"""

NUMBERS = """\
## The counts

Products of 16x16x16 and wave instructions in millions; bytes that waves move to and from memory, whatever a cache kept,
and bytes beyond L2, in GB.
"""

SPEED = """\
## What a prediction takes

CPU seconds of the machine that made this page, all threads together, for a million wave instructions of the kernel:
interpreted, and interpreted, recorded and played by the model; the least of {rounds} rounds each. The goals are a
ratio of three at most, and a minute or two for a call. A call of Triton's kernels has its compiler in its time.
"""


# ---- cells


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Columns in `left` are words, the others numbers."""
    rule = "|" + "|".join("---" if n in left else "---:" for n in range(len(columns))) + "|"
    return "\n".join(["| " + " | ".join(columns) + " |", rule, *("| " + " | ".join(r) + " |" for r in rows)]) + "\n"


def microseconds(x: float) -> str:
    return f"{x:.1f}" if x < 1000 else f"{x:.0f}"


def error_bar(side: Side) -> str:
    """The largest of the kernels that count."""
    bars = [trust.error_bar(k) for k in side.kernels if k.microseconds >= SHOWN * side.microseconds]
    return "unknown" if "unknown" in bars else max(bars, key=lambda bar: float(bar.strip("+-%")))


def rate(row: Row, side: Side) -> str:
    """A microsecond is a millionth of a second, so a million a microsecond is 1e12 a second."""
    if row.by_bytes:
        return f"{row.moved / side.microseconds / 1e3:.0f} GB/s"
    return f"{row.flops / side.microseconds / 1e6:.0f} TFLOP/s"


def short(row: Row | TokenRow) -> str:
    """The title below a heading that says the rest of it."""
    return row.title.removeprefix("mLSTM ") if row.title.startswith("mLSTM forward") else row.title.partition(", ")[2]


def longest(side: Side) -> KernelTime:
    return max(side.kernels, key=lambda k: k.microseconds)


# ---- tables


def beside(rows: Sequence[Row]) -> str:
    columns = ("call", "us", "", "error bar", "beside", "us", "", "error bar", "variants", "speed")
    lines = []
    for row in rows:
        ours, *peers = row.sides
        first = (short(row), microseconds(ours.microseconds), rate(row, ours), error_bar(ours))
        for n, peer in enumerate(peers):
            of_peer = (peer.name, microseconds(peer.microseconds), rate(row, peer), error_bar(peer), peer.best)
            speed = f"{peer.microseconds / ours.microseconds:.2f}"
            lines.append((*(("", "", "", "") if n else first), *of_peer, speed))
        if not peers:
            lines.append((*first, "", "", "", "", "", ""))
    return table(columns, lines, left=(0, 4, 8))


def tokens(rows: Sequence[TokenRow]) -> str:
    columns = ("call", "launches", "predicted, ms", "floor, ms", "of the floor", "tokens/s", "where the time goes")
    lines = []
    for row in rows:
        time, floor = row.side.microseconds / 1e3, row.moved / roofline.MEMORY * 1e3
        shares = [f"`{k.kernel}` {max(k.microseconds, 0) / row.side.microseconds:.0%}" for k in row.side.kernels[:3]]
        launches = sum(k.launches for k in row.side.kernels)
        numbers = (str(launches), f"{time:.2f}", f"{floor:.2f}", f"{floor / time:.0%}", f"{row.batch / time * 1e3:.0f}")
        lines.append((short(row), *numbers, ", ".join(shares)))
    return table(columns, lines, left=(0, 6))


def binds(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        k = longest(row.sides[0])
        share = f"{k.microseconds / row.sides[0].microseconds:.0%}"
        busy = f"{k.matrix_busy:.0%}"
        lines.append((row.title, f"`{k.kernel}`", share, k.binds, busy, f"{k.waves:g}", k.causes_text))
    columns = ("call", "longest kernel", "of it", "binds", "MFMA busy", "waves", "where waves' cycles go")
    return table(columns, lines, left=(0, 1, 3, 6))


def more_of(a: Side, b: Side) -> str:
    """What a executes more of than b, the largest ratios first."""
    ratios = []
    for name, word in COUNTS.items():
        x, y = getattr(a.counts, name), getattr(b.counts, name)
        if y and x / y >= CLEARLY:
            ratios.append((x / y, word))
        elif x and not y:
            ratios.append((float("inf"), word))
    words = [f"{word} {'only here' if r == float('inf') else f'{r:.1f}x'}" for r, word in sorted(ratios, reverse=True)]
    return ", ".join(words[:NAMED]) or "nothing"


def fewer(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        ours, *peers = row.sides
        for peer in peers:
            waves = f"{longest(ours).waves:g} / {longest(peer).waves:g}"
            lines.append((row.title, f"{peer.name} {peer.best}", more_of(ours, peer), more_of(peer, ours), waves))
    columns = ("call", "beside", "xlstm_hip has more", "the peer has more", "waves")
    return table(columns, lines, left=(0, 1, 2, 3))


def numbers(rows: Sequence[Row]) -> str:
    columns = (
        *("call", "of", "launches", "products", "VALU", "a product", "SALU", "waits", "LDS", "memory"),
        *("moved", "beyond L2"),
    )
    lines = []
    for row in rows:
        for n, side in enumerate(row.sides):
            c = side.counts
            each = f"{c.vector / c.products:.2f}" if c.products else ""
            millions = [f"{x / 1e6:.2f}" for x in (c.scalar, c.waits, c.lds, c.memory)]
            launches = str(sum(k.launches for k in side.kernels))
            lines.append((
                *("" if n else row.title, f"{side.name} {side.best}".strip(), launches),
                *(f"{c.products / 1e6:.2f}", f"{c.vector / 1e6:.2f}", each, *millions),
                *(f"{c.moved / 1e9:.2f}", f"{c.far / 1e9:.2f}"),
            ))  # fmt: skip
    return table(columns, lines, left=(0, 1))


def speed(figures: Figures) -> str:
    found = [(s.kernel, s.run, s.predicted) for s in figures.speed]
    lines = [(f"`{kernel}`", f"{run:.2f}", f"{timed:.2f}", f"{timed / run:.1f}") for kernel, run, timed in found]
    text = table(("kernel", "interpreted, s", "predicted, s", "ratio"), lines)
    sides = [(side, row.title) for row in figures.rows.values() for side in row.sides]
    sides += [(row.side, row.title) for row in figures.tokens.values()]
    if sides:
        side, title = max(sides, key=lambda x: x[0].seconds)
        by = f"{side.name} {side.best}".strip()
        text += f"\nThe call that took longest: {title}, {by}, {side.seconds:.0f} s.\n"
    return text


# ---- the page


def page(figures: Figures) -> str:
    import peer_calls

    rows = list(figures.rows.values())
    lines = [HEAD + trust.sections(), BESIDE.format(tried=peer_calls.TRIED)]
    for group in dict.fromkeys(row.group for row in rows):
        lines += [f"### {group}", "", beside([row for row in rows if row.group == group])]
    if figures.tokens:
        hand_over = {"hand_overs": peer_calls.HAND_OVERS, "hand_over": peer_calls.HAND_OVER}
        lines += [TOKEN.format(**hand_over), tokens(list(figures.tokens.values()))]
    lines += [BINDS, binds(rows), FEWER, fewer(rows), NUMBERS, numbers(rows)]
    if figures.speed:
        lines += [SPEED.format(rounds=peer_figures.SPEED_ROUNDS), speed(figures)]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str]) -> int:
    if arguments[:1] not in (["--write"], ["--page"]) or len(arguments) > (2 if arguments[0] == "--write" else 1):
        print(__doc__, file=sys.stderr)
        return 2
    figures = Figures.read()
    if arguments[0] == "--write":
        import emulated_torch

        emulated_torch.import_package()
        import peer_calls

        peer_calls.ensure_peers()
        peer_figures.make(figures, arguments[1] if arguments[1:] else "")
    PAGE.write_text(page(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

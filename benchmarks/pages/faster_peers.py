# SPDX-License-Identifier: Apache-2.0
"""Where another package is faster than ours: every comparison of every result file, and those that we lose."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from harness.modes import MODES
from xlstm_hip.bench.environment import summary
from xlstm_hip.bench.registry import FLA, PLAIN, XLSTM_HIP
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import lines_of, section, short
from xlstm_hip.bench.timing import paired_ratio

Entry = dict[str, Any]
NO_PEERS = ("copy", "plain torch", "standard attention")  # by name, where a file does not say whose they are
# Of ours that are no answer to a peer: ops that users do not call, weights that are not the peer's, and a batch in the
# place of packed sequences.
OTHER_WORK = ("raw ops", "int8", "int4", "as a batch")
COMMON = "common"  # in the names of ours that run every GPU's schedule
EQUAL = 0.03  # a peer that is faster by less is as fast
WIDTH = 120
WITHIN = "within the rounds' spread"
# What binds where a peer is faster, by the file and whether ours are by the schedule of every GPU.
BINDS = {
    ("attention_cuda", False): (
        "What binds: from 512 tokens on, issue slots. Max, scale, sum and packing take four and a half instructions a "
        "score, and with 128 features the tensor pipe is busy for 73% of forward and 77% of dk and dv; backward is "
        "deterministic. Up to 512 tokens, the host: a call with gradients is 0.05 to 0.1 ms longer than FLASH's "
        "([lab](lab/attention-h200.md))."
    ),
}


@dataclass(frozen=True)
class Comparison:
    """The fastest of ours and the fastest other at the same work."""

    file: str
    work: str
    ours: Entry
    peer: Entry
    mode: str  # the key of their times

    @property
    def ratio(self) -> dict[str, float]:
        """The peer's time as a multiple of ours: by rounds, where both took their turns in the same ones."""
        ours, peer = self.ours[self.mode], self.peer[self.mode]
        if "times_ours" in self.peer or self.mode in MODES or "side" in self.peer:
            return paired_ratio(peer["samples"], ours["samples"])
        return {"median": peer["median"] / ours["median"], "min": peer["min"] / ours["max"],
                "max": peer["max"] / ours["min"]}  # fmt: skip

    @property
    def lost(self) -> bool:
        return self.ratio["median"] < 1 - EQUAL

    @property
    def equal(self) -> bool:
        return 1 - EQUAL <= self.ratio["median"] < 1

    @property
    def notes(self) -> str:
        errors = self.peer.get("errors", {})
        wrong = self.peer.get("inexact") or ([] if self.peer.get("exact", True) else list(errors))
        notes = ["inexact: " + ", ".join(wrong)] if wrong else []
        if side_of(self.peer) == FLA:
            notes.append("another function")
        return "; ".join([*notes, *([WITHIN] if self.ratio["max"] >= 1 else [])])


def side_of(entry: Entry) -> str | None:
    return entry.get("provider") or entry.get("side")


def is_ours(entry: Entry) -> bool:
    return side_of(entry) == XLSTM_HIP if side_of(entry) else entry["name"].startswith(("ours", XLSTM_HIP))


def is_peer(entry: Entry) -> bool:
    return not is_ours(entry) and side_of(entry) != PLAIN and entry["name"] not in NO_PEERS


def _mlstm(cell: Results) -> str:
    return cell.get("title") or f"{cell['work']} {cell['dtype']} {cell['size']} {cell['dqk']}/{cell['dhv']}"


def _attention(cell: Results) -> str:
    mask = "" if cell["causal"] else " full"
    return (
        f"{cell['work']} {cell['dtype']} B{cell['batch']} H{cell['heads']} S{cell['tokens']} D{cell['head_dim']}{mask}"
    )


def _layer(cell: Results) -> str:
    return f"{cell['layer']} {cell['work']} {cell['dtype']} {cell['tokens']} x {cell['width']}"


Contest = tuple[str, list[Entry]]  # a work, and those who did it
CONTESTS: dict[str, Callable[[Results], Iterable[Contest]]] = {
    "xlstm-hip bench": lambda r: ((f"{p['operator']}: {p['title']}", p.get("entries", [])) for p in r["points"]),
    "mlstm_gpu": lambda r: ((_mlstm(c), c.get("kernels", [])) for c in r["cells"]),
    "mlstm_cpu": lambda r: ((_mlstm(c), c["kernels"]) for c in r["cells"]),
    "attention": lambda r: ((_attention(c), c["contenders"]) for c in r["speed"]),
    "layers": lambda r: ((_layer(c), c["contenders"]) for c in r["cells"]),
    "model": lambda r: ((f"{s['size']}: {j['job']}", j["contenders"]) for s in r["sizes"] for j in s["jobs"]),
    "training": lambda r: ((f"training {s['size']}", s["contenders"]) for s in r["sizes"]),
    "decoding": lambda r: ((f"decoding {p['title']}", p["contenders"]) for p in r["points"]),
    "prefill": lambda r: ((f"prefill {p['title']}", p["contenders"]) for p in r["points"]),
}
# Ours beside ours; rates of servers under loads that are not the same for all.
LEFT_OUT = ("attention features", "serving over HTTP", "context parallel", "tensor parallel")


def comparisons(file: str, results: Results, common: bool) -> Iterator[Comparison]:
    """common: of ours, those that run every GPU's schedule, in the place of the others."""
    kind = results["benchmark"]
    if kind in LEFT_OUT:
        return
    if kind not in CONTESTS:
        raise ValueError(f"{file}: expected a result file of {', '.join((*CONTESTS, *LEFT_OUT))}, got {kind!r}")
    for work, entries in CONTESTS[kind](results):
        answers = [e for e in entries if is_ours(e) and not any(part in e["name"] for part in OTHER_WORK)]
        ours = [e for e in answers if (COMMON in e["name"]) == common]
        peers = [e for e in entries if is_peer(e)]
        for mode in ("ms", *MODES):
            fastest = [min((e for e in side if mode in e), key=lambda e: e[mode]["median"], default=None)
                       for side in (ours, peers)]  # fmt: skip
            if fastest[0] is not None and fastest[1] is not None:
                yield Comparison(file, work, fastest[0], fastest[1], mode)


def paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def table(lost: Iterable[Comparison]) -> list[str]:
    """The largest loss first."""
    rows = []
    for x in sorted(lost, key=lambda x: x.ratio["median"]):
        times = (short(e[x.mode]["median"]) for e in (x.ours, x.peer))
        work = x.work if x.mode == "ms" else f"{x.work}, {x.mode}"
        rows.append((work, x.ours["name"], x.peer["name"], *times, f"{x.ratio['median']:.2f}x", x.notes))
    return lines_of(("work", "ours", "peer", "our ms", "its ms", "its time", "note"), rows)


def by_machine(files: dict[str, Results]) -> dict[str, dict[str, Results]]:
    machines: dict[str, dict[str, Results]] = {}
    for name, results in files.items():
        facts = results["environment"]
        gpu = facts.get("gpu") if results["settings"].get("device") != "cpu" else None
        machines.setdefault(gpu["name"] if gpu else facts["cpu"], {})[name] = results
    return machines


def part(title: str, files: dict[str, Results], common: bool) -> list[str]:
    found = {name: list(comparisons(name, results, common)) for name, results in files.items()}
    found = {name: every for name, every in found.items() if every}
    if not found:
        return []
    comparisons_here = [x for every in found.values() for x in every]
    lost, equal = sum(x.lost for x in comparisons_here), sum(x.equal for x in comparisons_here)
    lines = section(
        title,
        f"A peer is faster in {lost or 'none'} of {len(comparisons_here)} comparisons; by less than {EQUAL:.0%} in "
        f"{equal or 'none'} more.",
    )
    for name, every in found.items():
        losses = [x for x in every if x.lost]
        link = f"[{name}.md](../benchmarks/results/{name}.md)"
        facts = summary(files[name]["environment"])
        lines += ["", *paragraph(f"{link}: {len(losses) or 'none'} of {len(every)}. {facts}.")]
        if losses:
            lines += ["", *table(losses)]
            lines += ["", *paragraph(BINDS[name, common])] if (name, common) in BINDS else []
    return lines


def markdown(files: dict[str, Results]) -> str:
    """files: results by the names of their files; smoke runs are refused."""
    for name, results in files.items():
        if results["settings"]["quick"]:
            raise ValueError(f"{name}.json: expected figures, got a smoke run")
    lines = [
        "# Where a peer is faster",
        "",
        *paragraph(
            "From the result files, by `python benchmarks/faster_peers.py --write`: of each work that both did, the "
            "fastest of ours and the fastest other implementation. Left out are ours with weights of fewer bits or as "
            "bare ops, and plain torch. *Its time*: the peer's as a multiple of ours, the median of the rounds; "
            "*within the rounds' spread*: in a round ours was no slower. A peer that is faster by less than "
            f"{EQUAL:.0%} counts as equal."
        ),
    ]
    for machine, results in by_machine(files).items():
        lines += part(machine, results, common=False)
        lines += part(f"{machine}, ours by the schedule of every GPU, which AMD users get", results, common=True)
    return "\n".join(lines) + "\n"

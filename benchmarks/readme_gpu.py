# SPDX-License-Identifier: Apache-2.0
"""What README.md says about a GPU's speed, between its marks: every figure, machine and date is of the result files.

python benchmarks/readme_gpu.py [--write]    # prints it; or puts it into README.md
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

from xlstm_hip.bench.pages.mlstm_gpu import shape_of
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import UNKNOWN, and_list, entry_of, inexact, lines_of, short

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- h200:begin -->", "<!-- h200:end -->"
WIDTH = 120
BF16 = "bf16"  # of the files' dtypes the one that is shown
JOBS = {
    "write B1": "writing, batch 1", "write B8": "writing, batch 8", "read B1 S8192": "reading 8192 tokens",
    "read B2 S128": "reading 128 tokens, batch 2", "first token after 2048": "first token after 2048 tokens",
}  # fmt: skip
WRITERS = {
    "xlstm_hip": "ours", "xlstm_hip int8": "ours, int8", "xlstm_hip int4": "ours, int4", "xlstm_large": "official",
    "xlstm_large graph": "official, compiled, one graph",
}  # fmt: skip
GRADIENTS = "forward+backward"


def _text(text: str) -> list[str]:
    return [*textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False), ""]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [*lines_of(columns, rows), ""]


def _gpu(results: Results) -> str:
    name: str = results["environment"]["gpu"]["name"]
    return name


def _picture(title: str, results: Results, name: str) -> list[str]:
    return [f"![{title} on {_gpu(results)}](benchmarks/results/{name}.png)", ""]


def _link(name: str) -> str:
    return f"[{name}.md](benchmarks/results/{name}.md)"


def _day(results: Results) -> str:
    return results["environment"]["date"][:10]


def _measured(results: Results, *packages: str, days: Sequence[str] = ()) -> str:
    """On what, beside what and when. days: of the cells, in a file to which later runs add theirs."""
    installed = results["environment"]["packages"]
    versions = {name: installed[name] for name in ("torch", *packages)} | results.get("peers", {})
    known = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return f"{_gpu(results)}, {known}; {and_list(sorted(set(days))) or _day(results)}"


def _rate(job: Results, name: str) -> str:
    entry = entry_of(job["contenders"], name)
    if not entry:
        return ""
    return f"{entry['ms']['median']:.1f} ms" if job["tokens"] == 1 else f"{entry['tokens_per_s']:,.0f}"


def _model_table(size: Results) -> list[str]:
    names = list(dict.fromkeys(entry["name"] for job in size["jobs"] for entry in job["contenders"]))
    rows = [[JOBS.get(job["job"], job["job"]), *(_rate(job, name) for name in names)] for job in size["jobs"]]
    return _table(["", *(WRITERS.get(name, name) for name in names)], rows)


def models(results: Results) -> list[str]:
    size = results["sizes"][-1]
    weights, loading = f"{size['weights'] / 1e9:.2f} billion random weights", size["loading"]
    most = (size["weights_bytes"] + max(row["bytes"] for row in size["memory"])) / 2**30
    return [
        *_text(
            f"xLSTM-{size['size'].upper()}'s shape with {weights}, tokens a second "
            f"({_measured(results, 'transformers', 'xlstm')}; {_link('model_cuda')}):"
        ),
        *_model_table(size),
        *_text(
            f"Ours takes {most:.1f} GiB at the most, however much is written; {loading['bytes'] / 1e9:.1f} GB of "
            f"checkpoint are loaded in {loading['load']:.2f} s, where reading the files takes {loading['read']:.2f}."
        ),
        *_picture("A whole model", results, "model_cuda"),
    ]


def _wrong_gradients(cells: Sequence[Results], limit: float) -> list[str]:
    """What mlstm_kernels' backward kernels compute that is no gradient of what they compute forward."""
    wrong: dict[str, float] = {}
    for kernel in (k for cell in cells for k in cell["kernels"] if k["side"] == "mlstm_kernels"):
        errors = {name: error for name, error in kernel.get("errors", {}).items() if name.startswith("d")}
        wrong |= {name: min(errors[name], wrong.get(name, errors[name])) for name in inexact(errors, limit)}
    if not wrong:
        return []
    least = int(100 * min(wrong.values()))
    return _text(
        f"The Triton kernels hold the normaliser constant, and so their {and_list(list(wrong))} are not the gradients "
        f"of what they compute: {least}% away from them and more."
    )


def mlstm(results: Results) -> list[str]:
    cells = [c for c in results["cells"] if "missing" not in c and c["work"] != "step" and c["dtype"] == BF16]
    by_shape: dict[str, dict[str, Results]] = {}
    for cell in cells:
        by_shape.setdefault(shape_of(cell), {})[cell["work"]] = cell
    names = dict.fromkeys(
        k["name"] for c in cells for k in c["kernels"] if k["name"] == "ours" or k["side"] != "xlstm_hip"
    )
    rows = []
    for works in by_shape.values():
        cell = next(iter(works.values()))
        heads = f"{cell['batch']} x {cell['heads']}" if cell["batch"] > 1 else f"{cell['heads']}"
        row = [f"{heads} heads, {cell['tokens']} tokens, {cell['dqk']}/{cell['dhv']}"]
        for name in names:
            times = []
            for work in ("forward", GRADIENTS):
                kernels = works[work]["kernels"] if work in works else []
                times.append(short(entry_of(kernels, name).get("eager", {}).get("median")))
            row.append(", ".join(times))
        rows.append(row)
    days = [cell.get("date", results["environment"]["date"])[:10] for cell in cells]
    why = f", with the reasons for {UNKNOWN}" if any(UNKNOWN in text for row in rows for text in row) else ""
    return [
        *_text(
            "The mLSTM beside `mlstm_kernels`' Triton kernels and FLA's simple_gla, which has no normaliser, ms of a "
            f"call forward and with gradients, as a user calls it ({_measured(results, days=days)}; "
            f"{_link('mlstm_gpu')}{why}):"
        ),
        *_table(["", *names], rows),
        *_wrong_gradients([c for c in cells if c["work"] == GRADIENTS], results["settings"]["exact"]),
        *_picture("The mLSTM", results, "mlstm_gpu"),
    ]


def attention(results: Results, features: Results) -> list[str]:
    speed = results["speed"]
    tokens = max(cell["tokens"] for cell in speed)
    cells = [c for c in speed if c["tokens"] == tokens and c["causal"] and c["dtype"] == BF16]
    names = [entry["name"] for entry in cells[0]["contenders"]]
    rows = [
        [
            f"{cell['work']}, {cell['head_dim']} features",
            *(f"{e['tflops']:.0f}" if "tflops" in e else UNKNOWN for e in cell["contenders"]),
        ]
        for cell in cells
    ]
    mla = features["tables"]["MLA, decoding one token"][0]
    return [
        *_text(
            f"Attention at {tokens} tokens, batch {cells[0]['batch']}, {cells[0]['heads']} heads, causal, TFLOP/s; "
            f"FLASH is FlashAttention-2 in torch ({_measured(results)}; {_link('attention_cuda')}):"
        ),
        *_table(["", *names], rows),
        *_text(
            f"MLA, decoding one token, {mla['name']}: {mla['tflops']:.0f} TFLOP/s "
            f"({_measured(features)}; {_link('attention_features')}, with what other features cost)."
        ),
        *_picture("Attention", results, "attention_cuda"),
    ]


def layers(results: Results) -> list[str]:
    tokens = max(cell["tokens"] for cell in results["cells"])
    cells = [c for c in results["cells"] if c["tokens"] == tokens and c["dtype"] == BF16]
    shares: dict[str, dict[str, str]] = {}
    for cell in cells:
        copied = entry_of(cell["contenders"], "copy").get("times_ours")
        share = f"{copied['median']:.0%}" if copied else UNKNOWN
        shares.setdefault(cell["work"], {})[cell["layer"]] = share
    names = list(dict.fromkeys(cell["layer"] for cell in cells))
    rows = [[work, *(by_layer.get(name, UNKNOWN) for name in names)] for work, by_layer in shares.items()]
    return [
        *_text(
            f"Layers of {tokens} x {cells[0]['width']}, as a share of the bandwidth of a copy of the bytes that they "
            f"must move ({_measured(results)}; {_link('layers_cuda')}):"
        ),
        *_table(["", *names], rows),
    ]


def block(folder: Path) -> str:
    """All that stands between the marks, from the result files in folder."""

    def of(name: str) -> Results:
        results: Results = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        if results["settings"]["quick"]:
            raise SystemExit(f"{name}.json: a smoke run, whose figures mean nothing")
        return results

    names = ("model_cuda", "mlstm_gpu", "attention_cuda", "attention_features", "layers_cuda")
    model_cuda, mlstm_gpu, attention_cuda, features, layers_cuda = files = [of(name) for name in names]
    gpus = and_list(list(dict.fromkeys(map(_gpu, files))))
    lines = [
        *_text(f"On {gpus} in bfloat16, medians; what stands in one row was measured in one process."),
        *models(model_cuda),
        *mlstm(mlstm_gpu),
        *attention(attention_cuda, features),
        *layers(layers_cuda),
    ]
    return "\n".join(lines).rstrip() + "\n"


def between_the_marks(page: str) -> str:
    return page.partition(f"{BEGIN}\n")[2].partition(END)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into README.md, between the marks")
    text = block(HERE / "results")
    if not parser.parse_args().write:
        print(text, end="")
        return
    readme = HERE.parent / "README.md"
    page = readme.read_text(encoding="utf-8")
    if page.count(f"{BEGIN}\n") != 1 or page.count(END) != 1:
        raise SystemExit(f"{readme}: expected {BEGIN} and {END} once each")
    before, rest = page.split(f"{BEGIN}\n")
    readme.write_text(f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()

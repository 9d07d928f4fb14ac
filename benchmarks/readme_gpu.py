# SPDX-License-Identifier: Apache-2.0
"""The GPU figures of README.md and docs/benchmarks.md, and the README's picture. Every figure comes from a result file.

python benchmarks/readme_gpu.py [--write]    # prints the text; or writes it between the marks, and draws the picture
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

from pages.mlstm_gpu import shape_of
from xlstm_hip.bench.plot import labelled_bars, panels
from xlstm_hip.bench.result_files import Results
from xlstm_hip.bench.table import UNKNOWN, and_list, entry_of, inexact, lines_of, short

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BEGIN, END = "<!-- h200:begin -->", "<!-- h200:end -->"  # the marks, the same in both pages
WIDTH = 120
BF16 = "bf16"  # the dtype that the pages show
DECODE, PREFILL = "write B1", "read B1 S8192"  # jobs of the result file that the README quotes
JOBS = {
    DECODE: "decode, batch 1", "write B8": "decode, batch 8", PREFILL: "prefill of 8192 tokens",
    "read B2 S128": "prefill of 128 tokens, batch 2", "first token after 2048": "first token after a prompt of 2048",
}  # fmt: skip
GRAPH, EAGER_GRAPH = "xlstm_large graph", "xlstm_large eager graph"
MODELS = {
    "xlstm_hip": "ours", "xlstm_hip int8": "ours, int8", "xlstm_hip int4": "ours, int4", "xlstm_large": "official",
    GRAPH: "official, compiled, one graph", EAGER_GRAPH: "official, one graph",
}  # fmt: skip
GRADIENTS = "forward+backward"
PACKAGE_COLOURS = {"official": "#D55E00", "transformers": "#E69F00"}
OUR_COLOUR, KERNELS_COLOUR = "#0072B2", "#009E73"  # ours; mlstm_kernels


def _text(text: str) -> list[str]:
    return [*textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False), ""]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [*lines_of(columns, rows), ""]


def _gpu(results: Results) -> str:
    name: str = results["environment"]["gpu"]["name"]
    return name


def _picture(title: str, results: Results, name: str) -> list[str]:
    return [f"![{title} on {_gpu(results)}](../benchmarks/results/{name}.png)", ""]


def _link(name: str) -> str:
    return f"[{name}.md](../benchmarks/results/{name}.md)"


def _day(results: Results) -> str:
    return results["environment"]["date"][:10]


def _measured(results: Results, *packages: str, days: Sequence[str] = ()) -> str:
    """The GPU, the versions and the date. days: the dates of the cells, where later runs added cells to the file."""
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
    return _table(["", *(MODELS.get(name, name) for name in names)], rows)


def _peak_gib(size: Results) -> float:
    """GPU memory at its highest: the weights, and what decoding adds."""
    most: float = (size["weights_bytes"] + max(row["bytes"] for row in size["memory"])) / 2**30
    return most


def models(results: Results) -> list[str]:
    size = results["sizes"][-1]
    weights, loading = f"{size['weights'] / 1e9:.2f} billion random weights", size["loading"]
    return [
        *_text(
            f"xLSTM-{size['size'].upper()}'s shape with {weights}, tokens per second "
            f"({_measured(results, 'transformers', 'xlstm')}; {_link('model_cuda')}):"
        ),
        *_model_table(size),
        *_text(
            f"Our peak GPU memory is {_peak_gib(size):.1f} GiB, whatever the output length. Loading the "
            f"{loading['bytes'] / 1e9:.1f} GB checkpoint takes {loading['load']:.2f} s; reading the files alone takes "
            f"{loading['read']:.2f} s."
        ),
        *_picture("A whole model", results, "model_cuda"),
    ]


def decoding(results: Results) -> list[str]:
    """Tokens a second over the batch; of ours with the floor's share of the time."""
    names = list(dict.fromkeys(entry["name"] for point in results["points"] for entry in point["contenders"]))
    rows = []
    for point in results["points"]:
        row = [f"batch {point['batch']}"]
        for name in names:
            entry = entry_of(point["contenders"], name)
            floor = point["floors_ms"].get(entry["weights"]) if entry and name.startswith("xlstm_hip") else None
            share = f" ({floor / entry['ms']['median']:.0%})" if floor else ""
            row.append(f"{entry['tokens_per_s']:,.0f}{share}" if "tokens_per_s" in entry else UNKNOWN)
        rows.append(row)
    return [
        *_text(
            "Decoding over the batch, the same shape, tokens per second of all sequences; in brackets the time of a "
            "copy of all weights and of the states in and out, as a share of the step's "
            f"({_measured(results, 'xlstm')}; {_link('decoding_cuda')}):"
        ),
        *_table(["", *(MODELS.get(name, name) for name in names)], rows),
        *_picture("Decoding over the batch", results, "decoding_cuda"),
    ]


def training(results: Results) -> list[str]:
    """Tokens a second of a step, and its memory beyond weights and optimizer."""
    names = list(dict.fromkeys(entry["name"] for size in results["sizes"] for entry in size["contenders"]))
    rows = []
    for size in results["sizes"]:
        entries = [entry_of(size["contenders"], name) for name in names]
        shape = f"{size['blocks']} x {size['features']}, {size['batch']} x {size['length']} tokens"
        cells = [f"{e['tokens_per_s']:,.0f}, {e['bytes'] / 2**30:.1f} GiB" if "ms" in e else UNKNOWN for e in entries]
        rows.append([shape, *cells])
    return [
        *_text(
            "Training: blocks x features, a step of AdamW under autocast; tokens per second, and what a step takes "
            f"beyond weights and optimizer ({_measured(results, 'mlstm_kernels', 'xlstm')}; {_link('training_cuda')}, "
            "which has where the time goes):"
        ),
        *_table(["", *names], rows),
    ]


def _wrong_gradients(cells: Sequence[Results], limit: float) -> list[str]:
    """The gradients of mlstm_kernels' backward kernels that are not the gradients of their forward pass."""
    wrong: dict[str, float] = {}
    for kernel in (k for cell in cells for k in cell["kernels"] if k["side"] == "mlstm_kernels"):
        errors = {name: error for name, error in kernel.get("errors", {}).items() if name.startswith("d")}
        wrong |= {name: min(errors[name], wrong.get(name, errors[name])) for name in inexact(errors, limit)}
    if not wrong:
        return []
    least = int(100 * min(wrong.values()))
    return _text(
        f"The Triton kernels treat the normaliser as a constant in backward. Their {and_list(list(wrong))} differ from "
        f"the true gradients by {least}% or more."
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
            "The mLSTM compared with `mlstm_kernels`' Triton kernels and with FLA's simple_gla, which has no "
            "normaliser: milliseconds of a forward call, and of forward and backward together, called as a user "
            f"calls them ({_measured(results, days=days)}; {_link('mlstm_gpu')}{why}):"
        ),
        *_table(["", *names], rows),
        *_wrong_gradients([c for c in cells if c["work"] == GRADIENTS], results["settings"]["exact"]),
        *_picture("The mLSTM", results, "mlstm_gpu"),
    ]


def attention(results: Results, features: Results) -> list[str]:
    speed = results["speed"]
    tokens = max(cell["tokens"] for cell in speed)
    cells = [c for c in speed if c["tokens"] == tokens and c["causal"] and c["dtype"] == BF16]
    names = list(dict.fromkeys(e["name"] for cell in cells for e in cell["contenders"] if "tflops" in e))
    rows = []
    for cell in cells:
        rates = (entry_of(cell["contenders"], name).get("tflops") for name in names)
        rows.append([f"{cell['work']}, {cell['head_dim']} features", *(f"{x:.0f}" if x else UNKNOWN for x in rates)])
    mla = features["tables"]["MLA, decoding one token"][0]
    return [
        *_text(
            f"Attention at {tokens} tokens, batch {cells[0]['batch']}, {cells[0]['heads']} heads, causal, TFLOP/s; "
            f"FLASH is FlashAttention-2 in torch ({_measured(results)}; {_link('attention_cuda')}):"
        ),
        *_table(["", *names], rows),
        *_text(
            f"MLA, decoding one token, {mla['name']}: {mla['tflops']:.0f} TFLOP/s "
            f"({_measured(features)}; {_link('attention_features')}, which has the cost of other features too)."
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
            f"Layers on {tokens} x {cells[0]['width']} values: the time of a copy of the bytes that the layer must "
            f"move, as a share of the layer's time ({_measured(results)}; {_link('layers_cuda')}):"
        ),
        *_table(["", *names], rows),
    ]


# ---- the README


def _training_cell(results: Results) -> Results:
    """The first shape of the mLSTM that was measured with gradients."""
    cells: list[Results] = results["cells"]
    return next(c for c in cells if c["work"] == GRADIENTS and c["dtype"] == BF16 and "missing" not in c)


def _shape_of(cell: Results) -> str:
    return f"{cell['batch']} x {cell['tokens']} tokens, {cell['heads']} heads"


def _training_times(cell: Results) -> dict[str, float]:
    """Milliseconds of a call by kernel: ours as users call it, and the peers that ran."""
    kernels = [k for k in cell["kernels"] if k["name"] == "ours" or k["side"] != "xlstm_hip"]
    return {k["name"]: k["eager"]["median"] for k in kernels if "eager" in k}


def _tokens_per_second(size: Results, name: str) -> dict[str, float]:
    job = next(job for job in size["jobs"] if job["job"] == name)
    return {MODELS.get(e["name"], e["name"]): e["tokens_per_s"] for e in job["contenders"] if "tokens_per_s" in e}


def figures(folder: Path) -> dict[str, dict[str, float]]:
    """The content of the picture: a panel's title, and in it each bar's name and value."""
    model, kernels = results_of(folder, "model_cuda"), results_of(folder, "mlstm_gpu")
    size, cell = model["sizes"][-1], _training_cell(kernels)
    name = f"xLSTM-{size['size'].upper()}"
    training = {n if n == "ours" or n.startswith("FLA") else f"Triton {n}": x for n, x in _training_times(cell).items()}
    return {
        f"{name}, {JOBS[DECODE]}\ntokens per second, higher is better": _tokens_per_second(size, DECODE),
        f"{name}, {JOBS[PREFILL]}\ntokens per second, higher is better": _tokens_per_second(size, PREFILL),
        f"mLSTM kernels, forward + backward\n{_shape_of(cell)}: ms, lower is better": training,
    }


def draw(folder: Path, path: Path) -> None:
    """The README's picture. Its PNG text `Description` holds the figures, by which a test knows an old one."""
    from matplotlib import pyplot

    model, kernels = results_of(folder, "model_cuda"), results_of(folder, "mlstm_gpu")
    shown = figures(folder)
    figure, axes = panels(len(shown), size=(4.4, 2.4))
    for axis, (title, values) in zip(axes, shown.items(), strict=True):
        colours = [
            OUR_COLOUR if n.startswith("ours") else PACKAGE_COLOURS.get(n.partition(",")[0], KERNELS_COLOUR)
            for n in values
        ]
        digits = 0 if max(values.values()) >= 100 else 2
        labelled_bars(axis, values, [f"{x:,.{digits}f}" for x in values.values()], colours)
        axis.set_title(title, fontsize=9)
    figure.suptitle(f"{and_list(list(dict.fromkeys((_gpu(model), _gpu(kernels)))))}, bfloat16 unless named, medians")
    footer = (
        f"Models: {_measured(model, 'transformers', 'xlstm')}, random weights. "
        f"mLSTM: {_measured(kernels, days=[_training_cell(kernels).get('date', _day(kernels))[:10]])}."
    )
    figure.supxlabel(footer, fontsize=6, color="0.35")
    figure.savefig(path, dpi=150, metadata={"Description": json.dumps(shown)})
    pyplot.close(figure)


def claim(folder: Path) -> str:
    """The README's part: the picture, and its figures in words."""
    model, kernels = results_of(folder, "model_cuda"), results_of(folder, "mlstm_gpu")
    size, cell = model["sizes"][-1], _training_cell(kernels)
    decode, prefill = _tokens_per_second(size, DECODE), _tokens_per_second(size, PREFILL)
    times = _training_times(cell)
    triton = min(times[k["name"]] for k in cell["kernels"] if k["side"] == "mlstm_kernels" and k["name"] in times)
    lines = [
        f"![Decode, prefill and training on {_gpu(model)}, ours and other packages](benchmarks/results/readme.png)",
        "",
        *_text(
            f"On an {_gpu(model)} in bfloat16, xLSTM-{size['size'].upper()}'s shape with random weights decodes "
            f"{decode['ours']:,.0f} tokens/s at batch 1, or {decode['ours, int4']:,.0f} with int4 weights "
            f"(transformers {decode['transformers']:,.0f}; the official package {decode['official']:,.0f}, compiled as "
            f"one CUDA graph {decode[MODELS[GRAPH]]:,.0f}). Prefill runs at {prefill['ours']:,.0f} tokens/s "
            f"(transformers {prefill['transformers']:,.0f}; official {prefill['official']:,.0f}). "
            f"Peak GPU memory is {_peak_gib(size):.1f} GiB, whatever the output length. "
            f"Forward + backward of the mLSTM ({_shape_of(cell)}) takes {short(times['ours'])} ms; "
            f"with the fastest Triton kernel of `mlstm_kernels`, {short(triton)} ms."
        ),
    ]
    return "\n".join(lines).rstrip() + "\n"


# ---- the files


def results_of(folder: Path, name: str) -> Results:
    results: Results = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    if results["settings"]["quick"]:
        raise SystemExit(f"{name}.json: a smoke run, whose figures mean nothing")
    return results


def block(folder: Path) -> str:
    """The part of docs/benchmarks.md, from the result files in folder."""
    names = (
        "model_cuda", "decoding_cuda", "training_cuda", "mlstm_gpu", "attention_cuda", "attention_features",
        "layers_cuda",
    )  # fmt: skip
    files = [results_of(folder, name) for name in names]
    model_cuda, decoding_cuda, training_cuda, mlstm_gpu, attention_cuda, features, layers_cuda = files
    gpus = and_list(list(dict.fromkeys(map(_gpu, files))))
    lines = [
        *_text(f"On {gpus} in bfloat16, medians. All entries of a row come from the same process."),
        *models(model_cuda),
        *decoding(decoding_cuda),
        *training(training_cuda),
        *mlstm(mlstm_gpu),
        *attention(attention_cuda, features),
        *layers(layers_cuda),
    ]
    return "\n".join(lines).rstrip() + "\n"


def between_the_marks(page: str) -> str:
    return page.partition(f"{BEGIN}\n")[2].partition(END)[0]


def write(path: Path, text: str) -> None:
    page = path.read_text(encoding="utf-8")
    if page.count(f"{BEGIN}\n") != 1 or page.count(END) != 1:
        raise SystemExit(f"{path}: expected {BEGIN} and {END} once each")
    before, after = page.split(f"{BEGIN}\n")
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into README.md and docs/benchmarks.md, and the picture")
    results = HERE / "results"
    texts = {ROOT / "README.md": claim(results), ROOT / "docs/benchmarks.md": block(results)}
    if not parser.parse_args().write:
        print("\n".join(texts.values()), end="")
        return
    for path, text in texts.items():
        write(path, text)
    draw(results, results / "readme.png")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Other projects' own tests with xlstm_hip in the place of what they test, on the CPU.

    python tests/peers/run.py                    a sample of the parameters
    python tests/peers/run.py --rows everything  more of them
    python tests/peers/run.py flash_attn         one suite

Each suite is a process of its own, as xlstm_hip.compat takes the other package's name. expected_differences.py lists
the expected differences. The tests that ran are printed and written to test_outputs/peers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdists import PEERS, SDISTS, packages, sdist

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUTPUTS = ROOT / "test_outputs"
# How many choices of each test's parameters, and of how many multiplications a head at most.
ROWS = {"representative": ("--sample=4", "--cost=1e7"), "everything": ("--sample=12", "--cost=3e7")}


@dataclass(frozen=True)
class Suite:
    title: str
    files: tuple[str, ...]  # of this folder
    sdist_files: tuple[str, ...] = ()  # of the sdist
    source: str | None = None  # the sdist
    compat: bool = True
    slow: str | None = None  # tests that a sample is without, as pytest's -k takes them
    # What is another on a CPU or takes too long, in their sources: regular expressions and replacements.
    edits: dict[str, str] = field(default_factory=dict)


ON_A_CPU = {r"([\"'])cuda\1": r"\1cpu\1"}
SUITES = {
    "transformers": Suite(
        "the common tests of models for xLSTM, without and with xlstm_hip.hf.accelerate",
        ("xlstm_of_transformers.py",),
        source="transformers",
        compat=False,
    ),
    "flash_attn": Suite(
        "its tests of attention and of rotary embeddings",
        (),
        ("tests/test_flash_attn.py", "tests/test_rotary.py"),
        "flash_attn",
        edits={
            **ON_A_CPU,
            r"range\((?:250|50)\)": "range(4)",  # repetitions that look for races
            r"^import triton$": "",  # for one test alone
            r"^from flash_attn.flash_attn_interface import _get_block_size_n$": "",
            # What S_dmask is scaled by is not promised; here it is the softmax itself, which needs no undoing.
            r"\Z": "\n\ndef normalize_flash_attn_S(attention, *_, **__):\n    return attention\n",
        },
    ),
    "xlstm": Suite(
        "its tests of the large model",
        (),
        (
            "tests/test_chunkwise_vs_recurrent.py",
            "tests/test_from_pretrained.py",
            "tests/test_generation.py",
            "tests/test_weight_conversion.py",
            "tests/template_chunkwise_vs_recurrent.py",
        ),
        "xlstm",
        slow="test_generate_compile and True",  # compiles the whole model with the C++ compiler
        edits=ON_A_CPU,
    ),
    "notebooks": Suite("the notebooks and the README of xlstm's large model", ("notebooks.py",), source="xlstm"),
    "flash_mla": Suite("calls of FlashMLA's dense decoding, this project's own", ("flash_mla_calls.py",)),
}


def edited(name: str, suite: Suite) -> list[Path]:
    """Their files as they run here, in a folder of their own."""
    folder = PEERS / "edited" / f"{name}_tests"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").touch()
    paths = []
    for relative in suite.sdist_files:
        assert suite.source
        text = (sdist(suite.source) / relative).read_text(encoding="utf-8")
        for pattern, replacement in suite.edits.items():
            text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
        path = folder / Path(relative).name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return [path for path in paths if path.name.startswith("test_")]


def run(name: str, rows: str) -> tuple[str, dict[str, Any]]:
    """The output of pytest, and the counts."""
    suite = SUITES[name]
    files = [HERE / file for file in suite.files] + edited(name, suite)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        counts = Path(work, "counts.json")
        options = ["-q", "-p", "plugin", "-p", "no:cacheprovider", "-c", HERE / "pytest.ini", f"--rootdir={ROOT}"]
        options += [f"--suite={name}", f"--counts={counts}"]
        if suite.sdist_files:
            options += ROWS[rows]
        if suite.slow and rows == "representative":
            options += ["-k", f"not ({suite.slow})"]
        if suite.compat:
            options += ["-p", "on_compat"]
        path = os.pathsep.join(filter(None, (str(HERE), str(packages()), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", *map(str, (*options, *files))]
        done = subprocess.run(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        result = json.loads(counts.read_text()) if counts.exists() else {}
    unmet = result.pop("not met", []) if rows == "everything" else []
    failed = done.returncode != 0 or bool(unmet) or not result.get("passed")
    result |= {"differences that no test meets": unmet, "seconds": round(time.monotonic() - begun), "failed": failed}
    return done.stdout, result


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'suite':14}{'passed':>8}{'failed':>8}{'skipped':>9}{'expected':>10}{'seconds':>9}"]
    for name, result in results.items():
        bad = result.get("failures", 0) + result.get("errors", 0)
        expected = sum(result.get("expected", {}).values())
        counts = f"{result.get('passed', 0):8}{bad:8}{result.get('skipped', 0):9}{expected:10}{result['seconds']:9}"
        source = SUITES[name].source
        version = f" ({source} {SDISTS[source]})" if source else ""
        lines.append(f"{name:14}{counts}  {SUITES[name].title}{version}")
        lines += [f"{'':14}{count:6} expected: {why}" for why, count in result.get("expected", {}).items()]
        lines += [f"{'':14}no test meets the difference: {why}" for why in result["differences that no test meets"]]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="suite", help=", ".join(SUITES))
    parser.add_argument("--rows", choices=ROWS, default="representative")
    arguments = parser.parse_args()
    if unknown := set(arguments.suites) - set(SUITES):
        parser.error(f"suites: expected some of {', '.join(SUITES)}, got {', '.join(sorted(unknown))}")
    names = arguments.suites or list(SUITES)
    packages()
    for name in SDISTS:
        sdist(name)
    results = {}
    with ThreadPoolExecutor(2) as two:
        runs = {name: two.submit(run, name, arguments.rows) for name in names}
        for name, done in runs.items():
            printed, results[name] = done.result()
            print(f"== {name}\n{printed}", flush=True)
    print(table(results))
    OUTPUTS.mkdir(exist_ok=True)
    (OUTPUTS / "peers.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(any(result["failed"] for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())

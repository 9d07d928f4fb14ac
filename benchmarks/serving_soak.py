# SPDX-License-Identifier: Apache-2.0
"""A server under mixed load for a long time: is its memory flat, and does every slot come back?

    python benchmarks/serving_soak.py                        an hour of the demo model on the CPU
    python benchmarks/serving_soak.py --minutes 5 --rate 50 --engines 2
    python benchmarks/serving_soak.py --model FOLDER --device cuda --out soak.json

Requests come at random times: answers whole and streamed, clients that leave in mid-stream, sessions that go on,
prompts that begin alike, answers of a given form, and wrong ones. Each minute a line: requests so far, the memory of
the server's processes (resident, without what files back), and what the server says that it keeps. At the end nothing
may run or wait, and no answer may have been an error of the server. The growth that counts is from half of the time
to the end, when caches are full; more than --most-growth fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from harness.http_load import free_port, server, write_checkpoint
from xlstm_hip.cli.common import POSITIVE, at_least, check_out, device_name, json_file

CLIENTS = 16
WORDS = "in the beginning God created heaven and earth was without form void darkness upon face of deep"
KEPT = ("prefix_cache_bytes", "swap_host_bytes", "swap_folder_bytes")
KINDS = ("whole", "stream", "leave", "session", "shared", "form", "wrong")


class Load:
    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model
        self._random = random.Random(1)
        self.outcomes: Counter[str] = Counter()
        self._clients = threading.local()

    def one(self) -> None:
        kind = self._random.choice(KINDS)
        try:
            self.outcomes[f"{kind} {self._send(kind)}"] += 1
        except Exception as error:
            self.outcomes[f"{kind} {type(error).__name__}"] += 1

    def _send(self, kind: str) -> str:
        if not hasattr(self._clients, "http"):
            self._clients.http = httpx.Client(base_url=self._url, timeout=120)
        pick, http = self._random, self._clients.http
        prompt = " ".join(pick.choices(WORDS.split(), k=pick.randint(1, 120)))
        body: dict[str, Any] = {"model": self._model, "prompt": prompt, "max_tokens": pick.randint(1, 60)}
        body |= {"temperature": pick.choice([0, 0.8]), "priority": pick.randint(0, 2)}
        if kind == "shared":
            body["prompt"] = 12 * WORDS + prompt
        elif kind == "session":
            body["session"] = f"s{pick.randint(0, 50)}"
        elif kind == "form":
            body["guided_regex"] = pick.choice(["[a-z]{3,9}", "[0-9]+-[0-9]+"])
        elif kind == "wrong":
            body["max_tokens"] = 0
        if kind not in ("stream", "leave"):
            return str(http.post("/v1/completions", json=body).status_code)
        with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            for n, _ in enumerate(answer.iter_lines()):
                if kind == "leave" and n == 4:
                    break
            return str(answer.status_code)


def processes_of(pid: int) -> list[int]:
    """With those that it has started, from any of its threads."""
    children: list[str] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):
            children += file.read_text().split()
    return [pid, *(one for child in children for one in processes_of(int(child)))]


def resident_mib(pid: int) -> float:
    total = 0
    for one in processes_of(pid):
        with contextlib.suppress(FileNotFoundError):
            lines = Path(f"/proc/{one}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    return total / 1024


def metrics_of(url: str) -> dict[str, float]:
    found: dict[str, float] = Counter()
    for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
        if line.startswith("xlstm_hip_"):
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0].removeprefix("xlstm_hip_")] += float(value)
    return found


def soak(args: argparse.Namespace, url: str, model: str, pid: int) -> dict[str, Any]:
    load, lines, rng = Load(url, model), [], random.Random(2)
    began = time.monotonic()
    next_line, wakes = began + 60, began
    with ThreadPoolExecutor(CLIENTS) as clients:
        while time.monotonic() - began < 60 * args.minutes:
            wakes += rng.expovariate(args.rate)
            time.sleep(max(0.0, wakes - time.monotonic()))
            if clients._work_queue.qsize() < 4 * CLIENTS:
                clients.submit(load.one)
            if time.monotonic() > next_line:
                next_line += 60
                kept = metrics_of(url)
                lines.append({
                    "minute": round((time.monotonic() - began) / 60, 1), "requests": sum(load.outcomes.values()),
                    "resident_mib": resident_mib(pid), "kept_mib": sum(kept[name] for name in KEPT[:2]) / 2**20,
                })  # fmt: skip
                print("  ".join(f"{name} {value:,.1f}" for name, value in lines[-1].items()), flush=True)
    time.sleep(2)
    last = metrics_of(url)
    half = lines[len(lines) // 2 :]
    return {
        "lines": lines,
        "outcomes": dict(sorted(load.outcomes.items())),
        "left": {name: last[name] for name in ("requests_running", "requests_waiting", "slots_used")},
        "growth_mib": half[-1]["resident_mib"] - half[0]["resident_mib"] if half else None,
        "kept_growth_mib": half[-1]["kept_mib"] - half[0]["kept_mib"] if half else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a checkpoint with a tokenizer (default: the demo model)")
    parser.add_argument("--device", type=device_name, default="cpu", help="(default: cpu)")
    parser.add_argument("--minutes", type=POSITIVE, default=60.0, help="(default: 60)")
    parser.add_argument("--rate", type=POSITIVE, default=20.0, help="requests a second (default: 20)")
    parser.add_argument("--engines", type=at_least(1), default=1, help="(default: 1)")
    parser.add_argument("--threads", type=at_least(1), default=1, help="of the server on a CPU (default: 1)")
    parser.add_argument("--most-growth", metavar="MIB", type=POSITIVE, default=20.0, help="(default: 20)")
    parser.add_argument("--out", type=json_file, help="JSON file of the results")
    args = parser.parse_args()
    if args.out is not None:
        check_out(args.out)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.model or Path(temporary) / "demo"
        if args.model is None:
            write_checkpoint("demo", folder)
        swap, port = Path(temporary) / "swap", free_port()
        swap.mkdir()
        url = f"http://127.0.0.1:{port}"
        command = [
            sys.executable, "-m", "xlstm_hip", "serve", str(folder), "--device", args.device, "--port", str(port),
            "--threads", str(args.threads), "--engines", str(args.engines), "--slots", "8", "--prefix-cache-mb", "8",
            "--swap-mb", "2", "--swap-folder", str(swap), "--swap-folder-mb", "4", "--log-level", "error",
        ]  # fmt: skip
        with server(command, url, "/ready") as process:
            results = soak(args, url, folder.name, process.pid)
    print(json.dumps({name: value for name, value in results.items() if name != "lines"}, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=1) + "\n")
    if any(results["left"].values()):
        sys.exit("FAILED: requests or slots are left")
    wrong = [outcome for outcome in results["outcomes"] if outcome.rpartition(" ")[2] not in ("200", "400")]
    if wrong:
        sys.exit(f"FAILED: {', '.join(wrong)}")
    if results["growth_mib"] is not None and results["growth_mib"] > args.most_growth:
        sys.exit(f"FAILED: the memory grew by {results['growth_mib']:.0f} MiB in the second half")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""HTTP servers of one checkpoint under load by vLLM's client, `vllm bench serve`, on loopback.

    python benchmarks/serving_http.py --vllm ENVIRONMENT/bin/vllm              the demo and the 4m model on the CPU
    python benchmarks/serving_http.py --vllm ... --device cuda                 xLSTM-7B's shape, random weights
    python benchmarks/serving_http.py --vllm ... --servers xlstm_hip vllm --at-a-time 1 16 --rates 2 8
    python benchmarks/serving_http.py --quick --vllm ...                       a smoke run
    python benchmarks/serving_http.py --redraw FILE                            the tables and the picture again

Servers: `xlstm-hip serve`; vLLM with the plug-in of xlstm_hip, if --vllm's environment has it; `transformers serve`,
which answers one request after the other. Each has the machine to itself, but for the client. A line is so many
requests at a time, or so many a second at random times. All prompts differ, so no prefix cache helps. The client counts
a part of a stream as a token: where two come in one read, it sees one short wait and one long.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.benchmark import Benchmark, Job, Session
from harness.http_load import (
    ClientFailed,
    Load,
    commands,
    free_port,
    run_client,
    server,
    write_checkpoint,
    write_client_tokenizer,
)
from pages.serving_http import draw, markdown
from xlstm_hip.bench.contest import Advance
from xlstm_hip.bench.models import SIZES
from xlstm_hip.bench.timing import Pace
from xlstm_hip.cli.common import POSITIVE, at_least

SERVERS = ("xlstm_hip", "vllm", "transformers")
ONE_AT_A_TIME = "transformers"  # its lines are shorter


def loads_of(args: argparse.Namespace, server_name: str) -> list[Load]:
    loads = [Load(n, None, max(8, 4 * n), args.prompt, args.new) for n in args.at_a_time]
    loads += [Load(0, rate, max(8, int(10 * rate)), args.prompt, args.new) for rate in args.rates]
    if server_name == ONE_AT_A_TIME:
        loads = [Load(one.at_a_time, one.rate, 8, one.prompt, one.new) for one in loads[:1]]
    return loads


def measure(session: Session, model: str, name: str, advance: Advance) -> list[dict[str, Any]]:
    args, rows = session.args, []
    with tempfile.TemporaryDirectory() as temporary:
        folder, tokenizer, port = Path(temporary) / model, Path(temporary) / "client", free_port()
        write_checkpoint(model, folder)
        write_client_tokenizer(tokenizer)
        url = f"http://127.0.0.1:{port}"
        command, ready = commands(name, folder, port, args.vllm, args.device, max(args.at_a_time))
        called = model if name == "xlstm_hip" else str(folder)
        try:
            with server(command, url, ready):
                for load in loads_of(args, name):
                    found = run_client(args.vllm, url, called, load, tokenizer, name != ONE_AT_A_TIME)
                    rows.append({"model": model, "server": name, **asdict(load), **found})
                    advance(1 / len(loads_of(args, name)))
        except ClientFailed as error:
            rows.append({"model": model, "server": name, "missing": str(error)})
    return rows


def plan(session: Session) -> list[Job]:
    args, results = session.args, session.results
    results["settings"] |= {"prompt": args.prompt, "new": args.new}
    results["rows"] = []
    return [
        Job(
            f"{name}, {model}",
            lambda advance, model=model, name=name: measure(session, model, name, advance),
            results["rows"].extend,
        )
        for model in args.models
        for name in args.servers
    ]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vllm", default="vllm", help="vLLM's command, of any environment (default: vllm)")
    parser.add_argument("--servers", choices=SERVERS, nargs="+", default=list(SERVERS))
    parser.add_argument("--models", choices=("demo", *SIZES), nargs="+", help="(default: demo 4m; on a GPU 7b)")
    parser.add_argument("--at-a-time", type=at_least(1), nargs="+", metavar="N", help="(default: 1 4 16; on a GPU 64)")
    parser.add_argument("--rates", type=POSITIVE, nargs="*", metavar="PER_S", default=[], help="requests a second")
    parser.add_argument("--prompt", type=at_least(1), metavar="N", help="tokens (default: 128; on a GPU 512)")
    parser.add_argument("--new", type=at_least(1), metavar="N", help="tokens (default: 64; on a GPU 128)")


def settle(args: argparse.Namespace) -> None:
    found = shutil.which(args.vllm)
    if found is None:
        raise ValueError(f"--vllm: expected vLLM's command, which is not there, got {args.vllm!r}")
    args.vllm = found
    on_cpu = args.device == "cpu"
    args.models = args.models or (["tiny"] if args.quick else ["demo", "4m"] if on_cpu else ["7b"])
    args.at_a_time = args.at_a_time or ([2] if args.quick else [1, 4, 16, 64] if on_cpu else [1, 16, 64])
    args.prompt = args.prompt or (16 if args.quick else 128 if on_cpu else 512)
    args.new = args.new or (8 if args.quick else 64 if on_cpu else 128)


BENCHMARK = Benchmark(
    "serving over HTTP", __file__, __doc__ or "", "serving_http_{device}", Pace(1, 1, 1, 0.1), plan, markdown, draw,
    options, settle,
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main()

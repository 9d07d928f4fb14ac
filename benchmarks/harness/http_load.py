# SPDX-License-Identifier: Apache-2.0
"""Servers of a checkpoint as processes, and load on them by vLLM's client, `vllm bench serve`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from xlstm_hip.bench.models import SIZES
from xlstm_hip.models import save_pretrained, xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.models.config_files import SpecialTokens

DEMO = Path(__file__).parents[2] / "models" / "demo"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
PRINTABLE = range(32, 127)
START_SECONDS = 300.0


@dataclass(frozen=True)
class Load:
    """Requests of `vllm bench serve`: random prompts, all of one length.

    rate    requests a second, at random times; None: as many at a time as `at_a_time` says
    """

    at_a_time: int
    rate: float | None
    requests: int
    prompt: int
    new: int


class ClientFailed(RuntimeError):
    """The client ended with an error, or requests did."""


def write_checkpoint(name: str, folder: Path) -> None:
    """The demo model, or random weights of another size, with what clients and other servers want beside them: a
    tokenizer in a file and a chat template that says what it is given.
    """
    if name == "demo":
        shutil.copytree(DEMO, folder, dirs_exist_ok=True)
    else:
        torch.manual_seed(0)
        model = xLSTMLarge(xLSTMLargeConfig(**SIZES[name], mode="inference", weight_mode="fused"))
        model.special_tokens = SpecialTokens(bos=0, eos=(2,), pad=1)
        save_pretrained(model, folder, weight_mode="single")  # as transformers reads it
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    write_tokenizer(folder, vocabulary)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": None, "max_length": 1 << 20}))


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """A token for each byte, and names for the others."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, *(f"<{number}>" for number in range(len(letters), vocabulary))]
    tokenizer = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def write_client_tokenizer(folder: Path) -> None:
    """Of printable characters, so that random tokens are text of as many tokens for every server's tokenizer."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab={chr(byte): n for n, byte in enumerate(PRINTABLE)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def server(command: Sequence[str], url: str, ready: str) -> Iterator[subprocess.Popen[str]]:
    """The process of a server, from when it answers at the path `ready` until it has ended by SIGTERM."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        try:
            end = time.monotonic() + START_SECONDS
            while not answers(url + ready):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    last = last_line(log.read())
                    raise ClientFailed(f"{Path(command[0]).name} {command[1]} does not serve: {last}")
                time.sleep(0.2)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def last_line(text: str) -> str:
    """Of an error that a program ended with."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no word of it")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def commands(server_name: str, folder: Path, port: int, vllm: str, device: str, slots: int) -> tuple[list[str], str]:
    """How a server is started, and the path that answers once it is ready."""
    if server_name == "xlstm_hip":
        words = ["-m", "xlstm_hip", "serve", str(folder), "--device", device, "--slots", str(slots)]
        return [sys.executable, *words, "--log-level", "warning", "--port", str(port)], "/ready"
    if server_name == "transformers":
        words = ["serve", str(folder), "--host", "127.0.0.1", "--device", device]
        return [str(Path(sys.executable).with_name("transformers")), *words, "--port", str(port)], "/health"
    words = ["serve", str(folder), "--host", "127.0.0.1", "--max-num-seqs", str(slots), "--max-model-len", "8192"]
    if device == "cpu":  # docs/vllm.md says why one more block than requests
        words += ["--dtype", "float32", "--num-gpu-blocks-override", str(slots + 1)]
    return [vllm, *words, "--port", str(port)], "/health"


def dataset(load: Load) -> list[str]:
    """Random prompts, no two of which begin alike. The dataset "random" always has ignore_eos in its requests, which
    `transformers serve` refuses."""
    named = {"prefix-len": load.prompt // 2, "suffix-len": load.prompt - load.prompt // 2,
             "num-prefixes": load.requests, "output-len": load.new}  # fmt: skip
    words = [word for name, n in named.items() for word in (f"--prefix-repetition-{name}", str(n))]
    return ["--dataset-name", "prefix_repetition", *words]


def run_client(vllm: str, url: str, model: str, load: Load, tokenizer: Path, ignores_eos: bool) -> dict[str, Any]:
    """Milliseconds and rates, as `vllm bench serve` has them."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            vllm, "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
            "--base-url", url, "--model", model, "--tokenizer", str(tokenizer), *dataset(load),
            "--num-prompts", str(load.requests), "--num-warmups", str(min(load.at_a_time, 8)),
            "--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "50,99", "--disable-tqdm",
            "--save-result", "--result-dir", folder, "--result-filename", "result.json",
        ]  # fmt: skip
        if load.rate is None:
            words += ["--max-concurrency", str(load.at_a_time)]
        else:
            words += ["--request-rate", str(load.rate)]
        if ignores_eos:
            words.append("--ignore-eos")
        ran = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        file = Path(folder) / "result.json"
        if ran.returncode or not file.exists():
            raise ClientFailed(f"vllm bench serve: {last_line(ran.stderr or ran.stdout)}")
        found = json.loads(file.read_text())
    if found["failed"] or found["completed"] != load.requests:
        raise ClientFailed(f"{found['failed']} of {load.requests} requests failed")
    return {
        "tokens_per_s": found["output_throughput"],
        "seconds": found["duration"],
        "tokens": found["total_output_tokens"],
        **{
            f"{metric}_ms": {f"p{share}": found[f"p{share}_{metric}_ms"] for share in (50, 99)}
            for metric in ("ttft", "tpot", "itl")
        },
    }

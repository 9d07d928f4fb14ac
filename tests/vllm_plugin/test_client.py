# SPDX-License-Identifier: Apache-2.0
"""vLLM's client, `vllm bench serve`, on `xlstm-hip serve`: every request is answered, and every token counted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: ./scripts/test vllm")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from harness import http_load  # noqa: E402
from harness.http_load import Load  # noqa: E402

VLLM = str(Path(sys.executable).with_name("vllm"))


AT_A_TIME, A_SECOND = Load(8, None, 24, 100, 16), Load(0, 20.0, 20, 100, 16)


@pytest.mark.parametrize(("model", "loads"), [("demo", (AT_A_TIME, A_SECOND)), ("4m", (AT_A_TIME,))], ids=str)
def test_the_client_of_vllm(model: str, loads: tuple[Load, ...], tmp_path: Path) -> None:
    """More requests than there are slots."""
    folder, tokenizer, port = tmp_path / model, tmp_path / "client", http_load.free_port()
    http_load.write_checkpoint(model, folder)
    http_load.write_client_tokenizer(tokenizer)
    url = f"http://127.0.0.1:{port}"
    command, ready = http_load.commands("xlstm_hip", folder, port, VLLM, "cpu", 4)
    with http_load.server(command, url, ready):
        for load in loads:
            found = http_load.run_client(VLLM, url, model, load, tokenizer, True)
            assert found["tokens"] == 16 * load.requests and found["tokens_per_s"] > 0
            for metric in ("ttft", "tpot", "itl"):
                times = found[f"{metric}_ms"]
                assert 0 <= times["p50"] <= times["p99"]

# SPDX-License-Identifier: Apache-2.0
"""A long text through one Stream of the demo model: what it keeps in memory, and how far it is from float64.

    python benchmarks/stream.py TEXT [--tokens 1000000] [--output benchmarks/results/stream.json]

The same bytes go through a float32 and a float64 model, a slice at a time. After each part the logits of the next byte
are compared, a few bytes are timed one by one on a copy of the state, and the sizes of state and process are noted. The
text is read again from its beginning when it ends.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xlstm_hip._core.progress import Progress
from xlstm_hip.bench.environment import environment
from xlstm_hip.bench.memory import resident_bytes
from xlstm_hip.bench.result_files import save
from xlstm_hip.models import Stream, load_pretrained

MODEL = Path(__file__).resolve().parents[1] / "models" / "demo"
PARTS, SLICE, TIMED = 20, 4096, 32


def slices(text: bytes, tokens: int) -> Iterator[Tensor]:
    done = 0
    while done < tokens:
        begin = done % len(text)
        part = text[begin : begin + min(SLICE, tokens - done)]
        yield torch.tensor([list(part)])
        done += len(part)


def step_seconds(stream: Stream) -> float:
    """The fastest of a few bytes, one by one; the stream itself stays where it is."""
    assert stream.state is not None
    state = {block: (c.clone(), n.clone(), m.clone()) for block, (c, n, m) in stream.state.items()}
    copy, byte, times = Stream(stream.model, state=state), torch.tensor([[32]]), []
    for _ in range(TIMED):
        began = time.perf_counter()
        copy.feed(byte)
        times.append(time.perf_counter() - began)
    return min(times)


def measure(text: bytes, tokens: int) -> list[dict[str, Any]]:
    streams = [Stream(load_pretrained(MODEL, dtype, progress=False)) for dtype in (torch.float32, torch.float64)]
    for stream in streams:
        stream.feed(torch.zeros(1, 1, dtype=torch.int64))
    rows, done, every = [], 0, tokens // PARTS
    with Progress("streaming", tokens, "bytes") as bar:
        for part in slices(text, tokens):
            logits, true = (stream.feed(part) for stream in streams)
            done += part.shape[1]
            bar.advance(part.shape[1])
            if done // every > len(rows):
                state = streams[0].state
                assert state is not None
                rows.append(
                    {
                        "bytes": done,
                        "error": float((logits.double() - true).norm() / true.norm()),
                        "state_bytes": sum(x.nbytes for layer in state.values() for x in layer),
                        "resident_bytes": resident_bytes(),
                        "step_seconds": step_seconds(streams[0]),
                    }
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/stream.json"))
    args = parser.parse_args()
    before = environment()
    rows = measure(args.text.read_bytes(), args.tokens)
    save({"environment": before, "rows": rows}, args.output)
    for row in rows:
        print(
            f"{row['bytes']:>9}  error {row['error']:.1e}  state {row['state_bytes'] / 1024:.0f} KiB  "
            f"process {row['resident_bytes'] / 2**20:.0f} MiB  step {1e3 * row['step_seconds']:.2f} ms"
        )


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Attention on a GPU: the whole table of arguments, forward and backward, and what runs only there. Without a GPU it is
skipped.

python tests/attention/test_attention_gpu.py                  everything without pytest, the most at risk first
python tests/attention/test_attention_gpu.py --seconds 120    what fits two minutes; the rest is counted as left out
python tests/attention/test_attention_gpu.py --forward graph  no backward; checks and rows whose names hold "graph"
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import SkipTest

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    if find_spec("xlstm_hip") is None:  # not installed: a library built in place does
        sys.path.insert(0, str(ROOT / "python"))

DEVICE = "cuda"
BACKWARD = True  # main() takes it back


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device=DEVICE).requires_grad_(grad)


def qkv(queries: int = 300, keys: int = 500, heads: tuple[int, int] = (8, 2), dim: int = 128) -> list[Tensor]:
    return [draw(2, n, h, dim, grad=BACKWARD) for n, h in ((queries, heads[0]), (keys, heads[1]), (keys, heads[1]))]


def results(inputs: Sequence[Tensor], **options: Any) -> list[Tensor]:
    from xlstm_hip.attention import flash_attn_func

    out = flash_attn_func(*inputs, causal=True, **options)
    return [out, *torch.autograd.grad(out, inputs, torch.ones_like(out))] if BACKWARD else [out]


def same(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(actual, expected, strict=True)), "other bits"


def with_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor], sent: Tensor) -> list[Tensor]:
    """The result and the gradients of leaves made of the inputs."""
    leaves = [x.detach().requires_grad_(BACKWARD) for x in inputs]
    out = function(*leaves)
    return [out.detach(), *(torch.autograd.grad(out, leaves, sent.to(out.dtype)) if BACKWARD else ())]


def beside_sdpa(dtype: torch.dtype, dim: int, causal: bool) -> None:
    """At most twice as far from the truth as torch's own in the same dtype, which multiplies and adds plainly."""
    from support.attention.problem import FLOOR
    from xlstm_hip.attention import flash_attn_func

    def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

    inputs = [draw(2, 700, 4, dim, dtype=dtype) for _ in range(3)]
    sent = draw(2, 700, 4, dim, dtype=dtype)
    actual = with_gradients(lambda q, k, v: flash_attn_func(q, k, v, causal=causal), inputs, sent)
    peer, truth = with_gradients(sdpa, inputs, sent), with_gradients(sdpa, [x.double() for x in inputs], sent)
    for name, x, y, true in zip(
        ("out", "dq", "dk", "dv"), *([z.double() for z in zs] for zs in (actual, peer, truth)), strict=False
    ):
        for order in (2, torch.inf):
            error, plain, size = (float(torch.linalg.vector_norm(z, order)) for z in (x - true, y - true, true))
            allowed = 2 * plain + FLOOR * torch.finfo(dtype).eps * size
            assert error <= allowed, f"{name}, norm {order}: error {error:.3g}, allowed {allowed:.3g}"


def a_graph_replayed_with_other_data() -> None:
    inputs = qkv()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            results(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = results(inputs)
    with torch.no_grad():
        for x in inputs:
            x.copy_(torch.randn_like(x))
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        same(out, results(inputs))


def a_side_stream() -> None:
    """The inputs arrive late on a stream of their own: a call on another stream would see NaN."""
    inputs = qkv()
    expected = results(inputs)
    late = [torch.full_like(x, torch.nan).requires_grad_(BACKWARD) for x in inputs]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # cycles
        with torch.no_grad():
            for x, y in zip(late, inputs, strict=True):
                x.copy_(y)
        actual = results(late)
    side.synchronize()
    same(actual, expected)


def offsets_beyond_32_bits() -> None:
    from support.attention.far_tokens import Far, memory_back, tokens_beyond_32_bits

    memory_back()
    try:
        tokens_beyond_32_bits(Far(), DEVICE, BACKWARD)
    finally:
        memory_back()


def parts_agree_with_the_whole() -> None:
    from xlstm_hip.attention import flash_attn_with_kvcache

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        q, k, v = draw(2, 3, 8, 128, dtype=dtype), *(draw(2, 5000, 2, 128, dtype=dtype) for _ in range(2))
        unsplit = flash_attn_with_kvcache(q, k, v, causal=True, num_splits=1)
        for splits in (0, 2, 17):
            actual = flash_attn_with_kvcache(q, k, v, causal=True, num_splits=splits)
            near = 4 * torch.finfo(dtype).eps
            torch.testing.assert_close(actual, unsplit, rtol=near, atol=near * float(unsplit.abs().max()))


def everything() -> Iterator[tuple[str, Callable[[], None]]]:
    """Name and what to run; the most at risk first."""
    from support.attention.gpu_rows import measure, rows

    yield from ((f.__name__.replace("_", " "), f) for f in (parts_agree_with_the_whole, a_side_stream))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for dim in (64, 128, 256):
            for causal in (False, True):
                name = f"beside sdpa, {dtype}, {dim}, {'causal' if causal else 'all'}"
                yield name, partial(beside_sdpa, dtype, dim, causal)
    yield from ((f.__name__.replace("_", " "), f) for f in (a_graph_replayed_with_other_data, offsets_beyond_32_bits))
    for case in rows("MI300X" if torch.version.hip else "H200"):
        yield str(case), partial(measure, case, DEVICE, BACKWARD)


def pytest_generate_tests(metafunc: Any) -> None:
    import pytest

    if torch.cuda.is_available():
        params = [pytest.param(run, id=name, marks=pytest.mark.gpu) for name, run in everything()]
    else:
        marks = (pytest.mark.gpu, pytest.mark.skip(reason="no GPU that torch can use"))
        params = [pytest.param(None, id="no GPU", marks=marks)]
    metafunc.parametrize("run", params)


def test_on_a_gpu(run: Any) -> None:
    run()


def main() -> int:
    global BACKWARD
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", nargs="*", help="only checks and rows whose name holds one of these")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--forward", action="store_true", help="no backward passes")
    args = parser.parse_args()
    BACKWARD = not args.forward
    if not torch.cuda.is_available():
        print("left out: no GPU that torch can use")
        return 0
    begun, done, failed, skipped, left_out = time.monotonic(), 0, 0, 0, 0
    for name, run in everything():
        if args.text and not any(text in name for text in args.text):
            continue
        if time.monotonic() - begun > args.seconds:
            left_out += 1
            continue
        try:
            run()
        except SkipTest as reason:
            skipped += 1
            print(f"skipped: {name}: {reason}", flush=True)
            continue
        except Exception as error:  # every one has its say
            failed += 1
            print(f"FAILED {name}: {' | '.join(str(error).split(chr(10)))[:1500]}", flush=True)
        done += 1
    counts = f"{done} done, {failed} failed, {skipped} skipped, {left_out} left out for time"
    print(f"[{time.monotonic() - begun:.0f} s] {counts}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The benchmark of training: a smoke run, losses that differ, a contender that fails, and groups of kernels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.rows("ci")
EAGER = ["--quick", "--threads", "1", "--contenders", "xlstm_hip", "xlstm_large"]


def test_smoke_run(load: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("xlstm")
    out = tmp_path / "training.json"
    load("training").BENCHMARK.main([*EAGER, "--out", str(out)])
    [size] = json.loads(out.read_text())["sizes"]
    assert [e["name"] for e in size["contenders"]] == ["xlstm_hip", "xlstm_large"]
    for entry in size["contenders"]:
        assert entry["loss"] == pytest.approx(size["contenders"][0]["loss"], rel=5e-3)
        assert entry["tokens_per_s"] > 0 and entry["groups"] is None
    text = out.with_suffix(".md").read_text()
    assert "| xlstm_large |" in text and "2 blocks of 128 features" in text and capsys.readouterr().out.startswith(text)
    assert out.with_suffix(".png").stat().st_size > 5_000


def test_what_is_left_out_stays(load: Callable[[str], Any], tmp_path: Path) -> None:
    """--keep: a file's other sizes stay, with the date of their run; a file of another benchmark is refused."""
    pytest.importorskip("matplotlib")
    out, ours = tmp_path / "training.json", [*EAGER[:-1], "--keep"]
    benchmark = load("training").BENCHMARK
    with pytest.raises(SystemExit, match="--keep: expected a result file of training"):
        out.write_text("{}")
        benchmark.main([*ours, "--out", str(out)])
    benchmark.main([*EAGER[:-1], "--out", str(out)])
    before = json.loads(out.read_text())
    before["sizes"].append(before["sizes"][0] | {"size": "160m"})
    out.write_text(json.dumps(before))
    benchmark.main([*ours, "--out", str(out)])
    assert {size["size"]: size.get("date") for size in json.loads(out.read_text())["sizes"]} == {
        "160m": before["environment"]["date"],
        "tiny": None,
    }
    assert f"Taken on {before['environment']['date'][:10]}." in out.with_suffix(".md").read_text()


def test_what_is_wrong_ends_the_run(
    load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Planted: a loss that is off by a hundredth, and one of ours that fails."""
    pytest.importorskip("xlstm")
    training = load("training")
    loss = training.xLSTMLarge.loss
    monkeypatch.setattr(training.xLSTMLarge, "loss", lambda self, *args: 1.01 * loss(self, *args))
    with pytest.raises(SystemExit, match=r"the first step's losses differ by more than 0.005: \{'xlstm_hip'"):
        training.BENCHMARK.main([*EAGER, "--out", str(tmp_path / "off.json")])
    monkeypatch.setattr(training.xLSTMLarge, "loss", lambda self, *args: args[0].nothing)
    with pytest.raises(SystemExit, match="xlstm_hip: .*nothing"):
        training.BENCHMARK.main([*EAGER, "--out", str(tmp_path / "failed.json")])


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "matrix products"),
        ("Cijk_Alik_Bljk_BBS_BH", "matrix products"),
        ("void xlstm::gpu::mlstm::chunk_walk_hopper<256, 2, false>", "mLSTM"),
        ("void xlstm::gpu::layer::norm_forward_rows<float, true>", "norms, SwiGLU, caps, loss"),
        (
            "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda>",
            "casts and copies",
        ),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "sums and others"),
        ("void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>", "optimizer"),
    ],
)
def test_groups_of_kernels(load: Callable[[str], Any], kernel: str, group: str) -> None:
    load("training")
    from harness import training

    assert training.group_of(kernel) == group


def test_bad_options(load: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    training = load("training")
    with pytest.raises(SystemExit):
        training.BENCHMARK.main(["--size", "7b"])
    assert "invalid choice: '7b'" in capsys.readouterr().err
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            training.BENCHMARK.main(["--device", "cuda"])
        assert "torch sees no GPU" in capsys.readouterr().err

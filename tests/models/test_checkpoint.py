# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: both schemes, both weight modes, one file or shards, beside the official loaders; and damaged ones."""

from __future__ import annotations

import json
import os
import random
import re
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from support.compat_parts import compat_part
from support.peer_models import relative, small_model, tokens
from xlstm_hip.models import (
    CheckpointError,
    SpecialTokens,
    checkpoint,
    create_parameter_mapping,
    create_piece_mapping,
    load_pretrained,
    save_pretrained,
    staging,
    xLSTMLarge,
    xLSTMLargeConfig,
)
from xlstm_hip.models.quantize import quantize
from xlstm_hip.models.shards import find_tensors

THIN = {"embedding_dim": 8, "num_heads": 2, "vocab_size": 11, "ffn_round_up_to_multiple_of": 4}


def logits(model: xLSTMLarge, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out = model(x)
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("scheme", ["hf", "xlstm_large"])
@pytest.mark.parametrize("saved", ["single", "fused"])
@pytest.mark.parametrize("loaded", ["single", "fused"])
@pytest.mark.parametrize("shard", [5_000_000_000, 50_000])
def test_round_trip(tmp_path: Path, scheme: str, saved: str, loaded: str, shard: int) -> None:
    model, x = small_model(), tokens(1, 9)
    model.special_tokens = SpecialTokens(3, (4, 5), None)
    save_pretrained(model, tmp_path, scheme, saved, shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard < 1e6)
    again = load_pretrained(tmp_path, weight_mode=loaded, progress=False)
    assert again.config.weight_mode == loaded
    assert relative(logits(again, x), logits(model, x)) < 1e-6
    assert scheme != "hf" or again.special_tokens == model.special_tokens
    assert again.config.ffn_proj_factor == model.config.ffn_proj_factor
    if loaded == saved:
        assert not create_parameter_mapping(again.state_dict(), again.state_dict()).keys() ^ again.state_dict().keys()
    if loaded == "single":
        assert all(torch.equal(a, model.state_dict()[name]) for name, a in again.state_dict().items())


@pytest.mark.parametrize("blocks", [1, 32, 40])
def test_mapping_of_many_blocks(blocks: int) -> None:
    """Both ways between transformers' single and our fused names; 32 blocks are the 483 tensors of xLSTM-7B."""
    with torch.device("meta"):
        single, fused = (
            xLSTMLarge(xLSTMLargeConfig(**THIN, num_blocks=blocks, weight_mode=mode)).state_dict()
            for mode in ("single", "fused")
        )
    hf = {("backbone.embeddings.weight" if k == "embedding.weight" else k): v for k, v in single.items()}
    assert len(hf) == 15 * blocks + 3
    shuffled = list(hf.items())
    random.Random(0).shuffle(shuffled)  # the order of names means nothing
    mapping = create_piece_mapping(dict(shuffled), fused)
    assert mapping.keys() == fused.keys()
    assert sorted(p.name for slices in mapping.values() for p in slices) == sorted(hf)
    last = f"backbone.blocks.{blocks - 1}.mlstm_layer."
    assert [p.name for p in mapping[f"{last}qkv_opreact.weight"]] == [
        f"{last}{part}.weight" for part in ("q", "k", "v", "ogate_preact")
    ]
    back = create_piece_mapping(fused, hf)
    assert back[f"{last}v.weight"] == ((f"{last}qkv_opreact.weight", 8, 16),)
    assert back["backbone.embeddings.weight"] == (("embedding.weight", 0, 11),)
    assert create_piece_mapping(hf, single)["embedding.weight"] == (("backbone.embeddings.weight", 0, 11),)
    names = create_parameter_mapping(dict(shuffled), single)
    assert names == {name: "backbone.embeddings.weight" if name == "embedding.weight" else name for name in single}
    assert all(dict(shuffled)[names[name]] is tensor for name, tensor in single.items())  # as the AMD guide has it
    assert create_parameter_mapping(fused, fused) == {name: name for name in fused}
    layer, begin = "backbone.blocks.0.mlstm_layer", "expected a tensor of its own, but it"
    for source, expected, words in (
        (hf, fused, f"qkv_opreact.weight: {begin} consists of {layer}.k.weight, .*; use create_piece_mapping"),
        (fused, hf, f"q.weight: {begin} is rows 0 to 4 of {layer}.qkv_opreact.weight; use create_piece_mapping"),
    ):
        with pytest.raises(CheckpointError, match=words):
            create_parameter_mapping(source, expected)


@pytest.mark.parametrize("scheme", ["hf", "xlstm_large"])
def test_options_of_kernels_are_in_no_checkpoint(tmp_path: Path, scheme: str) -> None:
    """They are this machine's, and the official package refuses a file with fields that it does not know."""
    queued = {"chunkwise_kernel": "chunkwise--queued_compiled_steps", "heads_per_band": 2, "workers": 1}
    save_pretrained(xLSTMLarge(xLSTMLargeConfig(**THIN, num_blocks=1, **queued)), tmp_path, scheme)
    file = tmp_path / ("config.json" if scheme == "hf" else "config.yaml")
    assert "norm_eps" in file.read_text() and not re.search("heads_per_band|workers|streams", file.read_text())
    assert load_pretrained(tmp_path, progress=False).config.workers is None
    again = load_pretrained(tmp_path, progress=False, **queued).config
    assert (again.heads_per_band, again.workers, again.streams) == (2, 1, None)
    with pytest.raises(ValueError, match="workers: kernel 'chunkwise--fused' has no such option"):
        load_pretrained(tmp_path, progress=False, workers=2)


def test_auto_kernels_of_a_checkpoint(tmp_path: Path) -> None:
    fields = {**THIN, "num_blocks": 1}
    save_pretrained(xLSTMLarge(xLSTMLargeConfig(**fields, chunkwise_kernel="auto")), tmp_path / "exp")
    config = load_pretrained(tmp_path / "exp", progress=False, chunkwise_kernel="auto").config
    assert (config.chunkwise_kernel, config.step_kernel) == ("auto", "fused")
    sigmoid = xLSTMLarge(xLSTMLargeConfig(**fields, chunkwise_kernel="chunkwise--fused_siging"))
    save_pretrained(sigmoid, tmp_path / "sigmoid", "xlstm_large")
    with pytest.raises(ValueError, match="chunkwise_kernel: 'auto' has the exponential input gate"):
        load_pretrained(tmp_path / "sigmoid", progress=False, chunkwise_kernel="auto")


@pytest.mark.parametrize("blocks", [32, 40])
def test_all_tensors_of_the_7b_at_thin_widths(tmp_path: Path, blocks: int) -> None:
    model = xLSTMLarge(xLSTMLargeConfig(**THIN, num_blocks=blocks))
    save_pretrained(model, tmp_path, max_shard_bytes=20_000)
    names = find_tensors(tmp_path)
    assert len(names) == 15 * blocks + 3
    assert blocks != 32 or len(names) == 483
    again = load_pretrained(tmp_path, weight_mode="fused", progress=False)
    x = tokens(1, 5, vocab=11)
    assert relative(logits(again, x), logits(model, x)) < 1e-6


def test_dtype_and_device(tmp_path: Path) -> None:
    save_pretrained(small_model(dtype=torch.bfloat16), tmp_path)
    assert load_pretrained(tmp_path, progress=False).lm_head.weight.dtype == torch.bfloat16
    wide = load_pretrained(tmp_path, torch.float32, torch.device("cpu"), progress=False, mode="train")
    assert wide.lm_head.weight.dtype == torch.float32
    assert wide.config.mode == "train"
    assert wide.config.chunkwise_kernel == "chunkwise--fused"


def test_official_loader_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    module = pytest.importorskip("xlstm.xlstm_large.from_pretrained")
    model, x = small_model(), tokens(1, 9)
    for shard in (5_000_000_000, 50_000):
        save_pretrained(model, tmp_path, "xlstm_large", max_shard_bytes=shard)
        peer = module.load_from_pretrained(
            tmp_path,
            return_last_states=True,
            chunkwise_kernel_name="chunkwise--native_autograd",
            sequence_kernel_name="native_sequence__native",
            step_kernel_name="native",
        )
        with torch.no_grad():
            assert relative(peer(x)[0], logits(model, x)) < 1e-5
    yaml = pytest.importorskip("yaml")
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    config |= {"chunkwise_kernel": "chunkwise--triton_limit_chunk", "autocast_kernel_dtype": "float32"}
    (tmp_path / "config.yaml").write_text("# as saved by hand\n" + yaml.safe_dump(config))
    assert relative(logits(load_pretrained(tmp_path, progress=False), x), logits(model, x)) < 1e-6


def test_the_official_loader_and_ours_in_its_place(tmp_path: Path) -> None:
    module = pytest.importorskip("xlstm.xlstm_large.from_pretrained")
    assert module.xLSTMLarge is not xLSTMLarge
    yaml = pytest.importorskip("yaml")
    load_from_pretrained = compat_part("xlstm_large").load_from_pretrained
    with pytest.raises(TypeError, match="checkpoint_path: expected the name of a folder, got 5"):
        load_from_pretrained(5)
    names = {"chunkwise_kernel_name": "chunkwise--native_autograd", "sequence_kernel_name": "native_sequence__native"}
    names["step_kernel_name"] = "native"
    model, x = small_model(dtype=torch.bfloat16), tokens(1, 16)
    save_pretrained(model, tmp_path, "xlstm_large")
    stored = yaml.safe_load((tmp_path / "config.yaml").read_text())
    del stored["mode"], stored["return_last_states"]
    for of_file in ({}, {"mode": "inference"}, {"mode": "inference", "return_last_states": True}):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored | of_file))
        for arguments in ({}, {"backend_mode": None}, {"return_last_states": True}, {"return_last_states": False}):
            peer, loaded = (
                load(tmp_path, **arguments, **names) for load in (module.load_from_pretrained, load_from_pretrained)
            )
            for field in ("mode", "return_last_states", "chunk_size"):
                assert getattr(loaded.config, field) == getattr(peer.config, field)
            assert {p.dtype for p in loaded.parameters()} == {p.dtype for p in peer.parameters()} == {torch.float32}
            with torch.no_grad():
                actual = loaded(x)
                assert isinstance(actual, tuple) == peer.config.return_last_states
                if peer.config.mode == "train" and not peer.config.return_last_states:
                    continue  # the official layer unpacks a state that is not there
                want = peer(x)
            assert isinstance(actual, tuple) == isinstance(want, tuple)
            assert relative(*(y[0] if isinstance(y, tuple) else y for y in (actual, want))) < 1e-5


def test_transformers_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, x = small_model(), tokens(2, 9)
    save_pretrained(model, tmp_path / "ours", max_shard_bytes=200_000)
    peer, report = transformers.xLSTMForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    with torch.no_grad():
        assert relative(peer(x).logits, logits(model, x)) < 1e-5
    peer.save_pretrained(tmp_path / "theirs", max_shard_size="200KB")
    again = load_pretrained(tmp_path / "theirs", weight_mode="fused", progress=False)
    assert relative(logits(again, x), logits(model, x)) < 1e-6


def test_a_released_configuration(tmp_path: Path) -> None:
    """Fields that only its authors' package knows, Triton kernels: as in xLSTM-7B's config.json."""
    model, x = small_model(), tokens(1, 9)
    save_pretrained(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"head_dim": 32, "force_bos_token_insert": True, "igate_bias_init_range": -10.0, "cell_norm_eps": 1e-6}
    config |= {"chunkwise_kernel": "chunkwise--triton_xl_chunk", "step_kernel": "triton", "eos_token_id": [2, 5]}
    del config["num_blocks"], config["embedding_dim"], config["norm_eps"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = load_pretrained(tmp_path, progress=False)
    assert again.config.chunkwise_kernel == "chunkwise--fused" and again.special_tokens.eos == (2, 5)
    assert relative(logits(again, x), logits(model, x)) < 1e-6


@pytest.mark.parametrize("cap", ["gate_soft_cap", "output_logit_soft_cap"])
def test_a_model_without_a_soft_cap_stays_one(tmp_path: Path, cap: str) -> None:
    model, x = small_model(**{cap: None}), tokens(1, 9)
    save_pretrained(model, tmp_path, "xlstm_large")
    again = load_pretrained(tmp_path, progress=False)
    assert getattr(again.config, cap) is None
    assert relative(logits(again, x), logits(model, x)) < 1e-6
    with pytest.raises(ValueError, match=f"scheme: transformers' model needs {cap} to be a number, got None"):
        save_pretrained(model, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
    save_pretrained(small_model(), tmp_path / "hf")
    file = tmp_path / "hf" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {cap: None}))
    assert getattr(load_pretrained(tmp_path / "hf", progress=False).config, cap) is None


def test_null_is_no_default(tmp_path: Path) -> None:
    """transformers lets two fields be null, whose other names then count; of any other it is a mistake."""
    save_pretrained(small_model(), tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"num_blocks": None, "embedding_dim": None}))
    assert load_pretrained(tmp_path, progress=False).config.num_blocks == 3
    file.write_text(json.dumps(config | {"norm_eps": None}))
    with pytest.raises(CheckpointError, match=r"config\.json: norm_eps: expected a finite number >= 0, got None"):
        load_pretrained(tmp_path, progress=False)


@pytest.mark.parametrize("chunkwise", ["chunkwise--fused_siging", "parallel--native_siging_autograd"])
def test_a_sigmoid_gate_stays_one(tmp_path: Path, chunkwise: str) -> None:
    model, x = small_model(chunkwise_kernel=chunkwise), tokens(1, 9)
    want = logits(model, x)
    assert relative(want, logits(small_model(), x)) > 0.1
    save_pretrained(model, tmp_path, "xlstm_large")
    again = load_pretrained(tmp_path, progress=False)
    assert again.config.chunkwise_kernel == "chunkwise--fused_siging"
    assert relative(logits(again, x), want) < 1e-5
    native = load_pretrained(tmp_path, progress=False, chunkwise_kernel="chunkwise--native_siging_custbw")
    assert (native.config.chunkwise_kernel, native.config.step_kernel) == (
        "chunkwise--native_siging_custbw",
        "fused_siging",
    )
    reloaded = load_pretrained(tmp_path, progress=False, chunkwise_kernel="chunkwise--fused")
    assert reloaded.config.step_kernel == "fused"
    with pytest.raises(ValueError, match="scheme: transformers' model only has the exponential input gate"):
        save_pretrained(model, tmp_path / "hf")


def test_the_gate_of_a_checkpoint_is_that_of_its_kernel(tmp_path: Path) -> None:
    save_pretrained(small_model(), tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"chunkwise_kernel": "chunkwise--triton_xl_chunk_siging"}))
    assert load_pretrained(tmp_path, progress=False).config.chunkwise_kernel == "chunkwise--fused_siging"
    for name, words in (("chunkwise--mine", "Unknown mLSTM .*'chunkwise--mine'"), ([], r"expected .*name, got \[\]")):
        file.write_text(json.dumps(config | {"chunkwise_kernel": name}))
        with pytest.raises(CheckpointError, match=rf"config\.json: chunkwise_kernel: {words}"):
            load_pretrained(tmp_path, progress=False)
        assert load_pretrained(tmp_path, progress=False, chunkwise_kernel="chunkwise--fused")


# ---- saving over what is there


def contents(folder: Path) -> dict[str, bytes]:
    return {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}


@pytest.mark.parametrize("scheme", ["hf", "xlstm_large"])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_save_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, failing: int
) -> None:
    save_pretrained(small_model(), tmp_path, max_shard_bytes=200_000)
    before, saved = contents(tmp_path), []

    def full(tensors: dict, file: Path, **options: object) -> None:
        if len(saved) == failing:
            file.write_bytes(b"half")
            raise SafetensorError("I/O error: No space left on device (os error 28)")  # as a full disk gives it
        saved.append(file)
        save_file(tensors, file)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match=rf"{tmp_path}: I/O error: No space left"):
        save_pretrained(small_model(seed=1), tmp_path, scheme, max_shard_bytes=100_000)
    assert contents(tmp_path) == before and len(saved) == failing
    assert all(x.is_file() for x in tmp_path.iterdir())


@pytest.mark.parametrize("shard", [5_000_000_000, 200_000])
@pytest.mark.parametrize("first", ["hf", "xlstm_large"])
@pytest.mark.parametrize("second", ["hf", "xlstm_large"])
def test_the_last_save_is_what_is_read(tmp_path: Path, first: str, second: str, shard: int) -> None:
    """And only what the checkpoint before it was made of is gone."""
    names = ("model_backup.safetensors", "model-old.safetensors", "model_1000.safetensors", "config.yml", "notes.txt")
    other_files = dict.fromkeys(names, b"mine")
    for name, data in other_files.items():
        (tmp_path / name).write_bytes(data)
    alone, x = tmp_path / "alone", tokens(1, 9)
    for most in (60_000, 5_000_000_000, 120_000):
        save_pretrained(small_model(), tmp_path, first, max_shard_bytes=most)
    model = small_model(seed=1)
    save_pretrained(model, alone, second, max_shard_bytes=shard)
    save_pretrained(model, tmp_path, second, max_shard_bytes=shard)
    if second == "hf" or shard > 1e6:  # to xlstm_large a shard of any number belongs
        assert relative(logits(load_pretrained(tmp_path, progress=False), x), logits(model, x)) < 1e-6
    assert {x.name for x in tmp_path.iterdir() if x.is_file()} == {x.name for x in alone.iterdir()} | other_files.keys()
    assert all((tmp_path / name).read_bytes() == data for name, data in other_files.items())


def test_configurations_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("trainer:\n  steps: 3\n")
    save_pretrained(small_model(), tmp_path)
    assert (tmp_path / "config.yaml").read_text().startswith("trainer")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"config\.json: expected model_type 'xlstm', got 'llama'"):
        save_pretrained(small_model(), tmp_path, "xlstm_large")
    assert contents(tmp_path) == before


# ---- damage


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def raw_header(folder: Path, change: Callable[[str], str]) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = change(data[8 : 8 + length].decode()).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


NORM = "backbone.out_norm.weight"  # (128) of F32: 512 bytes


def entry(name: str = NORM, **changes: object) -> Callable[[Path], None]:
    """Damage to what the header says of a tensor."""

    def change(header: str) -> str:
        entries = json.loads(header)
        entries[name] |= changes
        return json.dumps(entries)

    return lambda folder: raw_header(folder, change)


def moved(by: int) -> Callable[[Path], None]:
    def change(header: str) -> str:
        entries = json.loads(header)
        entries[NORM]["data_offsets"] = [x + by for x in entries[NORM]["data_offsets"]]
        return json.dumps(entries)

    return lambda folder: raw_header(folder, change)


def cut(folder: Path, keep: float) -> None:
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])


def drop_q(tensors: dict) -> None:
    del tensors["backbone.blocks.1.mlstm_layer.q.weight"]


def misshape(tensors: dict) -> None:
    tensors["backbone.blocks.2.ffn.proj_up.weight"] = torch.zeros(3, 128)


def integers(tensors: dict) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int32)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda f: rewrite(f, drop_q), r"missing from the checkpoint: .*blocks\.1\.mlstm_layer\.q\.weight"),
    "extra": (lambda f: rewrite(f, lambda t: t.update(rotary=torch.ones(1))), "not in the model: rotary"),
    "misshapen": (lambda f: rewrite(f, misshape), r"2\.ffn\.proj_up\.weight: expected shape \(256, 128\).*\(3, 128\)"),
    "another dtype": (lambda f: rewrite(f, integers), r"lm_head\.weight: expected one of F64.*got I32"),
    "doubled in a header": (
        lambda f: raw_header(f, lambda h: f'{h.rstrip()[:-1]},"lm_head.weight":{{}}}}'),
        "named twice: lm_head.weight",
    ),
    "doubled by both names": (
        lambda f: rewrite(f, lambda t: t.update({"embedding.weight": torch.ones(97, 128)})),
        r"embedding\.weight: stored twice, as .*embedding.* and as .*embedding",
    ),
    "truncated data": (lambda f: cut(f, 0.7), "is cut off: it ends at byte"),
    "truncated header": (lambda f: cut(f, 0.0005), "cut off, or no safetensors file"),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), "cut off, or no safetensors file"),
    "wrong offsets": (
        lambda f: raw_header(f, lambda h: h.replace('"shape":[97,128]', '"shape":[96,128]', 1)),
        "is 49152 bytes, got 49664",
    ),
    "no JSON": (lambda f: raw_header(f, lambda h: h[:-9]), "its header is no JSON"),
    "negative offsets": (entry(data_offsets=[-512, 0]), rf"{NORM}: .*two integers >= 0, got \[-512, 0\]"),
    "words for offsets": (entry(data_offsets=["0", "512"]), rf"{NORM}: .*two integers >= 0, got \['0', '512'\]"),
    "one offset": (entry(data_offsets=[512]), rf"{NORM}: .*two integers >= 0, got \[512\]"),
    "words for a shape": (entry(shape=["128"]), rf"{NORM}: expected a shape of integers >= 0, got \['128'\]"),
    "a float in a shape": (entry(shape=[128.0]), rf"{NORM}: expected a shape of integers >= 0, got \[128\.0\]"),
    "a word for a shape": (entry(shape="128"), rf"{NORM}: expected a shape of integers >= 0, got '128'"),
    "no word for a dtype": (entry(dtype=["F32"]), rf"{NORM}: expected one of F64.*, got \['F32'\]"),
    "bytes of another": (moved(-512), r"model\.safetensors: .*: expected its bytes to begin at \d+, where those of"),
    "a hole": (moved(4), "expected its bytes to begin at"),
    "more at the end": (
        lambda f: (f / "model.safetensors").open("ab").write(b"more"),
        r"model\.safetensors: expected its last tensor to end at byte \d+, the file's end, got",
    ),
    "a header that is a list": (
        lambda f: raw_header(f, lambda h: f"[{h}]"),
        "model.safetensors: its header is no JSON obj",
    ),
    "a header too deep": (lambda f: raw_header(f, lambda h: "[" * 100_000), "model.safetensors: its header is no JSON"),
    "no object of a tensor": (lambda f: raw_header(f, lambda h: '{"x": 3}'), "x: expected dtype, shape and data_off"),
    "a configuration that is a list": (
        lambda f: (f / "config.json").write_text("[]"),
        r"config\.json: expected a JSON object, got list",
    ),
    "a configuration in Latin-1": (
        lambda f: (f / "config.json").write_bytes('{"model_type": "é"}'.encode("latin-1")),
        r"config\.json: no JSON: 'utf-8' codec",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "expected model.safetensors, model.safetensors.index"),
    "a pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "pytorch_model.bin is a pickle",
    ),
    "no config": (lambda f: (f / "config.json").unlink(), "expected config.json or config.yaml"),
    "another model": (
        lambda f: (f / "config.json").write_text('{"model_type": "llama"}'),
        "expected model_type 'xlstm', got 'llama'",
    ),
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_damage_is_named(tmp_path: Path, fault: str) -> None:
    save_pretrained(small_model(), tmp_path)
    damage, words = DAMAGE[fault]
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        load_pretrained(tmp_path, progress=False)


def index_of(folder: Path) -> dict:
    return json.loads((folder / "model.safetensors.index.json").read_text())


def test_damaged_shards_are_named(tmp_path: Path) -> None:
    save_pretrained(small_model(), tmp_path, max_shard_bytes=200_000)
    shards = sorted(tmp_path.glob("*.safetensors"))
    contents = {p: p.read_bytes() for p in (*shards, tmp_path / "model.safetensors.index.json")}

    def fails(words: str) -> None:
        with pytest.raises(CheckpointError, match=words):
            load_pretrained(tmp_path, progress=False)
        for path, data in contents.items():
            path.write_bytes(data)

    shards[1].unlink()
    fails(f"the shard {shards[1].name} of model.safetensors.index.json is missing")
    save_file({**load_file(shards[0]), **load_file(shards[1])}, shards[1])
    fails(f"stored twice, in {shards[0].name} and {shards[1].name}")
    shards[1].write_bytes(contents[shards[1]][:-16])
    fails(f"{shards[1].name}: .* is cut off: it ends at byte")
    tensors = load_file(shards[1])
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name][1:].clone()}, shards[1])
    fails(f"{name}: expected shape")
    save_file({**tensors, "more": torch.zeros(3)}, shards[1])
    fails("in a shard but not in the index: more")
    index = index_of(tmp_path)
    index["weight_map"]["lm_head.weight"] = shards[0].name
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    fails("not in the shard that it names: lm_head.weight")
    index = index_of(tmp_path)
    del index["weight_map"]["lm_head.weight"]
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    fails("in a shard but not in the index: lm_head.weight")
    index = index_of(tmp_path)
    index["weight_map"]["lm_head.weight"] = 3
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    fails("lm_head.weight: expected the name of a shard, got 3")
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    fails("expected a JSON object with a weight_map")
    assert load_pretrained(tmp_path, progress=False)


def test_a_file_that_is_cut_off_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By somebody else, once its header has been looked at."""
    save_pretrained(small_model(), tmp_path)
    original = checkpoint.find_tensors

    def found_and_cut(folder: Path) -> dict:
        tensors = original(folder)
        last = max(tensors.values(), key=lambda x: x.offset)
        with open(last.file, "rb+") as file:
            file.truncate(last.offset + last.bytes - 16)
        return tensors

    monkeypatch.setattr(checkpoint, "find_tensors", found_and_cut)
    for dtype in (None, torch.bfloat16):  # straight to where it belongs, and through a buffer
        save_pretrained(small_model(), tmp_path)
        with pytest.raises(CheckpointError, match=r"model\.safetensors: .* is cut off after ([0-9]+) of [0-9]+ bytes"):
            load_pretrained(tmp_path, dtype, progress=False)


def test_a_numbered_shard_is_missing_or_there_twice(tmp_path: Path) -> None:
    save_pretrained(small_model(), tmp_path, "xlstm_large", max_shard_bytes=200_000)
    first, second = (tmp_path / f"model_{n}.safetensors" for n in (0, 1))
    contents = second.read_bytes()
    save_file({**load_file(first), **load_file(second)}, second)
    with pytest.raises(CheckpointError, match=r"stored twice, in model_0\.safetensors and model_1\.safetensors"):
        load_pretrained(tmp_path, progress=False)
    second.write_bytes(contents)
    (tmp_path / "model_1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"missing: model_1\.safetensors"):
        load_pretrained(tmp_path, progress=False)


def test_yaml_mistakes(tmp_path: Path) -> None:
    save_pretrained(small_model(), tmp_path, "xlstm_large")
    text = (tmp_path / "config.yaml").read_text()
    for addition, words in (("colour: red", "unknown fields: colour"), ("  - a", "line 22: expected `name: value`"),
                            ("eps: 1", "eps appears twice")):  # fmt: skip
        (tmp_path / "config.yaml").write_text(text + addition + "\n")
        with pytest.raises(CheckpointError, match=words):
            load_pretrained(tmp_path, progress=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bos_token_id": 97}, "bos_token_id: expected a token id from 0 to 96, got 97"),
        ({"eos_token_id": [2, -1]}, "eos_token_id: expected a token id from 0 to 96, got -1"),
        ({"pad_token_id": 50_000}, "pad_token_id: expected a token id from 0 to 96, got 50000"),
        ({"bos_token_id": "a"}, "bos_token_id: expected a token id or null, got 'a'"),
        ({"pad_token_id": 1.0}, r"pad_token_id: expected a token id or null, got 1\.0"),
        ({"eos_token_id": [2, None]}, "eos_token_id: expected a token id or null, got None"),
        ({"hidden_size": 999}, "hidden_size: expected that of embedding_dim, [0-9]+, got 999"),
    ],
)
def test_json_mistakes(tmp_path: Path, changes: dict, words: str) -> None:
    save_pretrained(small_model(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=words):
        load_pretrained(tmp_path, progress=False)


def test_a_yaml_in_latin_1(tmp_path: Path) -> None:
    save_pretrained(small_model(), tmp_path, "xlstm_large")
    (tmp_path / "config.yaml").write_bytes(b"# \xe9\n")
    with pytest.raises(CheckpointError, match=r"config\.yaml: no text in UTF-8: 'utf-8' codec"):
        load_pretrained(tmp_path, progress=False)


def test_a_wrong_call(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="path: expected the folder"):
        load_pretrained(tmp_path / "nowhere")
    for call in (lambda: load_pretrained(None), lambda: save_pretrained(small_model(), None)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="path: expected the name of a folder, got None"):
            call()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="path: expected a folder, got the file '.*file'"):
        save_pretrained(small_model(), tmp_path / "file")
    for device in ("foo", None, ""):
        with pytest.raises(ValueError, match=f'device: expected .*"cpu", "cuda" or "cuda:1", got {device!r}'):
            load_pretrained(tmp_path, device=device)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"device: expected one of the \d+ GPUs that torch sees, got cuda:99"):
        load_pretrained(tmp_path, device="cuda:99")
    with pytest.raises(ValueError, match="device: expected one that has memory for the weights, got meta"):
        load_pretrained(tmp_path, device="meta")
    with pytest.raises(TypeError, match="hf_state_dict: expected a dict of tensors by name, got NoneType"):
        create_parameter_mapping(None, {})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'kernels'"):
        load_pretrained(tmp_path, kernels="fused")
    with pytest.raises(ValueError, match="transformers' model needs use_bias=False"):
        save_pretrained(small_model(use_bias=True), tmp_path)
    with pytest.raises(ValueError, match="scheme: expected one of 'hf', 'xlstm_large', got 'gguf'"):
        save_pretrained(small_model(), tmp_path, "gguf")


class LateCopies:
    """A GPU's copies, done when somebody waits for the event behind them and no earlier; on the CPU."""

    sent: list[Callable[[], object]] = []

    def __init__(self) -> None:
        self.before: list[Callable[[], object]] = []

    def record(self, stream: object) -> None:
        self.before, LateCopies.sent = LateCopies.sent, []

    def synchronize(self) -> None:
        while self.before:
            self.before.pop(0)()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("size", [1, 100, 3000, 16 << 20])
def test_rows_pass_through_buffers_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, late: bool
) -> None:
    """Converted, fused and taken apart; `late`: as a GPU does, which copies from a buffer until it is waited for."""
    save_pretrained(small_model(dtype=torch.bfloat16), tmp_path / "single", max_shard_bytes=20_000)
    fused = load_pretrained(tmp_path / "single", weight_mode="fused", progress=False)
    save_pretrained(fused, tmp_path / "fused")
    want = {"single": small_model(dtype=torch.bfloat16).state_dict(), "fused": fused.state_dict()}
    monkeypatch.setattr(staging, "BUFFER_BYTES", size)
    if late:
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda *args, pin_memory=False, **kwargs: empty(*args, **kwargs))
        monkeypatch.setattr(torch.cuda, "Event", LateCopies)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
        monkeypatch.setattr(
            staging.Staging, "_copy", lambda self, to, rows: LateCopies.sent.append(lambda: to.copy_(rows))
        )
        monkeypatch.setattr(
            checkpoint, "Staging", lambda device, tensors: staging.Staging(torch.device("cuda"), tensors)
        )
    for saved in want:
        for mode, tensors in want.items():
            again = load_pretrained(tmp_path / saved, torch.float32, weight_mode=mode, progress=False).state_dict()
            for name, x in tensors.items():
                assert torch.equal(again[name], x.float()), f"{saved} to {mode}: {name}"


def test_memory_is_that_of_the_model_and_a_buffer(tmp_path: Path) -> None:
    """Bytes that a read asks for, by the allocations of torch: none but the parameters and the way to them."""
    model = small_model()
    save_pretrained(model, tmp_path)
    results: list[int] = []
    empty = torch.empty

    def counting(*args, **kwargs):
        x = empty(*args, **kwargs)
        if x.device.type == "cpu":
            results.append(x.numel() * x.element_size())
        return x

    buffer = 3000  # of bytes, in which no tensor has room but those of a norm
    assert max(x.bytes for x in find_tensors(tmp_path).values()) > buffer
    tracemalloc.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", counting)
        patch.setattr(staging, "BUFFER_BYTES", buffer)
        load_pretrained(tmp_path, torch.bfloat16, progress=False)
    _, python_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    weights = sum(p.numel() for p in model.parameters())
    assert 2 * weights < sum(results) <= 2 * weights + buffer
    assert python_peak < 2_000_000


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_files_have_the_rights_that_the_umask_gives(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        save_pretrained(small_model(), tmp_path)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {mode}


def test_special_tokens_of_generation_config(tmp_path: Path) -> None:
    """Fine-tuned checkpoints keep their end tokens there, and transformers' generate reads them there."""
    save_pretrained(small_model(), tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 5, 6], "pad_token_id": null}')
    assert load_pretrained(tmp_path, progress=False).special_tokens == SpecialTokens(0, (0, 5, 6), 1)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 5000}')
    with pytest.raises(CheckpointError, match="eos_token_id: expected a token id from 0 to"):
        load_pretrained(tmp_path, progress=False)


def test_fused_weights_are_of_a_type_that_transformers_refuses(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    save_pretrained(small_model(), tmp_path, weight_mode="fused")
    with pytest.raises(ValueError, match="xlstm_hip_fused"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert load_pretrained(tmp_path, progress=False).config.weight_mode == "single"


def test_dtype_by_name(tmp_path: Path) -> None:
    save_pretrained(small_model(), tmp_path)
    assert load_pretrained(tmp_path, progress=False).dtype == torch.float32
    for name, dtype in (("bfloat16", torch.bfloat16), ("auto", torch.float32), (torch.float16, torch.float16)):
        model = load_pretrained(tmp_path, name, progress=False)
        assert model.dtype == dtype and model.device == torch.device("cpu")
    for wrong in ("bf16", torch.int8, 16):
        with pytest.raises(ValueError, match="dtype: expected a torch.dtype or a name, one of auto, float32, .*, got"):
            load_pretrained(tmp_path, wrong, progress=False)


def test_the_default_dtype_on_a_gpu() -> None:
    gpu = torch.device("cuda", 0)
    assert checkpoint.default_dtype({torch.float32}, gpu) == torch.bfloat16
    assert checkpoint.default_dtype({torch.float16}, gpu) is None
    assert checkpoint.default_dtype({torch.float32, torch.bfloat16}, gpu) is None
    assert checkpoint.default_dtype({torch.float32}, torch.device("cpu")) is None


def test_methods_of_the_model(tmp_path: Path) -> None:
    class Own(xLSTMLarge):
        pass

    model = small_model()
    model.save_pretrained(tmp_path / "fused", weight_mode="fused", max_shard_bytes=20_000)
    save_pretrained(model, tmp_path / "same", "hf", "fused", 20_000)
    files = sorted(file.name for file in (tmp_path / "same").iterdir())
    assert len(files) > 3 and files == sorted(file.name for file in (tmp_path / "fused").iterdir())
    assert all((tmp_path / "same" / x).read_bytes() == (tmp_path / "fused" / x).read_bytes() for x in files)
    options = {"weight_mode": "fused", "progress": False, "chunk_size": 32}
    actual = Own.from_pretrained(tmp_path / "fused", "bfloat16", "cpu", **options)
    want = load_pretrained(tmp_path / "fused", "bfloat16", "cpu", **options)
    assert type(actual) is Own and type(want) is xLSTMLarge and actual.config == want.config
    assert actual.config.chunk_size == 32 and not actual.training
    assert all(torch.equal(x, want.state_dict()[name]) for name, x in actual.state_dict().items())
    with pytest.raises(TypeError, match="unexpected keyword argument 'kernels'"):
        Own.from_pretrained(tmp_path / "fused", kernels="fused")


def test_the_number_of_parameters() -> None:
    """As transformers' method of this name counts."""
    model = small_model()
    weights, embedding = sum(x.numel() for x in model.parameters()), model.embedding.weight.numel()
    assert model.num_parameters() == model.num_parameters(only_trainable=True) == weights
    assert model.num_parameters(exclude_embeddings=True) == weights - embedding
    model.lm_head.weight.requires_grad_(False)
    head = model.lm_head.weight.numel()
    assert model.num_parameters(only_trainable=True) == weights - head
    assert model.num_parameters(only_trainable=True, exclude_embeddings=True) == weights - head - embedding
    model.embedding.weight.requires_grad_(False)
    assert model.num_parameters(only_trainable=True, exclude_embeddings=True) == weights - head - embedding
    assert quantize(model, 4, 32, progress=False)[0].num_parameters() == weights

# SPDX-License-Identifier: Apache-2.0
"""A model whose heads and features are divided over ranks: logits, loss, gradients, states, files are those of one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from support.peer_models import SMALL, hf_model, small_model, tokens
from support.ranks import run_ranks
from xlstm_hip._core.extras import is_installed
from xlstm_hip.distributed import ContextParallel, tensor_parallel, tensor_parallel_plan
from xlstm_hip.models import generate, load_pretrained, save_pretrained, staging, xLSTMLarge, xLSTMLargeConfig
from xlstm_hip.models.shards import Stored
from xlstm_hip.quantize import quantize

LENGTH = 64
# With every tensor that a model may have, and one without caps.
MODELS: dict[str, dict[str, Any]] = {
    "with biases": {"use_bias": True, "num_blocks": 2},
    "without caps": {"gate_soft_cap": None, "output_logit_soft_cap": None, "add_out_norm": False, "num_blocks": 1},
}
QUANTISED = {"int8": (8, 32), "int4": (4, 32)}
# On two ranks 43 groups of features are 22 and 21.
UNEVEN = {"embedding_dim": 256, "ffn_proj_factor": 5.375, "ffn_round_up_to_multiple_of": 32}
DECODED = (*MODELS, "bfloat16", *QUANTISED)  # models whose steps run on the decode engine


def targets_of(x: Tensor) -> Tensor:
    y = torch.cat((x[:, 1:], torch.full_like(x[:, :1], -100)), 1)
    y[:, 3:9] = -100
    return y


def whole(x: Any) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def trained(model: Any, x: Tensor, y: Tensor, **options: Any) -> list[Tensor]:
    model.zero_grad()
    loss = model.loss(x, y, **options)
    loss.backward()
    return [loss.detach(), *(whole(p.grad).clone() for p in model.parameters())]


def of_model(model: Any, sequence_parallel: bool | None = None) -> dict[str, list[Tensor]]:
    """None: what either has."""
    x, one = tokens(2, LENGTH), tokens(1, LENGTH, seed=2)
    results = {"loss": trained(model, x, targets_of(x))}
    if sequence_parallel is not False:
        packed = torch.tensor((0, 30, 50, LENGTH))
        results["packed"] = trained(model, one, targets_of(one), cu_seqlens=packed)
        model.backbone.activation_checkpointing = True
        results["checkpointed"] = trained(model, x, targets_of(x))
        model.backbone.activation_checkpointing = False
    with torch.no_grad():
        mask = torch.arange(LENGTH).expand(2, -1) >= torch.tensor([[9], [0]])
        results["logits"] = [model(x, mask=mask)]
        if not sequence_parallel:
            logits, state = model.read(x[:, :37])
            results["read"] = [logits]
            results["stepped"] = [model.step(logits.argmax(-1), state)]
            results["written"] = [generate(model, x[:, :5], 9, temperature=1.0, top_k=5).tokens]
    return results


def decoded_model(name: str, dtype: torch.dtype) -> xLSTMLarge:
    if name in QUANTISED:
        return quantize(small_model(**UNEVEN), *QUANTISED[name], progress=False)[0].to(dtype)
    if name == "bfloat16":
        return small_model(dtype=torch.bfloat16).to(torch.float64 if dtype == torch.float64 else torch.bfloat16)
    return small_model(**MODELS[name]).to(dtype)


def decoded(model: Any, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """Steps of three rows, one of which stays as it is in one of them, from a state that is the same for all."""
    draw = torch.Generator().manual_seed(3)
    config, x = model.config, tokens(3, 5)
    dims = (config.qk_dim // config.num_heads, config.v_dim // config.num_heads)
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    own = slice(rank * config.num_heads // ranks, (rank + 1) * config.num_heads // ranks)
    state = {}
    for block in range(config.num_blocks):
        whole = [torch.randn(3, config.num_heads, *d, generator=draw) for d in (dims, dims[:1], (1,))]
        state[block] = tuple(y[:, own].to(dtype).contiguous() for y in whole)
    keep = torch.tensor([True, False, True])
    with torch.no_grad():
        logits = [model.step(x[:, n], state, keep if n == 2 else None).double() for n in range(5)]
    found: dict[str, Any] = {"logits": logits, "why not": model.status().no_engine}
    if dtype == torch.float32:
        found["text"] = generate(model, x, 7, temperature=1.0, top_k=9).tokens
    return found


def mesh_of_all() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))


def divided(folder: Path) -> dict[str, Any]:
    """Four ranks run what is other with them than with two."""
    mesh, results = mesh_of_all(), {}
    for name, sequence_parallel in runs_of(dist.get_world_size()):
        model = tensor_parallel(small_model(**MODELS[name]).double(), mesh, sequence_parallel)
        results[name, sequence_parallel] = of_model(model, sequence_parallel)
    results["state"] = model_state(tensor_parallel(small_model().double(), mesh))
    if dist.get_world_size() == 4:
        return results | {"context": over_context_too()}
    results |= {name: quantised(bits, size, mesh) for name, (bits, size) in QUANTISED.items()}
    results["decoded"] = {
        name: decoded(tensor_parallel(decoded_model(name, torch.float32), mesh), dist.get_rank(), dist.get_world_size())
        for name in DECODED
    }
    results["hooked"] = hooked(mesh)
    if is_installed("transformers"):
        results["transformers"] = of_transformers(lambda model: tensor_parallel(model, mesh))
    results["bytes"] = read_from(folder, mesh)
    results["errors"] = errors(mesh)
    save_pretrained(tensor_parallel(small_model(), mesh), folder / "divided")
    return results


def of_transformers(divide: Callable[[Any], Any] = lambda model: model) -> list[Tensor]:
    """The loss, gradients, logits and text of an accelerated model of transformers."""
    from xlstm_hip import hf

    model, x = divide(hf.accelerate(hf_model(torch.float64))), tokens(2, 40)
    loss = model(x, labels=x).loss
    loss.backward()
    with torch.no_grad():
        logits = model(x, use_cache=False).logits
        text = model.generate(x[:, :7], max_new_tokens=6, do_sample=False)
    return [loss.detach(), *(whole(p.grad) for p in model.parameters()), logits, text]


def runs_of(ranks: int) -> list[tuple[str, bool]]:
    return [("without caps", True)] if ranks == 4 else [(name, s) for name in MODELS for s in (False, True)]


def model_state(model: Any) -> list[Tensor]:
    with torch.no_grad():
        return [x for layer in model.read(tokens(1, 20))[1].values() for x in layer]


def quantised_model(bits: int, size: int) -> xLSTMLarge:
    return quantize(small_model(dtype=torch.float64, **UNEVEN), bits, size, progress=False)[0]


def quantised(bits: int, size: int, mesh: DeviceMesh) -> Tensor:
    with torch.no_grad():
        return tensor_parallel(quantised_model(bits, size), mesh)(tokens(2, LENGTH))


def read_from(folder: Path, mesh: DeviceMesh) -> dict[str, Any]:
    """Of each checkpoint in a folder: the logits, the bytes that were read and those of the weights; and the logits of
    weights that are read through buffers smaller than a row, since they become float64."""
    results = {}
    read = Stored._read
    count = 0

    def counted(self: Stored, file: Any, view: memoryview, skip: int) -> None:
        nonlocal count
        count += len(view)
        read(self, file, view, skip)

    Stored._read = counted  # type: ignore[method-assign]
    for checkpoint in sorted(folder.glob("of-*")):
        count = 0
        model = load_pretrained(checkpoint, progress=False, tp_mesh=mesh)
        read_bytes = count
        stored = [getattr(x, "to_local", lambda x=x: x)() for x in model.state_dict().values()]
        with torch.no_grad():
            logits = model(tokens(2, LENGTH))[0]
            size, staging.BUFFER_BYTES = staging.BUFFER_BYTES, 300
            wide = load_pretrained(checkpoint, torch.float64, progress=False, tp_mesh=mesh)(tokens(2, LENGTH))[0]
            staging.BUFFER_BYTES = size
        results[checkpoint.name] = (logits, read_bytes, sum(x.numel() * x.element_size() for x in stored), wide)
    Stored._read = read  # type: ignore[method-assign]
    return results


def hooked(mesh: DeviceMesh) -> str | None:
    """Why a model with a hook of its user's is not on the decode engine."""
    model = tensor_parallel(small_model(), mesh)
    model.backbone.blocks[1].ffn.proj_down.register_forward_hook(lambda *_: None)
    return model.status().no_engine


def over_context_too() -> list[Tensor]:
    """Two ranks for the tokens, for each two for the heads."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("context", "tensor"))
    model = tensor_parallel(small_model().double(), mesh["tensor"], sequence_parallel=True)
    x = tokens(2, LENGTH)
    own = slice(0, 36) if mesh.get_local_rank("context") == 0 else slice(36, LENGTH)
    split = ContextParallel(mesh.get_group("context"), own.stop - own.start)
    loss, *gradients = trained(model, x[:, own], targets_of(x)[:, own], cp_group=split)
    for gradient in gradients:
        dist.all_reduce(gradient, group=mesh.get_group("context"))
    return [loss, *gradients]


def errors(mesh: DeviceMesh) -> list[str]:
    """What is said of calls that are wrong on every rank."""
    plain, tokens_too = (tensor_parallel(small_model(), mesh, sequence_parallel=s) for s in (False, True))
    calls = (
        lambda: plain(torch.full((1, 3), SMALL["vocab_size"])),
        lambda: plain.step(torch.tensor([SMALL["vocab_size"]]), plain.read(tokens(1, 3))[1]),
        lambda: tokens_too.read(tokens(1, 64)),
        lambda: tokens_too(tokens(1, 63)),
        lambda: tensor_parallel(plain, mesh),
        lambda: tensor_parallel(small_model(num_heads=1), mesh),
        lambda: tensor_parallel(small_model(vocab_size=1), mesh),
        lambda: tensor_parallel(small_model(weight_mode="fused"), mesh),
        lambda: tensor_parallel(quantised_model(8, 64), mesh, sequence_parallel=True),
        lambda: tensor_parallel(quantize(small_model(), 8, 128, progress=False)[0], mesh),
        lambda: save_pretrained(tensor_parallel(quantised_model(8, 32), mesh), "nowhere"),
        lambda: save_pretrained(plain, __file__),  # found by the first rank alone
        lambda: tensor_parallel(small_model(), init_device_mesh("cpu", (1, 2))),
    )
    said = []
    for call in calls:
        try:
            call()
            said.append("nothing")
        except (ValueError, IndexError, OSError) as error:
            said.append(str(error))
    return said


SAID = (
    "x: expected token ids from 0 to 96, got 97 to 97",
    "tokens: expected token ids from 0 to 96, got [97]",
    "model: expected one that is divided without sequence_parallel",
    "x: expected S to be a multiple of the 2 ranks of sequence_parallel, got 63",
    "model: expected one that is not divided yet",
    "mesh: expected a number of ranks that divides num_heads = 1, got 2",
    "mesh: expected ranks that each have some of vocab_size = 1, got 2",
    "weight_mode: expected 'single'",
    "sequence_parallel: expected False with quantised weights",
    "mesh: expected ranks of whole groups of 128 of v_dim = 128, got 2",
    "model: expected weights that are not quantised, or that are saved before ranks divide them",
    "path: expected a folder, got the file",
    "mesh: expected one dimension, as of mesh['tensor'], got 2",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of every form, for two ranks to read."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for scheme, mode in (("hf", "single"), ("hf", "fused"), ("xlstm_large", "single")):
        save_pretrained(small_model(), folder / f"of-{scheme}-{mode}", scheme, mode)
    for name, (bits, size) in QUANTISED.items():
        model, _ = quantize(small_model(**UNEVEN), bits, size, progress=False)
        save_pretrained(model, folder / f"of-{name}")
    save_pretrained(small_model(), folder / "whole")
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    found = {size: run_ranks(tmp_path_factory.mktemp("ranks"), size, divided, folder) for size in (2, 4)}
    failed = [x for each in found.values() for x in each if isinstance(x, str)]
    assert not failed, "\n".join(failed)
    return found


def check(name: str, part: Tensor, true: Tensor) -> None:
    torch.testing.assert_close(part, true, rtol=1e-9, atol=1e-9 * true.abs().max().item(), msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("size", [2, 4])
def test_a_divided_model(ranks: dict[int, list[Any]], size: int) -> None:
    for name, changes in MODELS.items():
        model = small_model(**changes).double()
        alone = of_model(model)
        of_gradient = ["loss", *(name for name, _ in model.named_parameters())]
        for result in ranks[size]:
            for sequence_parallel in (s for of, s in runs_of(size) if of == name):
                for part, tensors in result[name, sequence_parallel].items():
                    for n, tensor in enumerate(tensors):
                        what = of_gradient[n] if len(tensors) > 1 else ""
                        check(f"{name}, sequence_parallel={sequence_parallel}: {part} {what}", tensor, alone[part][n])


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_has_the_states_of_its_heads(ranks: dict[int, list[Any]], size: int) -> None:
    for n, state in enumerate(model_state(small_model().double())):
        check(f"state {n}", torch.cat([result["state"][n] for result in ranks[size]], 1), state)


def test_tokens_and_heads_over_ranks(ranks: dict[int, list[Any]]) -> None:
    x, model = tokens(2, LENGTH), small_model().double()
    names = ["loss", *(name for name, _ in model.named_parameters())]
    for n, true in enumerate(trained(model, x, targets_of(x))):
        for result in ranks[4]:
            check(names[n], result["context"][n], true)


def test_a_model_of_transformers(ranks: dict[int, list[Any]]) -> None:
    pytest.importorskip("transformers")
    for n, true in enumerate(of_transformers()):
        for result in ranks[2]:
            check(f"result {n}", result["transformers"][n], true)


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_weights(ranks: dict[int, list[Any]], name: str) -> None:
    with torch.no_grad():
        alone = quantised_model(*QUANTISED[name])(tokens(2, LENGTH))
    for result in ranks[2]:
        check(name, result[name], alone)


@pytest.mark.parametrize("name", DECODED)
def test_steps_on_the_decode_engine(ranks: dict[int, list[Any]], name: str) -> None:
    true = decoded(decoded_model(name, torch.float64))["logits"]
    alone = decoded(decoded_model(name, torch.float32))
    found = [result["decoded"][name] for result in ranks[2]]
    assert alone["why not"] is None and all(x["why not"] is None for x in found)
    for n, logits in enumerate(true):
        assert torch.equal(found[0]["logits"][n], found[1]["logits"][n])
        error, may = ((x["logits"][n] - logits).norm().item() for x in (found[0], alone))
        assert error <= 2 * may, (n, error, may)
    assert all(torch.equal(x["text"], alone["text"]) for x in found)


def test_a_hook_of_its_user_is_called(ranks: dict[int, list[Any]]) -> None:
    for result in ranks[2]:
        assert result["hooked"] == "backbone.blocks.1.ffn.proj_down has a forward hook, or a forward of its own"


def test_a_rank_reads_its_part_of_the_files(ranks: dict[int, list[Any]], folder: Path) -> None:
    for checkpoint in sorted(folder.glob("of-*")):
        alone = load_pretrained(checkpoint, progress=False)
        with torch.no_grad():
            logits = alone(tokens(2, LENGTH))[0]
            true = load_pretrained(checkpoint, torch.float64, progress=False)(tokens(2, LENGTH))[0]
        size = sum(x.numel() * x.element_size() for x in alone.state_dict().values())
        for result in ranks[2]:
            part, read, kept, wide = result["bytes"][checkpoint.name]
            check(checkpoint.name, wide, true)
            torch.testing.assert_close(part, logits, rtol=1e-4, atol=1e-4)
            assert read == kept < 0.56 * size, checkpoint.name


def test_a_divided_model_is_saved_whole(ranks: dict[int, list[Any]], folder: Path) -> None:
    for file in (folder / "whole").iterdir():
        assert (folder / "divided" / file.name).read_bytes() == file.read_bytes()


def test_what_is_wrong_on_every_rank(ranks: dict[int, list[Any]]) -> None:
    for result in ranks[2]:
        for said, words in zip(result["errors"], SAID, strict=True):
            assert words in said


def test_wrong_arguments() -> None:
    model = small_model()
    with pytest.raises(TypeError, match="model: expected an xLSTMLarge, or an .*accelerate, got Linear"):
        tensor_parallel(torch.nn.Linear(2, 2), None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="mesh: expected a torch.distributed DeviceMesh, got int"):
        tensor_parallel(model, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sequence_parallel: expected one of True, False, got 'yes'"):
        tensor_parallel_plan(model.config, "yes")  # type: ignore[arg-type]


def test_the_plan_names_every_module_with_weights() -> None:
    for changes in MODELS.values():
        model = xLSTMLarge(xLSTMLargeConfig(**SMALL | changes))
        plan = tensor_parallel_plan(model.config)
        weights = [name.rpartition(".")[0] for name, _ in model.named_parameters()]
        with_weights = {re.sub(r"blocks\.\d+", "blocks.*", name) for name in weights}
        assert with_weights <= plan.keys()
        assert plan.keys() - with_weights == {"backbone.blocks.*.mlstm_layer", "backbone.blocks.*.ffn"}

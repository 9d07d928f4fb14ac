# SPDX-License-Identifier: Apache-2.0
"""scripts/hub_kernel.py: a kernel repository that Hugging Face's `kernels` reads, and loads from a local folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import xlstm_hip

pytest.importorskip("kernels")

from kernels._rust import Build, Digest, Metadata  # noqa: E402
from kernels.variants import parse_variant  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(xlstm_hip.__file__).parent


@pytest.fixture(scope="module")
def hub_kernel() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hub_kernel", ROOT / "scripts/hub_kernel.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["hub_kernel"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def repository(hub_kernel: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With this build's library in every variant: the layout is the same, and only the CPU's is loaded."""
    folder = tmp_path_factory.mktemp("hub")
    variants = [f"cpu={PACKAGE}", f"rocm72={PACKAGE}:gfx90a,gfx942", f"cu130={PACKAGE}:8.0,9.0a"]
    assert hub_kernel.main([str(folder), *(word for v in variants for word in ("--variant", v))]) == 0
    return folder


def test_build_configuration(repository: Path) -> None:
    """kernels' own parser takes build.toml; every file that it names is there, every kernel source is named."""
    Build.open(repository)
    text = (repository / "build.toml").read_text(encoding="utf-8")
    words = text.replace('"', " ").replace(",", " ").split()
    named = {word for word in words if word.startswith(("csrc/", "torch-ext/"))}
    assert all((repository / path).exists() for path in named)
    sources = [p for p in (repository / "csrc").rglob("*") if p.suffix in (".cpp", ".hip", ".cu", ".h")]
    assert {p.relative_to(repository).as_posix() for p in sources} <= named
    assert text.count("[kernel.cpu_") == 6 and "-mavx512bf16" in text


def test_every_op_is_registered_under_the_file_s_name() -> None:
    direct = [p.name for p in (ROOT / "csrc").rglob("*.cpp") if "STABLE_TORCH_LIBRARY" in p.read_text(encoding="utf-8")]
    assert direct == []


def test_variants(repository: Path) -> None:
    folders = sorted((repository / "build").iterdir())
    backends = [parse_variant(folder.name).arch.backend.name for folder in folders]  # type: ignore[union-attr]
    assert sorted(backends) == ["cpu", "cuda", "rocm"]
    for folder, backend in zip(folders, backends, strict=True):
        metadata = Metadata.read_from_file(folder / "metadata.json")
        assert metadata.id.startswith(f"_xlstm_hip_{backend}_") and metadata.name.python_name == "xlstm_hip"
        assert metadata.backend.archs == {"cpu": None, "rocm": ["gfx90a", "gfx942"], "cuda": ["8.0", "9.0a"]}[backend]
        assert metadata.digest is not None
        metadata.digest.validate(Digest.hash_variant(metadata.digest.algorithm, folder))
        python = "\n".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
        assert "from xlstm_hip" not in python and "torch.ops.xlstm_hip" not in python


LOAD = """
import sys
from pathlib import Path
import torch
from kernels import get_local_kernel

folder = Path(sys.argv[1])
kernel = get_local_kernel(folder)
name = kernel.__name__
assert name.startswith("_xlstm_hip_cpu_"), name
assert "xlstm_hip" not in sys.modules
x = [torch.randn(1, 2, 70, 16, requires_grad=True) for _ in range(3)] + [torch.randn(1, 2, 70) for _ in range(2)]
ours = kernel.mlstm_interface(*x)
plain = kernel.mlstm_interface(*x, kernel="chunkwise--native_autograd")
torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4)
torch.autograd.grad(ours.sum(), x[:3])
torch.testing.assert_close(torch.compile(kernel.mlstm_interface, backend="aot_eager", fullgraph=True)(*x), ours)
q = torch.randn(2, 9, 4, 16)
kernel.attention.flash_attn_func(q, q, q, causal=True)
kernel.layers.rms_norm(torch.randn(2, 8), torch.ones(8))
cache, used = torch.randn(4, 16, 1, 576), torch.tensor([5, 17], dtype=torch.int32)
meta, _ = kernel.attention.get_mla_metadata()
table = torch.arange(4, dtype=torch.int32).view(2, 2)
kernel.attention.flash_mla_with_kvcache(torch.randn(2, 1, 4, 576), cache, table, used, 512, meta)

# Its ops are its own: the package lives beside it, and so does a copy under the folder's name for older loaders.
import xlstm_hip
assert torch.equal(xlstm_hip.mlstm_interface(*x), ours)
names = {op.split("::")[0] for op in torch._C._dispatch_get_all_op_names() if "mlstm_chunkwise" in op}
assert names == {name, "xlstm_hip"}, names
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("older", next(folder.glob("build/*cpu*/xlstm_hip/__init__.py")))
older = module_from_spec(spec)
spec.loader.exec_module(older)
assert older.mlstm_interface is kernel.mlstm_interface
"""


def test_load_from_a_local_folder(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(repository)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metal=x.whl", "expected cpu=WHEEL, rocmXY=WHEEL:ARCHS or cuXYZ=WHEEL:ARCHS, got 'metal=x.whl'"),
        (f"cpu={PACKAGE}:gfx942", "cpu: expected no archs"),
        (f"rocm72={PACKAGE}", "rocm72: expected archs after the wheel"),
        ("cpu=nowhere.whl", "cpu: expected a wheel or a folder, got 'nowhere.whl'"),
    ],
)
def test_wrong_variants(
    hub_kernel: ModuleType, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        hub_kernel.main([str(tmp_path), "--variant", text])
    assert message in capsys.readouterr().err

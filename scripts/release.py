# SPDX-License-Identifier: Apache-2.0
"""Makes what a release is made of, and tries it: an sdist; a wheel built from that sdist without a network; a look at
what its libraries link; the wheel in an environment of its own.

    python scripts/release.py     into build/release; GPU kernels as for pip (XLSTM_HIP_GPU=OFF: none)

It needs torch and the build requirements in the environment that runs it, which the extra `test` has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
RELEASE = ROOT / "build/release"
FOLDERS = {"xlstm_hip", "xlstm_hip_command"}  # of a wheel

# Libraries that a library may need from the machine. libtorch.so is in the environment; a GPU's runtime is the one that
# torch uses.
NEEDED = re.compile(
    r"libtorch\.so|libstdc\+\+\.so\.6|libm\.so\.6|libgcc_s\.so\.1|libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|"
    r"ld-linux-[\w-]+\.so\.\d|libamdhip64\.so(\.\d+)?|libcuda\.so\.1"
)
RUNPATH = "$ORIGIN/../torch/lib"
# The newest symbols that manylinux_2_34 has: what its policy says of AlmaLinux 9.
PLATFORM = "manylinux_2_34"
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """The output of a command; shown, if it fails, with the command."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env={**clean, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(words)}")
    return done.stdout


def bare_environment(folder: Path) -> tuple[Path, Path]:
    """The interpreter of a new environment, and where its packages go."""
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", folder)
    python = folder / "bin/python"
    return python, Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


def environment(folder: Path) -> Path:
    """The interpreter of a new environment that sees what this one has installed, after its own."""
    python, site_packages = bare_environment(folder)
    seen = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site_packages / "seen.pth").write_text("\n".join(seen) + "\n", encoding="utf-8")
    return python


def needed(requirements: Iterable[str] | None, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """What these requirements bring without extras, and what that brings, as this environment has it; into `found`."""
    for text in requirements or ():
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name in found or requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        found[name] = distribution(name)
        needed(found[name].requires, found)
    return found


def share(packages: Iterable[Distribution], folder: Path) -> None:
    """Links to the packages' files: they are installed there, and nothing else is."""
    for package in packages:
        for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (folder / name).symlink_to(package.locate_file(name))


def make_sdist() -> Path:
    folder = RELEASE / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    code = f"import xlstm_hip_build as backend; print(backend.build_sdist({str(folder)!r}))"
    run(sys.executable, "-c", code, PYTHONPATH=str(ROOT / "build_backend"))
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def make_wheel(sdist: Path) -> Path:
    """From the sdist's files alone, in a folder that is kept, so that a compiler cache finds what it had; offline."""
    source = RELEASE / sdist.name.removesuffix(".tar.gz")
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(RELEASE)  # our own archive
    python = environment(RELEASE / "build-environment")
    run(
        sys.executable, "-m", "pip", "--python", python, "wheel", "--no-build-isolation", "--no-index", "--no-deps",
        "--config-settings=cmake.define.XLSTM_HIP_WERROR=ON",  # as scripts/test: a compiler cache has them
        "-w", sdist.parent, source, CCACHE_BASEDIR=str(source), CCACHE_NOHASHDIR="1",
    )  # fmt: skip
    (wheel,) = sdist.parent.glob("*.whl")
    return wheel


def faults_of(library: Path) -> Iterator[str]:
    """The reasons why a library would not load on another machine."""
    dynamic = run("readelf", "-d", library)
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if not NEEDED.fullmatch(name):
            yield f"needs {name}"
    for path in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", dynamic):
        if path != RUNPATH:
            yield f"looks for libraries in {path}"
    for name, numbers in sorted(set(re.findall(r"\b([A-Z]+)_(\d[\d.]*)", run("readelf", "-V", library)))):
        version = tuple(map(int, numbers.split(".")))
        if name in NEWEST and version > NEWEST[name]:
            yield f"needs {name}_{numbers}, which {PLATFORM} does not have"
    if os.fsencode(ROOT) in library.read_bytes():
        yield f"has the folder {ROOT} in it"


def audit(wheel: Path) -> None:
    folder = RELEASE / "audit"
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    libraries = sorted(folder.rglob("*.so"))
    if len(libraries) != 2:
        sys.exit(f"{wheel.name}: expected the op library and _native, got {[path.name for path in libraries]}")
    faults = [f"{path.name}: {fault}" for path in libraries for fault in faults_of(path)]
    if faults:
        sys.exit(f"{wheel.name}: " + "; ".join(faults))
    strays = {path.parts[0] for path in (file.relative_to(folder) for file in folder.rglob("*"))}
    if {name for name in strays if not name.endswith(".dist-info")} != FOLDERS:
        sys.exit(f"{wheel.name}: expected the folders {', '.join(sorted(FOLDERS))} alone, got {sorted(strays)}")


SMOKE = """
import io, sys, pathlib, torch, xlstm_hip
from xlstm_hip import attention, layers, mlstm_interface
assert pathlib.Path(xlstm_hip.__file__).is_relative_to(sys.prefix), xlstm_hip.__file__
text = io.StringIO()
xlstm_hip.describe(text)
assert "chunkwise--fused" in text.getvalue() and xlstm_hip.__version__ in text.getvalue()
inputs = [torch.randn(1, 2, 70, d, requires_grad=True) for d in (16, 16, 24)]
inputs += [torch.randn(1, 2, 70, requires_grad=True) for _ in range(2)]
made = []
for kernel in ("chunkwise--fused", "chunkwise--native_autograd"):
    h = mlstm_interface(*inputs, kernel=kernel)
    made.append([h, *torch.autograd.grad(h.square().sum(), inputs)])
for ours, plain in zip(*made):
    torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4)
q = torch.randn(1, 9, 2, 16)
expected = torch.nn.functional.scaled_dot_product_attention(*[q.transpose(1, 2)] * 3, is_causal=True)
torch.testing.assert_close(attention.flash_attn_func(q, q, q, causal=True), expected.transpose(1, 2))
layers.rms_norm(torch.randn(2, 8), torch.ones(8))
print(xlstm_hip.__version__)
"""


def smoke(wheel: Path) -> None:
    """In an environment that has the wheel and what the wheel says that it needs, and nothing else."""
    folder = RELEASE / "environment"
    python, packages = bare_environment(folder)
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-index", "--no-deps", wheel)
    (installed,) = distributions(name="xlstm_hip", path=[str(packages)])
    share(needed(installed.requires, {}).values(), packages)
    run(*pip, "check")
    version = run(python, "-c", SMOKE, cwd=RELEASE).split()[-1]
    if not wheel.name.startswith(f"xlstm_hip-{version}-"):
        sys.exit(f"{wheel.name}: the package in it says that it is {version}")
    run(folder / "bin/xlstm-hip", "doctor", cwd=RELEASE)


def main() -> None:
    RELEASE.mkdir(parents=True, exist_ok=True)
    sdist = make_sdist()
    print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")
    wheel = make_wheel(sdist)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, built from the sdist without a network")
    audit(wheel)
    print(f"its libraries need torch's libtorch.so and what {PLATFORM} has")
    smoke(wheel)
    print("it works in an environment of its own")


if __name__ == "__main__":
    main()

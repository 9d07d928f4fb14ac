# SPDX-License-Identifier: Apache-2.0
# The set-up of scripts/test and scripts/demo: from a machine that has only Python to an environment with xlstm_hip.
# To be sourced. It sets $python, the interpreter of that environment. Every step prints what it does, and steps that
# are already done are skipped.
#
#   PYTHON=python3.12 ./scripts/test    use python3.12 instead of python3
#
# The environment is the active virtual environment, if any, else .venv in the repository. An installed torch (in that
# environment, or in the interpreter that .venv is made from) is used; otherwise the pinned torch is installed.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
pinned_torch="torch==2.13.0"
oldest_torch="2.10"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
export PIP_ROOT_USER_ACTION=ignore
# A compiler cache recognises a file in another folder, as scripts/release.py needs.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

# Prints minutes and seconds since the start, or of $1 seconds.
clock() { printf '%02d:%02d' $((${1:-SECONDS} / 60)) $((${1:-SECONDS} % 60)); }
say() { printf '[%s] %s\n' "$(clock)" "$*"; }
fail() { printf '[%s] %s\n' "$(clock)" "$*" >&2; exit 1; }

# run_quietly WHAT COMMAND... prints WHAT, a line of progress every half minute, and the output if the command fails.
run_quietly() {
  local what=$1 log started=$SECONDS pid
  shift
  log=$(mktemp)
  say "$what"
  "$@" >"$log" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    if (( (SECONDS - started) % 30 == 29 )); then say "  still at it: $(tail -n 1 "$log" | cut -c 1-100)"; fi
  done
  if ! wait "$pid"; then
    cat "$log" >&2
    rm -f "$log"
    fail "failed: $what"
  fi
  rm -f "$log"
}

# Installs the system packages that the build needs, with root and apt-get; without them it fails and names them.
ensure_system_packages() {
  local missing=() base=${PYTHON:-python3}
  command -v "$base" >/dev/null || missing+=(python3)
  command -v g++ >/dev/null || command -v clang++ >/dev/null || [ -n "${CXX:-}" ] || missing+=(g++)
  if command -v "$base" >/dev/null; then
    "$base" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    "$base" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
      missing+=(python3-dev)
  else
    missing+=(python3-venv python3-dev)
  fi
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    [ ${#missing[@]} -eq 0 ] ||
      fail "missing: ${missing[*]}. Install them (on Debian: apt-get install ${missing[*]}) or run this as root."
    return
  fi
  # The builds of the stages share most of their objects through the compiler cache.
  command -v ccache >/dev/null || missing+=(ccache)
  [ ${#missing[@]} -eq 0 ] && return
  run_quietly "apt-get update" apt-get update
  run_quietly "apt-get install ${missing[*]}" \
    env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
}

# The compiler for AMD GPUs: ROCm's compiler if it is installed, else Debian 12's clang.
amd_packages=(clang-19 clang-tools-19 lld-19 llvm-19 rocm-device-libs libamdhip64-dev hipcc)
has_amd_compiler() {
  [ -x "${ROCM_PATH:-/opt/rocm}/llvm/bin/clang++" ] || dpkg-query -W "${amd_packages[@]}" >/dev/null 2>&1
}
can_compile_for_amd() {
  has_amd_compiler || { [ "$(id -u)" -eq 0 ] && grep -qs '^VERSION_CODENAME=bookworm$' /etc/os-release; }
}
ensure_amd_compiler() {
  if has_amd_compiler; then return; fi
  can_compile_for_amd ||
    fail "no compiler for AMD GPUs. Install ROCm, or on Debian 12: apt-get install ${amd_packages[*]}"
  run_quietly "apt-get update" apt-get update
  run_quietly "apt-get install ${amd_packages[*]}" \
    env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${amd_packages[@]}"
}

# For the tests of the server's page, which are skipped where there is no browser.
ensure_browser() {
  local name
  for name in chromium chromium-browser google-chrome chrome; do
    if command -v "$name" >/dev/null; then return; fi
  done
  if [ "$(id -u)" -ne 0 ] || ! grep -qs '^ID=debian$' /etc/os-release; then return; fi
  run_quietly "apt-get update" apt-get update
  run_quietly "apt-get install chromium" \
    env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium
}

# Whether an interpreter has a torch that is new enough; this reads the metadata and does not import torch.
has_torch() {
  "$1" - "$oldest_torch" 2>/dev/null <<'PY'
import sys
from importlib.metadata import version
number = lambda text: [int(part) for part in text.split(".")[:2]]
sys.exit(number(version("torch")) < number(sys.argv[1]))
PY
}

is_virtual() { "$1" -c 'import os, sys; sys.exit(sys.prefix == sys.base_prefix and "CONDA_PREFIX" not in os.environ)'; }

ensure_environment() {
  local base=${PYTHON:-python3} flags=()
  if is_virtual "$base"; then
    python=$(command -v "$base")
    say "environment: $("$python" -c 'import sys; print(sys.prefix)')"
  else
    python=$root/.venv/bin/python
    if ! "$python" -m pip --version >/dev/null 2>&1; then
      if has_torch "$base"; then flags=(--system-site-packages); fi
      run_quietly "making .venv with $("$base" --version)" "$base" -m venv --clear "${flags[@]}" .venv
    fi
    say "environment: .venv"
  fi
  # First, and with its exact version: a bare requirement on torch could install another one.
  has_torch "$python" || run_quietly "installing $pinned_torch" "$python" -m pip install "$pinned_torch"
  PATH=$(dirname "$python"):$PATH
  export PATH
  say "$("$python" build_backend/find_torch.py)"
}

is_editable() {
  "$python" - 2>/dev/null <<'PY'
import json, sys
from importlib.metadata import distribution
facts = json.loads(distribution("xlstm_hip").read_text("direct_url.json") or "{}")
sys.exit(not facts.get("dir_info", {}).get("editable"))
PY
}

# Builds and installs the package with an extra, as a user does; a developer's editable install stays editable. The
# arguments after the extra go to pip.
ensure_package() {
  local extra=$1
  shift
  if is_editable; then
    run_quietly "building xlstm_hip[$extra] (editable)" \
      "$python" -m pip install -v "$@" --no-build-isolation -e ".[$extra]"
  else
    run_quietly "building and installing xlstm_hip[$extra]" "$python" -m pip install -v "$@" ".[$extra]"
  fi
}

# pip's builds take the interpreter's compiler, usually g++, and CMake's own the one named c++. Under one name the
# compiler cache shares their objects.
name_compiler() {
  [ -n "${CXX:-}" ] || ! command -v g++ >/dev/null || export CXX=g++
}

gpu_here() { [ -e /dev/kfd ] || nvidia-smi -L >/dev/null 2>&1; }

# Kernels for a GPU that is not there need no compiler of its maker: PyPI's torch is a CUDA build on every machine.
choose_gpu() {
  if [ -n "${XLSTM_HIP_GPU:-}" ] || gpu_here; then return; fi
  export XLSTM_HIP_GPU=OFF
  say "no GPU in this machine: XLSTM_HIP_GPU=OFF"
}

set_up() {
  ensure_system_packages
  name_compiler
  choose_gpu
  ensure_environment
  ensure_package "$@"
}

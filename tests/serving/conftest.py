# SPDX-License-Identifier: Apache-2.0
"""The server's tests need what the server needs, and clients; those of Ray Serve its packages, too."""

from __future__ import annotations

import warnings

import pytest

from support.serving import SMALL_ENGINE
from xlstm_hip._core.extras import EXTRA_OF, is_installed

NEEDED = [package for package, extra in EXTRA_OF.items() if extra == "serve"] + ["httpx", "openai", "transformers"]
MISSING = [package for package in NEEDED if not is_installed(package)]
if MISSING:
    warnings.warn(f"tests/serving/test_server_*.py are left out without {', '.join(MISSING)}", stacklevel=1)
collect_ignore_glob = ["test_server_*.py"] if MISSING else []

SERVE = ("ray", "grpc", "aiohttp", "aiohttp_cors", "colorful", "opencensus", "smart_open", "virtualenv", "watchfiles")
MISSING_SERVE = MISSING + [package for package in SERVE if not is_installed(package)]
if MISSING_SERVE:
    warnings.warn(f"tests/serving/test_ray_*.py are left out without {', '.join(MISSING_SERVE)}", stacklevel=1)
    collect_ignore_glob.append("test_ray_*.py")


@pytest.fixture(params=[False, True], ids=["", "lookahead"])
def lookahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """What engines do on a GPU, where alone it is of use, they can do here."""
    monkeypatch.setitem(SMALL_ENGINE, "lookahead", request.param)
    return request.param

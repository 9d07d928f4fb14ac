# SPDX-License-Identifier: Apache-2.0
"""The server on many machines, by Ray Serve: an ingress with OpenAI's API, and replicas of the engine behind it.

It needs the packages of the extra `ray-serve`.
"""

from ..cli.serve import check_packages

NEEDED_BY = "xlstm_hip.ray_serve"

check_packages(NEEDED_BY)
try:
    import ray.serve  # noqa: F401
except ModuleNotFoundError as error:
    package = (error.name or "ray").partition(".")[0]
    text = f'{NEEDED_BY} needs {package}: pip install "xlstm_hip[ray-serve]"'
    raise ModuleNotFoundError(text, name=package) from None

from .application import build_app  # noqa: E402

__all__ = ["build_app"]


def __dir__() -> list[str]:
    return __all__

# SPDX-License-Identifier: Apache-2.0
"""torch.compile on first use. It never falls back to eager unseen, and it names what is missing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

# Past this many variants of one function torch.compile stops compiling. Ours vary by dtype, by gradient and
# by which sizes are 1 (torch never makes those dynamic): few, but possibly more than torch's own limit of 8.
VARIANTS = 64


class CompiledFunction:
    """A function that torch.compile turns into one dynamic-shape graph the first time it is called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @functools.cached_property
    def warm(self) -> Callable[..., Any]:
        """The compiled function itself: for calls like ones that went through __call__ before."""
        return torch.compile(self._function, fullgraph=True, dynamic=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # the caller's own graph, which this becomes a part of
            return self._function(*args, **kwargs)
        from torch import _dynamo
        from torch.fx.experimental import _config as symbols

        # specialize_float: a float argument is a constant of the graph. No duck shapes: sizes that happen to
        # be equal (a chunk of 64 tokens, a head of 64) are still two sizes.
        limits = _dynamo.config.patch(recompile_limit=VARIANTS, specialize_float=True)
        sizes = symbols.patch(use_duck_shape=False)  # type: ignore[attr-defined]
        with limits, sizes, _missing_tools_named():
            return self.warm(*args, **kwargs)


@contextlib.contextmanager
def _missing_tools_named() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        missing = _missing_tool(error)
        if missing is None:
            raise
        raise RuntimeError(
            f"torch.compile cannot build this kernel: {missing}. Install it, or choose a kernel that is not "
            "compiled at run time (chunkwise--fused, chunkwise--native_autograd)."
        ) from error


def _missing_tool(error: BaseException | None) -> str | None:
    while error is not None:
        if type(error).__name__ == "InvalidCxxCompiler":
            return "no C++ compiler was found (g++ or clang++ on the PATH, or the one that CXX names)"
        if "Python.h" in str(error):
            return "the C++ compiler finds no Python.h (Debian's python3-dev, Fedora's python3-devel)"
        error = error.__cause__ or error.__context__
    return None

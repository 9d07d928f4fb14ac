# SPDX-License-Identifier: Apache-2.0
"""Errors on their way to another process: one that cannot be sent is its text."""

from __future__ import annotations

import pickle

from .params import Output


def sendable_error(error: BaseException) -> Exception:
    try:
        if isinstance(pickle.loads(pickle.dumps(error)), Exception):
            return error  # type: ignore[return-value]
    except Exception:  # whatever its class does
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")


def sendable_output(output: Output) -> Output:
    return output if output.error is None else output._replace(error=sendable_error(output.error))

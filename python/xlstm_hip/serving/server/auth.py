# SPDX-License-Identifier: Apache-2.0
"""API keys: read from a file or a variable, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from pathlib import Path

from fastapi import Request

from .errors import ApiError

VARIABLE = "XLSTM_HIP_API_KEYS"


class Keys:
    """The keys that may use the API; without any, everybody may."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = [(key.encode(), hashlib.sha256(key.encode()).hexdigest()[:8]) for key in dict.fromkeys(keys)]

    def __len__(self) -> int:
        return len(self._keys)

    def check(self, request: Request) -> str:
        """The name in logs of the key that a request has, "" if none is asked for. Raises for a wrong one."""
        if not self._keys:
            return ""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise _refused("Authorization: expected a header with an API key: Authorization: Bearer KEY")
        sent, found = given.strip().encode("latin-1"), ""  # as the header's bytes were decoded
        for key, name in self._keys:  # all of them: the time tells neither which one fits nor how much of it
            if hmac.compare_digest(key, sent):
                found = name
        if not found:
            raise _refused("Authorization: wrong API key")
        return found


def _refused(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def load_keys(file: Path | None) -> Keys:
    """Of a file with a key a line, in which # begins a comment line, or else of the variable, with commas between."""
    if file is None:
        source, listed = VARIABLE, os.environ.get(VARIABLE, "").split(",")
        if not any(key.strip() for key in listed):
            return Keys()
    else:
        try:
            listed = file.read_text("utf-8").splitlines()
        except OSError as error:
            raise OSError(f"--api-key-file: {error.strerror}: {str(file)!r}") from None
        except UnicodeDecodeError:
            raise ValueError(f"--api-key-file: expected UTF-8 in {str(file)!r}") from None
        source = f"--api-key-file: {file}"
    keys = [line.strip() for line in listed if line.strip() and not line.strip().startswith("#")]
    if not keys:
        raise ValueError(f"{source}: expected a key a line, got none")
    for number, key in enumerate(keys, 1):
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(f"{source}: key {number}: expected printable ASCII without spaces")
    return Keys(keys)

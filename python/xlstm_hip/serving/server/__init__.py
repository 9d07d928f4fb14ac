# SPDX-License-Identifier: Apache-2.0
"""An HTTP server with OpenAI's API for an Engine. It needs the packages of the extra `serve`."""

from .app import create_app
from .auth import Keys, load_keys
from .limits import Limits
from .logs import set_up as set_up_log
from .serve import ServerOptions, serve
from .served import EngineLike, Served
from .state import ServerState

__all__ = [
    "EngineLike",
    "Keys",
    "Limits",
    "Served",
    "ServerOptions",
    "ServerState",
    "create_app",
    "load_keys",
    "serve",
    "set_up_log",
]

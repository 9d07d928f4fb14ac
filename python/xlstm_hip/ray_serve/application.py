# SPDX-License-Identifier: Apache-2.0
"""The application: two deployments, Ingress and Engine, with what Serve needs to know of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from ..cli.serve import engine_config
from ..cli.writing import check_template_option
from . import options
from .ingress import Ingress
from .replica import EngineReplica
from .router import StickyRouter

ROUTER = f"{StickyRouter.__module__}.{StickyRouter.__qualname__}"
SHUTDOWN_SECONDS = 120.0  # for answers that run in a replica that is to end
STARTS = 3  # a model that cannot be loaded is not tried twenty times
MANY = 1 << 16
NO_LINES = {"enable_access_log": False}  # of Serve for each call: the server writes its own for each request
SET_HERE = ("name", "request_router_config", "user_config")

_deployment = functools.partial(
    serve.deployment,
    graceful_shutdown_timeout_s=SHUTDOWN_SECONDS,
    logging_config=NO_LINES,
    max_constructor_retry_count=STARTS,
)
# An ingress has no model: the next one is started before the old one ends, and the engine's queue is what limits.
_ingress = _deployment(name="Ingress", max_ongoing_requests=MANY, max_surge_percent=100)(serve.ingress()(Ingress))
_engine = _deployment(name="Engine", health_check_period_s=2.0)(EngineReplica)


def build_app(args: Mapping[str, Any]) -> Application:
    """A Serve application that answers as `xlstm-hip serve` does, from replicas of the engine on many machines.

    args    the options of `xlstm-hip serve` by name, `model` among them, but for those that Serve has itself, and:
            busy_at    requests of a replica from which on those that begin alike go to another (default: slots)
            engine     options of the deployment Engine: num_replicas, autoscaling_config, ray_actor_options, ...
            ingress    options of the deployment Ingress
    """
    if not isinstance(args, Mapping):
        raise ValueError(f"args: expected a mapping of options, got {args!r}")
    own = dict(args)
    deployments = {name: _deployment_options(name, own.pop(name, {})) for name in ("engine", "ingress")}
    busy_at = own.pop("busy_at", None)
    parsed = options.parse(own)
    config = engine_config(parsed)
    check_template_option(parsed)
    busy_at = parsed.slots if busy_at is None else _positive("busy_at", busy_at)
    router: dict[str, Any] = {
        "request_router_class": ROUTER,
        "request_router_kwargs": {"chunk": config.prefill_chunk, "busy_at": busy_at},
    }
    # Twice the slots: the next request is there when a slot becomes free. What is more waits in the ingress, for
    # whichever replica has room first, and Serve's autoscaling counts it.
    engine = _with("engine", _engine, {"max_ongoing_requests": 2 * parsed.slots} | deployments["engine"])
    engine = engine.options(request_router_config=RequestRouterConfig(**router))
    ingress = _with("ingress", _ingress, deployments["ingress"])
    return ingress.bind(parsed, engine.bind(parsed))


def _deployment_options(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: expected options of a Serve deployment, got {value!r}")
    for option in SET_HERE:
        if option in value:
            raise ValueError(f"{name}.{option}: expected none, as the application has its own, got {value[option]!r}")
    return dict(value)


def _with(name: str, deployment: serve.Deployment, given: Mapping[str, Any]) -> serve.Deployment:
    try:
        return deployment.options(**given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, (name, *first["loc"])))
        raise ValueError(f"{field}: {first['msg']}, got {first['input']!r}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None


def _positive(name: str, value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name}: expected a whole number >= 1, got {value!r}")
    return int(text)

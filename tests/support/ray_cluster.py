# SPDX-License-Identifier: Apache-2.0
"""Two Ray nodes on this machine with Serve on them, and what tests ask of the application there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray import cloudpickle, serve
from ray.cluster_utils import Cluster
from ray.serve.context import _get_global_client

from support.served_model import DEMO
from support.serving import free_port, until
from xlstm_hip.ray_serve import application, build_app
from xlstm_hip.ray_serve.replica import EngineReplica

ENGINE = {
    "num_replicas": 2, "max_replicas_per_node": 1, "ray_actor_options": {"num_cpus": 1},
    "graceful_shutdown_timeout_s": 1.0, "health_check_period_s": 0.3,
}  # fmt: skip
OPTIONS = {
    "model": str(DEMO), "dtype": "float32", "threads": 1, "slots": 8, "prefill_chunk": 16, "token_budget": 32,
    "engine": ENGINE, "ingress": {"ray_actor_options": {"num_cpus": 0.5, "resources": {"head": 0.1}}},
}  # fmt: skip

HEAD = {"num_cpus": 4, "include_dashboard": False, "resources": {"head": 1}}


class BreakableReplica(EngineReplica):
    def fail_engine(self, name: str) -> None:
        """Of the replica with this name: its engine's next step raises."""

        def step() -> bool:
            raise RuntimeError("broken on purpose")

        if name == self._name:
            assert self._engine is not None
            self._engine._stepper.step = step  # type: ignore[method-assign]


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # replicas do not import from tests/


class ServeCluster:
    """
    headers    of all requests
    """

    def __init__(self, nodes: Cluster, port: int, prefix: str = "", headers: Mapping[str, str] | None = None) -> None:
        self.nodes, self.port, self.headers = nodes, port, headers
        self.url = f"http://127.0.0.1:{port}{prefix}"

    def deploy(self, **changes: Any) -> None:
        """Returns when all replicas are ready, those of a version that is replaced have ended or are about to."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(application, "_engine", application._engine.options(func_or_class=BreakableReplica))
            serve.run(build_app(OPTIONS | changes), name="xlstm", route_prefix="/")
        until(self.ready, 90)

    def ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/ready").json().get("replicas") == len(self.replicas())
        return False

    def replicas(self, deployment: str = "Engine", application: str = "xlstm") -> dict[str, int]:
        """The process of each running replica, by name."""
        details = _get_global_client().get_serve_details()
        found = details["applications"][application]["deployments"][deployment]["replicas"]
        return {one["replica_id"]: one["pid"] for one in found if one["state"] == "RUNNING"}

    def nodes_of_replicas(self) -> dict[str, str]:
        details = _get_global_client().get_serve_details()
        found = details["applications"]["xlstm"]["deployments"]["Engine"]["replicas"]
        return {x["replica_id"]: x["node_id"] for x in found}

    def kill(self, replica: str) -> None:
        os.kill(self.replicas()[replica], signal.SIGKILL)

    def fail_engine(self, replica: str) -> None:
        serve.get_deployment_handle("Engine", "xlstm").broadcast("fail_engine", replica).results(timeout_s=20)

    def counts(self, name: str) -> dict[str, float]:
        """A field of each replica's Snapshot, as it is now; /metrics may be a second old."""
        handle = serve.get_deployment_handle("Engine", "xlstm")
        return {replica: getattr(found, name) for replica, found in handle.broadcast("snapshot").results(timeout_s=20)}

    def written(self, metric: str) -> dict[str, float]:
        """Of each replica, as /metrics says."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(httpx.get(f"{self.url}/metrics").text):
            for sample in family.samples:
                if sample.name == f"xlstm_hip_{metric}" and "replica" in sample.labels:
                    found[sample.labels["replica"]] = sample.value
        return found

    def ask(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}/v1/completions", json=body(prompt, **fields), timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def text(self, prompt: Any, **fields: Any) -> str:
        return self.ask(prompt, **fields)["choices"][0]["text"]


def body(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "prompt": prompt, "temperature": 0, "ignore_eos": True} | fields


class Client(threading.Thread):
    """Asks, and keeps what came, streamed or not.

    some    set when the first text of a stream has come
    """

    def __init__(self, cluster: ServeCluster, prompt: Any, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._url, self._headers, self._body = cluster.url, cluster.headers, body(prompt, **fields)
        self.text, self.status, self.error, self.reason = "", 0, "", ""
        self.some = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            url, headers = f"{self._url}/v1/completions", self._headers
            with httpx.stream("POST", url, json=self._body, headers=headers, timeout=90) as answer:
                self.status = answer.status_code
                for line in answer.iter_lines():
                    self._take(line.removeprefix("data: "))
        except httpx.TransportError as error:
            self.error = repr(error)

    def _take(self, line: str) -> None:
        if not line.startswith("{"):
            return
        event: Mapping[str, Any] = json.loads(line)
        if "error" in event:
            self.error = json.dumps(event["error"])
            return
        for choice in event["choices"]:
            self.text += choice["text"]
            self.reason = choice["finish_reason"] or self.reason
            if choice["text"]:
                self.some.set()

    def whole(self) -> str:
        """The answer's text, when it is finished without an error."""
        self.join(90)
        assert (self.status, self.error, self.reason) == (200, "", "length"), (self.status, self.error, self.reason)
        return self.text


@contextlib.contextmanager
def two_nodes() -> Iterator[ServeCluster]:
    """Each says that it has four CPUs, of which the tests use less."""
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    try:
        cluster.add_node(num_cpus=4)
        ray.init(address=cluster.address, log_to_driver=False)
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port, "location": "HeadOnly"})
        yield ServeCluster(cluster, port)
    finally:
        ray.shutdown()
        cluster.shutdown()

# SPDX-License-Identifier: Apache-2.0
"""The server on two Ray nodes: one API over replicas, which share no state and may be killed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from ray import serve

from support.http_server import post, running
from support.ray_cluster import OPTIONS, Client, ServeCluster, body, two_nodes
from support.served_model import DEMO
from support.serving import until
from xlstm_hip.models import load_pretrained, load_tokenizer
from xlstm_hip.ray_serve import build_app
from xlstm_hip.serving import Engine, EngineConfig
from xlstm_hip.serving.server import Limits, Served

pytestmark = pytest.mark.rows("ci")  # Ray's processes take up to a minute to start
LONG = 1200  # tokens of an answer that is still being written when a test does something to it


@pytest.fixture(scope="module")
def cluster() -> Iterator[ServeCluster]:
    with two_nodes() as nodes:
        nodes.deploy()
        yield nodes


def prompt(seed: int, length: int = 100) -> list[int]:
    """Tokens that no other prompt begins with."""
    return [0, *(3 + (seed * 7919 + n * n * 31 + n) % 250 for n in range(length - 1))]


def grown(cluster: ServeCluster, metric: str, before: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in cluster.counts(metric).items()}


def home_of(cluster: ServeCluster, tokens: list[int]) -> str:
    """The replica that has the state of a prompt."""
    before = cluster.counts("requests_accepted")
    cluster.ask(tokens, max_tokens=1)
    (home,) = (name for name, count in grown(cluster, "requests_accepted", before).items() if count)
    return home


def test_it_answers_as_the_server_does(cluster: ServeCluster) -> None:
    """Answers and errors, but for ids and times. The replicas are on two nodes."""
    assert len(cluster.nodes_of_replicas()) == 2
    model = load_pretrained(DEMO, "float32", weight_mode="fused")
    tokenizer = load_tokenizer(DEMO, 256)
    bodies: list[tuple[str, Any]] = [
        ("/v1/completions", body("In the beginning", max_tokens=20, logprobs=2, ignore_eos=False)),
        ("/v1/completions", body(["And he said", "The LORD"], max_tokens=9, temperature=0.9, seed=5, n=2)),
        ("/v1/completions", body("And", max_tokens=30, stop=["t"])),
        ("/v1/completions", body("And", max_token=30)),
        ("/v1/completions", body("And", max_tokens=0)),
        ("/v1/completions", body([1000])),
        ("/v1/completions", body("And", logprobs=99)),
        ("/v1/completions", body("And", guided_regex="a" * 70000)),
        ("/v1/completions", body("And") | {"model": "other"}),
        ("/v1/chat/completions", {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/embeddings", {}),
        ("/tokenize", {"prompt": "In the beginning"}),
        ("/detokenize", {"tokens": [65, 66]}),
    ]
    with Engine(model, tokenizer, EngineConfig(slots=8, prefill_chunk=16, token_budget=32)) as engine:
        served = Served("demo", engine, tokenizer, 256, bos=0)
        with running(served, Limits()) as server:
            for path, fields in bodies:
                expected, actual = (httpx.post(url + path, json=fields) for url in (server.url, cluster.url))
                assert actual.status_code == expected.status_code, (fields, actual.text)
                assert comparable(actual.json()) == comparable(expected.json())
    health = httpx.get(f"{cluster.url}/health", headers={"X-Request-Id": "mine"})
    assert health.status_code == 200 and health.headers.get_list("x-request-id") == ["mine"]
    ready = {"status": "ready", "running": 0, "waiting": 0, "slots": 16, "replicas": 2}
    until(lambda: httpx.get(f"{cluster.url}/ready").json() == ready)  # what replicas count is up to a second old
    assert cluster.written("slots") == dict.fromkeys(cluster.replicas(), 8)
    until(lambda: cluster.written("generated_tokens_total") == cluster.counts("tokens_generated"))


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


def test_a_beginning_is_read_once(cluster: ServeCluster) -> None:
    """Over all replicas: twelve beginnings with four ends each, of which both replicas have some."""
    metrics = "tokens_prefilled", "prefix_cache_tokens_saved", "requests_accepted"
    before = {metric: cluster.counts(metric) for metric in metrics}
    for n in range(12):
        begin = prompt(100 + n, 96)
        for end in range(4):
            usage = cluster.ask([*begin, 10 + end, 20, 30], max_tokens=1)["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == (96 if end else 0)
    read, saved, accepted = (grown(cluster, metric, before[metric]) for metric in metrics)
    assert sum(read.values()) == 12 * (96 + 4 * 3) and sum(saved.values()) == 12 * 3 * 96
    assert all(count and count % 4 == 0 for count in accepted.values()), accepted


def test_many_at_once_are_read_once(cluster: ServeCluster) -> None:
    before = cluster.counts("tokens_prefilled")
    begin = prompt(200, 160)
    clients = [Client(cluster, [*begin, 10 + n], max_tokens=8) for n in range(6)]
    assert all(client.whole() for client in clients)
    assert sum(grown(cluster, "tokens_prefilled", before).values()) == 160 + 6


def test_a_session_goes_on_where_its_state_is(cluster: ServeCluster) -> None:
    """From the end of its answer, whatever the first tokens of others."""
    for n in range(4):
        begin = prompt(300 + n, 40)
        first = cluster.ask(begin, max_tokens=12, session=f"talk {n}", logprobs=0)
        answer = list(first["choices"][0]["text"].encode())
        second = cluster.ask([*begin, *answer, 50, 51], max_tokens=2, session=f"talk {n}")
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 40 + 12 - 1


def leaving_client(cluster: ServeCluster, tokens: list[int], stream: bool) -> socket.socket:
    """Asks for more than it will wait for; when it closes its socket it is gone."""
    address = httpx.URL(cluster.url)
    client = socket.create_connection((address.host, address.port))
    fields = body(tokens, max_tokens=20000, stream=stream)
    client.sendall(post("/v1/completions", json.dumps(fields).encode()))
    return client


def test_a_busy_replica_is_passed_over(cluster: ServeCluster) -> None:
    """While as many requests that begin alike as it has slots are answered, the next one goes to the other."""
    tokens, before = prompt(400), cluster.counts("requests_accepted")
    clients = []
    for n in range(8):
        clients.append(leaving_client(cluster, [*tokens, 10 + n], stream=True))
        until(lambda: sum(cluster.counts("running").values()) == len(clients))
    assert sorted(cluster.counts("running").values()) == [0, 8]
    cluster.ask([*tokens, 9], max_tokens=1)
    assert sorted(grown(cluster, "requests_accepted", before).values()) == [1, 8]
    for client in clients:
        client.close()
    until(lambda: not sum(cluster.counts("running").values()))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves(cluster: ServeCluster, stream: bool) -> None:
    """Its request ends in the replica, streamed or not."""
    with leaving_client(cluster, prompt(500), stream):
        until(lambda: sum(cluster.counts("running").values()) == 1)
    until(lambda: not sum(cluster.counts("running").values()), 5)


def test_a_killed_replica_loses_no_request(cluster: ServeCluster) -> None:
    """Streams in mid-course go on with the same text, drawn or greedy; others are answered elsewhere, also those that
    began without a seed.
    """
    tokens = prompt(600)
    fields: list[dict[str, Any]] = [
        {"max_tokens": LONG, "stream": True},
        {"max_tokens": LONG, "stream": True, "temperature": 0.9, "seed": 4},
        {"max_tokens": LONG},
        {"max_tokens": LONG, "temperature": 0.9, "seed": 4, "logprobs": 1},
    ]
    expected = [cluster.text(tokens, **one | {"stream": False}) for one in fields]
    home = home_of(cluster, tokens)
    clients = [Client(cluster, tokens, **one) for one in fields]
    clients.append(Client(cluster, tokens, max_tokens=LONG, temperature=1.0, stream=True))
    assert all(client.some.wait(20) for client in clients[:2])
    cluster.kill(home)
    assert all(len(client.text) < LONG for client in clients)
    assert [client.whole() for client in clients[:4]] == expected
    assert len(clients[4].whole().encode()) >= LONG
    until(lambda: cluster.ready() and len(cluster.replicas()) == 2 and home not in cluster.replicas(), 90)


def test_a_failed_engine_loses_no_request(cluster: ServeCluster) -> None:
    """Its process lives on until Serve's health check ends it, and is asked in vain meanwhile."""
    tokens = prompt(650)
    expected = cluster.text(tokens, max_tokens=LONG)
    home = home_of(cluster, tokens)
    clients = [Client(cluster, tokens, max_tokens=LONG, stream=stream) for stream in (True, False)]
    assert clients[0].some.wait(20)
    cluster.fail_engine(home)
    clients.append(Client(cluster, tokens, max_tokens=LONG))
    assert [client.whole() for client in clients] == [expected] * 3
    until(lambda: cluster.ready() and home not in cluster.replicas() and len(cluster.replicas()) == 2, 90)


def test_a_rolling_update_loses_no_request(cluster: ServeCluster) -> None:
    """Requests all the time, while every replica is replaced, of the ingress, too. One is longer than a replica that
    is to end may take: it is written again by another.
    """
    old = {**cluster.replicas(), **cluster.replicas("Ingress")}
    over, answers, failures = threading.Event(), [0], list[str]()

    def ask(number: int) -> None:
        with httpx.Client(base_url=cluster.url, timeout=60) as client:
            while not over.is_set():
                count = 3000 if number == 0 else 150
                fields = body(prompt(700 + number), max_tokens=count, stream=number % 2 == 0)
                answer = client.post("/v1/completions", json=fields)
                if answer.status_code != 200 or '"error"' in answer.text or "length" not in answer.text:
                    failures.append(f"{answer.status_code}: {answer.text[-300:]}")
                answers[0] += 1

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    cluster.deploy(max_new_tokens=20000)
    new = {**cluster.replicas(), **cluster.replicas("Ingress")}
    time.sleep(1)  # with the new ones alone
    over.set()
    for thread in threads:
        thread.join(60)
    assert not failures and answers[0] > 30, failures
    assert len(new) == 3 and not new.keys() & old.keys()
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body("And", max_tokens=20001))
    assert answer.status_code == 400 and "20000" in answer.json()["error"]["message"]


def test_a_model_that_is_not_there(cluster: ServeCluster, tmp_path: Path) -> None:
    once = {"max_constructor_retry_count": 1}
    options = OPTIONS | {"model": str(tmp_path / "none"), "engine": once, "ingress": once}
    with pytest.raises(RuntimeError):
        serve.run(build_app(options), name="broken", route_prefix="/broken")
    messages = str(serve.status().applications["broken"])
    serve.delete("broken")
    assert "model: expected the folder of a checkpoint" in messages and str(tmp_path / "none") in messages


def test_the_deployment_file(cluster: ServeCluster, tmp_path: Path) -> None:
    """As `serve run` takes it, with this machine's model; a replica more when there is more to do."""
    file = yaml.safe_load((Path(__file__).parents[2] / "examples" / "ray_serve.yaml").read_text("utf-8"))
    (application,) = file["applications"]
    application |= {"name": "file", "route_prefix": "/file"}
    (tmp_path / "keys").write_text("secret\n")
    application["args"] |= {"model": str(DEMO), "slots": 4, "dtype": "float32", "threads": 1}
    application["args"]["api_key_file"] = str(tmp_path / "keys")
    ingress, engine = application["deployments"]
    ingress |= {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0.5}}
    engine["ray_actor_options"] = {"num_cpus": 1}
    engine["autoscaling_config"] |= {
        "min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2,
        "upscale_delay_s": 0.2, "metrics_interval_s": 0.1, "look_back_period_s": 0.5,
    }  # fmt: skip
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(file))
    words = ["run", "--address", cluster.nodes.address, "--non-blocking", str(tmp_path / "serve.yaml")]
    command = [sys.executable, "-m", "ray.serve.scripts", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    until(lambda: serve.status().applications["file"].status == "RUNNING", 90)
    there = ServeCluster(cluster.nodes, cluster.port, "/file", {"Authorization": "Bearer secret"})
    assert httpx.get(f"{there.url}/v1/models").status_code == 401
    assert httpx.get(f"{there.url}/v1/models", headers=there.headers).json()["data"][0]["id"] == "demo"
    assert len(cluster.replicas("Engine", "file")) == 1
    clients: list[Client] = []

    def is_more_under_load() -> bool:
        unfinished = sum(client.is_alive() for client in clients)
        clients.extend(Client(there, prompt(800 + n), max_tokens=800) for n in range(6 - unfinished))
        return len(cluster.replicas("Engine", "file")) == 2

    until(is_more_under_load, 90)
    assert all(client.whole() for client in clients)
    serve.delete("file")


def test_a_machine_that_is_gone(cluster: ServeCluster) -> None:
    """With the replica on it. The last test: one node is left."""
    (other,) = cluster.nodes.worker_nodes
    (name,) = (name for name, node in cluster.nodes_of_replicas().items() if node == other.node_id)
    tokens = next(tokens for n in range(50) if home_of(cluster, tokens := prompt(900 + n)) == name)
    expected = cluster.text(tokens, max_tokens=2 * LONG)
    clients = [Client(cluster, tokens, max_tokens=2 * LONG, stream=stream) for stream in (True, False)]
    assert clients[0].some.wait(20)
    cluster.nodes.remove_node(other, allow_graceful=False)
    assert not clients[0].reason
    assert [client.whole() for client in clients] == [expected] * 2

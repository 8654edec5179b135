"""The listener of a cluster as a program, its health check, and what it reads from servers; needs no cluster."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from portside.dataplane.compute.kubernetes import watching
from portside.dataplane.compute.kubernetes.objects import COMPONENT
from portside.dataplane.compute.kubernetes.watching import PollTiming, WorkloadWatch
from portside.dataplane.failures import DeployFailed
from portside.dataplane.logs import RevisionLog
from tests.conftest import eventually
from tests.kubernetes import objects, validate
from tests.preloaded import run_command
from tests.receiver import Receiver, serve
from tests.servers import agent_server
from tests.tcp_server import serve_connections


def run(home: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    known = {"PATH": os.environ["PATH"], "HOME": str(home), "PORTSIDE_HOME": str(home)}
    known |= {"CONTROL_PLANE_URL": "http://127.0.0.1:9", "CONTROL_PLANE_API_KEY": "key"}
    return run_command("listener", "--compute", "kubernetes", environment={**known, **environment})


def test_listener_reports_missing_settings(tmp_path: Path) -> None:
    without = run(tmp_path)
    assert without.returncode == 1
    assert "KUBERNETES_NAMESPACES: not set" in without.stderr
    nowhere = run(tmp_path, KUBERNETES_NAMESPACES="agents", KUBECONFIG=str(tmp_path / "missing"))
    assert nowhere.returncode == 1
    assert "there is no cluster to deploy to" in nowhere.stderr


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await reader.readuntil(b"\r\n\r\n")
    status = b"200 OK" if request.startswith(b"GET /agents/one/ok ") else b"503 Not now"
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()


async def test_until_healthy_waits_for_ok_or_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    # An answer that comes late is an answer.
    monkeypatch.setattr(watching, "_HEALTH_TIMEOUT_S", 300.0)
    api: Any = None
    watch = WorkloadWatch(api, objects().scope, lambda _: None, PollTiming(poll_s=0.01))

    async with serve_connections(answer) as port:
        await watch.until_healthy(f"http://127.0.0.1:{port}/agents/one", 120)
        with pytest.raises(DeployFailed, match="it answers 503"):
            await watch.until_healthy(f"http://127.0.0.1:{port}/agents/two", 0.05)

    with pytest.raises(DeployFailed, match="ConnectError"):
        await watch.until_healthy(f"http://127.0.0.1:{port}/agents/one", 0.05)


def build_running_pod(component: str) -> dict[str, Any]:
    """A pod of a deployment as a cluster shows it, checked against the published schemas."""
    found = objects()
    (workload,) = [one for one in found.of_kind("Deployment") if one["metadata"]["labels"][COMPONENT] == component]
    template = workload["spec"]["template"]
    name = f"{workload['metadata']['name']}-1"
    metadata = {**template["metadata"], "name": name, "namespace": found.scope.namespace, "uid": f"uid-of-{name}"}
    container = {"name": "api-server", "image": "agents/hello:1", "imageID": "sha256:1", "ready": True}
    container |= {"restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    status = {"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [container]}

    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"], "status": status}
    for version in ("1.28", "1.37"):
        validate(pod, version)

    return pod


async def send_not_found(send: Any) -> None:
    """Answer that there is no such object: the deployments of these tests have no stores."""
    status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 404, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(status).encode()})


class PassingApiServer:
    """The part of an API server that lists pods, and passes requests on to the server in a pod."""

    def __init__(self, pods: list[dict[str, Any]], agent_url: str) -> None:
        self.pods = pods
        self.agent_url = agent_url
        self.paths: set[str] = set()

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        path = scope["path"]
        body = b""
        self.paths.add(path)

        if "/statefulsets/" in path:
            await send_not_found(send)
            return

        if path.endswith("/pods"):
            body = json.dumps({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": self.pods}).encode()
        elif "/proxy/" in path:
            url = f"{self.agent_url}/{path.partition('/proxy/')[2]}?{scope['query_string'].decode()}"
            async with httpx2.AsyncClient() as client:
                body = (await client.get(url, timeout=300)).raise_for_status().content

        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def test_status_names_who_refuses_the_servers(module_database: str, tmp_path: Path) -> None:
    """A platform that refuses the key of a deployment shows in its status, and so does the length of its queue."""
    pytest.importorskip("lightkube", reason="the extra portside[kubernetes] is not installed")
    from lightkube import KubeConfig
    from lightkube.config.models import Cluster, User

    from portside.dataplane.compute.kubernetes.api import KubernetesApi
    from portside.dataplane.compute.kubernetes.pods import PodFollower

    async def ship(_entries: Any) -> None:
        pass

    scope = objects().scope
    refusing = Receiver()
    refusing.status = 401

    async with serve(refusing) as platform:
        traced = {"LANGSMITH_TRACING": "true", "LANGSMITH_ENDPOINT": platform, "LANGSMITH_API_KEY": "revoked"}
        with agent_server(module_database, tmp_path, project="webhooks", **traced) as agent:
            cluster = PassingApiServer([build_running_pod("api"), build_running_pod("queue")], agent.url)
            async with serve(cluster) as url, httpx2.AsyncClient(base_url=agent.url, timeout=300) as client:
                api = KubernetesApi(KubeConfig.from_one(cluster=Cluster(server=url), user=User(token="any")))
                follower = PodFollower(api, scope, lambda _: RevisionLog(ship), from_now=False)
                body = {"assistant_id": "echo", "input": {"messages": [{"role": "user", "content": "hi"}]}}
                assert (await client.post("/runs/wait", json=body)).is_success

                async def is_named() -> bool:
                    return "refuses the API key of this server" in str(follower.metrics and follower.metrics.problem)

                async def has_no_runs() -> bool:
                    metrics = follower.metrics
                    return metrics is not None and (metrics.pending_runs, metrics.active_runs) == (0, 0)

                try:
                    await eventually(is_named)
                    await eventually(has_no_runs)
                    assert follower.metrics is not None
                    assert (follower.metrics.replicas, follower.metrics.queue_replicas) == (1, 1)
                finally:
                    await follower.close()
                    await api.close()

    name = f"/api/v1/namespaces/{scope.namespace}/pods/{scope.name}-1:8000/proxy/metrics"
    assert name in cluster.paths


async def show_problem(_scope: Any, _receive: Any, send: Any) -> None:
    """The metrics of an agent server whose key is refused."""
    problem = "The tracing platform refuses the API key of this server, so its traces are lost."
    body = json.dumps({"queue": {"n_pending": 2, "n_running": 1}, "problems": [problem]}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def test_metrics_of_pods_are_what_their_servers_say() -> None:
    pytest.importorskip("lightkube", reason="the extra portside[kubernetes] is not installed")
    from lightkube import KubeConfig
    from lightkube.config.models import Cluster, User

    from portside.dataplane.compute.kubernetes.api import KubernetesApi
    from portside.dataplane.compute.kubernetes.pods import PodFollower

    async def ship(_entries: Any) -> None:
        pass

    scope = objects().scope
    async with serve(show_problem) as agent_url:
        cluster = PassingApiServer([build_running_pod("api"), build_running_pod("queue")], agent_url)
        async with serve(cluster) as url:
            api = KubernetesApi(KubeConfig.from_one(cluster=Cluster(server=url), user=User(token="any")))
            follower = PodFollower(api, scope, lambda _: RevisionLog(ship), from_now=False)
            try:
                found = await eventually(lambda: asyncio.sleep(0, follower.metrics))
                assert "refuses the API key of this server" in str(found.problem)
                assert (found.pending_runs, found.active_runs) == (2, 1)
                assert (found.replicas, found.queue_replicas) == (1, 1)
            finally:
                await follower.close()
                await api.close()

    name = f"/api/v1/namespaces/{scope.namespace}/pods/{scope.name}-1:8000/proxy/metrics"
    assert name in cluster.paths


class CuttingApiServer:
    """The part of an API server that lists pods, and cuts the first connection that follows a container's log."""

    def __init__(self, pods: list[dict[str, Any]]) -> None:
        self.pods = pods
        self.queries: list[str] = []

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        if "/statefulsets/" in scope["path"]:
            await send_not_found(send)
            return

        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        if scope["path"].endswith("/pods"):
            body = json.dumps({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": self.pods}).encode()
            await send({"type": "http.response.body", "body": body})
            return

        self.queries.append(scope["query_string"].decode())
        await send({"type": "http.response.body", "body": b"line %d\n" % len(self.queries), "more_body": True})

        if len(self.queries) > 1:
            await asyncio.Event().wait()

        await send({"type": "http.response.body", "body": b""})


async def test_log_that_is_cut_is_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightkube", reason="the extra portside[kubernetes] is not installed")
    from lightkube import KubeConfig
    from lightkube.config.models import Cluster, User

    from portside.dataplane.compute.kubernetes import pods
    from portside.dataplane.compute.kubernetes.api import KubernetesApi

    monkeypatch.setattr(pods, "_POLL_S", 0.05)
    monkeypatch.setattr(pods, "_FOLLOW_AGAIN_S", 0.1)

    # Its servers are not asked for their metrics.
    monkeypatch.setattr(pods, "_ASKED", ())
    lines: list[str] = []

    async def ship(entries: Any) -> None:
        lines.extend(entry.message for entry in entries)

    cluster = CuttingApiServer([build_running_pod("api")])
    async with serve(cluster) as url:
        api = KubernetesApi(KubeConfig.from_one(cluster=Cluster(server=url), user=User(token="any")))
        follower = pods.PodFollower(api, objects().scope, lambda _: RevisionLog(ship), from_now=False)
        try:
            await eventually(lambda: asyncio.sleep(0, lines == ["line 1", "line 2"]))
        finally:
            await follower.close()
            await api.close()

    # How many seconds of the log were missed is a matter of the machine.
    assert ["sinceSeconds=" in query for query in cluster.queries] == [False, True]

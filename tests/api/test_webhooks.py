"""A server calls webhooks at the ends of runs, and a real receiver gets the calls."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

SECRET = b"this is a secret of tests"


class Host:
    """A receiver of webhooks: what it was sent, by the path that it was sent to."""

    def __init__(self) -> None:
        seen: dict[str, tuple[dict[str, str], bytes]] = {}
        accepts = self.accepts = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                is_refused = self.path == "/refused" and not accepts.is_set()
                status = 401 if is_refused or self.path.startswith("/traces") else 200
                seen[self.path] = ({name.lower(): value for name, value in self.headers.items()}, body)

                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                pass

        self.seen = seen
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    async def received(self, path: str) -> tuple[dict[str, str], bytes]:
        async def arrived() -> tuple[dict[str, str], bytes] | None:
            return self.seen.get(path)

        return await eventually(arrived)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    made = Host()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("agent")
    with agent_server(module_database, folder, project="webhooks", WEBHOOK_RETRY_AFTER_SECONDS="0.1") as running:
        yield running


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=server.url, api_key="") as opened:
        yield opened


def hi(text: str = "hi") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def verify(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """Verify a call as the guide says a receiver should, and return its content."""
    moment = headers["webhook-timestamp"]
    assert abs(time.time() - int(moment)) < 300
    signed = f"{headers['webhook-id']}.{moment}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
    assert any(hmac.compare_digest(expected, given) for given in headers["webhook-signature"].split())

    return json.loads(body)


async def test_a_run_on_a_thread(client: LangGraphClient, host: Host):
    thread = await client.threads.create()
    run = await client.runs.create(thread["thread_id"], "echo", input=hi(), webhook=f"{host.url}/thread?x=1")
    assert run["kwargs"]["webhook"] == f"{host.url}/thread?x=1"
    headers, body = await host.received("/thread?x=1")
    received = verify(headers, body)
    assert (headers["authorization"], headers["content-type"]) == ("Bearer t0k3n", "application/json")

    assert (received["run_id"], received["thread_id"], received["status"]) == (
        run["run_id"],
        thread["thread_id"],
        "success",
    )

    assert [message["content"] for message in received["values"]["messages"]] == ["hi", "hello"]
    assert received["run_started_at"] <= received["run_ended_at"] <= received["webhook_sent_at"]
    assert (received["kwargs"]["input"], received["error"], "metadata" in received) == (hi(), None, False)

    async def delivered() -> Any:
        path = f"/threads/{thread['thread_id']}/runs/{run['run_id']}/webhook"
        response = await client.http.get(path)
        return response if response["status"] == "delivered" else None

    delivery = await eventually(delivered)
    # On a busy machine the host may not answer within the time of a call, which is made again then.
    answers = [one["status_code"] for one in delivery["attempts"] if one["status_code"] is not None]
    assert (delivery["next_attempt_at"], answers) == (None, [200])


async def test_metrics_name_a_refusal_until_a_call_succeeds(client: LangGraphClient, host: Host):
    async def problems() -> list[str]:
        return (await client.http.get("/metrics", params={"format": "json"})).get("problems", [])

    async def is_named() -> bool:
        return any("A webhook refuses the calls of this server (401)" in problem for problem in await problems())

    async def is_forgotten() -> bool:
        return await problems() == []

    # Calls of other tests to the same host succeed and would forget the refusal, so this host has another name.
    url = f"{host.url.replace('127.0.0.1', 'localhost')}/refused"
    await client.runs.create(None, "echo", input=hi(), webhook=url)
    await eventually(is_named)
    assert "localhost" not in str(await problems())
    host.accepts.set()
    await client.runs.create(None, "echo", input=hi(), webhook=url)
    await eventually(is_forgotten)


async def test_metrics_name_a_refused_tracing_key(
    host: Host, fresh_database: Callable[[], Awaitable[str]], tmp_path: Path
):
    traced = {"LANGSMITH_TRACING": "true", "LANGSMITH_ENDPOINT": f"{host.url}/traces", "LANGSMITH_API_KEY": "wrong"}
    with agent_server(await fresh_database(), tmp_path, project="webhooks", **traced) as server:
        async with get_client(url=server.url, api_key="") as client:
            await client.runs.wait(None, "echo", input=hi())

            async def is_named() -> bool:
                metrics = await client.http.get("/metrics", params={"format": "json"})
                return any("refuses the API key of this server" in problem for problem in metrics.get("problems", []))

            await eventually(is_named)


Start = Callable[[LangGraphClient, str], Awaitable[Any]]


async def _stream_run(client: LangGraphClient, url: str) -> None:
    async for _part in client.runs.stream(None, "echo", input=hi(), webhook=url):
        pass


STARTS: dict[str, tuple[Start, str]] = {
    "stateless": (lambda client, url: client.runs.create(None, "echo", input=hi(), webhook=url), "success"),
    "wait": (lambda client, url: client.runs.wait(None, "echo", input=hi(), webhook=url), "success"),
    "stream": (_stream_run, "success"),
    "error": (lambda client, url: client.runs.create(None, "boom", input=hi(), webhook=url), "error"),
    "interrupt": (lambda client, url: client.runs.create(None, "approval", input=hi(), webhook=url), "success"),
}


@pytest.mark.parametrize("name", STARTS)
async def test_every_way_to_run(client: LangGraphClient, host: Host, name: str):
    start, status = STARTS[name]
    await start(client, f"{host.url}/{name}")
    received = verify(*await host.received(f"/{name}"))
    assert received["status"] == status
    assert received["error"] == ({"error": "ValueError", "message": "kaboom"} if name == "error" else None)

    if status == "success":
        assert received["values"]["messages"]


async def test_batch_delivers_for_each_run(client: LangGraphClient, host: Host):
    payloads = [{"assistant_id": "echo", "input": hi(), "webhook": f"{host.url}/batch/{place}"} for place in range(3)]
    runs = await client.http.post("/runs/batch", json=payloads)
    received = [verify(*await host.received(f"/batch/{place}"))["run_id"] for place in range(3)]
    assert received == [run["run_id"] for run in runs]


async def test_a_run_that_was_cancelled(client: LangGraphClient, host: Host):
    thread = await client.threads.create()
    run = await client.runs.create(thread["thread_id"], "echo", input=hi("wait"), webhook=f"{host.url}/cancelled")
    await client.runs.cancel(thread["thread_id"], run["run_id"], wait=True)
    received = verify(*await host.received("/cancelled"))
    assert (received["status"], received["error"]["error"]) == ("interrupted", "UserInterrupt")


async def test_cron_runs_call_their_webhook(client: LangGraphClient, host: Host):
    cron = await client.crons.create("echo", schedule="* * * * * *", input=hi(), webhook=f"{host.url}/cron")
    assert verify(*await host.received("/cron"))["status"] == "success"
    await client.crons.delete(cron["cron_id"])


async def test_a_path_is_a_route_of_the_projects_own_application(client: LangGraphClient):
    run = await client.runs.create(None, "echo", input=hi(), webhook="/own/hook?a=1")

    async def received() -> Any:
        return await client.http.get("/own/received")

    ((query, body),) = await eventually(received)
    assert (query, body["run_id"], body["status"]) == ("a=1", run["run_id"], "success")


async def test_refused_address_creates_nothing(server: ServerProcess):
    body = {"assistant_id": "echo", "input": hi()}
    async with httpx2.AsyncClient(base_url=server.url) as http:
        cron = (await http.post("/runs/crons", json={**body, "schedule": "0 0 1 1 *"})).json()["cron_id"]
        for url in (
            "http://10.0.0.1/",
            "http://169.254.169.254/latest",
            "ftp://127.0.0.1/",
            "/relative",
            "/threads",
            "//own/hook",
            "/own/received",
            "nonsense",
        ):
            for path, sent in (
                ("/runs", {**body, "webhook": url}),
                ("/runs/batch", [body, {**body, "webhook": url}]),
                ("/runs/crons", {**body, "schedule": "0 0 1 1 *", "webhook": url}),
            ):
                response = await http.post(path, json=sent)
                assert (response.status_code, "webhook" in response.text) == (422, True), (path, url)

            changed = await http.patch(f"/runs/crons/{cron}", json={"webhook": url})
            assert (changed.status_code, "webhook" in changed.text) == (422, True), url

        assert "webhook" not in (await http.get(f"/runs/crons/{cron}")).json()["payload"]
        await http.delete(f"/runs/crons/{cron}")
        assert (await http.post("/runs/crons/count", json={})).json() == 0


async def test_run_without_webhook_has_no_delivery(client: LangGraphClient, server: ServerProcess):
    thread = await client.threads.create()
    await client.runs.wait(thread["thread_id"], "echo", input=hi())
    (run,) = await client.runs.list(thread["thread_id"])
    response = httpx2.get(f"{server.url}/threads/{thread['thread_id']}/runs/{run['run_id']}/webhook")
    assert (response.status_code, "webhook" in response.json()["detail"]) == (404, True)


def test_a_server_does_not_start_without_the_variables_of_its_headers(module_database: str, tmp_path: Path):
    environment = {"LANGGRAPH_WEBHOOKS": json.dumps({"headers": {"X-A": "${{ env.LG_WEBHOOK_GONE }}"}})}
    with (
        pytest.raises(AssertionError, match="LG_WEBHOOK_GONE"),
        agent_server(module_database, tmp_path, project="webhooks", **environment),
    ):
        pass

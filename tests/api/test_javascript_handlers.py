"""A web application and handlers in TypeScript, in a Node process beside the server.

`test_access.py` holds authentication and authorization to the same rules in both languages.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.conftest import eventually
from tests.javascript import start_guarded_server, webapp_in_javascript
from tests.node_packages import copy_of_project, javascript_runtime
from tests.servers import KEY, PROJECTS, ServerProcess, agent_server, platform_server

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(module_databases: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("web")
    index = '{"index": {"embed": "./web.ts:embed", "dims": 2}}'
    settings = {"HTTP_MAX_REQUEST_BODY_BYTES": "200000", "GRAPH_WEBHOOKS": '{"url": {"disable_loopback": false}}'}
    with webapp_in_javascript(module_databases(), folder, GRAPH_STORE=index, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def site(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=300) as client:
        yield client


def test_server_routes_answer_beside_those_of_the_project(site: httpx2.Client) -> None:
    response = site.post("/laps", json={"laps": 1})
    assert (response.json(), response.headers["x-web"]) == ({"laps": 2}, "seen")
    assert response.headers["x-request-id"]
    response = site.get("/ok")
    assert (response.json()["ok"], response.headers["x-web"]) == (True, "seen")
    assert site.get("/ok", headers={"x-turned": "away"}).status_code == 418
    missing = site.get("/threads/01a1fbd3-88f9-7738-8000-000000000000")
    assert (missing.status_code, list(missing.json()), missing.headers["x-web"]) == (404, ["detail"], "seen")

    assert site.put("/threads/search").status_code == 405


def test_middleware_may_read_what_the_server_reads(site: httpx2.Client) -> None:
    created = site.post("/threads", json={"metadata": {"from": "x"}})
    assert (created.json()["metadata"], created.headers["x-read"]) == ({"from": "x"}, "metadata")
    assert site.post("/threads/search", json={"metadata": {"nobody": "has this"}}).json() == []
    assert site.post("/threads/search", json={"metadata": {"x": "y" * 2000}}).status_code == 413


@pytest.mark.parametrize("way", ["request", "text", "json"])
def test_middleware_may_change_what_the_server_reads(site: httpx2.Client, way: str) -> None:
    created = site.post("/threads", json={"metadata": {"from": "x"}}, headers={"x-change": way})
    assert created.json()["metadata"] == {"changed": way}


def test_project_routes_come_first_and_pages_last(site: httpx2.Client) -> None:
    assert site.get("/info").json() == {"mine": "instead of yours"}
    assert site.get("/any/where").text == "page /any/where"
    assert site.get("/").text == "page /"
    assert site.get("/people/@ada").text == "/people/@ada"
    head = site.head("/info")
    assert (head.status_code, head.content) == (200, b"")


async def test_errors_hide_details_and_end_no_process(site: httpx2.Client, server: ServerProcess) -> None:
    for path, secret in (("/boom", "hunter2"), ("/rejected", "the first word")):
        response = site.get(path)
        assert response.status_code == 500
        assert secret not in response.text
        await eventually(lambda text=secret: server.has_logged(text))

    tea = site.get("/teapot")
    assert (tea.status_code, tea.text) == (418, "short and stout")
    await eventually(lambda: server.has_logged("web.ts"))
    assert server.log.read_text().count("executor ready") == 1


def test_document_describes_both_applications(site: httpx2.Client) -> None:
    assert {"/laps", "/threads", "/runs/wait"} <= set(site.get("/openapi.json").json()["paths"])


def test_routes_call_the_server_that_they_run_in(site: httpx2.Client) -> None:
    assert site.get("/asked").json() == {"text": "FROM A ROUTE"}
    events = [line for line in site.get("/streamed").text.splitlines() if line.startswith("event")]
    assert events == ["event: metadata", "event: values", "event: values"]


def test_large_bodies_arrive_whole_or_are_refused(site: httpx2.Client) -> None:
    large = site.get("/large").content
    assert (len(large), set(large[-100_000:])) == (6_400_000, {63})
    assert site.post("/size", content=b"x" * 150_000).json() == {"size": 150_000}
    assert site.post("/size", content=(b"x" * 50_000 for _ in range(3))).json() == {"size": 150_000}

    for content in (b"x" * 250_000, (b"x" * 50_000 for _ in range(5))):
        refused = site.post("/size", content=content)
        assert (refused.status_code, "HTTP_MAX_REQUEST_BODY_BYTES" in refused.json()["detail"]) == (413, True)


async def test_a_route_ends_with_its_client(site: httpx2.Client) -> None:
    with site.stream("GET", "/endless/first") as response:
        assert next(response.iter_lines()) == "0"

    async def is_stopped() -> bool:
        return "first" in site.get("/stopped").json()

    await eventually(is_stopped)


def test_requests_have_their_address_and_responses_their_cookies(site: httpx2.Client, server: ServerProcess) -> None:
    response = site.get("/cookies?q=a%20b")
    assert response.headers.get_list("set-cookie") == ["a=1; Path=/", "b=2; Path=/"]
    assert response.text == f"127.0.0.1 {server.url}/cookies?q=a%20b a b"
    strange = site.get("/cookies", headers={"host": "127.0.0.1/threads?"})
    assert strange.status_code in {200, 400, 421}
    assert "/threads?" not in strange.text


def test_headers_reach_runs(site: httpx2.Client) -> None:
    headers = {"x-mine-a": "1", "x-mine-secret": "no"}
    values = site.post("/runs/wait", json={"assistant_id": "reported", "input": {}}, headers=headers).json()
    assert values["parts"] == ["x-mine-a=1"]


def test_webhooks_reach_routes_of_the_project(site: httpx2.Client) -> None:
    body = {"assistant_id": "child", "input": {"text": "x"}}
    accepted = site.post("/runs", json={**body, "webhook": "/called"})
    assert accepted.status_code == 200, accepted.text
    refused = site.post("/runs", json={**body, "webhook": "/cookies"})
    assert refused.status_code == 422, refused.text


def test_the_store_is_searched_by_a_function(site: httpx2.Client) -> None:
    for key in ("aaa", "abb", "bbb"):
        item = {"namespace": ["texts"], "key": key, "value": {"text": key}}
        assert site.put("/store/items", json=item).status_code == 204

    found = site.post("/store/items/search", json={"namespace_prefix": ["texts"], "query": "bb"}).json()["items"]
    assert [item["key"] for item in found] == ["bbb", "abb", "aaa"]
    failed = site.put("/store/items", json={"namespace": ["texts"], "key": "x", "value": {"text": "fail"}})
    assert (failed.status_code, "no words for it" in failed.json()["detail"]) == (502, True)


def talk_to(client: httpx2.Client, path: str = "/talk", **headers: str) -> ClientConnection:
    return connect(f"ws://{client.base_url.netloc.decode()}{path}", additional_headers=headers, max_size=None)


def test_websockets_of_the_project(site: httpx2.Client) -> None:
    with talk_to(site) as socket:
        for text in ("hello", "ä" * 400_000):
            socket.send(text)
            assert socket.recv(120) == f"you said {text}"

        socket.send(b"abc")
        assert socket.recv(120) == b"cba"
        socket.send("bye")

        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(120)

        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "as you like")

    for path in ("/info", "/nowhere"):
        with pytest.raises(InvalidStatus):
            talk_to(site, path)


def test_websockets_by_the_adapter_of_hono(module_databases: Callable[[], str], tmp_path: Path) -> None:
    project = copy_of_project(tmp_path / "project", PROJECTS / "websockets")
    runtime = {"EXECUTOR_JAVASCRIPT": str(javascript_runtime()), "EXECUTOR_START_SECS": "600"}
    with (
        agent_server(module_databases(), tmp_path, project=str(project), **runtime) as running,
        httpx2.Client(base_url=running.url) as client,
        talk_to(client) as socket,
        talk_to(client, "/talk?name=a:b") as named,
    ):
        socket.send("hello")
        assert socket.recv(120) == "you said hello"
        named.send("hello")
        assert named.recv(120) == "a:b said hello"
        missing = client.get("/nowhere")
        assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})


def test_many_requests_at_once(site: httpx2.Client) -> None:
    sizes: list[int] = []

    def ask() -> None:
        sizes.append(len(site.get("/large").content))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()

    for thread in threads:
        thread.join()

    assert sizes == [6_400_000] * 3


# Authentication of the project's routes


@pytest.fixture(scope="module")
def guarded_client(
    module_databases: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx2.Client]:
    """The application, with authentication in TypeScript before its routes, and a graph in JavaScript."""
    folder = tmp_path_factory.mktemp("guarded")
    http = {"enable_custom_route_auth": True, "disable_store": True}
    files = [PROJECTS / "guarded" / name for name in ("auth.ts", "graphs.mjs")]
    settings = {"GRAPH_AUTH": '{"path": "./auth.ts:auth"}', "LANGSERVE_GRAPHS": '{"told": "./graphs.mjs:told"}'}
    with (
        webapp_in_javascript(module_databases(), folder, http, files, **settings) as running,
        httpx2.Client(base_url=running.url, timeout=300) as client,
    ):
        yield client


def test_routes_of_the_project_require_authentication(guarded_client: httpx2.Client) -> None:
    hers = {"Authorization": "Bearer alice"}

    for method, path in (("GET", "/me"), ("GET", "/any/where"), ("POST", "/laps"), ("GET", "/"), ("POST", "/threads")):
        refused = guarded_client.request(method, path)
        assert (refused.status_code, refused.json()) == (401, {"detail": "Who are you?"}), path

    assert guarded_client.get("/me", headers=hers).json() == {"identity": "alice", "scopes": ["be:alice"]}
    assert guarded_client.post("/laps", json={"laps": 1}, headers=hers).json() == {"laps": 2}
    response = guarded_client.post("/threads", json={"metadata": {"x": 1}}, headers=hers)
    assert response.json()["metadata"] == {"x": 1, "owner": "alice"}
    assert response.headers["x-user-in-middleware"] == "alice"
    assert guarded_client.get("/ok").status_code == 200

    with talk_to(guarded_client, **hers) as socket:
        socket.send("hello")
        assert socket.recv(120) == "alice said hello"

    with pytest.raises(InvalidStatus) as refused_socket:
        talk_to(guarded_client)

    assert refused_socket.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as refused_socket:
        talk_to(guarded_client, f"/threads/{response.json()['thread_id']}/stream/events")

    assert refused_socket.value.response.status_code == 401
    assert guarded_client.get("/store/items", headers=hers).text.startswith("page")


def test_a_body_that_authentication_read_is_read_again(guarded_client: httpx2.Client) -> None:
    refused = guarded_client.post("/laps", json={"laps": 1}, headers={"Authorization": "Bearer reader of bodies"})
    assert (refused.status_code, refused.json()) == (402, {"detail": "laps"})


# What handlers may not do


@pytest.fixture(scope="module")
def alone(module_databases: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with start_guarded_server(module_databases(), tmp_path_factory.mktemp("alone")) as running:
        yield running


@pytest.mark.parametrize("token", ["nobody", "nothing", "late", "crash"])
def test_handler_failures_admit_nobody(guarded_client: httpx2.Client, token: str) -> None:
    response = guarded_client.post("/threads", json={}, headers={"Authorization": f"Bearer {token}"})
    assert (response.status_code, response.json()) == (500, {"detail": "Internal Server Error"})


@pytest.mark.parametrize("token", ["nosy", "vague", "collector"])
def test_invalid_filters_deny(guarded_client: httpx2.Client, token: str) -> None:
    hers = {"Authorization": "Bearer alice"}
    thread = guarded_client.post("/threads", json={}, headers=hers).json()["thread_id"]
    response = guarded_client.get(f"/threads/{thread}", headers={"Authorization": f"Bearer {token}"})
    assert (response.status_code, response.json()) == (500, {"detail": "Internal Server Error"})


def test_typescript_graphs_get_the_user_of_python_handlers(
    module_databases: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {"GRAPH_AUTH": '{"path": "./auth.py:auth"}', "LANGSERVE_GRAPHS": '{"told": "./graphs.mjs:told"}'}
    with start_guarded_server(module_databases(), tmp_path_factory.mktemp("python"), **settings) as running:
        check_user(f"{running.url}/runs/wait", "told")


@pytest.mark.parametrize("graph", ["echo", "told"])
def test_graphs_of_both_languages_get_the_user(alone: ServerProcess, graph: str) -> None:
    check_user(f"{alone.url}/runs/wait", graph)


def test_graphs_get_the_user_of_typescript_handlers(guarded_client: httpx2.Client) -> None:
    check_user(f"{guarded_client.base_url}/runs/wait", "told")


def check_user(url: str, graph: str) -> None:
    """Check what a graph is told of its caller."""
    body = {"assistant_id": graph, "input": {}}
    headers = {"Authorization": "Bearer carol", "X-Api-Key": "k"}
    response: Any = httpx2.post(url, json=body, headers=headers, timeout=300)

    assert response.json()["reported"] == {
        "identity": "carol",
        "email": "carol@example.test",
        "permissions": [],
        "user_id": "carol",
        "auth_user_id": "carol",
        "keys": [],
    }


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("export const auth = {};", "export an Auth of @langchain/langgraph-sdk/auth"),
        ('export const auth = new Auth().on("*", () => true);', "has no authenticate handler"),
        ('export const auth = new Auth().authenticate(() => "x").on("thread", () => true);', "do not exist: thread"),
        ("export const other = 1;", "exports no auth; it exports other"),
        ('throw new Error("no key");', "no key"),
    ],
)
def test_a_server_without_its_authentication_does_not_start(
    module_databases: Callable[[], str], tmp_path: Path, source: str, why: str
) -> None:
    broken = tmp_path / "broken.ts"
    broken.write_text(f'import {{ Auth }} from "@langchain/langgraph-sdk/auth";\n{source}\n')

    settings = {"GRAPH_AUTH": '{"path": "./broken.ts:auth"}'}
    with (
        pytest.raises(AssertionError, match=why),
        webapp_in_javascript(module_databases(), tmp_path, files=[broken], **settings),
    ):
        pass


@pytest.mark.thorough
async def test_a_project_without_python_is_deployed(tmp_path: Path) -> None:
    """Its graph, its authentication and its routes run in Node, and its build has no Python."""
    source = tmp_path / "work"
    source.mkdir()

    for folder, name in (("guarded", "auth.ts"), ("guarded", "graphs.mjs"), ("websockets", "web.ts")):
        (source / name).write_bytes((PROJECTS / folder / name).read_bytes())

    packages = [json.loads((PROJECTS / each / "package.json").read_text()) for each in ("javascript", "websockets")]
    dependencies = packages[0]["dependencies"] | packages[1]["dependencies"]
    (source / "package.json").write_text(json.dumps({**packages[0], "dependencies": dependencies}))
    auth = {"path": "./auth.ts:auth"}
    http = {"app": "./web.ts", "enable_custom_route_auth": True}

    (source / "langgraph.json").write_text(
        json.dumps({"graphs": {"told": "./graphs.mjs:told"}, "auth": auth, "http": http})
    )

    with platform_server(tmp_path / "home", DEPLOYMENT_START_TIMEOUT_S="300") as platform:
        environment = {**os.environ, "PORTSIDE_URL": platform.url, "PORTSIDE_API_KEY": KEY}
        command = [sys.executable, "-m", "portside", "deploy", str(source)]
        deployed = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, check=False
        )
        assert deployed.returncode == 0, deployed.stderr
        assert "Layout split" in deployed.stderr

        url = deployed.stdout.strip()
        carol = {"Authorization": "Bearer carol"}
        with httpx2.Client(base_url=url, timeout=300) as client:
            assert client.post("/threads", json={}).json() == {"detail": "Who are you?"}
            values = client.post("/runs/wait", json={"assistant_id": "told", "input": {}}, headers=carol).json()
            assert values["reported"]["email"] == "carol@example.test"
            assert client.get("/nowhere").status_code == 401

    assert not list((tmp_path / "home").glob("dataplane/**/venv"))

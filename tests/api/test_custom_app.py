"""The project's own web application beside our routes (`http.app`), and calls of the server to itself."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest
import websockets
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.conftest import eventually
from tests.servers import FORMS, ServerProcess, agent_server

OWN = {"x-mine-a": "1", "X-Mine-B": "zwei", "x-mine-secret": "no", "x-api-key": "no", "x-other": "no"}
CHOSEN = ["x-mine-a=1", "x-mine-b=zwei"]


class Site(NamedTuple):
    """A server with a web application, where it writes down its life, and a client."""

    server: ServerProcess
    life: Path
    http: httpx2.Client


@pytest.fixture(scope="module", params=FORMS)
def site(
    request: pytest.FixtureRequest, module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("agent")
    life = folder / "life"
    with (
        agent_server(module_database, folder, project="webapp", LIFE_LOG=str(life), **request.param) as server,
        httpx2.Client(base_url=server.url, timeout=300) as http,
    ):
        yield Site(server, life, http)

    assert life.read_text() == "started\nstopped\n"


@pytest.fixture
async def client(site: Site) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=site.server.url, api_key="", headers=OWN_OF_CLIENT) as opened:
        yield opened


OWN_OF_CLIENT = {name: value for name, value in OWN.items() if name != "x-api-key"}


def test_routes_of_the_project_answer_with_what_its_lifespan_opened(site: Site) -> None:
    assert site.life.read_text() == "started\n"
    response = site.http.get("/warehouse")
    assert response.json() == {"warehouse": "open", "key_filter": "full"}
    assert response.headers["x-web"] == "seen"
    assert response.headers["x-request-id"]
    assert site.http.post("/laps", json={"laps": 1}).json() == {"laps": 2}


def test_our_routes_answer_beside_them_behind_their_middleware(site: Site) -> None:
    response = site.http.get("/ok")
    assert (response.json()["ok"], response.headers["x-web"]) == (True, "seen")
    assert site.http.post("/threads/search", json={"metadata": {"nobody": "has this"}}).json() == []
    assert site.http.get("/ok", headers={"x-turned": "away"}).status_code == 418
    missing = site.http.get("/threads/01a1fbd3-88f9-7738-8000-000000000000")
    assert (missing.status_code, list(missing.json())) == (404, ["detail"])
    assert site.http.post("/threads/search", json={"limit": "x"}).json()["errors"]

    assert site.http.put("/threads/search").status_code == 405


def test_project_routes_come_first_and_catch_all_last(site: Site) -> None:
    assert site.http.get("/info").json() == {"mine": "instead of yours"}
    assert site.http.get("/any/where").text == "page any/where"
    assert site.http.get("/").text == "page "


async def test_errors_of_project_routes_hide_details(site: Site) -> None:
    response = site.http.get("/boom")
    assert response.status_code == 500
    assert list(response.json()) == ["detail"]
    assert "hunter2" not in response.text
    await eventually(lambda: site.server.has_logged("hunter2"))

    tea = site.http.get("/teapot")
    assert (tea.status_code, tea.json(), tea.headers["x-tea"]) == (418, {"detail": "short and stout"}, "yes")
    assert site.http.get("/ok").status_code == 200


def test_openapi_document_describes_both_applications(site: Site) -> None:
    described = site.http.get("/openapi.json").json()
    assert {"/laps", "/threads", "/runs/wait"} <= set(described["paths"])
    body = described["paths"]["/laps"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/CustomRun"}
    assert list(described["components"]["schemas"]["CustomRun"]["properties"]) == ["laps"]
    assert "thread_id" in described["components"]["schemas"]["Run"]["properties"]
    assert "Content-Security-Policy" in site.http.get("/docs").headers


async def test_project_websocket_works(site: Site) -> None:
    address = site.server.url.replace("http", "ws")
    async with websockets.connect(f"{address}/talk") as socket:
        await socket.send("hello")
        assert await socket.recv() == "you said hello"

    with pytest.raises(websockets.InvalidStatus):
        await websockets.connect(f"{address}/nowhere")


@pytest.mark.needs("langgraph-sdk", "0.2.4")
async def test_graphs_and_routes_call_the_server_they_run_in(client: LangGraphClient, site: Site) -> None:
    values: Any = await client.runs.wait(None, "parent", input={"text": "hello"})
    assert values["text"] == "HELLO"
    metadata, first, last, threads = values["parts"]
    assert (metadata, first, last) == ("metadata", "values:streamed", "values:STREAMED")
    assert threads.startswith("threads:")
    assert site.http.get("/asked").json() == {"text": "FROM A ROUTE"}
    assert site.http.get("/streamed").text.split() == ["metadata", "values", "values"]


@pytest.mark.needs("langgraph-sdk", "0.3.10")
def test_the_cache_of_the_sdk(site: Site) -> None:
    key = uuid4().hex
    assert site.http.get(f"/cached/{key}").json() == {"known": None, "value": {"loaded": key}, "status": "miss"}
    assert site.http.get(f"/cached/{key}").json() == {"known": [key], "value": {"loaded": key}, "status": "fresh"}


async def test_outside_requests_are_not_in_process(site: Site) -> None:
    assert site.http.get("/noauth/threads/x").text == "page noauth/threads/x"


async def test_chosen_headers_reach_every_kind_of_run(client: LangGraphClient, site: Site) -> None:
    thread = await client.threads.create()
    runs = client.runs
    waited: list[Any] = [await runs.wait(each, "reported", input={}) for each in (None, thread["thread_id"])]

    streamed = [
        part.data
        async for part in runs.stream(None, "reported", input={}, stream_mode="values")
        if part.event == "values"
    ]

    made = await runs.create(thread["thread_id"], "reported", input={})
    (batched,) = await runs.create_batch([{"assistant_id": "reported", "input": {}}])

    for values in (*waited, streamed[-1], await runs.join(thread["thread_id"], made["run_id"])):
        assert values["parts"] == CHOSEN

    assert batched["kwargs"]["config"]["configurable"]["x-mine-b"] == "zwei"


async def test_body_cannot_override_configurable_headers(client: LangGraphClient, site: Site) -> None:
    config = {"configurable": {"x-mine-a": "forged", "x-mine-c": "free"}}
    values: Any = await client.runs.wait(None, "reported", input={}, config=config)
    assert values["parts"] == [*CHOSEN, "x-mine-c=free"]
    headers = {"thread_id": "01a1fbd3-88f9-7738-8000-000000000000", "x-mine-d": "d" * 5000}
    response = site.http.post("/runs/wait", json={"assistant_id": "reported", "input": {}}, headers=headers)
    assert (response.status_code, response.json()["errors"][0]["loc"]) == (422, ["header", "x-mine-d"])


async def test_headers_reach_runs_of_the_event_protocol(client: LangGraphClient, site: Site) -> None:
    thread = await client.threads.create()
    command = {"id": 1, "method": "run.start", "params": {"assistant_id": "reported", "input": {}}}
    response = site.http.post(f"/threads/{thread['thread_id']}/commands", json=command, headers=OWN)
    assert response.status_code == 200, response.text
    (run,) = await client.runs.list(thread["thread_id"])
    assert run["kwargs"]["config"]["configurable"]["x-mine-a"] == "1"


async def test_headers_reach_runs_of_other_protocols(client: LangGraphClient, site: Site) -> None:
    headers = {**OWN, "accept": "application/json, text/event-stream"}
    call = {"name": "reported", "arguments": {"text": "x"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    assert '"x-mine-a=1"' in site.http.post("/mcp", json=body, headers=headers).text.replace("\\", "")
    thread_id = str(uuid4())
    part = {"kind": "data", "data": {"text": "x"}}
    message = {"role": "user", "messageId": "m", "contextId": thread_id, "parts": [part]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
    response = site.http.post("/a2a/reported", json=body, headers=headers)

    (run,) = await client.runs.list(thread_id)
    assert run["kwargs"]["config"]["configurable"]["x-mine-a"] == "1", response.text


async def test_the_log_shows_chosen_headers(site: Site) -> None:
    site.http.get("/warehouse", headers={"x-mine-logged": "see me", "authorization": "Bearer not-me"})
    await eventually(lambda: site.server.has_logged("see me"))
    assert not await site.server.has_logged("not-me")

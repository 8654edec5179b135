"""An agent whose clients see a prefix that it does not know: every address that it names leads back to it.

The prefix is taken off by the front (`/agents/NAME`), or by the agent's server (`MOUNT_PREFIX`). The agent's code sees
the same paths as without a prefix, so a check of paths cannot be led around.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from langgraph_sdk import get_client

from tests.fronted import HEADERS, start_fronted
from tests.servers import KEY, agent_server

pytestmark = pytest.mark.timeout(900)
PROJECT = "prefixed"
OWN_AUTH = {"LANGGRAPH_AUTH": "{}"}


class Agent(NamedTuple):
    """An agent at its public address, and the address of its server."""

    url: str
    direct_url: str


@pytest.fixture(scope="module")
def behind_front(
    tmp_path_factory: pytest.TempPathFactory, platform_database: str, agent_database: str
) -> Iterator[Agent]:
    with (
        start_fronted(tmp_path_factory.mktemp("home") / "portside", platform_database) as platform,
        platform.real_agent("app", agent_database, project=PROJECT, **OWN_AUTH) as made,
    ):
        url = made["source_config"]["custom_url"]
        assert url == f"{platform.url}/agents/app"
        yield Agent(url, direct_address(platform.home))


def direct_address(home: Path) -> str:
    """Return the address to which the front sends requests for the only deployment."""
    (file,) = (home / "ingress" / "upstreams" / "app").iterdir()
    return f"http://{file.name}"


@pytest.fixture(scope="module")
def mounted_agent(tmp_path_factory: pytest.TempPathFactory, agent_database: str) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("mounted")
    with agent_server(agent_database, folder, project=PROJECT, MOUNT_PREFIX="/my/agent") as server:
        yield Agent(f"{server.url}/my/agent", server.url)


@pytest.fixture(params=["behind_front", pytest.param("mounted_agent", id="mounted")])
def agent(request: pytest.FixtureRequest) -> Agent:
    found: Agent = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def http(agent: Agent) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=agent.url, headers=HEADERS, timeout=300) as client:
        yield client


def get_path(url: str) -> str:
    return httpx2.URL(url).path


@pytest.mark.parametrize(("path", "status"), [("/slash", 307), ("/go", 307), ("/home", 303)])
def test_redirects_of_frameworks_lead_to_the_same_agent(agent: Agent, http: httpx2.Client, path: str, status: int):
    first = http.get(path)
    assert first.status_code == status
    followed = http.get(path, follow_redirects=True)
    assert str(followed.url) == f"{agent.url}/slash/"

    assert (followed.status_code, followed.json(), followed.headers["x-seen-path"]) == (
        200,
        {"path": "/slash/"},
        "/slash/",
    )


def test_links_of_frameworks_have_the_prefix(agent: Agent, http: httpx2.Client):
    links = http.get("/links").json()
    assert links == {"route": f"{agent.url}/slash/", "file": f"{agent.url}/files/web.py", "base": f"{agent.url}/"}
    assert "StaticFiles" in http.get(links["file"]).text
    assert http.get("/inner/page").json() == {"route": f"{agent.url}/inner/page"}


@pytest.mark.parametrize(
    ("page", "document"),
    [("/own-docs", "/openapi.json"), ("/redoc", "/openapi.json"), ("/inner/docs", "/inner/openapi.json")],
)
def test_pages_of_frameworks_load_their_document(agent: Agent, http: httpx2.Client, page: str, document: str):
    assert f"{get_path(agent.url)}{document}" in http.get(page).text
    assert http.get(document).json()["paths"]


@pytest.mark.parametrize("document", ["/openapi.json", "/inner/openapi.json"])
def test_documents_name_the_address_that_the_client_called(agent: Agent, http: httpx2.Client, document: str):
    """It is a path, so no Host header that somebody forged gets into it."""
    forged = {"Host": "evil.example", "X-Forwarded-Host": "evil.example", "X-Forwarded-Prefix": "/evil"}
    response = http.get(document, headers=forged if "/agents/" not in agent.url else {**forged, "Host": "localhost"})
    (server,) = response.json()["servers"]
    assert server["url"].endswith(get_path(agent.url) + document.removesuffix("/openapi.json"))
    assert "evil.example" not in response.text


def test_own_document_without_a_prefix_names_no_server(behind_front: Agent):
    document = httpx2.get(f"{behind_front.direct_url}/openapi.json").json()
    assert document["openapi"].startswith("3.")
    assert "servers" not in document
    assert httpx2.get(f"{behind_front.direct_url}/links").json()["route"] == f"{behind_front.direct_url}/slash/"


@pytest.mark.parametrize("path", ["/admin", "/agents/app/links"])
def test_code_sees_the_same_path_with_and_without_the_front(behind_front: Agent, path: str):
    """A prefix in the path again is a path of the agent: routes and checks of paths do not take it for the prefix."""
    for url in (behind_front.url, behind_front.direct_url):
        response = httpx2.get(f"{url}{path}", headers=HEADERS)
        assert (response.status_code, response.headers["x-seen-path"]) == (404, path)


@pytest.mark.parametrize("prefix", ["/noauth", "/noauth/x", "//evil.example", "/a b", "/a/../b", "x", "/"])
def test_odd_prefixes_are_no_prefixes(behind_front: Agent, prefix: str):
    response = httpx2.get(f"{behind_front.direct_url}/links", headers={"X-Forwarded-Prefix": prefix})
    assert response.json()["base"] == f"{behind_front.direct_url}/"


def test_only_trusted_proxies_say_the_prefix(agent_database: str, tmp_path: Path):
    claim = {"X-Forwarded-Prefix": "/claimed"}
    with agent_server(agent_database, tmp_path, project=PROJECT, TRUSTED_PROXIES="192.0.2.1") as server:
        assert httpx2.get(f"{server.url}/links", headers=claim).json()["base"] == f"{server.url}/"
        assert "servers" not in httpx2.get(f"{server.url}/openapi.json", headers=claim).json()


def test_redirects_of_the_server_itself_have_the_prefix_once(agent: Agent, http: httpx2.Client):
    response = http.get("/info/?a=b")
    assert (response.status_code, response.headers["location"]) == (307, f"{get_path(agent.url)}/info?a=b")


async def test_clients_join_a_stream_again_at_its_location(behind_front: Agent, tmp_path: Path):
    """The Location of a run is relative to the agent's address, since clients add it to that."""
    until = tmp_path / "until"
    located: list[Any] = []
    async with get_client(url=behind_front.url, api_key=KEY) as client:
        thread = (await client.threads.create())["thread_id"]
        stream = client.runs.stream(
            thread,
            "ticks",
            input={"until": str(until)},
            stream_mode="custom",
            stream_resumable=True,
            on_disconnect="continue",
            on_run_created=located.append,
        )

        async for part in stream:
            if part.event == "custom":
                break

        await stream.aclose()
        joined = asyncio.create_task(_join(client, thread, located[0]["run_id"]))
        until.touch()
        assert await joined == ["first", "last"]

    async with httpx2.AsyncClient(base_url=behind_front.url, headers=HEADERS, timeout=300) as http:
        body = {"assistant_id": "ticks", "input": {"until": str(until)}, "stream_mode": "custom"}
        async with http.stream("POST", f"/threads/{thread}/runs/stream", json=body) as response:
            location = response.headers["location"]
            assert response.headers["content-location"] == location.removesuffix("/stream")

        assert location.startswith(f"/threads/{thread}/runs/")
        assert (await http.get(location)).status_code == 200


async def _join(client: Any, thread: str, run: str) -> list[str]:
    stream = client.runs.join_stream(thread, run, last_event_id="-1", stream_mode="custom")
    return [part.data async for part in stream if part.event == "custom"]


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
def test_mcp_answers_with_and_without_a_slash(http: httpx2.Client, path: str):
    """Some clients append a slash; a redirect would lose the body of their POST."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"Accept": "application/json, text/event-stream"}
    response = http.post(path, json=call, headers=accept)
    assert response.status_code == 200, response.text
    assert [tool["name"] for tool in response.json()["result"]["tools"]] == ["ticks"]
    assert (http.get(path).status_code, http.delete(path).status_code) == (405, 404)

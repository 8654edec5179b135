"""Cards of agents: the default agent's card, the form for each protocol version, and caching by ETag."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from a2a.client.card_resolver import parse_agent_card

from tests.api.agents import Remote, agent_id, message
from tests.servers import PROJECTS, ServerProcess, agent_server

CARD = "/.well-known/agent-card.json"
MODERN = {"A2A-Version": "1.0"}
ONLY_OLD = {"protocolVersion", "url", "preferredTransport", "supportsAuthenticatedExtendedCard", "security"}
ONLY_MODERN = {"supportedInterfaces", "securityRequirements"}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("agent")
    with agent_server(module_database, folder, project="a2a", A2A_DEFAULT_ASSISTANT="talk") as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as client:
        yield client


def project_of_one(folder: Path) -> Path:
    """A project with one graph of the others."""
    (folder / "graphs.py").write_text((PROJECTS / "a2a" / "graphs.py").read_text())
    (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": {"echo": "./graphs.py:echo"}}))
    return folder


async def test_default_card_is_of_the_only_graph(module_databases: Callable[[], str], tmp_path: Path) -> None:
    project = project_of_one(tmp_path)
    with agent_server(module_databases(), tmp_path, project=str(project)) as running:
        async with httpx2.AsyncClient(base_url=running.url, timeout=300) as http:
            response = await http.post("/assistants", json={"graph_id": "echo", "name": "another"})
            assert response.status_code == 200
            card = (await http.get(CARD)).json()
            assert card["url"] == f"{running.url}/a2a/{agent_id('echo')}"
            other = (await http.get(CARD, params={"assistant_id": response.json()["assistant_id"]})).json()
            assert other["name"] == "another"


async def test_default_card_follows_the_setting(http: httpx2.AsyncClient) -> None:
    assert (await http.get(CARD)).json()["name"] == "talk"
    assert (await http.get(CARD, params={"assistant_id": "echo"})).json()["name"] == "echo"


def test_unknown_default_assistant_stops_the_start(module_database: str, tmp_path: Path) -> None:
    server = agent_server(module_database, tmp_path, project="a2a", A2A_DEFAULT_ASSISTANT="nobody")
    with pytest.raises(AssertionError, match="A2A_DEFAULT_ASSISTANT is nobody"), server:
        pass


@pytest.mark.parametrize("path", [f"/a2a/{agent_id('echo')}", f"/a2a/{agent_id('echo')}/", f"{CARD}?assistant_id=echo"])
async def test_card_has_the_form_of_the_requested_version(http: httpx2.AsyncClient, path: str) -> None:
    old = (await http.get(path, headers={"A2A-Version": "0.3"})).json()
    modern = (await http.get(path, headers=MODERN)).json()
    both = (await http.get(path)).json()
    assert modern == (await http.get(path + ("&" if "?" in path else "?") + "A2A-Version=1.0")).json()
    assert (old["protocolVersion"], old["preferredTransport"]) == ("0.3.0", "JSONRPC")
    assert not ONLY_MODERN & set(old)
    assert not ONLY_OLD & set(modern)

    assert [each["protocolVersion"] for each in modern["supportedInterfaces"]] == ["1.0", "0.3"]
    assert {each["url"] for each in modern["supportedInterfaces"]} == {old["url"]}
    assert set(old["capabilities"]) - set(modern["capabilities"]) == {"stateTransitionHistory"}
    shared = {"name", "description", "version", "defaultInputModes", "defaultOutputModes"}
    assert {key: old[key] for key in shared} == {key: modern[key] for key in shared}
    assert [set(skill) - {"metadata"} for skill in old["skills"]] == [set(skill) for skill in modern["skills"]]

    # A client that names no version reads the members of its own.
    assert set(both) == set(old) | set(modern)
    assert both["supportedInterfaces"] == modern["supportedInterfaces"]
    assert {key: both[key] for key in old} == old

    for card in (old, modern, both):
        assert parse_agent_card(json.loads(json.dumps(card))).supported_interfaces[0].url == old["url"]


async def test_extended_card_is_announced_only_with_authentication(
    http: httpx2.AsyncClient, module_databases: Callable[[], str], tmp_path: Path
) -> None:
    remote = Remote(http, "echo")
    both = (await http.get(remote.path)).json()
    assert "supportsAuthenticatedExtendedCard" not in both
    assert "extendedAgentCard" not in both["capabilities"]

    for method, code in (("agent/getAuthenticatedExtendedCard", -32007), ("GetExtendedAgentCard", -32004)):
        body = {"jsonrpc": "2.0", "id": 1, "method": method}
        assert (await http.post(remote.path, json=body)).json()["error"]["code"] == code

    with agent_server(module_databases(), tmp_path, project="guarded") as running:
        alice = {"authorization": "Bearer alice"}
        async with httpx2.AsyncClient(base_url=running.url, timeout=300, headers=alice) as known:
            remote = Remote(known, "echo")
            both = (await known.get(remote.path)).json()
            old = await remote.ask("agent/getAuthenticatedExtendedCard")
            modern = await remote.ask("GetExtendedAgentCard")
            assert modern == (await known.get(remote.path, headers=MODERN)).json()

    assert old["supportsAuthenticatedExtendedCard"] is True
    assert modern["capabilities"]["extendedAgentCard"] is True
    assert old["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    assert modern["securitySchemes"] == {"token": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
    assert modern["securityRequirements"] == [{"schemes": {"token": {"list": []}}}]
    assert both["securitySchemes"]["token"] == old["securitySchemes"]["token"] | modern["securitySchemes"]["token"]


async def test_card_answers_304_to_matching_etag(http: httpx2.AsyncClient) -> None:
    made = (await http.post("/assistants", json={"graph_id": "echo", "name": "first"})).json()
    path = f"/a2a/{made['assistant_id']}"
    first = await http.get(path)
    etag = first.headers["etag"]
    since = first.headers["last-modified"]
    assert first.headers["cache-control"] == "private, max-age=0, must-revalidate"
    assert "A2A-Version" in first.headers["vary"]

    fresh: list[dict[str, str]] = [
        {"If-None-Match": etag},
        {"If-None-Match": f'"other", W/{etag}'},
        {"If-None-Match": "*"},
        {"If-Modified-Since": since},
    ]

    for headers in fresh:
        response = await http.get(path, headers=headers)
        assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", etag), headers

    stale: list[dict[str, str]] = [
        {"If-None-Match": '"other"', "If-Modified-Since": since},
        {"If-None-Match": etag, "A2A-Version": "1.0"},
        {"If-Modified-Since": "Mon, 01 Jan 2024 00:00:00 GMT"},
        {"If-Modified-Since": "yesterday"},
        {"If-Modified-Since": "Mon, 01 Jan 2024 00:00:00 -0000"},
    ]

    for headers in stale:
        assert (await http.get(path, headers=headers)).status_code == 200, headers

    await http.patch(f"/assistants/{made['assistant_id']}", json={"name": "second"})
    changed = await http.get(path, headers={"If-None-Match": etag})
    assert (changed.status_code, changed.json()["name"]) == (200, "second")
    assert changed.headers["etag"] != etag


async def test_trailing_slash_is_served_without_redirect(http: httpx2.AsyncClient) -> None:
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message("hi")}}
    response = await http.post(f"/a2a/{agent_id('echo')}/", json=body)
    assert response.status_code == 200
    assert response.json()["result"]["status"]["state"] == "completed"


async def test_snake_case_members_are_read(http: httpx2.AsyncClient) -> None:
    echo = Remote(http, "echo")
    said = {
        "role": "ROLE_USER",
        "message_id": "mine",
        "parts": [{"text": "look"}, {"raw": "aGk=", "media_type": "image/png"}, {"data": {"media_type": "kept"}}],
        "metadata": {"task_id": "kept"},
    }

    task = (await echo.ask("SendMessage", message=said, configuration={"history_length": 1}))["task"]
    assert len(task["history"]) == 1
    whole = await echo.ask("GetTask", id=task["id"], history_length=2)
    asked = whole["history"][0]
    assert asked["messageId"] == "mine"
    assert asked["metadata"] == {"task_id": "kept"}
    assert asked["parts"][1] == {"raw": "aGk=", "mediaType": "image/png"}

    assert "kept" in asked["parts"][2]["text"]
    again = {**said, "message_id": "next", "context_id": task["contextId"]}
    sent = await echo.ask("SendMessage", message=again, configuration={"return_immediately": True})
    assert sent["task"]["contextId"] == task["contextId"]
    page = await echo.ask("ListTasks", context_id=task["contextId"], page_size=1)
    assert (page["pageSize"], page["totalSize"]) == (1, 2)

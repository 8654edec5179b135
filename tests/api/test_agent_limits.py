"""Limits of an agent server for each caller, and access to its debugging routes."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

WAITING = {"assistant_id": "patient", "input": {}}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
SETTINGS = {"MAX_STREAMS_PER_CALLER": "2", "MAX_PENDING_RUNS_PER_CALLER": "2", "N_JOBS_PER_WORKER": "2"}
SETTINGS["INSIDE_CALLS_AS_USER"] = "true"


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("agent")
    settings = {**SETTINGS, "DEBUG_FOLDER": str(folder / "dumps")}
    with agent_server(module_database, folder, project="guarded", **settings) as running:
        yield running


@pytest.fixture
def someone(server: ServerProcess) -> Iterator[Any]:
    with ExitStack() as opened:

        def come(name: str) -> httpx2.Client:
            headers = {"Authorization": f"Bearer {name}", "Accept": "application/json, text/event-stream"}
            return opened.enter_context(httpx2.Client(base_url=server.url, timeout=300, headers=headers))

        yield come


async def test_streams_of_one_caller(server: ServerProcess, someone: Any) -> None:
    ada = someone("ada")
    bob = someone("bob")
    with ExitStack() as held:
        streams = [ada.stream("GET", f"/threads/{uuid4()}/stream") for _ in range(2)]
        assert [held.enter_context(stream).status_code for stream in streams] == [200, 200]
        thread_id = ada.post("/threads", json={}).json()["thread_id"]

        refused = [
            ada.get(f"/threads/{thread_id}/stream"),
            ada.post("/runs/stream", json={"assistant_id": "echo", "input": {}}),
            ada.post("/runs/wait", json={"assistant_id": "echo", "input": {}}),
            ada.get(f"/threads/{thread_id}/runs/{uuid4()}/join"),
            ada.post(f"/threads/{thread_id}/stream/events", json={"channels": ["values"]}),
            ada.post("/a2a/echo", json=CALL),
            ada.post("/mcp", json=CALL),
        ]

        assert [response.status_code for response in refused] == [429] * len(refused)
        for response in refused:
            assert "MAX_STREAMS_PER_CALLER" in response.json()["detail"]
            assert int(response.headers["Retry-After"]) > 0

        with pytest.raises(InvalidStatus) as turned_away:
            url = f"{server.url.replace('http', 'ws')}/threads/{thread_id}/stream/events"
            connect(url, additional_headers={"Authorization": "Bearer ada"}).close()

        assert turned_away.value.response.status_code == 429
        # Nothing was begun, others are not touched, and she may do all else.
        assert ada.get(f"/threads/{thread_id}/runs").json() == []
        assert bob.post("/runs/wait", json={"assistant_id": "echo", "input": {}}).status_code == 200

    async def is_let_in() -> bool:
        return ada.post("/runs/wait", json={"assistant_id": "echo", "input": {}}).status_code == 200

    await eventually(is_let_in)


async def test_waiting_runs_of_one_caller(someone: Any) -> None:
    cleo = someone("cleo")
    dan = someone("dan")
    thread_id = cleo.post("/threads", json={}).json()["thread_id"]
    runs = f"/threads/{thread_id}/runs"
    first = cleo.post(runs, json=WAITING)
    assert first.status_code == 200

    async def is_running() -> bool:
        return cleo.get(f"{runs}/{first.json()['run_id']}").json()["status"] == "running"

    # Until then it waits itself: the worker may just look for others when it arrives.
    await eventually(is_running)
    second, third = (cleo.post(runs, json=WAITING) for _ in range(2))
    assert [response.status_code for response in (second, third)] == [200, 200]
    new_thread = str(uuid4())

    refused = [
        cleo.post(runs, json=WAITING),
        cleo.post(f"/threads/{new_thread}/runs", json={**WAITING, "if_not_exists": "create"}),
        cleo.post("/runs/batch", json=[WAITING, WAITING]),
    ]

    for response in refused:
        assert response.status_code == 429
        assert "MAX_PENDING_RUNS_PER_CALLER" in response.json()["detail"]
        assert int(response.headers["Retry-After"]) > 0

    assert cleo.get(f"/threads/{new_thread}").status_code == 404
    assert len(cleo.get(runs).json()) == 3
    assert dan.post("/runs/wait", json={"assistant_id": "echo", "input": {}}).status_code == 200
    called = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {}}}
    said = {"role": "user", "messageId": "m", "parts": [{"kind": "data", "data": {"text": "hi"}}]}
    sent = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": said}}
    responses = [cleo.post(path, json=body) for path, body in (("/mcp", called), ("/a2a/echo", sent))]
    assert [response.status_code for response in responses] == [429] * 2, responses[1].text

    started = {"id": 1, "method": "run.start", "params": {"assistant_id": "echo", "input": {}}}
    assert "MAX_PENDING_RUNS_PER_CALLER" in cleo.post(f"/threads/{thread_id}/commands", json=started).text
    run_ids = [response.json()["run_id"] for response in (first, second, third)]
    assert cleo.post("/runs/cancel", json={"thread_id": thread_id, "run_ids": run_ids}).status_code == 204

    async def is_let_in() -> bool:
        return cleo.post("/runs/wait", json={"assistant_id": "echo", "input": {}}).status_code == 200

    await eventually(is_let_in)


async def test_runs_of_a_batch_count_one_by_one(someone: Any) -> None:
    fay = someone("fay")
    later = {**WAITING, "after_seconds": 3600}
    assert fay.post("/runs/batch", json=[later] * 3).status_code == 429
    batch = fay.post("/runs/batch", json=[later] * 2)
    assert batch.status_code == 200, batch.text
    assert fay.post("/runs", json=later).status_code == 429
    for run in batch.json():
        assert fay.delete(f"/threads/{run['thread_id']}/runs/{run['run_id']}").status_code == 204


def test_heap_dump_and_profile_require_permission_to_deploy(someone: Any) -> None:
    ada = someone("ada")
    operator = someone("operator")
    nobody = someone("unwanted")
    asked = [("POST", "/heapdump", {}), ("GET", "/profile", {"seconds": "0.1"})]
    for method, path, query in asked:
        responses = [who.request(method, path, params=query) for who in (nobody, ada, operator)]
        assert [response.status_code for response in responses] == [401, 403, 200]
        assert "deployments:update" in responses[1].json()["detail"]


def test_a_graph_sees_what_its_user_sees(someone: Any) -> None:
    eve = someone("eve")
    finn = someone("finn")
    hers = eve.post("/threads", json={}).json()["thread_id"]
    asked = {"assistant_id": "looking", "input": {"thread_id": hers}}
    seen, unseen = (who.post("/runs/wait", json=asked).json() for who in (eve, finn))
    assert seen["found"] == [hers, hers]
    assert unseen["found"] == ["hidden", "hidden"]

    assert [(found["reported"]["identity"], found["reported"]["owner"]) for found in (seen, unseen)] == [
        ("eve", "eve"),
        ("finn", "finn"),
    ]

    assert seen["reported"]["permissions"] == ["be:eve"]

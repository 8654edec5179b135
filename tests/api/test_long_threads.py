"""A thread with a long conversation is answered as if its row held the whole values, byte for byte.

Its row does not: the long lists are in the last checkpoint, so that no run writes them again.
"""

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx2
import pytest

from tests.conftest import eventually
from tests.receiver import Receiver, serve
from tests.servers import PROJECTS, ServerProcess, agent_server

WORDS = "a long message about nothing, with \\ and \N{GREEK SMALL LETTER ALPHA} " * 20

# Does what the user's last message begins with.
MOODY = """
import asyncio

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt


async def answer(state: MessagesState) -> dict:
    return {"messages": [AIMessage("noted")]}


async def act(state: MessagesState) -> dict:
    said = state["messages"][-2].content
    if said.startswith("fail"):
        raise ValueError("as you wish")
    if said.startswith("ask"):
        return {"messages": [AIMessage(interrupt("really?"))]}
    if said.startswith("wait"):
        await asyncio.sleep(600)
    return {"messages": [AIMessage(f"echo: {said}")]}


graph = (
    StateGraph(MessagesState).add_node("answer", answer).add_node("act", act)
    .add_edge(START, "answer").add_edge("answer", "act").compile()
)
"""


# Counts how often its state is encoded.
COUNTED = """
import asyncio
from pathlib import Path

from langgraph.graph import START, StateGraph
from pydantic import BaseModel, model_serializer
from typing_extensions import TypedDict

encoded = [0]


class Counted(BaseModel):
    text: str

    @model_serializer
    def dump(self) -> dict:
        encoded[0] += 1
        return {"text": self.text}


class State(TypedDict, total=False):
    gate: str
    thing: Counted
    steps: int


async def begin(state: State) -> dict:
    return {"thing": Counted(text="x" * 100), "steps": 0}


async def hold(state: State) -> dict:
    while not Path(state["gate"]).exists():
        await asyncio.sleep(0.01)
    return {"steps": 1}


async def step(state: State) -> dict:
    return {"steps": state["steps"] + 1}


graph = (
    StateGraph(State).add_node("begin", begin).add_node("hold", hold).add_node("step", step)
    .add_edge(START, "begin").add_edge("begin", "hold").add_edge("hold", "step").compile()
)


async def tell(state: State) -> dict:
    return {"steps": encoded[0]}


counter = StateGraph(State).add_node("tell", tell).add_edge(START, "tell").compile()
"""


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that may call itself by webhooks."""
    folder = shutil.copytree(PROJECTS / "graphs", tmp_path_factory.mktemp("long") / "project")
    config = json.loads((folder / "langgraph.json").read_text())
    config["webhooks"] = {"url": {"require_https": False, "disable_loopback": False}}
    config["graphs"]["moody"] = "./moody.py:graph"

    (folder / "moody.py").write_text(MOODY)
    config["graphs"] |= {"counted": "./counted.py:graph", "counter": "./counted.py:counter"}
    (folder / "counted.py").write_text(COUNTED)
    (folder / "langgraph.json").write_text(json.dumps(config))

    with agent_server(module_database, folder, project=str(folder)) as running:
        yield running


@pytest.fixture
async def db(module_database: str):
    connection = await asyncpg.connect(module_database)
    await connection.execute("set search_path = portside")
    yield connection
    await connection.close()


def post(server: ServerProcess, path: str, body: object) -> httpx2.Response:
    answer = httpx2.post(server.url + path, json=body, timeout=300)
    assert answer.is_success, answer.text
    return answer


def talk(server: ServerProcess, *, turns: int = 12, graph: str = "echo", **fields: Any) -> tuple[str, bytes]:
    """Return a thread after some turns, and the last answer."""
    thread_id = str(uuid4())
    answer = b""

    for turn in range(turns):
        given = {"messages": [{"role": "user", "content": f"turn {turn}: {WORDS}"}]}
        body = {"assistant_id": graph, "input": given, "if_not_exists": "create", **fields}
        answer = post(server, f"/threads/{thread_id}/runs/wait", body).content

    return thread_id, answer


def follow(server: ServerProcess, path: str, joined: threading.Semaphore) -> list[str]:
    """Return the values events of a run, of which the first tells that the follower is there."""
    found: list[str] = []
    headers = {"Last-Event-ID": "-1"}
    with httpx2.stream("GET", f"{server.url}{path}/stream?stream_mode=values", headers=headers, timeout=300) as answer:
        for line in answer.iter_lines():
            if line.startswith("data:") and '"gate"' in line:
                found.append(line)
                joined.release()

    return found


async def count_encodings(server: ServerProcess, gate: Path, followers: int) -> int:
    """Return how often the state of a run was encoded that so many clients followed."""
    counter = {"assistant_id": "counter", "input": {"gate": ""}}
    before = (await asyncio.to_thread(post, server, "/runs/wait", counter)).json()["steps"]
    thread_id = str(uuid4())
    joined = threading.Semaphore(0)
    body = {"assistant_id": "counted", "input": {"gate": str(gate)}, "if_not_exists": "create"}
    run = post(
        server, f"/threads/{thread_id}/runs", {**body, "stream_mode": ["values"], "stream_resumable": True}
    ).json()

    path = f"/threads/{thread_id}/runs/{run['run_id']}"
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(asyncio.to_thread(follow, server, path, joined)) for _ in range(followers)]
        for _ in range(followers):
            assert await asyncio.to_thread(joined.acquire, timeout=300)

        await asyncio.to_thread(gate.touch)

    events = [task.result() for task in tasks]
    assert all(each == events[0] for each in events)
    assert json.loads(events[0][-1].removeprefix("data:"))["steps"] == 2

    return (await asyncio.to_thread(post, server, "/runs/wait", counter)).json()["steps"] - before


async def test_values_are_encoded_once_for_all_followers(server, tmp_path: Path):
    alone = await count_encodings(server, tmp_path / "alone", 1)
    assert alone > 0
    assert await count_encodings(server, tmp_path / "together", 3) == alone


async def normalize(db: asyncpg.Connection, answer: bytes) -> str:
    """Return values as a row that had them would give them."""
    return await db.fetchval("select $1::text::jsonb::text", answer.decode())


def raw_values(answer: bytes) -> str:
    """Return the text of the field `values` of a thread."""
    text = answer.decode()
    start = text.index('"values":') + len('"values":')
    _, end = json.JSONDecoder().raw_decode(text, start)
    return text[start:end]


async def row_bytes(db: asyncpg.Connection, thread_id: str) -> int:
    return await db.fetchval('select length("values"::text) from threads where thread_id = $1::uuid', thread_id)


async def test_the_row_lacks_the_list_and_every_answer_has_it(server, db):
    thread_id, answer = talk(server)
    whole = await normalize(db, answer)
    assert len(whole) > 20_000
    assert await row_bytes(db, thread_id) < 1000
    got = httpx2.get(f"{server.url}/threads/{thread_id}").content
    assert raw_values(got) == whole
    [found] = post(server, "/threads/search", {"ids": [thread_id]}).json()
    assert found == json.loads(got)

    [short] = post(server, "/threads/search", {"ids": [thread_id], "select": ["thread_id"]}).json()
    assert short == {"thread_id": thread_id}
    patched = httpx2.patch(f"{server.url}/threads/{thread_id}", json={"metadata": {"n": 1}}).content
    assert raw_values(patched) == whole
    copied = post(server, f"/threads/{thread_id}/copy", {}).content
    assert raw_values(copied) == whole
    copy_id = json.loads(copied)["thread_id"]

    assert httpx2.delete(f"{server.url}/threads/{thread_id}").status_code == 204
    assert raw_values(httpx2.get(f"{server.url}/threads/{copy_id}").content) == whole


async def test_searches_look_into_lists_that_are_not_in_rows(server, db):
    thread_id, _ = talk(server)
    extract = {"last": "values.messages[-1].content", "first": "values.messages[0].type", "graph": "metadata.graph_id"}
    [found] = post(server, "/threads/search", {"ids": [thread_id], "extract": extract, "select": ["thread_id"]}).json()
    assert found["extracted"]["first"] == "human"
    assert found["extracted"]["last"].startswith("echo: turn 11")
    assert found["extracted"]["graph"] == "echo"
    mark = {"metadata": {"graph_id": "echo"}}

    last = httpx2.get(f"{server.url}/threads/{thread_id}").json()["values"]["messages"][-1]
    wanted = {"values": {"messages": [{"id": last["id"]}]}}
    assert [one["thread_id"] for one in post(server, "/threads/search", wanted | mark).json()] == [thread_id]
    assert post(server, "/threads/count", wanted).json() == 1
    assert post(server, "/threads/count", {"values": {"messages": [{"id": "none"}]}}).json() == 0
    both = {"values": {"messages": [{"id": last["id"]}], "other": 1}}
    assert post(server, "/threads/search", both).json() == []


async def test_a_changed_state_and_pruning_keep_the_answers(server, db):
    thread_id, answer = talk(server)
    pruned = post(server, "/threads/prune", {"thread_ids": [thread_id], "strategy": "keep_latest"})
    assert pruned.json()
    got = httpx2.get(f"{server.url}/threads/{thread_id}").content
    assert raw_values(got) == await normalize(db, answer)
    update = {"values": {"messages": [{"role": "user", "content": "added", "id": "added"}]}}

    post(server, f"/threads/{thread_id}/state", update)
    changed = httpx2.get(f"{server.url}/threads/{thread_id}").json()["values"]
    assert changed["messages"][-1]["id"] == "added"
    assert len(changed["messages"]) == 25
    state = httpx2.get(f"{server.url}/threads/{thread_id}/state").json()["values"]
    assert state == changed


async def test_a_changed_state_leaves_the_list_out_of_the_row(server, db):
    thread_id, _ = talk(server)
    update = {"values": {"messages": [{"role": "user", "content": "added", "id": "added"}]}}
    post(server, f"/threads/{thread_id}/state", update)
    assert await row_bytes(db, thread_id) < 1000
    got = httpx2.get(f"{server.url}/threads/{thread_id}").content
    state = httpx2.get(f"{server.url}/threads/{thread_id}/state").json()["values"]
    assert len(state["messages"]) == 25

    assert raw_values(got) == await normalize(db, json.dumps(state).encode())
    talk_on(server, thread_id)
    assert len(httpx2.get(f"{server.url}/threads/{thread_id}").json()["values"]["messages"]) == 27


async def test_the_row_does_not_grow_with_the_conversation(server, db):
    thread_id, _ = talk(server, turns=10)
    sizes = set()
    for _ in range(25):
        talk_on(server, thread_id)
        sizes.add(await row_bytes(db, thread_id))

    assert len(sizes) == 1


def talk_on(server: ServerProcess, thread_id: str) -> None:
    given = {"messages": [{"role": "user", "content": WORDS}]}
    post(server, f"/threads/{thread_id}/runs/wait", {"assistant_id": "echo", "input": given})


async def test_webhooks_and_joined_runs_get_the_whole_values(server, db):
    thread_id, _ = talk(server)
    given = {"messages": [{"role": "user", "content": "last"}]}
    run = post(server, f"/threads/{thread_id}/runs", {"assistant_id": "echo", "input": given}).json()
    path = f"/threads/{thread_id}/runs/{run['run_id']}"

    async def is_over() -> bool:
        return httpx2.get(server.url + path).json()["status"] == "success"

    await eventually(is_over)
    joined = httpx2.get(f"{server.url}{path}/join").json()
    assert joined == httpx2.get(f"{server.url}/threads/{thread_id}").json()["values"]
    assert len(joined["messages"]) == 26

    receiver = Receiver()
    async with serve(receiver) as url:
        hook = {"assistant_id": "echo", "input": given, "webhook": f"{url}/ended"}
        answer = await asyncio.to_thread(post, server, f"/threads/{thread_id}/runs/wait", hook)

        async def has_arrived() -> bool:
            return bool(receiver.got)

        await eventually(has_arrived)

    assert receiver.messages()[0]["values"] == answer.json()
    assert len(answer.json()["messages"]) == 28
    assert await row_bytes(db, thread_id) < 1000


async def test_a_webhook_of_a_run_without_values_gets_those_of_the_thread(server, db):
    """A run that never began leaves the values of the run before, whose list is not in the row."""
    thread_id, _ = await asyncio.to_thread(talk, server, graph="moody")
    path = f"/threads/{thread_id}/runs"
    receiver = Receiver()
    waiting = {"assistant_id": "moody", "input": {"messages": [{"role": "user", "content": "wait"}]}}
    async with serve(receiver) as url:
        first = post(server, path, waiting).json()
        second = post(server, path, {**waiting, "webhook": f"{url}/late", "multitask_strategy": "enqueue"}).json()
        post(server, f"{path}/{second['run_id']}/cancel", {})

        async def has_arrived() -> bool:
            return bool(receiver.got)

        await eventually(has_arrived)

    assert len(receiver.messages()[0]["values"]["messages"]) == 36
    post(server, f"{path}/{first['run_id']}/cancel?wait=true", {})


@pytest.mark.parametrize("mood", ["fail", "ask", "wait"])
async def test_a_run_that_did_not_finish_leaves_the_list_out_of_the_row(server, db, mood: str):
    thread_id, _ = talk(server, graph="moody")
    given = {"messages": [{"role": "user", "content": mood}]}
    run = post(server, f"/threads/{thread_id}/runs", {"assistant_id": "moody", "input": given}).json()
    path = f"{server.url}/threads/{thread_id}"

    async def has_noted() -> bool:
        return len(httpx2.get(f"{path}/state").json()["values"]["messages"]) == 38

    await eventually(has_noted)
    if mood == "wait":
        assert httpx2.post(f"{path}/runs/{run['run_id']}/cancel?wait=true", timeout=300).is_success

    async def is_over() -> bool:
        return httpx2.get(path).json()["status"] == {"fail": "error", "ask": "interrupted", "wait": "interrupted"}[mood]

    await eventually(is_over)
    assert await row_bytes(db, thread_id) < 1000
    response = httpx2.get(path)
    state = httpx2.get(f"{path}/state").json()
    assert response.json()["values"] == state["values"]
    assert raw_values(response.content) == await normalize(db, json.dumps(state["values"]).encode())
    [found] = post(server, "/threads/search", {"ids": [thread_id]}).json()
    assert found == response.json()

    if mood == "ask":
        assert [one["value"] for task in response.json()["interrupts"].values() for one in task] == ["really?"]
        resumed = post(
            server, f"/threads/{thread_id}/runs/wait", {"assistant_id": "moody", "command": {"resume": "yes"}}
        )
        assert resumed.json()["messages"][-1]["content"] == "yes"
        assert await row_bytes(db, thread_id) < 1000


@pytest.mark.parametrize("names", ["*", ""])
async def test_encrypted_lists_are_not_in_the_row_either(agent_databases, tmp_path, names: str):
    url = await agent_databases()
    settings = {"GRAPH_AES_KEY": "k" * 32, "GRAPH_AES_JSON_KEYS": names}
    with agent_server(url, tmp_path, project="graphs", **settings) as server:
        thread_id, answer = await asyncio.to_thread(talk, server)
        whole = json.loads(answer)
        connection = await asyncpg.connect(url, server_settings={"search_path": "portside"})
        try:
            assert await row_bytes(connection, thread_id) < 1000
            found = await connection.fetchval("select string_agg(data, '') from checkpoint_pieces")
            assert found
            assert b"a long message" not in found
            path = f"{server.url}/threads/{thread_id}"
            assert httpx2.get(path).json()["values"] == whole
            extract = {"last": "values.messages[-1].content", "graph": "metadata.graph_id"}
            [found] = post(server, "/threads/search", {"ids": [thread_id], "extract": extract}).json()
            assert found["values"] == whole

            assert found["extracted"] == {"last": whole["messages"][-1]["content"], "graph": "echo"}
            wanted = {"values": {"messages": [{"id": whole["messages"][0]["id"]}]}}

            searched = httpx2.post(f"{server.url}/threads/search", json=wanted)
            if names:
                assert searched.status_code == 422
            else:
                assert [one["thread_id"] for one in searched.json()] == [thread_id]

            update = {"values": {"messages": [{"role": "user", "content": "added", "id": "added"}]}}
            post(server, f"/threads/{thread_id}/state", update)
            assert await row_bytes(connection, thread_id) < 1000
            copied = post(server, f"/threads/{thread_id}/copy", {}).json()
            assert copied["values"] == httpx2.get(f"{path}/state").json()["values"]
            assert copied["values"]["messages"][-1]["id"] == "added"
            assert await row_bytes(connection, copied["thread_id"]) < 1000

            # A piece that does not decrypt fails its own thread alone.
            await connection.execute(
                "update checkpoint_pieces set data = substr(data, 1, length(data) - 1) where thread_id = $1",
                thread_id,
            )

            response = httpx2.post(f"{server.url}/threads/search", json={})
            assert response.is_success, server.log.read_text()[-3000:]
            rows = {row["thread_id"]: row for row in response.json()}
            assert list(rows[thread_id]["values"]) == ["__unreadable__"]
            assert rows[copied["thread_id"]]["values"] == copied["values"]
        finally:
            await connection.close()

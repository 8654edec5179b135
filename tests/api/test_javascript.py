"""Graphs in JavaScript and TypeScript, executed by Node beside the server, do what Python graphs do."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest

from tests.javascript import javascript_server
from tests.node_packages import JAVASCRIPT_PROJECT, copy_of_project, javascript_runtime
from tests.servers import PROJECTS, ServerProcess, agent_server

pytestmark = pytest.mark.timeout(600)
AGENTS = JAVASCRIPT_PROJECT / "agents.ts"


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with javascript_server(module_database, tmp_path_factory.mktemp("javascript")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=600) as made:
        yield made


def send(client: httpx2.Client, method: str, path: str, **body: Any) -> Any:
    response = client.request(method, path, json=body or None)
    assert response.is_success, response.text
    return response.json()


def wait_for(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_a_thread_remembers(client: httpx2.Client):
    thread = send(client, "POST", "/threads", metadata={})["thread_id"]
    for count in (1, 2):
        values = send(
            client, "POST", f"/threads/{thread}/runs/wait", assistant_id="echo", input=message(f"number {count}")
        )
        assert values["messages"][-1]["content"] == f"echo: number {count}"

    assert [each["type"] for each in values["messages"]] == ["human", "ai", "human", "ai"]
    state = send(client, "GET", f"/threads/{thread}/state")
    assert (state["values"], state["next"]) == (values, [])
    assert send(client, "GET", f"/threads/{thread}")["values"] == values


def on_thread(client: httpx2.Client, graph: str, **body: Any) -> tuple[str, Any]:
    """Run a graph on a thread of its own; return the thread and the values."""
    thread = send(client, "POST", "/threads", metadata={})["thread_id"]
    return thread, send(client, "POST", f"/threads/{thread}/runs/wait", assistant_id=graph, **body)


def events(client: httpx2.Client, path: str, **body: Any) -> list[tuple[str, Any]]:
    with client.stream("POST", path, json=body) as response:
        text = response.read().decode().replace("\r\n", "\n")

    blocks = [dict(line.split(": ", 1) for line in block.split("\n") if ": " in line) for block in text.split("\n\n")]
    return [(block["event"], json.loads(block["data"])) for block in blocks if "event" in block]


@pytest.mark.parametrize(
    ("graph", "body", "values"),
    [
        ("fan", {"input": {"subjects": ["a", "b"]}}, {"subjects": ["a", "b"], "jokes": ["about a", "about b"]}),
        ("typed", {"input": {"name": "Ada"}, "context": {"tone": "rude"}}, {"name": "rude Ada"}),
        ("made", {"input": {"note": "n"}, "config": {"configurable": {"suffix": "s"}}}, {"note": "n-s"}),
        ("steps", {"input": {"steps": ["zero"]}}, {"steps": ["zero", "one", "two", "three"]}),
        ("functional", {"input": {"numbers": [1, 2]}}, [2, 4]),
        ("parent", {"input": {"foo": ["in"]}}, {"foo": ["in", "pre", "in", "pre", "sub1", "sub2"]}),
        (
            "caller",
            {"input": {}},
            {
                "called": {
                    "said": ["echo: from JavaScript", "Python: from JavaScript"],
                    "events": ["metadata", "updates"],
                }
            },
        ),
        (
            "memory",
            {"input": {"note": "n"}},
            {
                "note": "n",
                "found": {
                    "item": {"text": "n"},
                    "isDate": True,
                    "missing": None,
                    "keys": ["first"],
                    "namespaces": [["notes", "js"]],
                },
            },
        ),
    ],
)
def test_what_graphs_return(client: httpx2.Client, graph: str, body: dict[str, Any], values: Any):
    thread, returned = on_thread(client, graph, **body)
    assert returned == values
    assert send(client, "GET", f"/threads/{thread}/state")["values"] == values


def test_a_history_of_another_server_is_refused(client: httpx2.Client):
    state = {"checkpoint_id": "1f1e5503-cdc0-6000-8000-000000000000", "created_at": "2026-01-01T00:00:00Z"}
    body = {"metadata": {"graph_id": "echo"}, "history": [state]}
    refusal = client.post("/threads", json=body)
    assert (refusal.status_code, "JavaScript" in refusal.text) == (422, True)


def test_binary_data_is_base64_and_stays_what_it_is(client: httpx2.Client):
    thread = send(client, "POST", "/threads", metadata={})["thread_id"]
    form = ["//4=", "YWJj", [1.5, 2]]
    sent = events(
        client, f"/threads/{thread}/runs/stream", assistant_id="binary", input={}, stream_mode=["custom", "values"]
    )
    assert [data for name, data in sent if name == "custom"] == [form]
    assert sent[-1][1]["data"] == form

    values = send(client, "POST", f"/threads/{thread}/runs/wait", assistant_id="binary", input={})
    assert values == {"data": form, "classes": ["Uint8Array", "ArrayBuffer", "Float32Array"], "sent": [1.5, 2]}


def test_deleting_a_run_keeps_what_later_ones_built_on(client: httpx2.Client):
    thread = send(client, "POST", "/threads", metadata={})["thread_id"]
    for note in ("one", "two", "three"):
        send(client, "POST", f"/threads/{thread}/runs/wait", assistant_id="noting", input={"notes": [note]})

    values = {"notes": ["one", "noted", "two", "noted", "three", "noted"]}
    assert send(client, "GET", f"/threads/{thread}/state")["values"] == values
    second = send(client, "GET", f"/threads/{thread}/runs")[1]["run_id"]
    assert client.delete(f"/threads/{thread}/runs/{second}").status_code == 204
    assert send(client, "GET", f"/threads/{thread}/state")["values"] == values
    history = send(client, "GET", f"/threads/{thread}/history?limit=20")
    assert len(history) == 6

    assert second not in {state["metadata"]["run_id"] for state in history}


def test_a_resumed_graph_does_not_take_its_input_again(client: httpx2.Client):
    thread, first = on_thread(client, "ask", input={"question": "q"})
    # As a graph of another server sends it whose node this graph is.
    resumed: dict[str, Any] = {"assistant_id": "ask", "input": {"question": "again"}}
    config = {"configurable": {"__pregel_resuming": True}}
    again = send(client, "POST", f"/threads/{thread}/runs/wait", **resumed, config=config)
    assert again == first
    config["configurable"]["__pregel_resume_map"] = {first["__interrupt__"][0]["id"]: "stop"}
    assert send(client, "POST", f"/threads/{thread}/runs/wait", **resumed, config=config)["answer"] == "stop"


def test_pieces_of_messages_arrive_in_both_forms(client: httpx2.Client):
    body = {"assistant_id": "fake_chat", "input": message("go")}
    pieces = [
        data[0]
        for name, data in events(client, "/runs/stream", stream_mode=["messages-tuple"], **body)
        if name == "messages"
    ]

    assert {piece["type"] for piece in pieces} == {"AIMessageChunk"}
    assert "".join(piece["content"] for piece in pieces) == "one two three four"
    assert len(pieces) > 10

    whole = [
        data
        for name, data in events(client, "/runs/stream", stream_mode=["messages"], **body)
        if name == "messages/partial"
    ]

    assert (whole[-1][0]["type"], whole[-1][0]["content"]) == ("ai", "one two three four")


def test_all_stream_modes_name_their_subgraphs(client: httpx2.Client):
    modes = ["values", "updates", "debug", "tasks", "checkpoints", "custom", "events"]
    found = events(
        client, "/runs/stream", assistant_id="nested", input={"question": "q"}, stream_mode=modes, stream_subgraphs=True
    )
    names = {name.split(":")[0] for name, _ in found}
    assert {*modes, "values|child", "updates|child", "custom|child", "tasks|child"} - {"custom"} <= names
    assert [data for name, data in found if name.startswith("custom|")] == [{"from": "inside"}]
    steps = [data["payload"] for name, data in found if name == "debug" and data["type"] == "checkpoint"]
    assert all(step["checkpoint"]["checkpoint_id"] and "callbacks" not in step["config"] for step in steps)


def test_interrupts_are_answered_and_commands_followed(client: httpx2.Client):
    thread, values = on_thread(client, "ask", input={"question": "why"})
    (asked_for,) = values["__interrupt__"]
    assert asked_for["value"] == {"ask": "why"}
    assert send(client, "GET", f"/threads/{thread}")["status"] == "interrupted"
    runs = f"/threads/{thread}/runs/wait"
    values = send(client, "POST", runs, assistant_id="ask", command={"resume": {asked_for["id"]: "go on"}})
    assert values == {"question": "why", "answer": "go on", "path": "last"}

    values = send(client, "POST", runs, assistant_id="ask", command={"goto": "last", "update": {"path": "changed"}})
    assert values["path"] == "last"
    values = send(client, "POST", runs, assistant_id="ask", command={"update": {"answer": [1]}})
    assert values["answer"] == [1]
    sent = {"goto": {"node": "route", "input": {"answer": "stop"}}}
    assert send(client, "POST", runs, assistant_id="ask", command=sent)["path"] == "routed"
    refused = client.post(runs, json={"assistant_id": "ask", "command": {"goto": {"node": "route"}}})
    assert "input" in refused.text


def test_subgraphs_stop_and_go_on(client: httpx2.Client):
    thread, values = on_thread(client, "nested", input={"question": "q"})
    assert values["__interrupt__"][0]["value"] == "inside: q"
    state = send(client, "GET", f"/threads/{thread}/state?subgraphs=true")
    assert state["tasks"][0]["state"]["next"] == ["inside"]
    values = send(client, "POST", f"/threads/{thread}/runs/wait", assistant_id="nested", command={"resume": "yes"})
    assert (values["answer"], values["path"]) == ("yes", "before after")


def test_history_is_filtered_changed_and_run_again(client: httpx2.Client):
    thread, _ = on_thread(client, "steps", input={"steps": []}, metadata={"color": "red"})
    history = send(client, "POST", f"/threads/{thread}/history", limit=10)
    assert [state["next"] for state in history] == [[], ["three"], ["two"], ["one"], ["__start__"]]
    assert send(client, "POST", f"/threads/{thread}/history", metadata={"color": "blue"}) == []
    assert len(send(client, "POST", f"/threads/{thread}/history", metadata={"color": "red"}, limit=9)) == 5
    before_three = history[1]["checkpoint"]

    changed = send(
        client,
        "POST",
        f"/threads/{thread}/state",
        values={"steps": ["changed"]},
        checkpoint=before_three,
        as_node="two",
    )

    values = send(
        client, "POST", f"/threads/{thread}/runs/wait", assistant_id="steps", checkpoint=changed["checkpoint"]
    )
    assert values["steps"] == ["one", "two", "changed", "three"]
    copied = send(client, "POST", f"/threads/{thread}/copy")["thread_id"]
    assert send(client, "GET", f"/threads/{copied}/state")["values"] == values


def test_breakpoints_stop_before_and_after(client: httpx2.Client):
    thread, values = on_thread(client, "steps", input={"steps": []}, interrupt_before=["two"])
    assert values["steps"] == ["one"]
    assert send(client, "GET", f"/threads/{thread}")["status"] == "interrupted"
    runs = f"/threads/{thread}/runs/wait"
    assert send(client, "POST", runs, assistant_id="steps", interrupt_after="*")["steps"] == ["one", "two"]
    assert send(client, "POST", runs, assistant_id="steps")["steps"] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("throw", "RangeError", "thrown on purpose"),
        ("reject", "TypeError", "rejected on purpose"),
        ("timer", "Error", "thrown in a timer"),
    ],
)
def test_an_error_ends_one_run_and_its_stack_is_logged(
    client: httpx2.Client, server: ServerProcess, how: str, error: str, text: str
):
    thread = send(client, "POST", "/threads", metadata={})["thread_id"]
    waiting = send(client, "POST", f"/threads/{thread}/runs", assistant_id="slow", input={"count": 3, "pause_s": 0.5})
    _, values = on_thread(client, "failing", input={"how": how}, raise_error=False)
    assert values["__error__"] == {"error": error, "message": text}
    joined = client.get(f"/threads/{thread}/runs/{waiting['run_id']}/join").json()
    assert joined["ticks"] == [1, 2, 3]
    line = next(number for number, each in enumerate(AGENTS.read_text().split("\n"), 1) if text in each)

    def is_logged() -> bool:
        # Executors on other machines write logs of their own. Lines come through a pipe, perhaps after the run's end.
        logged = "".join(log.read_text() for log in server.log.parent.glob("*.log"))
        return f"agents.ts:{line}:" in logged.partition(f"{text}")[2]

    wait_for(is_logged)


def test_cancel_waits_until_subagents_have_stopped(client: httpx2.Client, tmp_path: Path):
    ledger = tmp_path / "ledger"
    thread = send(client, "POST", "/threads", metadata={})["thread_id"]
    other = send(client, "POST", "/threads", metadata={})["thread_id"]
    waiting = send(client, "POST", f"/threads/{other}/runs", assistant_id="slow", input={"count": 4, "pause_s": 0.5})
    run = send(client, "POST", f"/threads/{thread}/runs", assistant_id="delegating", input={"file": str(ledger)})

    wait_for(ledger.exists)
    path = f"/threads/{thread}/runs/{run['run_id']}"
    assert client.post(f"{path}/cancel?wait=true").is_success
    assert ledger.read_text() == "begun\nstopped\n"
    assert send(client, "GET", path)["status"] == "interrupted"
    joined = client.get(f"/threads/{other}/runs/{waiting['run_id']}/join").json()
    assert joined["ticks"] == [1, 2, 3, 4]


def test_descriptions(client: httpx2.Client):
    found = {each["graph_id"]: each for each in send(client, "POST", "/assistants/search", limit=100)}
    assert found["steps"]["description"] == "Three steps."
    drawing = send(client, "GET", f"/assistants/{found['parent']['assistant_id']}/graph?xray=true")
    assert {"pre", "child:sub1", "child:sub2"} <= {node["id"] for node in drawing["nodes"]}
    schemas = send(client, "GET", f"/assistants/{found['typed']['assistant_id']}/schemas")
    assert schemas["input_schema"]["properties"]["name"] == {"type": "string"}
    assert schemas["context_schema"]["properties"]["tone"]["enum"] == ["kind", "rude"]


@pytest.mark.thorough
def test_schemas_of_types(client: httpx2.Client):
    found = {each["graph_id"]: each for each in send(client, "POST", "/assistants/search", limit=100)}
    of_types = send(client, "GET", f"/assistants/{found['configurable']['assistant_id']}/schemas")
    assert of_types["state_schema"]["properties"] == {"said": {"type": "string"}}
    assert of_types["config_schema"]["properties"]["times"] == {"type": "number"}
    subgraphs = send(client, "GET", f"/assistants/{found['parent']['assistant_id']}/subgraphs?recurse=true")
    assert subgraphs["child"]["state_schema"]["properties"]["foo"]["type"] == "array"


@pytest.mark.thorough
def test_schemas_of_types_are_kept_until_their_sources_change(module_databases: Callable[[], str], tmp_path: Path):
    database = module_databases()
    project = copy_of_project(tmp_path / "project")
    (project / "langgraph.json").write_text('{"graphs": {"configurable": "./parity.ts:configurable"}}')
    kept = project / ".langgraph_api" / "schemas.json"
    options = {"EXECUTOR_JAVASCRIPT": str(javascript_runtime()), "EXECUTOR_START_SECS": "600"}

    def read() -> Any:
        with (
            agent_server(database, tmp_path, project=str(project), **options) as server,
            httpx2.Client(base_url=server.url, timeout=300) as client,
        ):
            (found,) = send(client, "POST", "/assistants/search", graph_id="configurable")
            return send(client, "GET", f"/assistants/{found['assistant_id']}/schemas")["state_schema"]

    assert read()["properties"] == {"said": {"type": "string"}}
    kept.write_text(kept.read_text().replace('"said"', '"kept"'))
    assert read()["properties"] == {"kept": {"type": "string"}}

    with (project / "parity.ts").open("a") as source:
        source.write("// changed\n")

    assert read()["properties"] == {"said": {"type": "string"}}
    kept.write_text(kept.read_text().replace('"said"', '"kept"'))
    (project / "tsconfig.json").write_text('{"compilerOptions": {"strict": true}}')
    assert read()["properties"] == {"said": {"type": "string"}}


def test_graphs_of_both_languages_call_each_other(client: httpx2.Client):
    assert on_thread(client, "python_caller", input={})[1] == {"said": "echo: from Python"}


@pytest.mark.parametrize(("first", "other"), [("echo", "python"), ("python", "echo")])
def test_a_thread_of_the_other_language_is_refused(client: httpx2.Client, first: str, other: str):
    thread, values = on_thread(client, first, input=message("hi"))
    path = f"/threads/{thread}/runs/wait"
    refused = client.post(path, json={"assistant_id": other, "input": message("again")})
    assert refused.status_code == 409
    assert f"begun by '{first}'" in refused.json()["detail"]

    # Without that check, as for runs of crons, the graph itself refuses the thread.
    send(client, "PATCH", f"/threads/{thread}", metadata={"graph_id": other})
    values_after = send(client, "POST", path, assistant_id=other, input=message("again"), raise_error=False)
    assert values_after["__error__"]["error"] == "OtherLanguage"
    assert client.get(f"/threads/{thread}/state").status_code == 409
    send(client, "PATCH", f"/threads/{thread}", metadata={"graph_id": first})
    assert send(client, "GET", f"/threads/{thread}/state")["values"] == values
    assert len(send(client, "POST", path, assistant_id=first, input=message("more"))["messages"]) == 4


async def test_long_lists_are_stored_once(client: httpx2.Client, module_database: str):
    thread, values = on_thread(client, "echo", input=message("begin"))
    sent = []
    for number in range(12):
        sent.append(f"{number} {'word ' * 800}")
        values = send(client, "POST", f"/threads/{thread}/runs/wait", assistant_id="echo", input=message(sent[-1]))

    assert [each["content"] for each in values["messages"]][2::2] == sent
    assert send(client, "GET", f"/threads/{thread}")["values"] == values
    assert send(client, "GET", f"/threads/{thread}/state")["values"] == values
    found = send(client, "POST", "/threads/search", ids=[thread])
    assert found[0]["values"] == values
    db = await asyncpg.connect(module_database)
    row = await db.fetchrow(
        "select values::text as text, long_values from portside.threads where thread_id = $1", UUID(thread)
    )

    await db.close()
    # The last value alone has some 100 kB, and all versions whole would have more than 1 MB.
    assert await count_stored_bytes(module_database, thread) < 500_000
    assert len(row["text"]) < 10_000
    assert list(json.loads(row["long_values"])) == ["messages"]


async def count_stored_bytes(database: str, thread: str) -> int:
    """Return the bytes of the values, the pieces and the pending writes of a thread."""
    db = await asyncpg.connect(database)
    size = "select coalesce(sum(octet_length(data)), 0) from portside.{} where thread_id = $1"
    tables = ("checkpoint_values", "checkpoint_pieces", "checkpoint_writes")
    found = sum([await db.fetchval(size.format(table), thread) for table in tables])

    await db.close()
    return found


async def test_dicts_and_whole_lists_that_nodes_return_are_stored_once(client: httpx2.Client, module_database: str):
    thread, values = on_thread(client, "ledger", input={"key": "first", "text": "begin"})
    for number in range(12):
        given = {"key": f"key {number}", "text": f"{number} {'word ' * 400}"}
        values = send(client, "POST", f"/threads/{thread}/runs/wait", assistant_id="ledger", input=given)

    assert len(values["table"]) == len(values["lines"]) == len(values["nested"]["all"]) == 13
    assert send(client, "GET", f"/threads/{thread}/state")["values"] == values

    # The values have some 75 kB; the versions of them, and of the writes of the node that returned them, 1 MB.
    assert await count_stored_bytes(module_database, thread) < 400_000
    history = send(client, "POST", f"/threads/{thread}/history", limit=1000)
    assert {len(each["values"].get("lines", ())) for each in history} == set(range(14))


async def test_row_stays_short_after_a_change_by_a_person(client: httpx2.Client, module_database: str):
    thread, _ = on_thread(client, "echo", input=message("word " * 3000))
    send(client, "POST", f"/threads/{thread}/runs/wait", assistant_id="echo", input=message("more"))
    send(client, "POST", f"/threads/{thread}/state", values=message("from a person"), as_node="answer")
    values = send(client, "GET", f"/threads/{thread}/state")["values"]
    assert values["messages"][-1]["content"] == "from a person"
    assert send(client, "GET", f"/threads/{thread}")["values"] == values
    db = await asyncpg.connect(module_database)
    row = await db.fetchrow(
        "select values::text as text, long_values from portside.threads where thread_id = $1", UUID(thread)
    )

    await db.close()
    assert list(json.loads(row["long_values"])) == ["messages"]
    assert len(row["text"]) < 1000


@pytest.mark.thorough
def test_interrupts_of_an_older_langgraph_have_ids(module_databases: Callable[[], str], tmp_path: Path):
    project = copy_of_project(tmp_path / "project", PROJECTS / "javascript_old")
    options = {"EXECUTOR_JAVASCRIPT": str(javascript_runtime()), "EXECUTOR_START_SECS": "600"}
    with (
        agent_server(module_databases(), tmp_path, project=str(project), **options) as server,
        httpx2.Client(base_url=server.url, timeout=300) as client,
    ):
        thread, values = on_thread(client, "asking", input={})
        (question,) = values["__interrupt__"]
        assert question["value"] == "Who are you?"
        (waiting,) = send(client, "GET", f"/threads/{thread}")["interrupts"].values()
        (task,) = send(client, "GET", f"/threads/{thread}/state")["tasks"]
        assert [waiting[0]["id"], task["interrupts"][0]["id"]] == [question["id"]] * 2
        answered = send(
            client, "POST", f"/threads/{thread}/runs/wait", assistant_id="asking", command={"resume": "Ann"}
        )
        assert answered == {"answer": "Ann"}

"""Threads that go on with the revision that began them, while a server of newer code serves.

A thread that is interrupted or has a run under way is continued by executors of its revision's code, also after crashes
and restarts, until the revision's time limit passes or it is removed. All other runs begin with the new code.
"""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.conftest import eventually
from tests.node_packages import copy_of_project, javascript_runtime
from tests.servers import ServerProcess, free_port
from tests.warm_executors import list_children

# A node has another name in each version, so no other version can go on with a thread.
AGENT = """
import operator, os, time
from pathlib import Path
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

VERSION = "{version}"


class State(TypedDict, total=False):
    do: str
    file: str
    path: Annotated[list[str], operator.add]
    pids: Annotated[list[int], operator.add]


def act(state):
    file = Path(state["file"]) if state.get("file") else None
    if state["do"] == "wait":
        file.touch()
        while not file.with_suffix(".go").exists():
            time.sleep(0.02)
    if state["do"] == "ask":
        answer = interrupt("may I?")
        if answer == "crash" and not file.exists():
            file.touch()
            os._exit(7)
        if answer == "again":
            interrupt("really?")
    return {{"path": [f"{{VERSION}} {{os.environ.get('OF_FILE', '')}}"], "pids": [os.getpid()]}}


graph = StateGraph(State).add_node("act_" + VERSION, act).add_edge(START, "act_" + VERSION)
graph = graph.add_edge("act_" + VERSION, END).compile()
"""

IN_JAVASCRIPT = """
import {{ Annotation, interrupt, StateGraph }} from "@langchain/langgraph";

const State = Annotation.Root({{
  do: Annotation(),
  path: Annotation({{ reducer: (left, right) => left.concat(right), default: () => [] }}),
}});

const act = (state) => {{
  if (state.do === "ask") interrupt("may I?");
  return {{ path: [`{version} ${{process.env.OF_FILE}}`] }};
}};

export const graph = new StateGraph(State).addNode("act_{version}", act).addEdge("__start__", "act_{version}");
"""


class Revisions:
    """The revisions of a deployment in a folder, with the file that its listener would write, and one server."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self._database_url = database_url
        self.file = folder / "revisions.json"
        self.kept: dict[str, dict[str, Any]] = {}
        self.server: ServerProcess | None = None
        self.log = folder / "server.log"
        self.port = free_port()

        # Each server closes the connections that it had.
        limits = httpx2.Limits(max_keepalive_connections=0)
        self.client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=300, limits=limits)

    def add(self, version: str, *, in_javascript: bool = False) -> str:
        """Write the code of a revision, and return its id. Without Node the test skips if that is needed."""
        revision = str(uuid4())
        code = self.folder / version
        if in_javascript:
            file = copy_of_project(code) / "agent.mjs"
            content = IN_JAVASCRIPT
        else:
            code.mkdir()
            file = code / "agent.py"
            content = AGENT

        file.write_text(content.format(version=version))
        graphs = {"agent": f"./{file.name}:graph"}
        env = {"OF_FILE": f"of {version}"}
        (code / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": graphs, "env": env}))

        self.kept[revision] = {
            "id": revision,
            "config": str(code / "langgraph.json"),
            "python": sys.executable,
            "known_graphs": str(self.folder / f"{revision}.graphs"),
            "javascript": str(javascript_runtime()) if in_javascript else None,
        }

        self.write()
        return revision

    def write(self, *, without: str = "", **until: float) -> None:
        kept = [{**each, "until": until.get(id_)} for id_, each in self.kept.items() if id_ != without]
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(kept))
        new.replace(self.file)

    def serve(self, revision: str) -> httpx2.AsyncClient:
        """Replace the server by one of a revision. Runs of the earlier one are handed back."""
        self.stop()
        own = self.kept[revision]
        settings = {
            "DATABASE_URI": self._database_url,
            "LANGSMITH_TRACING": "false",
            "LOG_JSON": "true",
            "EXECUTORS": "1",
            "EXECUTOR_START_SECS": "600",
            "EXECUTOR_IDLE_SECS": "1",
            "EXECUTOR_PYTHON": sys.executable,
            "EXECUTOR_KNOWN_GRAPHS": own["known_graphs"],
            **({"EXECUTOR_JAVASCRIPT": own["javascript"]} if own["javascript"] else {}),
            "LANGSMITH_HOST_REVISION_ID": revision,
            "PINNED_REVISIONS": str(self.file),
        }

        arguments = ["serve", "--config", own["config"], "--port", str(self.port)]
        self.server = ServerProcess(
            arguments, str(self.client.base_url).rstrip("/"), settings, self.log, is_preloaded=True
        )

        self.server.start()
        return self.client

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        if self.server is not None:
            self.server.stop(number)

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]


@pytest.fixture
async def revisions(agent_databases, tmp_path) -> Any:
    made = Revisions(tmp_path, await agent_databases())
    async with made.client:
        yield made

    made.stop(signal.SIGKILL)


async def create_thread(client: httpx2.AsyncClient) -> str:
    return str((await client.post("/threads", json={})).json()["thread_id"])


async def run(client: httpx2.AsyncClient, thread: str, **body: Any) -> Any:
    """Run the graph on a thread and return the values, with the interrupts if there are any."""
    response = await client.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "agent", **body})
    assert response.status_code == 200, response.text
    return response.json()


async def start_waiting_thread(client: httpx2.AsyncClient) -> str:
    """Return a thread that waits for an answer."""
    thread = await create_thread(client)
    assert (await run(client, thread, input={"do": "ask"}))["__interrupt__"]
    return thread


async def answer(client: httpx2.AsyncClient, thread: str, said: str = "yes") -> Any:
    return await run(client, thread, command={"resume": said})


async def begin(client: httpx2.AsyncClient, thread: str, **values: Any) -> str:
    body = {"assistant_id": "agent", "input": values}
    return str((await client.post(f"/threads/{thread}/runs", json=body)).json()["run_id"])


async def join_run(client: httpx2.AsyncClient, thread: str, run_id: str) -> Any:
    return (await client.get(f"/threads/{thread}/runs/{run_id}/join", timeout=300)).json()


async def state(client: httpx2.AsyncClient, thread: str) -> Any:
    response = await client.get(f"/threads/{thread}/state")
    assert response.status_code == 200, response.text
    return response.json()


async def read_threads_by_revision(client: httpx2.AsyncClient) -> Any:
    return (await client.get("/metrics?format=json")).json()["threads_by_revision"]


async def counts(client: httpx2.AsyncClient, expected: dict[str, int]) -> None:
    async def are_so() -> bool:
        return bool(await read_threads_by_revision(client) == expected)

    await eventually(are_so)


def path(version: str) -> list[str]:
    return [f"{version} of {version}"]


async def test_interrupt_is_answered_two_revisions_later_by_the_code_that_asked(revisions):
    one = revisions.add("one")
    client = revisions.serve(one)
    thread = await start_waiting_thread(client)
    other = await start_waiting_thread(client)

    await counts(client, {one: 2})
    two = revisions.add("two")
    client = revisions.serve(two)
    late = await start_waiting_thread(client)
    three = revisions.add("three")
    client = revisions.serve(three)

    await counts(client, {one: 2, two: 1})
    assert not revisions.logged("executors of an earlier revision are started"), "nothing needed the earlier code yet"
    assert (await state(client, thread))["next"] == ["act_one"]
    assert (await answer(client, thread))["path"] == path("one")
    assert (await answer(client, late))["path"] == path("two")
    found = await state(client, thread)
    assert found["next"] == []

    assert found["metadata"]["revision_id"] == one
    assert "left_revision_id" not in found["metadata"]

    # It has nothing left to finish, so its next run is one of the new code, and so are new threads.
    assert (await run(client, thread, input={"do": "act"}))["path"] == path("one") + path("three")
    assert (await run(client, await create_thread(client), input={"do": "act"}))["path"] == path("three")
    await counts(client, {one: 1})
    assert (await answer(client, other))["path"] == path("one")
    await counts(client, {})

    async def has_ended() -> bool:
        assert revisions.server is not None
        assert revisions.server.process is not None
        return not list_children(revisions.server.process.pid)

    await eventually(has_ended)


@pytest.mark.thorough
async def test_revisions_may_be_of_different_languages(revisions):
    client = revisions.serve(revisions.add("one", in_javascript=True))
    of_one = await start_waiting_thread(client)
    client = revisions.serve(revisions.add("two"))
    of_two = await start_waiting_thread(client)
    client = revisions.serve(revisions.add("three", in_javascript=True))
    assert (await state(client, of_one))["next"] == ["act_one"]
    assert (await answer(client, of_one))["path"] == path("one")

    assert (await answer(client, of_two))["path"] == path("two")
    assert (await run(client, await create_thread(client), input={"do": "act"}))["path"] == path("three")


@pytest.mark.thorough
async def test_thread_that_asks_again_stays_with_its_code(revisions):
    client = revisions.serve(revisions.add("one"))
    thread = await start_waiting_thread(client)
    client = revisions.serve(revisions.add("two"))
    assert (await answer(client, thread, "again"))["__interrupt__"]
    client = revisions.serve(revisions.add("three"))

    # The first answer is kept with the checkpoint, and this is the second one.
    assert (await answer(client, thread))["path"] == path("one")


async def test_run_under_way_goes_on_with_its_code_and_those_behind_it_with_the_new(revisions, tmp_path):
    client = revisions.serve(revisions.add("one"))
    thread = await create_thread(client)
    file = tmp_path / "waits"
    first = await begin(client, thread, do="wait", file=str(file))

    async def waits() -> bool:
        return file.exists()

    await eventually(waits)
    second = await begin(client, thread, do="act")
    stateless = tmp_path / "stateless"
    body = {"assistant_id": "agent", "input": {"do": "wait", "file": str(stateless)}}

    await client.post("/runs", json=body)
    await eventually(lambda: _exists(stateless))
    stateless.unlink()
    client = revisions.serve(revisions.add("two"))

    file.with_suffix(".go").touch()
    assert (await join_run(client, thread, first))["path"] == path("one")
    assert (await join_run(client, thread, second))["path"] == path("one") + path("two")

    # The stateless run began again, in the process of its code.
    await eventually(lambda: _exists(stateless))
    stateless.with_suffix(".go").touch()
    await counts(client, {})


async def _exists(file: Path) -> bool:
    return file in file.parent.iterdir()


@pytest.mark.parametrize("how", ["expired", "removed", "off"])
async def test_thread_whose_revision_is_gone_goes_on_with_the_new_code_and_says_so(revisions, how):
    one = revisions.add("one")
    client = revisions.serve(one)
    thread = await create_thread(client)
    body = {"input": {"do": "act"}, "interrupt_before": ["act_one"]}

    await run(client, thread, **body)
    two = revisions.add("two")
    client = revisions.serve(two)
    await counts(client, {one: 1})

    if how == "expired":
        revisions.write(**{one: time.time() - 1})
    elif how == "removed":
        revisions.write(without=one)
    else:
        revisions.file.write_text("[]")

    await counts(client, {})
    # The new code has no such node, so it begins again with the input.
    assert (await run(client, thread, input={"do": "act"}))["path"] == path("two")

    left = revisions.logged("a thread continues with the code of another revision")
    metadata = (await state(client, thread))["metadata"]
    if how == "off":
        assert not left
        assert "revision_id" not in metadata
        return

    assert metadata["revision_id"] == two
    assert metadata["left_revision_id"] == one
    assert [(entry["thread_id"], entry["left_revision_id"]) for entry in left] == [(thread, one)]
    assert ("limit" in left[0]["reason"]) == (how == "expired")


async def test_run_that_executes_when_the_limit_passes_ends_with_its_code(revisions, tmp_path):
    one = revisions.add("one")
    client = revisions.serve(one)
    thread = await start_waiting_thread(client)
    file = tmp_path / "waits"
    waiting = await create_thread(client)
    run_id = await begin(client, waiting, do="wait", file=str(file))

    await eventually(lambda: _exists(file))
    file.unlink()
    client = revisions.serve(revisions.add("two"))
    await eventually(lambda: _exists(file))
    revisions.write(**{one: time.time() - 1})
    await counts(client, {one: 1})
    file.with_suffix(".go").touch()

    assert (await join_run(client, waiting, run_id))["path"] == path("one")
    await counts(client, {})
    assert (await state(client, thread))["next"] != ["act_one"]


async def test_crash_of_an_earlier_executor_is_retried_with_its_code(revisions, tmp_path):
    client = revisions.serve(revisions.add("one"))
    thread = await create_thread(client)
    await run(client, thread, input={"do": "ask", "file": str(tmp_path / "crashed")})
    client = revisions.serve(revisions.add("two"))
    assert (await answer(client, thread, "crash"))["path"] == path("one")
    assert (tmp_path / "crashed").exists()
    assert revisions.logged("an executor was lost")

    assert (await run(client, await create_thread(client), input={"do": "act"}))["path"] == path("two")


@pytest.mark.thorough
async def test_killed_server_goes_on_with_the_code_of_the_run(revisions, tmp_path):
    client = revisions.serve(revisions.add("one"))
    thread = await create_thread(client)
    file = tmp_path / "waits"
    run_id = await begin(client, thread, do="wait", file=str(file))

    await eventually(lambda: _exists(file))
    file.unlink()
    two = revisions.add("two")
    client = revisions.serve(two)

    await eventually(lambda: _exists(file))
    file.unlink()
    revisions.stop(signal.SIGKILL)
    client = revisions.serve(two)

    await eventually(lambda: _exists(file))
    file.with_suffix(".go").touch()
    assert (await join_run(client, thread, run_id))["path"] == path("one")


async def test_rollback_goes_on_with_the_code_of_both(revisions):
    one = revisions.add("one")
    client = revisions.serve(one)
    first = await start_waiting_thread(client)
    two = revisions.add("two")
    client = revisions.serve(two)
    second = await start_waiting_thread(client)

    # A revision that reuses the build of the first one.
    again = str(uuid4())
    revisions.kept[again] = {**revisions.kept[one], "id": again}
    revisions.write()
    client = revisions.serve(again)

    await counts(client, {one: 1, two: 1})
    assert (await answer(client, second))["path"] == path("two")
    started = len(revisions.logged("executors of an earlier revision are started"))
    assert (await answer(client, first))["path"] == path("one")
    assert len(revisions.logged("executors of an earlier revision are started")) == started, "it is the same build"


async def test_code_that_cannot_be_started_is_no_reason_to_use_other_code(revisions, tmp_path):
    one = revisions.add("one")
    client = revisions.serve(one)
    thread = await start_waiting_thread(client)
    client = revisions.serve(revisions.add("two"))
    code = tmp_path / "one" / "agent.py"

    code.rename(tmp_path / "away")
    [known] = tmp_path.glob(f"{one}.graphs.python")
    known.unlink()
    response = await client.get(f"/threads/{thread}/state")
    assert response.status_code == 503
    assert one in response.text
    (tmp_path / "away").rename(code)

    assert (await answer(client, thread))["path"] == path("one")


async def test_file_that_cannot_be_read_changes_no_pins(revisions):
    """A server that runs keeps the revisions that it knows, and says so; one that starts refuses to."""
    client = revisions.serve(revisions.add("one"))
    thread = await start_waiting_thread(client)
    two = revisions.add("two")
    client = revisions.serve(two)

    await counts(client, {next(iter(revisions.kept)): 1})
    revisions.file.write_text('[{"id": 7}]')

    async def problems() -> list[str]:
        return (await client.get("/metrics?format=json")).json().get("problems", [])

    assert (await answer(client, thread))["path"] == path("one")
    [problem] = await problems()
    assert str(revisions.file) in problem

    with pytest.raises(AssertionError, match="PINNED_REVISIONS"):
        revisions.serve(two)

    revisions.write()
    client = revisions.serve(two)
    assert (await run(client, await create_thread(client), input={"do": "act"}))["path"] == path("two")
    assert await problems() == []


@pytest.mark.thorough
async def test_cron_begins_with_the_new_code(revisions):
    client = revisions.serve(revisions.add("one"))
    thread = await start_waiting_thread(client)
    idle = await create_thread(client)
    await run(client, idle, input={"do": "act"})

    client = revisions.serve(revisions.add("two"))
    body = {"assistant_id": "agent", "schedule": "* * * * *", "input": {"do": "act"}}
    response = await client.post(f"/threads/{idle}/runs/crons", json=body)
    assert response.is_success, response.text

    async def is_over() -> Any:
        values = (await state(client, idle))["values"]
        return values if len(values["path"]) == 2 else None

    assert (await eventually(is_over))["path"] == path("one") + path("two")
    assert (await state(client, thread))["next"] == ["act_one"]


@pytest.mark.thorough
async def test_change_of_an_interrupted_state_is_made_by_its_code(revisions):
    client = revisions.serve(revisions.add("one"))
    thread = await start_waiting_thread(client)
    client = revisions.serve(revisions.add("two"))
    history = (await client.post(f"/threads/{thread}/history", json={})).json()
    assert ["act_one"] in [each["next"] for each in history]
    change = {"values": {"path": ["changed"]}, "as_node": "act_one"}
    response = await client.post(f"/threads/{thread}/state", json=change)
    assert response.status_code == 200, response.text

    assert (await state(client, thread))["values"]["path"] == ["changed"]

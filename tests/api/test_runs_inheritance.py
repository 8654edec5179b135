"""What a run inherits from its assistant and thread, and what it writes to them, through the stock SDK."""

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import UnprocessableEntityError

from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server, version_in_agents

HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), N_JOBS_PER_WORKER="2") as running:
        yield running


@pytest.fixture
async def http(server: ServerProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=300) as opened:
        yield opened


async def test_metadata_of_assistant_thread_and_request_meet_in_the_run(client: LangGraphClient):
    assistant = await client.assistants.create("echo", metadata={"team": "a", "tier": "low"})
    thread = await client.threads.create(metadata={"topic": "t", "tier": "mid"})
    thread_id = thread["thread_id"]
    name = assistant["assistant_id"]
    run = await client.runs.create(thread_id, name, input=HI, metadata={"m": 1})
    labels = {"team": "a", "topic": "t", "tier": "mid", "m": 1, "graph_id": "echo", "assistant_id": name}
    assert run["metadata"] == labels

    assert run["kwargs"]["config"]["metadata"] == labels
    await client.runs.join(thread_id, run["run_id"])
    assert (await client.runs.get(thread_id, run["run_id"]))["metadata"] == labels
    stored = (await client.threads.get_state(thread_id))["metadata"]
    assert labels.items() <= stored.items()
    assert stored["langgraph_version"] == version_in_agents("langgraph")

    # The run's own labels stay with the run.
    kept = {"topic": "t", "tier": "mid", "graph_id": "echo", "assistant_id": name}
    assert (await client.threads.get(thread_id))["metadata"] == kept


async def test_a_run_of_a_graphs_own_assistant_says_so_and_another_does_not(client: LangGraphClient):
    assistant = await client.assistants.create("echo")
    own = await client.runs.create(None, "echo", input=HI)
    claimed = {"assistant_id": own["assistant_id"]}
    other = await client.runs.create(None, assistant["assistant_id"], input=HI, metadata=claimed)
    assert (own["metadata"]["created_by"], "created_by" in other["metadata"]) == ("system", False)
    assert other["metadata"]["assistant_id"] == assistant["assistant_id"], "whatever its client claims"


async def test_a_thread_tells_the_assistants_part_of_the_last_config(client: LangGraphClient):
    assistant = await client.assistants.create("contextual", context={"name": "carl"}, config={"recursion_limit": 9})
    thread_id = (await client.threads.create())["thread_id"]
    options = {"context": {"name": "dora", "shoe": 1}, "config": {"tags": ["t"]}}
    await client.runs.wait(thread_id, assistant["assistant_id"], input={"done": []}, **options)

    config = (await client.threads.get(thread_id))["config"]
    assert config == {"tags": ["t"], "recursion_limit": 9, "configurable": {"name": "carl"}}


async def test_the_kept_thread_of_a_stateless_run_has_its_metadata(client: LangGraphClient):
    run = await client.runs.create(None, "echo", input=HI, metadata={"m": 1}, on_completion="keep")
    await client.runs.join(run["thread_id"], run["run_id"])
    thread = await client.threads.get(run["thread_id"])
    assert thread["metadata"] == {"m": 1, "graph_id": "echo", "assistant_id": run["assistant_id"]}


async def test_a_failed_thread_tells_that_nothing_waits(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "boom", input={"done": [], "pause_s": 0}, raise_error=False)
    thread = await client.threads.get(thread_id)
    assert (thread["status"], thread["interrupts"]) == ("error", {})
    assert thread["error"] is not None

    # Its state is no failure any more once a person has changed it.
    await client.threads.update_state(thread_id, {"done": []})
    thread = await client.threads.get(thread_id)
    assert thread["status"] != "error"
    assert thread["error"] is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"command": {"goto": {"node": "three"}}}, "body.command.goto.input"),
        ({"checkpoint_id": "x", "checkpoint": {"checkpoint_id": "x"}}, "body.checkpoint_id"),
    ],
)
async def test_ambiguous_fields_of_a_run_are_refused_by_name(http: httpx2.AsyncClient, fields, named: str):
    response = await http.post("/runs/wait", json={"assistant_id": "steps", "input": None, **fields})
    assert response.status_code == 422
    assert named in response.text


@pytest.mark.needs("langgraph", "1.2.12")
async def test_a_late_join_has_the_schema_of_the_answer(client: LangGraphClient, http: httpx2.AsyncClient):
    thread_id = (await client.threads.create())["thread_id"]
    live = await client.runs.wait(thread_id, "choice", input={"text": "a"})
    run = (await client.runs.list(thread_id))[0]
    late = await client.runs.join(thread_id, run["run_id"])
    assert late == live
    assert late["__interrupt__"][0]["response_schema"] == {"type": "string", "enum": ["yes", "no"]}


async def test_deleting_an_assistant_cancels_its_runs(client: LangGraphClient):
    assistant = await client.assistants.create("steps")
    other = await client.assistants.create("steps")
    name = assistant["assistant_id"]
    busy = {"done": [], "pause_s": 600}
    started, waiting = [(await client.threads.create())["thread_id"] for _ in range(2)]
    running = await client.runs.create(started, name, input=busy)
    later = await client.runs.create(waiting, name, input=busy, after_seconds=600)

    kept = await client.runs.create(waiting, other["assistant_id"], input=busy, after_seconds=600)

    async def is_running() -> bool:
        return (await client.runs.get(started, running["run_id"]))["status"] == "running"

    await eventually(is_running)
    await client.assistants.delete(name)

    for thread_id, run in ((started, running), (waiting, later)):
        await client.runs.join(thread_id, run["run_id"])
        stopped = await client.runs.get(thread_id, run["run_id"])
        assert stopped["status"] == "interrupted"
        assert stopped["cancel_reason"] == f"interrupt requested via DELETE /assistants/{name}"

    assert (await client.runs.get(waiting, kept["run_id"]))["status"] == "pending"
    await client.assistants.delete(other["assistant_id"], delete_threads=True)


async def test_an_assistants_priority_is_checked_and_shown_in_its_runs(client: LangGraphClient):
    for value in ("high", 6, True):
        with pytest.raises(UnprocessableEntityError, match="run_priority"):
            await client.assistants.create("echo", metadata={"run_priority": value})

    assistant = await client.assistants.create("echo", metadata={"run_priority": -5})
    with pytest.raises(UnprocessableEntityError, match="run_priority"):
        await client.assistants.update(assistant["assistant_id"], metadata={"run_priority": -6})

    run = await client.runs.create(None, assistant["assistant_id"], input=HI)
    assert run["metadata"]["run_priority"] == -5


async def test_run_with_priority_overtakes_pending_runs(client: LangGraphClient):
    assistant = await client.assistants.create("echo", metadata={"run_priority": -5})
    busy = {"done": [], "pause_s": 600}
    holding = [await client.runs.create(None, "steps", input=busy, on_completion="keep") for _ in range(2)]
    plain = [await client.runs.create(None, "echo", input=HI, on_completion="keep") for _ in range(3)]
    urgent = await client.runs.create(None, assistant["assistant_id"], input=HI, on_completion="keep")

    for run in holding[:1]:
        await client.runs.cancel(run["thread_id"], run["run_id"], wait=True)

    ended = {}
    for run in (urgent, *plain):
        await client.runs.join(run["thread_id"], run["run_id"])
        ended[run["run_id"]] = (await client.runs.get(run["thread_id"], run["run_id"]))["updated_at"]

    assert min(ended, key=lambda run_id: ended[run_id]) == urgent["run_id"]
    await client.runs.cancel(holding[1]["thread_id"], holding[1]["run_id"], wait=True)

"""Graphs in executor processes, as the server calls them: whose errors, events and lost attempts they are."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from portside.agent.executors.pool import ExecutorPool, PoolLimits
from portside.agent.executors.remote_graphs import RemoteGraphs
from portside.agent.executors.serving import ExecutorRequests, Scopes
from portside.agent.graphs import EventSink
from portside.agent.queue.active_run import AttemptLost
from portside.executor.errors import EventTooLarge, to_call_failed, to_error
from portside.executor.requests import DescriptionRequest, HistoryRead, Outcome, RunRequest
from portside.kernel.errors import Invalid, PortsideError, Unavailable, error_classes
from portside.kernel.large_reads import ReservationNeeded, ResponseTooLarge
from tests.conftest import eventually
from tests.db.test_executor_pool import build_program

AGENT = """
import asyncio, os
from typing import TypedDict
from langgraph.config import get_stream_writer
from langgraph.graph import StateGraph

class State(TypedDict, total=False):
    do: str
    done: str
    text: str

async def act(state):
    do = state["do"]
    if do == "wait":
        await asyncio.sleep(3600)
    if do == "name the process":
        return {"done": str(os.getpid())}
    if do == "emit 2 MB and wait":
        get_stream_writer()("x" * 2_000_000)
        await asyncio.sleep(3600)
    if do == "store 2 MB and wait":
        return {"text": "x" * 2_000_000}
    if do == "emit 17 MB":
        get_stream_writer()("x" * 17_000_000)
        get_stream_writer()("y" * 17_000_000)
    return {"done": do}

async def wait(state):
    if state["do"] == "store 2 MB and wait":
        await asyncio.sleep(3600)

graph = StateGraph(State).add_sequence([act, wait]).add_edge("__start__", "act").compile()
"""


class Backend:
    """Checkpoints that cannot be read."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure

    async def put(self, *_arguments: Any, **_options: Any) -> None:
        pass

    async def read(self, *_arguments: Any) -> None:
        if self.failure is not None:
            raise self.failure

    async def list(self, _query: Any) -> list[Any]:
        if self.failure is not None:
            raise self.failure
        return []


pytestmark = pytest.mark.usefixtures("forking_executors")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    return tmp_path


@asynccontextmanager
async def start_executor(
    project: Path, backend: Backend, limits: PoolLimits | None = None
) -> AsyncIterator[tuple[RemoteGraphs, ExecutorPool]]:
    """Start an executor of the project's graph, whose checkpoints are in `backend`."""
    scopes = Scopes(backend)  # type: ignore[arg-type]
    writer: Any = SimpleNamespace()
    pool = ExecutorPool(build_program(project), limits or PoolLimits(), ExecutorRequests(scopes, writer).handlers)
    graphs = RemoteGraphs(pool, writer, scopes)

    await pool.start()
    try:
        yield graphs, pool
    finally:
        await graphs.close()


def request(do: str, **options: Any) -> RunRequest:
    run_id = str(uuid4())
    thread_id = str(uuid4())
    return RunRequest(
        graph_id="agent",
        input={"do": do},
        config={"configurable": {"thread_id": thread_id, "run_id": run_id}, "metadata": {"run_attempt": 1}},
        **options,
    )


async def test_events_of_any_size_are_delivered_without_a_wait_of_the_loop_for_itself(project):
    sizes: list[int] = []

    def publish(events: list[tuple[str, bytes]]) -> None:
        sizes.extend(len(data) for _, data in events)

    async with start_executor(project, Backend()) as (graphs, _):
        outcome = await graphs.runs.execute(
            request("emit 17 MB", stream_modes=["custom"]), EventSink(publish), timeout_s=600.0
        )

    assert outcome.error is None
    assert sizes == [17_000_002, 17_000_002]


async def test_event_above_the_limit_ends_its_own_run(project):
    async with start_executor(project, Backend()) as (graphs, _):
        sink = EventSink(lambda _events: None)
        large = request("emit 17 MB", stream_modes=["custom"], max_event_bytes=17_000_001)
        failed = await graphs.runs.execute(large, sink, timeout_s=600.0)

        assert failed.error == {
            "error": "EventTooLarge",
            "message": "an event 'custom' of this run has 17000002 bytes, more than EVENT_MAX_BYTES (17000001) allows",
        }

        assert (await graphs.runs.execute(request("nothing"), sink, timeout_s=600.0)).error is None


@pytest.mark.parametrize("large", ["emit 2 MB and wait", "store 2 MB and wait", "wait with 2 MB"])
async def test_small_runs_have_another_executor_than_large_ones(project, large):
    """A run is large by its events, its state or its input."""
    sink = EventSink(lambda _events: None)

    def start(do: str) -> asyncio.Task[Outcome]:
        run = request(do.removesuffix(" with 2 MB"), stream_modes=["values", "custom"])
        if do.endswith(" with 2 MB"):
            run.input["text"] = "x" * 2_000_000

        return asyncio.create_task(graphs.runs.execute(run, sink, timeout_s=600.0))

    async with start_executor(project, Backend(), PoolLimits(spares=1, idle_s=600.0)) as (graphs, pool):
        [crowded] = pool.executors
        tasks = [start(large)]

        async def has_another() -> bool:
            return bool(crowded.large_runs) and len(pool.executors) == 2

        await eventually(has_another)
        [other] = [executor for executor in pool.executors if executor is not crowded]

        outcome = await graphs.runs.execute(request("name the process"), sink, timeout_s=600.0)
        assert json.loads(outcome.values)["done"] == str(other.process.pid)

        tasks.append(start("wait with 2 MB"))

        async def has_both() -> bool:
            return len(crowded.large_runs) == 2

        await eventually(has_both)
        assert not other.large_runs

        for task in tasks:
            task.cancel()

        await asyncio.gather(*tasks, return_exceptions=True)
        assert not crowded.large_runs


async def test_event_above_the_limit_that_an_executor_lets_pass_ends_its_run(project):
    """The limit holds although an executor, which has the project's code in it, does not keep to it."""
    async with start_executor(project, Backend()) as (graphs, pool):
        [executor] = pool.executors
        call = executor.link.call

        async def call_without_limit(method: str, body: Any, **options: Any) -> Any:
            body.request.max_event_bytes = 0
            return await call(method, body, **options)

        executor.link.call = call_without_limit  # type: ignore[method-assign]
        large = request("emit 17 MB", stream_modes=["custom"], max_event_bytes=17_000_001)
        with pytest.raises(EventTooLarge):
            await graphs.runs.execute(large, EventSink(lambda _events: None), timeout_s=600.0)


@pytest.mark.parametrize(
    "failure",
    [ResponseTooLarge.for_limit(1000, 2), ReservationNeeded(5_000_000), OSError("the database is down")],
    ids=["too large", "reservation", "database"],
)
async def test_error_of_the_server_that_ends_a_read_is_raised_as_it_was(project, failure):
    read = HistoryRead(graph_id="agent", config={"configurable": {"thread_id": str(uuid4())}}, limit=10)
    async with start_executor(project, Backend(failure)) as (graphs, _):
        with pytest.raises(type(failure)) as raised:
            await graphs.states.read_history(read)

    assert raised.value is failure


def test_errors_of_the_kernel_keep_their_class_over_a_link():
    for kind in error_classes():
        if kind.code == "internal_error" or issubclass(kind, Invalid):
            continue

        sent = kind.__new__(kind)
        PortsideError.__init__(sent, "why", headers={"Retry-After": "7"})
        received = to_error(to_call_failed(sent))
        assert (type(received).code, str(received), received.headers) == (kind.code, "why", sent.headers)

    assert isinstance(to_error(to_call_failed(Unavailable("later"))), Unavailable)


@pytest.mark.parametrize("ended_by", ["the run", "the server"])
async def test_attempt_counts_if_its_executor_is_lost_while_it_retires_and_not_if_the_server_stops(project, ended_by):
    async with start_executor(project, Backend()) as (graphs, pool):
        [executor] = pool.executors

        def take(_events: list[tuple[str, bytes]]) -> None:
            executor.retire()

            if ended_by == "the run":
                os.kill(executor.hello.pid, signal.SIGKILL)
            else:
                stopping.append(asyncio.ensure_future(executor.close()))

        stopping: list[asyncio.Future[None]] = []
        with pytest.raises(AttemptLost) as lost:
            await graphs.runs.execute(request("wait"), EventSink(take), timeout_s=600.0)

    assert lost.value.is_counted == (ended_by == "the run")


async def test_attempts_at_runs_that_shared_a_lost_executor_are_suspects_and_do_not_count(project):
    """Only one of the runs may be the cause."""
    async with start_executor(project, Backend()) as (graphs, pool):
        [executor] = pool.executors
        sink = EventSink(lambda _events: None)
        attempts = [asyncio.create_task(graphs.runs.execute(request("wait"), sink, timeout_s=600.0)) for _ in range(2)]

        async def has_both() -> bool:
            return len(executor.runs) == 2

        await eventually(has_both)
        os.kill(executor.hello.pid, signal.SIGKILL)
        failures = await asyncio.gather(*attempts, return_exceptions=True)

    assert [type(failure) for failure in failures] == [AttemptLost, AttemptLost]
    assert [(failure.is_counted, failure.is_suspect) for failure in failures] == [(False, True), (False, True)]


NESTED = """
from typing import TypedDict
from langgraph.graph import StateGraph

class State(TypedDict, total=False):
    text: str

def enclose(name, node):
    return StateGraph(State).add_node(name, node).add_edge("__start__", name).compile()

graph = enclose("outer", enclose("inner", enclose("node", lambda state: {})))
"""


async def test_descriptions_that_are_kept_are_of_all_that_was_asked(project):
    (project / "agent.py").write_text(NESTED)
    async with start_executor(project, Backend()) as (graphs, _):

        async def list_subgraphs(namespace: str | None, *, recurse: bool) -> list[str]:
            asked = DescriptionRequest(graph_id="agent", config={}, namespace=namespace, recurse=recurse)
            return sorted(await graphs.descriptions.subgraphs(asked))

        async def draw(xray: int) -> list[str]:
            drawing = await graphs.descriptions.draw(DescriptionRequest(graph_id="agent", config={}, xray=xray))
            return sorted(node["id"] for node in drawing.nodes)

        # The second time from what is kept.
        for _ in range(2):
            assert await list_subgraphs(None, recurse=False) == ["outer"]
            assert await list_subgraphs(None, recurse=True) == ["outer", "outer|inner"]
            assert await list_subgraphs("outer|inner", recurse=True) == ["outer|inner"]
            assert await draw(xray=0) == ["__end__", "__start__", "outer"]
            assert await draw(xray=1) == ["__end__", "__start__", "outer:inner"]

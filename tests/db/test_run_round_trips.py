"""How many statements each operation on a run costs. A statement of the pool is one trip to Postgres and back.

What belongs to no operation is left out: leases that are renewed each second, and looks into the queue.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from portside.agent.app import SCHEMA
from portside.agent.assistants.records import AssistantNotFound, Assistants
from portside.agent.checkpoints import writer
from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.config import load_config
from portside.agent.local_graphs import LocalGraphs, PostgresSaver
from portside.agent.queue import active_run, statements, worker
from portside.agent.queue.active_run import RunState
from portside.agent.queue.types import ClaimedRun, RunResult
from portside.agent.runs import service
from portside.agent.runs.requests import RunIds, build_admission, to_claimed_run
from portside.agent.runs.service import Awaited, Runs
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.types.assistants import AssistantCreate, AssistantPatch
from portside.agent.types.runs import CancelAction, RunCreate, RunStatus
from portside.agent.types.threads import ThreadStatus
from portside.agent.webhooks.policy import WebhookPolicy, Webhooks
from portside.executor.load import load_graphs
from portside.kernel.db import Database, Isolation, Transaction
from portside.kernel.ids import uuid7
from portside.kernel.migrations import migrate
from portside.kernel.reconcile import Driver
from tests.conftest import eventually
from tests.db.queued import admit_run
from tests.servers import PROJECTS

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMES = {query.sql: query.name for query in sql}
NOISE = {"claim_runs", "renew_leases"}
UNDER_WAY = "select exists (select from runs where status in ('pending', 'running') and run_after <= now())"
HI = {"messages": [{"role": "user", "content": "hi"}]}
BEFORE = ["admit_runs", "read_checkpoint"]
AFTER = ["end_runs"]


class Source:
    """A pool that notes the statements that pass."""

    def __init__(self, source: Any, texts: list[str]) -> None:
        self._source = source
        self._texts = texts

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def noted(text: str, *args: Any) -> Any:
            self._texts.append(text)
            return await getattr(self._source, name)(text, *args)

        return noted


class CountingDatabase(Database):
    """A database that notes what is sent to it."""

    def __init__(self, pool: Any, texts: list[str]) -> None:
        super().__init__(pool)
        self._texts = texts
        self._source = Source(self._source, texts)

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation | None = None) -> AsyncIterator[Transaction]:
        """Count the words that begin and end a transaction as well."""
        async with super().transaction(isolation=isolation) as transaction:
            self._texts.append("begin")
            transaction._source = Source(transaction._source, self._texts)
            yield transaction
            self._texts.append("commit")


class Server:
    """The part of a server that makes and executes runs."""

    def __init__(self, db: Database, runs: Runs, assistants: Assistants, texts: list[str]) -> None:
        self.db = db
        self.runs = runs
        self.assistants = assistants
        self._texts = texts

    def create(self, thread_id: UUID | None, graph: str = "echo", **fields: Any) -> Awaitable[Any]:
        body = RunCreate(assistant_id=graph, input=fields.pop("input", HI), **fields)
        return self.runs.create(thread_id, body, "request", awaited=Awaited.EVENTS)

    async def wait(self, thread_id: UUID | None, graph: str = "echo", **fields: Any) -> bytes:
        made = await self.create(thread_id, graph, **fields)
        # As a request waits: the run, which is a task of its own already, begins first.
        return await asyncio.create_task(self.runs.result(made.run.thread_id, made.run.run_id))

    async def thread(self) -> UUID:
        thread_id = uuid7()
        await self.db.pool.execute("insert into threads (thread_id) values ($1)", thread_id)
        return thread_id

    async def begun(self, thread_id: UUID) -> ClaimedRun:
        """A run that this worker has a lease on, and that nobody executes."""
        assistant = await self.assistants.find_cached("echo")
        body = RunCreate(assistant_id="echo", input=HI)
        admission = build_admission(assistant, body, RunIds(uuid7(), thread_id, "request"), is_stateless=False)
        admitted = await admit_run(self.db, admission, self.runs.worker.worker_id, starts=True)
        return to_claimed_run(admission, admitted)

    async def idle(self) -> None:
        """Wait until what was begun has been written."""

        async def is_idle() -> bool:
            # Between two claims no slot is busy although runs wait.
            return self.runs.worker.busy_slots == 0 and not await self.db.pool.fetchval(UNDER_WAY)

        await eventually(is_idle)

    async def cost(self, work: Awaitable[Any]) -> list[str]:
        """The names of the statements of some work and of the runs it makes, in their order."""
        return [name for name in await self.statements(work) if name not in NOISE]

    async def statements(self, work: Awaitable[Any]) -> list[str]:
        """The names of all statements while some work was done."""
        self._texts.clear()
        await work
        await self.idle()
        return [NAMES.get(text, text) for text in self._texts]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(module_database: str) -> AsyncIterator[Server]:
    url = module_database
    texts = []
    config = load_config(PROJECTS / "graphs" / "langgraph.json")

    async def connect() -> Database:
        return CountingDatabase((await Database.connect(url, schema=SCHEMA)).pool, texts)

    db = await connect()
    await migrate(db, ["portside.agent"], schema=SCHEMA)
    engine = await LocalGraphs.start(
        load_graphs(config.project),
        connect,
        make_saver=partial(PostgresSaver, writer=CheckpointWriter(db, delay_s=60.0)),
    )

    known = Assistants(db, engine.facts)
    await known.create_system_assistants()
    settings = AgentSettings(database_url=url)
    webhooks = Webhooks(WebhookPolicy())
    for graph in ("echo", "steps"):
        await known.find_cached(graph)

    with pytest.MonkeyPatch.context() as patch:
        # However slow the machine is, a short run is over before its checkpoints would be written.
        patch.setattr(writer, "NEW_THREAD_DELAY_S", 60.0)
        # Nobody looks into the queue without a reason; the worker reads this when it is made.
        patch.setattr(worker, "POLL_S", 3600.0)
        # No run is lost and claimed again, however long Postgres does not answer.
        for module in (active_run, statements, worker):
            patch.setattr(module, "LEASE_S", 3600.0)

        runs = Runs(db, known, engine, settings, intake=worker.Intake(asyncio.Event()), webhooks=webhooks)
        runs.worker.start(Driver([]))
        yield Server(db, runs, known, texts)

    await runs.worker.drain(5.0)
    await engine.close()
    await db.close()


def check_on_thread(found: list[str]) -> None:
    """What a run's steps leave is written together, however many there are."""
    assert found == [*BEFORE, "write_checkpoints", *AFTER]


async def test_a_stateless_run_that_is_waited_for(server: Server):
    assert await server.cost(server.wait(None)) == ["admit_runs", "end_runs"]


async def test_a_stateless_run_of_several_steps_costs_no_more(server: Server):
    steps = server.wait(None, "steps", input={"done": [], "pause_s": 0})
    assert await server.cost(steps) == ["admit_runs", "end_runs"]


async def test_a_streamed_run(server: Server):
    async def stream() -> None:
        async for _ in server.runs.events(await server.create(None)):
            pass

    assert await server.cost(stream()) == ["admit_runs", "end_runs"]


async def test_ends_of_runs_claim_only_when_runs_wait(server: Server):
    async def runs() -> None:
        thread_id = await server.thread()
        for place in (None, thread_id) * 5:
            await server.wait(place)

    found = await server.statements(runs())
    # What was announced before may be looked for meanwhile.
    assert found.count("end_runs") == 10
    assert found.count("claim_runs") < 5


async def test_a_claim_that_leaves_slots_free_is_not_repeated(server: Server, monkeypatch: pytest.MonkeyPatch):
    """A claim reserves the free slots: a run that is admitted meanwhile waits for a second claim, but for no third."""
    is_claiming = asyncio.Event()
    gate = asyncio.Event()
    claim = statements.claim_runs

    async def claim_behind_gate(*args: Any) -> list[ClaimedRun]:
        is_claiming.set()
        await gate.wait()
        return await claim(*args)

    async def run() -> None:
        server.runs.worker.wake()
        # An earlier claim may be on its way, so that free slots do not tell.
        await asyncio.wait_for(is_claiming.wait(), 300)
        assert server.runs.worker.free_slots == 0
        created = (await server.create(await server.thread())).run
        gate.set()
        await server.runs.result(created.thread_id, created.run_id)

    monkeypatch.setattr(statements, "claim_runs", claim_behind_gate)
    assert (await server.statements(run())).count("claim_runs") == 2


async def test_end_of_a_run_claims_the_next_run_of_its_thread(server: Server):
    thread_id = await server.thread()
    first = (await server.create(thread_id, "steps", input={"done": [], "pause_s": 60})).run
    assert await asyncio.wait_for(server.wait(thread_id, multitask_strategy="interrupt"), 60)
    await server.idle()
    assert (await server.runs.get(thread_id, first.run_id)).status == "interrupted"


async def test_an_assistant_that_changed_is_read_again(server: Server):
    made = await server.assistants.create(AssistantCreate(graph_id="echo"))
    name = str(made.assistant_id)
    assert await server.cost(server.wait(None, name)) == ["get_assistant", "admit_runs", "end_runs"]
    assert await server.cost(server.wait(None, name)) == ["admit_runs", "end_runs"]

    await server.assistants.patch(made.assistant_id, AssistantPatch(context={"mood": "new"}))
    again = asyncio.create_task(server.create(await server.thread(), name))
    assert (await server.cost(again))[:3] == ["admit_runs", "get_assistant", "admit_runs"]
    assert (await again).run.kwargs["context"] == {"mood": "new"}
    assert await server.db.pool.fetchval("select count(*) from runs where assistant_id = $1", made.assistant_id) == 1

    await server.assistants.delete(made.assistant_id, delete_threads=True)
    with pytest.raises(AssistantNotFound):
        await server.wait(None, name)

    assert await server.db.pool.fetchval("select count(*) from runs where assistant_id = $1", made.assistant_id) == 0


async def test_a_run_on_a_thread(server: Server):
    thread_id = await server.thread()
    for _ in range(2):
        check_on_thread(await server.cost(server.wait(thread_id)))

    steps = server.wait(thread_id, "steps", input={"done": [], "pause_s": 0})
    check_on_thread(await server.cost(steps))


async def test_background_run_costs_the_same_statements(server: Server):
    check_on_thread(await server.cost(server.create(await server.thread())))


async def test_a_batch(server: Server):
    bodies = [RunCreate(assistant_id="echo", input=HI) for _ in range(5)]
    found = await server.cost(server.runs.create_batch(bodies, "request"))
    assert found[:2] == ["get_assistant", "admit_runs"]
    assert set(found[2:]) <= {"end_runs"}


async def test_joining_a_run_that_is_over(server: Server):
    thread_id = await server.thread()
    run = (await server.create(thread_id)).run
    await server.runs.result(thread_id, run.run_id)
    await server.idle()
    assert await server.cost(server.runs.result(thread_id, run.run_id)) == ["run_result"]


async def test_cancelling(server: Server):
    thread_id = await server.thread()
    later = (await server.create(thread_id, after_seconds=600)).run

    # Nobody began it.
    assert await server.cost(server.runs.cancel(thread_id, later.run_id, CancelAction.INTERRUPT)) == ["cancel_runs"]
    run = (await server.create(thread_id, "steps", input={"done": [], "pause_s": 60})).run

    async def has_begun() -> bool:
        return server.runs.hub.find(run.run_id) is not None

    await eventually(has_begun)
    found = await server.cost(server.runs.cancel(thread_id, run.run_id, CancelAction.INTERRUPT))
    assert found[:1] == ["cancel_runs"]
    assert found[-1:] == ["end_runs"]

    # The graph may be reading its thread only now.
    assert len(found) <= 5


async def test_concurrent_requests_are_batched(server: Server):
    """However many clients there are, no more runs are executed at a time than there are slots."""
    worker = server.runs.worker
    busy = []

    async def run() -> None:
        await server.wait(None, "steps", input={"done": [], "pause_s": 0.01})
        busy.append(sum(run.state is RunState.EXECUTING for run in worker._active.values()))

    found = await server.statements(asyncio.gather(*(run() for _ in range(40))))  # type: ignore[arg-type]
    assert len(busy) == 40
    assert 0 < max(busy) <= worker.slots
    assert found.count("admit_runs") < 10
    assert found.count("end_runs") < 40


async def test_ends_do_not_wait_for_locked_threads(server: Server):
    """Somebody holds one of two threads; the other one's run ends, and the first one's when it is let go."""
    held, free = [await server.begun(await server.thread()) for _ in range(2)]
    ending = RunResult(status=RunStatus.SUCCESS, thread_status=ThreadStatus.IDLE, values=b"{}")
    worker = server.runs.worker
    async with server.db.pool.acquire() as other, other.transaction():
        await other.execute("select from threads where thread_id = $1 for update", held.thread_id)
        waiting = asyncio.create_task(worker.end_run(held, ending))
        assert (await asyncio.wait_for(worker.end_run(free, ending), 60)).outcome == "ended"
        assert not waiting.done()

    assert (await asyncio.wait_for(waiting, 60)).outcome == "ended"


async def test_admissions_do_not_wait_for_locked_threads(server: Server):
    """Somebody holds one of two threads; a run on the other one is admitted, and on the first one when it is let go."""
    held = await server.thread()
    free = await server.thread()
    async with server.db.pool.acquire() as other, other.transaction():
        await other.execute("select from threads where thread_id = $1 for update", held)
        waiting = asyncio.create_task(server.wait(held))
        assert await asyncio.wait_for(server.wait(free), 60)
        assert not waiting.done()

    assert await asyncio.wait_for(waiting, 60)


async def test_concurrent_runs_of_a_thread_start_in_order(server: Server):
    thread_id = await server.thread()
    made = await asyncio.gather(*(server.create(thread_id) for _ in range(5)))
    for each in made:
        await server.runs.result(thread_id, each.run.run_id)

    await server.idle()
    order = "select run_id from runs where thread_id = $1 order by started_at"
    assert await server.db.pool.fetch(order, thread_id) == await server.db.pool.fetch(
        order.replace("started_at", "number"), thread_id
    )


async def test_a_run_that_ends_while_its_row_is_read_wakes_who_waits_for_it(server: Server, monkeypatch):
    """The row says that the run goes on in another process, and the notification of its end arrives before the row."""
    run = await server.begun(await server.thread())
    read = server.db.fetchrow
    reads = []
    monkeypatch.setattr(service, "ELSEWHERE_POLL_S", 3600.0)

    async def read_before_end(query: Any, **values: Any) -> Any:
        row = await read(query, **values)
        if query.name == "run_result" and not reads:
            reads.append(row["status"])
            ending = RunResult(status=RunStatus.SUCCESS, thread_status=ThreadStatus.IDLE, values=b"{}")
            assert (await server.runs.worker.end_run(run, ending)).outcome == "ended"
            stream = server.runs.hub.find(run.run_id)
            assert stream is not None
            stream.wake()

        return row

    monkeypatch.setattr(server.db, "fetchrow", read_before_end)
    assert await asyncio.wait_for(server.runs.result(run.thread_id, run.run_id), 60) == b"{}"
    assert reads == ["running"]

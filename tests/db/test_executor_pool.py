"""Executor processes: started, watched, replaced and stopped; what one does harms its own runs alone."""

import asyncio
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from portside.agent.executors import spawned_executor
from portside.agent.executors.member import ExecutorFailed
from portside.agent.executors.pool import ExecutorPool, PoolLimits
from portside.agent.executors.spawned_executor import OOM_SCORE_ADJUSTMENT, Program, SpawnedExecutor
from portside.agent.problems import PROBLEMS
from portside.executor import messages
from portside.executor.link import CallFailed, Handlers, LinkClosed
from portside.executor.messages import GraphCall, ServerHello
from portside.executor.requests import RunRequest
from portside.kernel.errors import Unavailable, UserMistake
from tests import warm_executors
from tests.conftest import eventually

pytestmark = pytest.mark.usefixtures("forking_executors")
AGENT = """
import asyncio, ctypes, os, time
from typing import TypedDict
from langgraph.config import get_stream_writer
from langgraph.graph import StateGraph
from portside.executor import loops

class State(TypedDict):
    do: str
    done: str

def hold_thread(write):
    write("held")
    time.sleep(3600)

async def act(state):
    do = state["do"]
    print("a line of the project", flush=True)
    if do == "exit":
        os._exit(7)
    if do == "segfault":
        ctypes.string_at(0)
    if do == "hold the GIL":
        ctypes.PyDLL(None).sleep(3600)
    if do == "hold the loop":
        time.sleep(3600)
    if do == "hold a thread":
        loops.STOP_WITHIN_S = 0.1
        # Said by the thread itself: one that has not begun yet is cancelled, and holds nothing.
        await asyncio.to_thread(hold_thread, get_stream_writer())
    if do == "wait":
        await asyncio.sleep(3600)
    if do.startswith("flood "):
        for _ in range(300):
            get_stream_writer()("x" * 1_000_000)
            # One more byte: a file that is written anew is empty for a moment.
            with open(do[6:], "a") as file:
                file.write(".")
            await asyncio.sleep(0)
    if do == "fill up":
        # Far more than the limit, and no more than the machine has if the server looks late.
        kept = []
        while True:
            if len(kept) < 30:
                kept.append(bytearray(os.urandom(1)) * 20_000_000)
            time.sleep(0.05)
    if do == "fill":
        # With what the process has anyway this is more than the limit, and less than is killed at once.
        act.kept = bytearray(os.urandom(1)) * 225_000_000
    return {"done": f"{do} in {os.getpid()}"}

graph = StateGraph(State).add_node("act", act).add_edge("__start__", "act").compile()
"""


@pytest.fixture(autouse=True)
def _runs_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs wait for a process that starts, however slow the machine is."""
    monkeypatch.setattr("portside.agent.executors.pool.RUN_WAITS_S", 600.0)
    monkeypatch.setattr("portside.agent.executors.pool.AVAILABLE_WITHIN_S", 600.0)


STORES_NOTHING = {messages.CHECKPOINTS_PUT: lambda _body, _call: None, messages.CHECKPOINTS: lambda _body, _call: None}


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    return tmp_path


def build_program(project: Path, **options: Any) -> Program:
    graphs = {"agent": {"path": "./agent.py:graph", "description": "Acts."}}
    hello = ServerHello(
        protocol=messages.PROTOCOL,
        file=str(project / "langgraph.json"),
        graphs=graphs,
        dependencies=["."],
        env={},
        loops=1,
    )

    return Program([sys.executable, "-m", "portside.executor"], dict(os.environ), hello, start_within_s=600, **options)


@asynccontextmanager
async def open_pool(
    program: Program, limits: PoolLimits | None = None, handlers: Handlers = STORES_NOTHING
) -> AsyncIterator[ExecutorPool]:
    pool = ExecutorPool(program, limits or PoolLimits(), lambda _executor: handlers)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


def request(do: str, *modes: str) -> GraphCall:
    run_id = str(uuid4())
    thread_id = str(uuid4())
    run = RunRequest(
        graph_id="agent",
        input={"do": do},
        config={"configurable": {"thread_id": thread_id, "run_id": run_id}, "metadata": {"run_attempt": 1}},
        stream_modes=list(modes) or ["values", "updates"],
    )

    return GraphCall(request=run, timeout_s=600.0)


async def execute(pool: ExecutorPool, do: str, *, is_alone: bool = False) -> dict[str, Any]:
    """Execute a run; return its values."""
    events: list[Any] = []
    async with pool.for_run(uuid4(), 1, is_alone=is_alone) as executor:
        outcome = await executor.link.call(messages.EXECUTE, request(do), on_item=events.extend)

    assert [name for name, _ in events] == ["values", "updates", "values"]
    values: dict[str, Any] = json.loads(outcome["values"])
    return values


async def hold(pool: ExecutorPool, do: str, *modes: str) -> tuple[SpawnedExecutor, "asyncio.Task[Any]"]:
    """Begin a run that does not end; return its executor when it executes."""
    began: asyncio.Future[SpawnedExecutor] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with pool.for_run(uuid4(), 1) as executor:
            await executor.link.call(
                messages.EXECUTE,
                request(do, *modes),
                on_item=lambda _events: began.done() or began.set_result(executor),
            )

    task = asyncio.create_task(run())
    return await asyncio.wait_for(began, 300), task


async def test_executor_says_what_its_graphs_are_and_executes_them(project):
    async with open_pool(build_program(project)) as pool:
        assert list(pool.facts) == ["agent"]
        assert pool.facts["agent"].description == "Acts."
        [executor] = pool.executors
        assert executor.hello.libraries["langgraph"]
        assert await execute(pool, "nothing") == {"do": "nothing", "done": f"nothing in {executor.process.pid}"}

        async with pool.for_call() as one:
            schemas = await one.link.call("schemas", {"request": {"graph_id": "agent", "config": {}}})
            assert set(schemas["input_schema"]["properties"]) == {"do", "done"}
            with pytest.raises(CallFailed) as failed:
                await one.link.call("schemas", {"request": {"graph_id": "other", "config": {}}})

    assert failed.value.code == "not_found"
    assert executor.process.returncode is not None


def read_oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such setting")
async def test_an_executor_goes_before_its_server_where_memory_ends(project):
    program = replace(build_program(project), command=[sys.executable, "-c", "import time; time.sleep(600)"])
    process = await spawned_executor._spawn(program, "nowhere")
    try:
        assert read_oom_score(process.pid) == OOM_SCORE_ADJUSTMENT
    finally:
        process.kill()
        await process.wait()


async def test_a_run_that_was_started_again_stays_when_its_first_attempt_lets_go(project):
    run_id = uuid4()
    async with open_pool(build_program(project)) as pool, AsyncExitStack() as second:
        async with pool.for_run(run_id, 1) as executor:
            assert await second.enter_async_context(pool.for_run(run_id, 2)) is executor

        assert executor.runs == {run_id: 2}
        await second.aclose()
        assert executor.runs == {}


async def test_project_that_does_not_load_is_reported_in_the_users_terms(project):
    (project / "agent.py").write_text("import nothing_like_this\n")
    with pytest.raises(UserMistake, match=r"does not load: ModuleNotFoundError.*agent.py, line 1"):
        async with open_pool(build_program(project)):
            pass


async def test_project_that_ends_the_process_is_reported(project):
    (project / "agent.py").write_text("import os\nos._exit(9)\n")
    with pytest.raises(UserMistake, match="exited with code 9 while it imported the project"):
        async with open_pool(build_program(project)):
            pass


@pytest.mark.parametrize("program", ["/nothing/here/python", "."])
async def test_program_that_cannot_be_started_is_a_mistake_of_the_user(project, program):
    given = replace(build_program(project), command=[program])
    with pytest.raises(UserMistake, match=f"an executor process cannot be started: .*'{re.escape(program)}'"):
        async with open_pool(given):
            pass


async def test_concurrent_starts_change_no_permissions_of_new_files(project):
    """The file mode mask is the process's: one start must not see, nor restore, what another one has set."""
    given = replace(build_program(project), command=[sys.executable, "-c", "raise SystemExit(3)"])
    before = os.umask(0o022)
    try:
        starts = [SpawnedExecutor.start(given, STORES_NOTHING) for _ in range(3)]
        results = await asyncio.gather(*starts, return_exceptions=True)
        mask = os.umask(0o022)
    finally:
        os.umask(before)

    assert [type(result) for result in results] == [ExecutorFailed] * 3
    assert mask == 0o022


@pytest.mark.parametrize(
    ("do", "reason"),
    [("exit", "exited with code 7"), ("segfault", "was killed by SIGSEGV"), ("hold the GIL", "did not answer")],
)
async def test_crash_ends_the_runs_of_its_process_alone(project, do, reason):
    async with open_pool(build_program(project, heartbeat_s=600.0), PoolLimits(executors=2)) as pool:

        async def are_ready() -> bool:
            return len(pool.executors) == 2

        await eventually(are_ready)
        held, innocent = await hold(pool, "wait")
        async with pool.for_run(uuid4(), 1) as crashing:
            assert crashing is not held
            if do == "hold the GIL":
                # Its silence alone counts soon: the other process may have to wait for the processor.
                crashing._heartbeat_s = 3.0

            with pytest.raises(LinkClosed):
                await crashing.link.call(messages.EXECUTE, request(do), on_item=lambda _events: None)

            assert reason in await crashing.wait_ended()

        assert not innocent.done()
        assert held.process.returncode is None
        assert crashing not in pool.executors
        await eventually(are_ready)
        innocent.cancel()

        with pytest.raises(asyncio.CancelledError):
            await innocent

        assert (await execute(pool, "nothing"))["done"]


async def test_killed_executor_is_replaced(project):
    async with open_pool(build_program(project)) as pool:
        [first] = pool.executors
        first.process.send_signal(signal.SIGKILL)
        assert await first.wait_ended() == "was killed by SIGKILL; the machine may be out of memory"
        assert str(first.process.pid) not in (await execute(pool, "nothing"))["done"]


async def test_blocked_graph_loop_does_not_kill_the_process(project):
    async with open_pool(build_program(project, heartbeat_s=60.0)) as pool:
        executor, task = await hold(pool, "hold the loop")
        for _ in range(5):
            await executor.link.ping()
            assert not (await asyncio.wait([task], timeout=1.0))[0]

        assert executor.process.returncode is None
        executor.kill("the test is over")
        with pytest.raises(LinkClosed):
            await task


async def test_blocked_graph_loop_keeps_no_checkpoints_back(project):
    """Also if the server has not answered those before: a node that blocks the loop would keep it from the answers."""
    stored: list[Any] = []
    answers = asyncio.Event()

    async def store(body: Any, _call: Any) -> None:
        stored.extend(body["checkpoints"])
        await answers.wait()

    async def are_stored() -> bool:
        return len(stored) == 2

    async with open_pool(build_program(project), handlers={**STORES_NOTHING, messages.CHECKPOINTS_PUT: store}) as pool:
        executor, task = await hold(pool, "hold the loop")
        await eventually(are_stored)
        executor.kill("the test is over")
        answers.set()

        with pytest.raises(LinkClosed):
            await task


async def test_run_ends_when_its_checkpoints_are_stored(project):
    """What storing one failed with is the run's failure, although its steps went on."""

    def refuse(_body: Any, _call: Any) -> None:
        raise CallFailed("raised", "no space left", {"type": "RuntimeError"})

    async with open_pool(build_program(project), handlers={**STORES_NOTHING, messages.CHECKPOINTS_PUT: refuse}) as pool:
        async with pool.for_run(uuid4(), 1) as executor:
            try:
                outcome = await executor.link.call(messages.EXECUTE, request("nothing"), on_item=lambda _events: None)
                reason = outcome["error"]["message"]
            except CallFailed as failed:
                reason = failed.message

        assert "no space left" in reason


async def test_events_that_nobody_follows_come_together_or_after_a_moment(project):
    async with open_pool(build_program(project)) as pool, pool.for_run(uuid4(), 1) as executor:
        batches: list[Any] = []
        came = asyncio.Event()

        def take(events: list[Any]) -> None:
            batches.append([name for name, _ in events])
            came.set()

        call = request("wait")
        call.is_unfollowed = True
        waiting = asyncio.create_task(executor.link.call(messages.EXECUTE, call, on_item=take))

        async with asyncio.timeout(300):
            await came.wait()

        assert batches == [["values"]]
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

        # On a loop that is never 100 ms late there is one batch; the order is the same in any case.
        batches.clear()
        call = request("nothing")
        call.is_unfollowed = True
        await executor.link.call(messages.EXECUTE, call, on_item=take)
        assert [name for batch in batches for name in batch] == ["values", "updates", "values"]


async def test_cancelled_run_has_stopped(project):
    async with open_pool(build_program(project)) as pool:
        executor, task = await hold(pool, "wait")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert not executor.runs
        assert str(executor.process.pid) in (await execute(pool, "nothing"))["done"]


async def test_run_is_stopped_when_its_lease_is_not_renewed(project):
    """The server renews the lease of the other run, and says nothing more of this one."""
    async with open_pool(build_program(project)) as pool:
        [executor] = pool.executors
        calls = [request("wait") for _ in range(2)]
        begun = asyncio.Event()

        for number, (call, after_s) in enumerate(zip(calls, (2, 600), strict=True), 1):
            call.call = number
            call.leased_until = executor.clock_s(time.monotonic()) + after_s

        runs = [
            asyncio.create_task(executor.link.call(messages.EXECUTE, call, on_item=lambda _events: begun.set()))
            for call in reversed(calls)
        ]

        await asyncio.wait_for(begun.wait(), 300)
        renewed = messages.Leases(leases=[(2, executor.clock_s(time.monotonic()) + 3600), (99, 1.0)])
        await executor.link.call(messages.LEASES, renewed)

        with pytest.raises(CallFailed) as failed:
            await runs[1]

        assert failed.value.code == messages.LEASE_LOST
        assert (await execute(pool, "nothing"))["done"] == f"nothing in {executor.process.pid}"
        assert not runs[0].done()
        runs[0].cancel()

        with pytest.raises(asyncio.CancelledError):
            await runs[0]


async def test_executor_is_replaced_after_its_runs(project, monkeypatch):
    # One that takes longer is killed.
    monkeypatch.setattr(spawned_executor, "EXIT_WITHIN_S", 300.0)
    async with open_pool(build_program(project), PoolLimits(max_runs=3)) as pool:
        [first] = pool.executors
        used = {(await execute(pool, "nothing"))["done"] for _ in range(3)}
        assert used == {f"nothing in {first.process.pid}"}

        async def is_replaced() -> bool:
            return first not in pool.executors and len(pool.executors) == 1

        await eventually(is_replaced)
        assert await first.wait_ended() == "exited with code 0"


async def test_executor_with_much_memory_is_replaced_after_its_run(project):
    async with open_pool(build_program(project), PoolLimits(max_memory_bytes=250_000_000)) as pool:
        [first] = pool.executors
        await execute(pool, "fill")

        async def is_replaced() -> bool:
            return first not in pool.executors and len(pool.executors) == 1

        await eventually(is_replaced)
        assert first.memory_bytes > 250_000_000


async def test_executor_above_its_memory_keeps_its_run(project, monkeypatch):
    """It is replaced. Only one that is far above would be killed, and its run would lose its attempt."""
    used: dict[int, int] = {}
    monkeypatch.setattr(spawned_executor, "measure_memory", lambda pid: used.get(pid, 1))
    async with open_pool(build_program(project), PoolLimits(max_memory_bytes=10**12)) as pool:
        executor, run = await hold(pool, "wait")
        used[executor.process.pid] = 12 * 10**11

        async def is_replaced_or_killed() -> bool:
            return executor.is_retiring or run.done()

        await eventually(is_replaced_or_killed)
        assert not run.done()
        run.cancel()

        with pytest.raises(asyncio.CancelledError):
            await run


async def test_executor_far_above_its_memory_is_killed(project):
    """Also while it holds the interpreter's lock and answers nothing: the server reads what it holds."""
    async with open_pool(build_program(project), PoolLimits(max_memory_bytes=250_000_000)) as pool:
        async with pool.for_run(uuid4(), 1) as executor:
            with pytest.raises(LinkClosed):
                await executor.link.call(messages.EXECUTE, request("fill up"), on_item=lambda _events: None)
            reason = await executor.wait_ended()

        assert re.fullmatch(r"used \d+ MB of memory, far more than EXECUTOR_MAX_MEMORY_MB \(250 MB\)", reason)
        assert (await execute(pool, "nothing"))["do"] == "nothing"


async def test_short_run_after_a_wake_starts_no_spare(project, monkeypatch):
    """One that is still under way, or another one later, does."""
    monkeypatch.setattr("portside.agent.executors.pool.SPARES_BEGIN_AFTER_S", 2000.0)
    async with open_pool(build_program(project), PoolLimits(spares=1, idle_s=600.0)) as pool:
        [first] = pool.executors
        assert (await execute(pool, "nothing"))["do"] == "nothing"
        # A spare that starts is not ready before it is counted, however long the run below takes to begin.
        monkeypatch.setattr(pool, "_start_one", asyncio.Event().wait)

        # As if most of an hour had passed since then.
        first.joined_at = first.joined_at - 3000.0
        pool._run_at = pool._run_at - 3000.0
        pool._start_missing()
        assert not pool._starting
        _, task = await hold(pool, "wait")

        pool._start_missing()
        assert len(pool._starting) == 1
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
def early_spares(monkeypatch) -> None:
    """Let a spare begin with the first run."""
    monkeypatch.setattr("portside.agent.executors.pool.SPARES_BEGIN_AFTER_S", -3600.0)


@pytest.mark.usefixtures("early_spares")
async def test_spare_is_ready_when_an_executor_ends(project):
    """There is one once there are runs, it executes none before, and it ends some time after the last."""
    async with open_pool(build_program(project), PoolLimits(spares=1, idle_s=600.0)) as pool:
        [first] = pool.executors
        assert (await execute(pool, "nothing"))["done"] == f"nothing in {first.process.pid}"

        async def has_spare() -> bool:
            return len(pool.executors) == 2

        await eventually(has_spare)
        [spare] = [each for each in pool.executors if each is not first]
        assert (await execute(pool, "nothing"))["done"] == f"nothing in {first.process.pid}"
        held, task = await hold(pool, "wait")
        assert held is first

        # A run that has an executor alone takes it, so nobody waits.
        assert (await execute(pool, "nothing", is_alone=True))["done"] == f"nothing in {spare.process.pid}"
        # No other process can be ready by then.
        pool.stop_starting()
        first.kill("the test is over")

        with pytest.raises(LinkClosed):
            await task

        assert (await execute(pool, "nothing"))["done"] == f"nothing in {spare.process.pid}"


@pytest.mark.usefixtures("early_spares")
async def test_spare_is_not_started_with_the_executor_that_a_run_waits_for(project):
    """Both would import the project at once, so that the run waits longer."""
    async with open_pool(build_program(project), PoolLimits(spares=1, idle_s=600.0)) as pool:
        assert (await execute(pool, "nothing"))["do"] == "nothing"
        await eventually(partial(has, pool, 2))
        began: list[int] = []
        pool.subscribe(on_join=lambda _executor: began.append(len(pool._starting)))

        for executor in pool.executors:
            executor.retire()

        assert (await execute(pool, "nothing"))["do"] == "nothing"
        await eventually(partial(has, pool, 2))

    # Only that which has joined.
    assert began == [1, 1]


async def has(pool: ExecutorPool, count: int) -> bool:
    return len(pool.executors) == count


async def test_run_waits_in_the_queue_while_executors_do_not_start(project, monkeypatch):
    """Here it waits only a moment; a call that a client waits for takes longer to give up."""
    monkeypatch.setattr("portside.agent.executors.pool.RUN_WAITS_S", 0.5)
    async with open_pool(build_program(project)) as pool:
        agent = (project / "agent.py").read_text()
        (project / "agent.py").write_text("import nothing_like_this\n")

        for executor in pool.executors:
            executor.kill("the test needs none")

        await eventually(partial(has, pool, 0))
        with pytest.raises(Unavailable, match="no executor is ready"):
            await execute(pool, "nothing")

        (project / "agent.py").write_text(agent)

        async def call() -> str:
            async with pool.for_call() as executor:
                return executor.name

        assert await call()


@pytest.mark.usefixtures("early_spares")
async def test_spare_ends_when_there_were_no_runs_for_long(project, monkeypatch):
    monkeypatch.setattr("portside.agent.executors.pool.SPARES_KEPT_S", 0.5)
    async with open_pool(build_program(project), PoolLimits(spares=1)) as pool:
        first, task = await hold(pool, "wait")

        async def has_spare() -> bool:
            return len(pool.executors) == 2

        async def has_none() -> bool:
            return pool.executors == [first]

        await eventually(has_spare)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await eventually(has_none)


async def test_executors_that_do_not_start_are_a_problem_until_one_does(project):
    """The next one is started after at most half a minute, and what is wrong is in the status of the deployment."""
    agent = (project / "agent.py").read_text()

    def problems() -> list[str]:
        return [each for each in PROBLEMS.current() if each.startswith("An executor of graphs does not start")]

    async with open_pool(build_program(project)) as pool:
        assert (await execute(pool, "nothing"))["do"] == "nothing"

        for code, reason in [
            ("import ctypes\nctypes.string_at(0)\n", "was killed by SIGSEGV while it imported the project"),
            ("import nothing_like_this\n", "ModuleNotFoundError"),
        ]:
            (project / "agent.py").write_text(code)

            for executor in pool.executors:
                executor.kill("the test needs none")

            async def is_told(reason: str = reason) -> bool:
                return any(reason in each for each in problems())

            await eventually(is_told)

        assert pool._not_before - time.monotonic() <= 30
        (project / "agent.py").write_text(agent)
        assert (await execute(pool, "nothing"))["do"] == "nothing"
        assert problems() == []


async def test_executor_with_work_that_did_not_stop_is_replaced(project):
    async with open_pool(build_program(project)) as pool:
        first, task = await hold(pool, "hold a thread", "custom")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def is_replaced() -> bool:
            return first not in pool.executors and len(pool.executors) == 1

        await eventually(is_replaced)


async def test_idle_executors_stop_and_start_with_the_next_call(project):
    async with open_pool(build_program(project), PoolLimits(idle_s=0.5)) as pool:

        async def are_stopped() -> bool:
            return not pool.executors

        await eventually(are_stopped)
        assert list(pool.facts) == ["agent"]
        assert (await execute(pool, "nothing"))["do"] == "nothing"


async def test_first_process_stops_soon_if_it_has_no_work(project, monkeypatch):
    monkeypatch.setattr("portside.agent.executors.pool.UNUSED_KEPT_S", 0.5)
    async with open_pool(build_program(project), PoolLimits(idle_s=600.0)) as pool:

        async def are_stopped() -> bool:
            return not pool.executors

        await eventually(are_stopped)
        assert (await execute(pool, "nothing"))["do"] == "nothing"


async def test_number_of_executors_follows_the_runs(project):
    limits = PoolLimits(executors=1, most=3, runs_each=2, idle_s=1.0)
    async with open_pool(build_program(project), limits) as pool:

        async def are(count: int) -> bool:
            return len(pool.executors) == count

        kept, first = await hold(pool, "wait")
        others = [(await hold(pool, "wait"))[1] for _ in range(2)]

        # Three runs are too many for one, and few enough for two.
        await eventually(partial(are, 2))
        others += [(await hold(pool, "wait"))[1] for _ in range(6)]
        await eventually(partial(are, 3))

        for task in others:
            task.cancel()

        await asyncio.gather(*others, return_exceptions=True)
        await eventually(partial(are, 1))

        # Fewer are enough for the run that goes on, where it is.
        assert pool.executors == [kept]
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_suspects_have_a_process_for_themselves(project):
    async with open_pool(build_program(project)) as pool:
        executor, task = await hold(pool, "wait")
        alone = asyncio.create_task(execute(pool, "nothing", is_alone=True))

        async def is_reserved() -> bool:
            return executor.is_reserved

        await eventually(is_reserved)
        shared = asyncio.create_task(execute(pool, "something"))
        assert not (await asyncio.wait([alone, shared], timeout=0.5))[0]
        task.cancel()
        assert (await alone)["do"] == "nothing"
        assert (await shared)["do"] == "something"


async def test_suspects_leave_a_process_to_other_runs(project):
    """Where there are spares: suspects that take long wait for each other, and nobody else waits for them."""
    async with open_pool(build_program(project), PoolLimits(spares=1, idle_s=600.0)) as pool:
        suspects = [asyncio.create_task(execute(pool, "wait", is_alone=True)) for _ in range(2)]

        async def one_is_executed() -> bool:
            return len(pool.executors) == 2 and sum(len(each.runs) for each in pool.executors) == 1

        await eventually(one_is_executed)

        for number in range(3):
            assert (await execute(pool, f"{number}"))["do"] == f"{number}"

        assert [len(each.runs) for each in pool.executors if each.is_reserved] == [1]

        for suspect in suspects:
            suspect.cancel()

        await asyncio.gather(*suspects, return_exceptions=True)


async def test_suspect_takes_the_first_process_that_is_free(project):
    """It does not wait for the end of the run that has the only process left."""
    async with open_pool(build_program(project), PoolLimits(executors=2)) as pool:

        async def are_ready() -> bool:
            return len(pool.executors) == 2

        await eventually(are_ready)
        held, running = await hold(pool, "wait")
        [other] = [each for each in pool.executors if each is not held]
        other.kill("the test needs one process")
        await other.wait_ended()

        values = await asyncio.wait_for(execute(pool, "nothing", is_alone=True), 300)
        assert str(held.process.pid) not in values["done"]
        assert not held.is_reserved
        running.cancel()

        with pytest.raises(asyncio.CancelledError):
            await running


async def test_executor_waits_while_its_server_does_not_read(project):
    """A graph emits 300 MB: as long as nobody reads them, it stops after the first few."""
    counted = project / "flood"

    def count() -> int:
        return counted.stat().st_size if counted.exists() else 0

    async with open_pool(build_program(project)) as pool, pool.for_run(uuid4(), 1) as executor:
        events: list[str] = []
        began = asyncio.Event()

        def take(batch: list[Any]) -> None:
            events.extend(name for name, _ in batch)
            began.set()

        call = request(f"flood {counted}", "custom")
        running = asyncio.create_task(executor.link.call(messages.EXECUTE, call, on_item=take))
        async with asyncio.timeout(300):
            await began.wait()

        executor.link.pause_reading()
        same = 0
        last = -1
        while same < 20:
            await asyncio.sleep(0.1)
            same, last = (same + 1, last) if count() == last else (0, count())

        assert 0 < last < 150
        executor.link.resume_reading()
        await running
        assert events == ["custom"] * 300


def serve_until_killed(project: Path, named: Path) -> None:
    """Be a server with a run, and write the number of its executor into a file."""
    warm_executors.fork_executors()

    async def serve() -> None:
        async with open_pool(build_program(project)) as pool:
            executor, task = await hold(pool, "wait")
            named.write_text(f"{executor.process.pid}\n")  # noqa: ASYNC240 - a few bytes
            await task

    asyncio.run(serve())


async def test_executors_end_with_their_server(project):
    """A server that is killed leaves no executor behind, not even one that holds the GIL."""
    # Not by a pipe, which the executor's lines would share.
    named = project / "executor.pid"
    server = multiprocessing.get_context("forkserver").Process(target=serve_until_killed, args=(project, named))
    await asyncio.to_thread(server.start)

    async def read_pid() -> int:
        text = named.read_text() if named.exists() else ""
        return int(text) if text.endswith("\n") else 0

    pid = await eventually(read_pid)
    server.kill()
    await asyncio.to_thread(server.join)

    async def is_gone() -> bool:
        return not os.path.exists(f"/proc/{pid}")  # noqa: PTH110, ASYNC240 - no disk

    await eventually(is_gone)


async def test_lines_of_executors_reach_the_log(project, capfd):
    (project / "agent.py").write_text(
        "import logging, sys\nlogging.getLogger('mine').warning('a warning', extra={'fields': {'self': 1, 'n': 1}})\n"
        'sys.stderr.write(\'\\x1e\' + \'{"level": [], "event": "no level"}\\n\')\n'
        "sys.stderr.write('bare\\n')\n" + AGENT
    )

    async with open_pool(build_program(project)) as pool:
        await execute(pool, "nothing")
        err = ""
        both = ""

        async def are_written() -> bool:
            # Lines come through a pipe, so the run may end before them.
            nonlocal err, both
            written = capfd.readouterr()
            err = err + written.err
            both = both + written.err + written.out
            return "a warning" in both and "bare\n" in err

        await eventually(are_written)

"""An executor process: it imports the project, describes its graphs, and serves the agent server's calls.

The link has the process's first event loop, and graphs run on loops in threads of their own (`loops`). So a node that
blocks its loop delays neither heartbeats nor the events and checkpoints of the steps before it. The process ends with
its link: nothing of it outlives its server.
"""

import asyncio
import contextlib
import json
import logging
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from portside.executor import messages
from portside.executor.checkpoints.saver import Checkpointer
from portside.executor.checkpoints.serde import SerdeRules, make_serde
from portside.executor.errors import RunTimeout, find_server_failure, to_call_failed
from portside.executor.event_batches import EventBatches
from portside.executor.execute import execute
from portside.executor.graph_operations import GraphOperations
from portside.executor.leases import RunLease
from portside.executor.link import CallFailed, Handler, Link, ServedCall
from portside.executor.load import Graphs, load_graphs
from portside.executor.loops import GraphLoop, work_left_behind
from portside.executor.memory import measure_memory
from portside.executor.messages import LOG_LINE, ExecutorHello, Leases, Pong, Retirement, ServerHello
from portside.executor.project import GraphSource, Project
from portside.executor.remote_store import RemoteStore
from portside.executor.requests import (
    DescriptionRequest,
    HistoryRead,
    RunRequest,
    StateChange,
    StateCreation,
    StateRead,
)
from portside.executor.sdk import drain_response, let_sdk_find
from portside.executor.server_calls import (
    RemoteBackend,
    RunRows,
    ServerCalls,
    current_call,
    run_rows,
)
from portside.executor.tracing import watch_tracing
from portside.executor.versions import list_installed_libraries
from portside.kernel.errors import PortsideError, UserMistake
from portside.kernel.startup import tune_garbage_collection

log = logging.getLogger(__name__)
# How long the answers to stopped runs may take to be sent before the link is cut.
END_WITHIN_S = 1.0


class JsonLines(logging.Formatter):
    """Writes log records as lines of JSON, which the server's process adds to its own log."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line: dict[str, Any] = {"level": record.levelname.lower(), "logger": record.name, "event": record.getMessage()}
        if isinstance(fields := getattr(record, "fields", None), dict):
            line["fields"] = fields

        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))

        return LOG_LINE + json.dumps(line, default=str)


def configure_logs(level: str) -> None:
    """Write the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    logging.basicConfig(level=max(number, logging.INFO), handlers=[handler], force=True)

    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class ExecutorProcess:
    """The executor of this process, at the other end of the socket that its server listens on."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._loops: list[GraphLoop] = []
        self._watches: list[_LoopWatch] = []
        self._hello_received: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._handlers: dict[str, Handler] = {}
        self._graphs: Graphs | None = None
        self._leases: dict[int, RunLease] = {}
        self._is_encrypted = False
        self._is_retiring = False

        # Kept until they are answered: asyncio itself keeps no strong reference to a task.
        self._report: asyncio.Future[Any] | None = None
        self._notification: asyncio.Future[Any] | None = None

        self._link = Link(self._handlers, on_hello=self._on_hello, pong=self._answer_ping)
        self._server = ServerCalls(self._link)

    async def run(self) -> str:
        """Serve until the link ends; return why. Raises OSError if the server is not there."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._link, self._socket)
        try:
            server_hello = await self._hello_received
            self._link.hello(await self._prepare(messages.read(ServerHello, server_hello)))
        except CallFailed as exc:
            self._link.hello(_build_failed_hello(exc.message))

        tune_garbage_collection()
        return await self._link.wait_closed()

    def _on_hello(self, body: Any) -> None:
        if not self._hello_received.done():
            self._hello_received.set_result(body)

    async def _prepare(self, hello: ServerHello) -> ExecutorHello:
        """Import the project, and start what its graphs need. This blocks the link, which nobody uses yet."""
        messages.check_protocol(asdict(hello), sender="the server", receiver="this executor")
        self._is_encrypted = hello.is_encrypted
        configure_logs(hello.log_level)

        # Before the project is imported: it may create clients, which send traces, at import time.
        let_sdk_find(self._server)
        self._handlers[messages.HTTP_DRAIN] = drain_response
        loop = asyncio.get_running_loop()
        watch_tracing(lambda: loop.call_soon_threadsafe(self._report_refused_traces))

        sources = {graph_id: GraphSource(**source) for graph_id, source in hello.graphs.items()}
        project = Project(file=Path(hello.file), graphs=sources, dependencies=hello.dependencies, env=hello.env)
        try:
            if hello.handlers is None:
                return await self._prepare_graphs(project, hello)
            return await self._prepare_handlers(project, hello)
        except UserMistake as exc:
            return _build_failed_hello(str(exc))

    def _report_refused_traces(self) -> None:
        """Report refused traces to the server, one report at a time: the tracing client logs each refused batch."""
        if self._report is None or self._report.done():
            self._report = self._notify(messages.TRACES_REFUSED)

    def _notify(self, method: str, body: Any = None) -> asyncio.Future[Any]:
        """Call the server without waiting for the answer."""
        notification = asyncio.ensure_future(self._link.call(method, body))
        # The link may end meanwhile, and so does this process.
        notification.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._notification = notification
        return notification

    async def _prepare_handlers(self, project: Project, hello: ServerHello) -> ExecutorHello:
        """Import the project's handlers, which run on one loop."""
        # Processes of graphs need none of what this imports.
        from portside.executor.handlers import HandlerService

        self._loops = [GraphLoop("handlers")]
        self._watches = [_LoopWatch(loop) for loop in self._loops]
        handlers = HandlerService(self._link, self._loops[0])
        facts = await handlers.load(project, hello.handlers or {})

        self._handlers.update(handlers.build_handlers())
        return _build_hello(handlers=facts)

    async def _prepare_graphs(self, project: Project, hello: ServerHello) -> ExecutorHello:
        graphs = load_graphs(project)
        self._loops = [GraphLoop(f"graphs-{number}") for number in range(hello.loops)]
        self._watches = [_LoopWatch(loop) for loop in self._loops]
        self._graphs = await self._attach_services(graphs, hello)

        self._handlers.update(self._build_handlers(GraphOperations(self._graphs)))
        return _build_hello(graphs=self._graphs.facts())

    async def _attach_services(self, graphs: Graphs, hello: ServerHello) -> Graphs:
        """Give the graphs their checkpointer and their store, which are behind the link."""
        server = self._server
        serde = make_serde(SerdeRules(**hello.serde))

        async def make() -> tuple[Checkpointer, RemoteStore]:
            backend = RemoteBackend(server, is_encrypted=hello.is_encrypted)
            return Checkpointer(backend, serde=serde), RemoteStore(server, hello.store_ttl)

        return graphs.attach(*await self._loops[0].call(make()))

    # Serving

    def _build_handlers(self, operations: GraphOperations) -> dict[str, Handler]:
        """Return the handlers of the server's calls, by their methods."""

        def on_loop(work: Callable[[Any], Coroutine[Any, Any, Any]], request: type[Any]) -> Handler:
            async def serve(body: Any, _call: ServedCall) -> Any:
                graph_call = _begin_call(body)
                return await _await_answer(self._loops[0].call(work(messages.read(request, graph_call.request))))

            return serve

        def in_scope(work: Callable[[Any, Any], Coroutine[Any, Any, Any]], request: type[Any]) -> Handler:
            async def serve(body: Any, _call: ServedCall) -> Any:
                graph_call = _begin_call(body)
                scope = RemoteBackend(self._server, is_encrypted=self._is_encrypted, scope=graph_call.scope)
                return await _await_answer(self._loops[0].call(work(messages.read(request, graph_call.request), scope)))

            return serve

        return {
            messages.EXECUTE: lambda body, call: _await_answer(self._execute(body, call)),
            messages.LEASES: self._renew,
            messages.UPDATE_STATE: in_scope(operations.update_state, StateChange),
            messages.CREATE_STATE: in_scope(operations.create_state, StateCreation),
            "read_outcome": on_loop(operations.read_outcome, RunRequest),
            "read_state": on_loop(operations.read_state, StateRead),
            "read_history": on_loop(operations.read_history, HistoryRead),
            "draw": on_loop(operations.draw, DescriptionRequest),
            "schemas": on_loop(operations.schemas, DescriptionRequest),
            "subgraphs": on_loop(operations.subgraphs, DescriptionRequest),
        }

    async def _execute(self, body: Any, call: ServedCall) -> Any:
        graph_call = _begin_call(body)
        request = messages.read(RunRequest, graph_call.request)
        batches = EventBatches(call, is_unfollowed=graph_call.is_unfollowed)

        thread_id = str(request.config["configurable"]["thread_id"])
        rows = RunRows(self._server, thread_id, is_ephemeral=request.is_ephemeral, is_encrypted=self._is_encrypted)
        run_rows.set(rows)

        lease = RunLease(call, until=graph_call.leased_until, on_stuck=self._end_unless_leased)
        self._leases[graph_call.call] = lease

        loop = min(self._loops, key=lambda candidate: candidate.load)
        try:
            assert self._graphs is not None  # noqa: S101 - nothing is executed before
            run = execute(self._graphs, request, push=batches.add, timeout_s=graph_call.timeout_s)
            outcome = await loop.call(run)
        except BaseException:
            batches.flush()
            if lease.is_lost:
                rows.drop()
                raise CallFailed(messages.LEASE_LOST, "the server did not renew the lease in time") from None

            # The run may be retried. The server already knows why storing the rows failed.
            with contextlib.suppress(Exception):
                await rows.flush()

            raise
        finally:
            lease.close()
            del self._leases[graph_call.call]

        if request.is_ephemeral:
            rows.drop()
            batches.flush(is_last=True)
        else:
            batches.flush()
            await rows.flush()

        return outcome

    def _renew(self, body: Any, _call: ServedCall) -> None:
        for number, until in messages.read(Leases, body).leases:
            if (lease := self._leases.get(number)) is not None:
                lease.until = until

    def _end_unless_leased(self) -> None:
        """End this process, because code in it does not stop; not while the server still renews another run of it."""
        if all(lease.is_lost for lease in self._leases.values()):
            log.error("this executor exits: its server is silent, and a cancelled run does not stop")
            for lease in self._leases.values():
                lease.answer()

            # Closing flushes the answers first, as far as the socket takes them.
            self._link.close("a run did not stop")
            asyncio.get_running_loop().call_later(END_WITHIN_S, self._link.abort, "a run did not stop")

    def _answer_ping(self) -> Pong:
        if work_left_behind.is_set() and not self._is_retiring:
            self._is_retiring = True
            self._notify(messages.RETIRE, Retirement(reason="cancelled work still runs"))

        return Pong(
            blocked_s=max((watch.measure_blocked_s() for watch in self._watches), default=0.0),
            memory_bytes=measure_memory("self"),
            clock_s=time.monotonic(),
        )


class _LoopWatch:
    """Measures for how long a node has blocked a graph loop."""

    def __init__(self, loop: GraphLoop) -> None:
        self._loop = loop
        self._scheduled_at: float | None = None

    def measure_blocked_s(self) -> float:
        """Return for how many seconds the loop has not run a callback; schedule the next one if it has run the last."""
        if self._scheduled_at is None:
            self._scheduled_at = time.monotonic()
            self._loop.call_soon(self._on_run)
            return 0.0

        return time.monotonic() - self._scheduled_at

    def _on_run(self) -> None:
        self._scheduled_at = None


def _begin_call(body: Any) -> messages.GraphCall:
    """Read a call, and set it as the current one, which calls of the graph to the server name."""
    call = messages.read(messages.GraphCall, body)
    current_call.set(call.call)
    return call


async def _await_answer(work: Coroutine[Any, Any, Any]) -> Any:
    """Await work of a graph loop. Raises CallFailed for the errors that the server answers its clients with."""
    try:
        return await work
    except RunTimeout as exc:
        raise CallFailed("run_timeout", str(exc)) from exc
    except PortsideError as exc:
        raise to_call_failed(exc) from exc
    except Exception as exc:
        raise find_server_failure(exc) or exc from exc


def _build_hello(**fields: Any) -> ExecutorHello:
    return ExecutorHello(
        protocol=messages.PROTOCOL,
        language=f"Python {platform.python_version()}",
        pid=os.getpid(),
        clock_s=time.monotonic(),
        libraries=list_installed_libraries(),
        **fields,
    )


def _build_failed_hello(reason: str) -> ExecutorHello:
    return _build_hello(failure=reason)

"""Starts the executor processes of a server of tier executor, and connects each of them to an orchestrator.

Every process has a session of its own, which carries its calls to the orchestrator and back. When a session is lost,
the orchestrator gives the runs of the process to other executors. The bridge stops these runs here, and kills the
process if they do not stop; otherwise it opens a new session after a back-off. When a process ends, the bridge reports
how it ended and starts another one.
"""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import grpc

from portside.agent.config import AgentConfig
from portside.agent.executors.core_api.credentials import read_credentials
from portside.agent.executors.core_api.session import LINK, PeerSession
from portside.agent.executors.member import Executor
from portside.agent.executors.pool import ExecutorPool
from portside.agent.executors.spawned_executor import Program
from portside.agent.executors.start import build_graph_programs, build_limits
from portside.agent.settings import AgentSettings
from portside.executor import messages
from portside.executor.link import CallFailed, Handler, LinkClosed, ServedCall
from portside.executor.messages import ExecutorHello, Pong, Retirement, ServerHello
from portside.kernel.errors import UserMistake
from portside.kernel.logs import get_logger
from portside.kernel.supervision import Backoff, Supervision
from portside.kernel.tasks import TaskSet
from portside.kernel.version import full_version

log = get_logger(__name__)
GREETED_WITHIN_S = 60.0
STOPPED_WITHIN_S = 5.0
LONGEST_PAUSE_S = 10.0
# The sessions of one bridge are spread over all addresses that the orchestrators' name resolves to.
_CHANNEL_OPTIONS = (
    ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}'),
    ("grpc.use_local_subchannel_pool", 1),
)
_REFUSALS = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
)


class ConnectionLost(Exception):
    """The session ended, or could not be opened; the message says why."""


class Forwarding:
    """Handlers for all calls of one side: each call is forwarded to the other side, whatever its method."""

    def __init__(self, forward: Callable[[str, Any, ServedCall], Awaitable[Any]]) -> None:
        self._forward = forward

    def get(self, method: str, /) -> Handler:
        """Return the handler of a method."""
        return partial(self._serve, method)

    def _serve(self, method: str, body: Any, call: ServedCall) -> Awaitable[Any]:
        return self._forward(method, body, call)


class Bridge:
    """The executors of this process, and their sessions."""

    def __init__(self, config: AgentConfig, settings: AgentSettings) -> None:
        if not settings.core_api:
            raise UserMistake("a server of tier executor needs its orchestrator's address: set --core-api HOST:PORT")

        self._config = config
        self._settings = settings
        self._core_api = settings.core_api
        self._credentials = read_credentials(settings)
        # Fail at start if the credentials cannot be used with this address.
        self._credentials.check_target(settings.core_api)

        self._count = max(1, settings.executors)
        self._slots = max(1, settings.n_jobs_per_worker // self._count)
        self._server_hello: ServerHello | None = None
        self._sessions: dict[Executor, PeerSession] = {}
        self._connections = TaskSet()
        self.pools: list[ExecutorPool] = []
        self.changed = asyncio.Event()
        """Set when a session begins or ends."""

    @property
    def is_connected(self) -> bool:
        """Whether the orchestrator may give work to an executor of this process."""
        return bool(self._sessions)

    async def start(self) -> None:
        """Fetch the orchestrator's hello, which executors need, and start the executors. Raises UserMistake."""
        hello = self._server_hello = await self._fetch_hello()
        # Only the orchestrator knows how much work there is: the bridge stops no idle executor and keeps no spare.
        # The orchestrator was promised a fixed number of slots, so the bridge starts no more executors either.
        limits = replace(build_limits(self._settings, self._count), idle_s=0.0, most=self._count, spares=0)

        self.pools = [ExecutorPool(program, limits, self._handlers) for program in self._programs(hello)]
        for pool in self.pools:
            pool.subscribe(on_join=self._connect)
            await pool.start()

    async def close(self, grace_s: float = 0.0) -> None:
        """End the executors once their runs have ended, or after the grace period in seconds."""
        for pool in self.pools:
            pool.stop_starting()
            for executor in pool.executors:
                executor.retire()

        if grace_s:
            await self._connections.wait(grace_s)

        await asyncio.gather(*(pool.close() for pool in self.pools))
        await self._connections.wait(STOPPED_WITHIN_S)
        await self._connections.cancel()

    async def _fetch_hello(self) -> ServerHello:
        """Return the orchestrator's hello. Keeps trying, because it may start later than its executors."""
        backoff = Backoff(limit_s=LONGEST_PAUSE_S)
        while True:
            session, greeting = self._open_session(None)
            try:
                async with self._run_session(session):
                    hello = await self._wait_for_hello(session, greeting)
                    session.close("only the hello was needed")
                    return hello
            except ConnectionLost as exc:
                await self._pause(backoff, exc, 0.0)

    # Connecting one executor

    def _connect(self, executor: Executor) -> None:
        supervision = Supervision("the connection of an executor", backoff=Backoff(limit_s=LONGEST_PAUSE_S))
        self._connections.spawn(supervision.run(partial(self._keep_connected, executor)))

    async def _keep_connected(self, executor: Executor) -> None:
        """Keep a session for an executor until it has ended."""
        backoff = Backoff(limit_s=LONGEST_PAUSE_S)
        executor_id = str(uuid4())

        # The session counts as a call, so that the pool does not end the executor as idle.
        executor.calls += 1
        try:
            while not (executor.link.is_closed or executor.is_retiring):
                began_at = time.monotonic()
                try:
                    await self._serve(executor, executor_id)
                except ConnectionLost as exc:
                    if not (executor.link.is_closed or executor.is_retiring):
                        await self._pause(backoff, exc, time.monotonic() - began_at)
        finally:
            executor.calls -= 1
            executor.end_if_idle()

    async def _pause(self, backoff: Backoff, failure: ConnectionLost, healthy_for_s: float) -> None:
        # Jitter: executors must not all connect at once when an orchestrator has restarted.
        delay_s = backoff.next(healthy_for_s) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        log.warning(
            "not connected to the orchestrator",
            address=self._settings.core_api,
            reason=str(failure),
            again_in_s=round(delay_s, 2),
        )

        await asyncio.sleep(delay_s)

    async def _stop_work(self, executor: Executor, session: PeerSession) -> None:
        """Wait until the work for a lost session has stopped, and kill an executor that does not stop it.

        The session has cancelled the work. Other executors have taken it over by now.
        """
        if work := session.unfinished:
            _, unfinished = await asyncio.wait(work, timeout=STOPPED_WITHIN_S)
            if unfinished and not executor.link.is_closed:
                executor.kill("did not stop the runs of a lost connection")

    async def _serve(self, executor: Executor, executor_id: str) -> None:
        """Serve one session of an executor until the session or the executor ends. Raises ConnectionLost."""
        session, greeting = self._open_session(executor)
        async with self._run_session(session) as session_task:
            hello = await self._wait_for_hello(session, greeting)
            if self._server_hello is not None and hello.is_encrypted != self._server_hello.is_encrypted:
                self._renew(hello)
                return

            session.hello(self._build_hello(executor, executor_id))
            self._sessions[executor] = session
            self.changed.set()
            log.info("connected to the orchestrator", executor=executor.name, address=self._settings.core_api)

            executor_end = asyncio.create_task(executor.link.wait_closed())
            retiring = asyncio.create_task(executor.retiring.wait())
            silent = asyncio.create_task(self._watch(session))
            try:
                await asyncio.wait([session_task, executor_end, retiring, silent], return_when=asyncio.FIRST_COMPLETED)

                if retiring.done() and not executor_end.done():
                    with contextlib.suppress(LinkClosed, CallFailed):
                        await session.call(messages.RETIRE, Retirement(reason="it is replaced"))
                    await asyncio.wait([session_task, executor_end, silent], return_when=asyncio.FIRST_COMPLETED)

                if executor_end.done():
                    session.close(await executor.wait_ended(), is_planned=executor.has_ended_on_purpose)
            finally:
                del self._sessions[executor]
                self.changed.set()
                for task in (executor_end, retiring, silent):
                    task.cancel()

            await asyncio.wait([session_task])
            await self._stop_work(executor, session)

        if not executor.link.is_closed:
            raise ConnectionLost(session.close_reason or "the connection was lost")

    def _renew(self, hello: ServerHello) -> None:
        """Replace the executors, because the orchestrator has switched encryption on or off."""
        self._server_hello = hello
        for pool, program in zip(self.pools, self._programs(hello), strict=True):
            pool.replace_program(program)

    def _programs(self, hello: ServerHello) -> list[Program]:
        return build_graph_programs(
            self._config, self._settings, is_encrypted=hello.is_encrypted, store_ttl=hello.store_ttl
        )

    async def _watch(self, session: PeerSession) -> None:
        """End a session when the orchestrator, which pings every second, has been silent for too long.

        The loop counts its own turns instead of reading a clock: a pause of this process must not count as silence.
        """
        silent = 0
        heard_at = session.heard_at
        while silent < self._settings.executor_heartbeat_secs:
            await asyncio.sleep(1.0)
            is_silent = session.heard_at == heard_at and not session.is_reading_paused
            silent = silent + 1 if is_silent else 0
            heard_at = session.heard_at

        session.abort(f"the orchestrator was not heard for {silent} s")

    def _open_session(self, executor: Executor | None) -> tuple[PeerSession, "asyncio.Future[Any]"]:
        greeting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_hello(body: Any) -> None:
            if not greeting.done():
                greeting.set_result(body)

        def on_congestion(is_congested: bool) -> None:  # noqa: FBT001 - its only parameter
            if executor is not None and is_congested:
                executor.link.pause_reading()
            elif executor is not None:
                executor.link.resume_reading()

        async def execute(method: str, body: Any, call: ServedCall) -> Any:
            if executor is None:
                raise CallFailed("unknown_method", "this session has no executor: it only fetches the hello")

            with _count_run(executor, method, body):
                try:
                    return await executor.link.call(method, body, on_item=call.send)
                except LinkClosed as exc:
                    # Do not answer: the session ends now, and its close_reason says how the executor ended.
                    await session.wait_closed()
                    raise CallFailed("closed", str(exc)) from exc

        session = PeerSession(
            Forwarding(execute),
            is_executor=True,
            on_hello=on_hello,
            pong=partial(_build_pong, executor),
            on_congestion=on_congestion,
        )

        return session, greeting

    @contextlib.asynccontextmanager
    async def _run_session(self, session: PeerSession) -> AsyncIterator["asyncio.Task[None]"]:
        """Carry the frames of a session while the block runs, then end it. Raises ConnectionLost if gRPC fails.

        Each session opens a connection of its own, so that a new session never uses a dead connection.
        """
        channel = self._credentials.connect(self._core_api, _CHANNEL_OPTIONS)
        stream = channel.stream_stream(LINK)(metadata=self._credentials.metadata)
        session_task = asyncio.create_task(session.run(stream.read, stream.write, stream.done_writing))
        try:
            yield session_task
        finally:
            if session.is_closed:
                await asyncio.wait([session_task], timeout=STOPPED_WITHIN_S)

            session.abort("closed by this side")
            await asyncio.wait([session_task])
            stream.cancel()
            await channel.close()

            failure = session_task.exception()
            if isinstance(failure, grpc.aio.AioRpcError):
                raise ConnectionLost(_describe_failure(failure)) from failure

    async def _wait_for_hello(self, session: PeerSession, greeting: "asyncio.Future[Any]") -> ServerHello:
        """Return the orchestrator's hello. Raises ConnectionLost."""
        session_end = asyncio.create_task(session.wait_closed())
        await asyncio.wait([greeting, session_end], timeout=GREETED_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        session_end.cancel()

        if not greeting.done():
            silence = f"the orchestrator sent no hello within {GREETED_WITHIN_S:g} s"
            raise ConnectionLost(session_end.result() if session_end.done() else silence)

        try:
            hello = greeting.result()
            messages.check_protocol(hello, sender="the orchestrator", receiver="this executor server")
            return messages.read(ServerHello, hello)
        except CallFailed as exc:
            raise ConnectionLost(str(exc)) from exc

    def _build_hello(self, executor: Executor, executor_id: str) -> ExecutorHello:
        host = socket.gethostname()
        revision = self._settings.revision_id
        clock_s = executor.clock_s(time.monotonic())

        return replace(
            executor.hello, executor_id=executor_id, slots=self._slots, host=host, revision=revision, clock_s=clock_s
        )

    def _handlers(self, executor: Callable[[], Executor]) -> Any:
        """Return handlers that forward the calls of an executor to its orchestrator."""

        async def ask(method: str, body: Any, call: ServedCall) -> Any:
            session = self._sessions.get(executor())
            try:
                if session is not None:
                    return await session.call(method, body, on_item=call.send)
            except LinkClosed:
                pass

            fields = {"type": "ConnectionError"}
            raise CallFailed("raised", "the connection to the orchestrator was lost", fields)

        return Forwarding(ask)


def _build_pong(executor: Executor | None) -> Pong:
    if executor is None:
        return Pong()
    return Pong(memory_bytes=executor.memory_bytes, clock_s=executor.clock_s(time.monotonic()))


@contextlib.contextmanager
def _count_run(executor: Executor, method: str, body: Any) -> Iterator[None]:
    """Record a run as one of the executor's while it is executed. Raises CallFailed for a run without an id."""
    if method != messages.EXECUTE:
        yield
        return

    try:
        request = body["request"]
        run_id = UUID(request["config"]["configurable"]["run_id"])
        attempt = int(request["attempt"])
    except (KeyError, TypeError, ValueError) as exc:
        raise CallFailed("malformed", "the run has no id") from exc

    executor.runs[run_id] = attempt
    executor.runs_begun += 1
    try:
        yield
    finally:
        executor.runs.pop(run_id, None)


def _describe_failure(failure: Any) -> str:
    if failure.code() == grpc.StatusCode.UNIMPLEMENTED:
        return f"refused: upgrade the orchestrator to Portside {full_version()}, the version of this executor server"
    if failure.code() in _REFUSALS:
        return f"refused: {failure.details()}"

    return f"{failure.code().name}: {failure.details()}"

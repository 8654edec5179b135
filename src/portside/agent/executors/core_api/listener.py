"""The orchestrator's side of the core API: executors connect, describe themselves, and join the pool.

An executor that loses its connection leaves the pool, and its runs lose their attempt. It connects again by itself.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import grpc

from portside.agent.executors.core_api.credentials import PeerCredentials, read_credentials
from portside.agent.executors.core_api.grpc_server import GrpcServer
from portside.agent.executors.core_api.session import EARLIER_METHOD, METHOD, SERVICE, PeerSession
from portside.agent.executors.member import Executor, ExecutorFailed, read_hello
from portside.agent.executors.pool import ExecutorPool
from portside.agent.queue.worker import Worker
from portside.agent.settings import AgentSettings
from portside.executor import messages
from portside.executor.link import Handler, ServedCall
from portside.executor.messages import ExecutorHello, Retirement
from portside.kernel.errors import UserMistake
from portside.kernel.logs import get_logger
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import timeout, wait_at_most
from portside.kernel.version import full_version

log = get_logger(__name__)
STOP_WITHIN_S = 5.0
HELLO_WITHIN_S = 60.0


class ConnectedExecutor(Executor):
    """An executor on another machine. It leaves the pool when its session ends."""

    link: PeerSession

    def __init__(self, session: PeerSession, hello: ExecutorHello, heartbeat_s: float) -> None:
        name = f"{hello.host}:{hello.pid}" if hello.host else str(hello.pid)
        super().__init__(session, hello, name=name, heartbeat_s=heartbeat_s)

    async def wait_ended(self) -> str:
        """Wait until the session has ended, and return why."""
        await self.link.wait_closed()
        if self.link.was_planned:
            # Its server stops on purpose, so its runs lose no attempt.
            self.retiring.set()

        return self._killed_because or self.link.close_reason or "lost its connection"

    @property
    def has_ended_on_purpose(self) -> bool:
        """Whether this server or that of the executor stops."""
        return self.link.was_planned or self._is_closed

    async def close(self) -> None:
        """End the session."""
        self._is_closed = not self.link.is_closed
        self.retiring.set()
        self.link.close("the orchestrator stops")

        await wait_at_most(STOP_WITHIN_S, self.link.wait_closed())

        self.link.abort("the orchestrator stops")
        await asyncio.gather(*self._tasks, return_exceptions=True)


class ExecutorListener:
    """Listens for executors, and lets each join the pool whose graphs it has."""

    def __init__(self, pools: Sequence[ExecutorPool], settings: AgentSettings) -> None:
        self._pools = pools
        self._settings = settings

        # Without this server's variables: an executor on another machine has its own.
        self._hello = replace(pools[0].program.hello, env={})
        self._credentials: PeerCredentials = read_credentials(settings)
        self._executors: dict[str, ConnectedExecutor] = {}
        self._server = GrpcServer()

    async def start(self) -> None:
        """Listen. Raises UserMistake if anybody on the network could connect, and DependencyUnavailable."""
        methods = {METHOD: self._serve, EARLIER_METHOD: self._refuse_earlier_version}
        streams = {name: grpc.stream_stream_rpc_method_handler(serve) for name, serve in methods.items()}
        handlers = grpc.method_handlers_generic_handler(SERVICE, streams)
        settings = self._settings
        listen = partial(self._credentials.listen, host=settings.core_api_host, port=settings.core_api_port)

        await self._server.start(listen, handlers)
        log.info("listening for executors", address=f"{settings.core_api_host}:{settings.core_api_port}")

    async def close(self) -> None:
        """Stop listening. The pool ends the sessions."""
        await self._server.close()

    async def is_healthy(self) -> bool:
        """Whether the gRPC server answers."""
        return await self._server.is_healthy()

    async def _authenticate(self, context: Any) -> None:
        """End a call without the right key."""
        if context.peer().startswith("unix:") or not self._credentials.admit(context.invocation_metadata()):
            log.warning("an executor was refused: its key is not the one in CORE_API_KEY", peer=context.peer())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the key is not the one that the orchestrator has")

    async def _refuse_earlier_version(self, _requests: Any, context: Any) -> None:
        """Tell an executor server of an earlier version what to upgrade."""
        await self._authenticate(context)
        log.warning("an executor was refused: upgrade its server to the version of this one", peer=context.peer())
        reason = f"upgrade this executor server to Portside {full_version()}, the version of the orchestrator"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)

    async def _serve(self, _requests: Any, context: Any) -> None:
        """Serve one session."""
        await self._authenticate(context)
        greeting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_hello(body: Any) -> None:
            if not greeting.done():
                greeting.set_result(body)

        handlers: dict[str, Handler] = {}
        session = PeerSession(handlers, is_executor=False, on_hello=on_hello)
        session.hello(self._hello)

        joining = asyncio.create_task(self._join(session, greeting, handlers))
        try:
            await session.run(context.read, context.write)
        finally:
            await cancel_and_wait(joining)

    async def _join(self, session: PeerSession, greeting: asyncio.Future[Any], handlers: dict[str, Handler]) -> None:
        """Let an executor join when it has said hello; before that it can call nothing."""
        try:
            async with timeout(HELLO_WITHIN_S):
                hello = read_hello(await greeting)
            pool = self._pool_for(hello)
        except TimeoutError:
            session.close(f"the executor sent no hello within {HELLO_WITHIN_S:g} s", is_planned=False)
        except (ExecutorFailed, UserMistake) as exc:
            log.warning("an executor was refused", reason=str(exc))
            session.close(f"refused: {exc}", is_planned=False)
        else:
            executor = ConnectedExecutor(session, hello, self._settings.executor_heartbeat_secs)
            # The handlers of an orchestrator's pool are a map; only a bridge has others.
            handlers.update(cast("dict[str, Handler]", pool.make_handlers(lambda: executor)))
            handlers[messages.RETIRE] = partial(_retire, executor, pool)

            previous = self._executors.get(hello.executor_id)
            if previous is not None:
                previous.kill("connected again")

            self._executors[hello.executor_id] = executor
            pool.join(executor, slots=hello.slots, revision=hello.revision)
            with contextlib.suppress(asyncio.CancelledError):
                await session.wait_closed()

            if self._executors.get(hello.executor_id) is executor:
                del self._executors[hello.executor_id]

    def _pool_for(self, hello: ExecutorHello) -> ExecutorPool:
        """Return the pool whose graphs an executor has. Raises ExecutorFailed."""
        if not hello.executor_id or hello.slots < 1:
            raise ExecutorFailed("an executor cannot be used: it has no name or no slots")

        for pool in self._pools:
            if pool.program.hello.graphs.keys() <= hello.graphs.keys():
                return pool

        lacking = sorted(set(self._hello.graphs) - set(hello.graphs))
        raise ExecutorFailed(f"an executor cannot be used: it lacks the graphs {', '.join(lacking)}")

    def share_slots(self, worker: Worker, own_slots: int) -> None:
        """Give a worker as many slots as all executors have: `own_slots` here, and those of other machines."""

        def share() -> None:
            executors = [executor for pool in self._pools for executor in pool.executors]
            worker.set_slots(own_slots + sum(executor.hello.slots for executor in executors))

        for pool in self._pools:
            pool.subscribe(on_change=share)

        share()


def _retire(executor: ConnectedExecutor, pool: ExecutorPool, body: Any, _call: ServedCall) -> None:
    messages.read(Retirement, body)
    executor.retire()

    # Its slots are gone.
    pool.report_change()

"""Serves the platform: its socket, the front in front of it, the process of its listener, and the hand-over."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from portside.ingress.front import Front
from portside.kernel import interruption
from portside.kernel.http.server import Server
from portside.platform.app import PlatformApp, open_platform
from portside.platform.hand_over import SIGNAL, HandedOver
from portside.platform.home import Home
from portside.platform.listener import ListenerProcess
from portside.platform.parts import Problem
from portside.platform.settings import PlatformSettings

STREAM_GRACE_S = 5.0
OnReady = Callable[[PlatformApp], Awaitable[None]]


class DatabaseInUse(NamedTuple):
    """The URL of the platform's database. `problem` says why it is down, if this program supervises it."""

    url: str
    problem: Problem = lambda: None


class PublicEndpoint(NamedTuple):
    """The socket that the platform listens on, and the front in front of it, if there is one."""

    listening: socket.socket
    front: Front | None = None


async def run_platform(
    home: Home, settings: PlatformSettings, database: DatabaseInUse, endpoint: PublicEndpoint, on_ready: OnReady
) -> HandedOver | None:
    """Serve until the program is interrupted. `on_ready` runs once the server answers; an exception of it stops that.

    After the signal of a hand-over, agents and the front continue, and what the next program needs is returned.
    """
    problems: dict[str, Problem] = {"postgres": database.problem}
    front = endpoint.front
    if front is not None:
        problems["front"] = lambda: front.problem

    # The server closes its own descriptor.
    hand_over_state = HandedOver(os.dup(endpoint.listening.fileno()))
    replaced = asyncio.Event()
    async with (
        _run_front(front, replaced),
        open_platform(home, settings, database.url, problems=problems, front=front) as app,
    ):
        closing = asyncio.Event()
        server_task = await _start_server(app, settings, endpoint.listening, closing)

        listener = ListenerProcess(_build_listener_environment(home, settings, database.url, app), home.listener_log)
        problems["listener"] = lambda: listener.problem
        if settings.own_listener:
            listener.start()

        ready_task = asyncio.ensure_future(on_ready(app))
        try:
            await _wait_for_signal(ready_task, replaced)
        finally:
            ready_task.cancel()
            with interruption.deferred() if replaced.is_set() else interruption.ending():
                # The listener first: it reports the end of its deployments, so the control plane must still answer.
                await (listener.leave_agents() if replaced.is_set() else listener.stop())
                app.changes.close()

                # Before the server, which would wait for the connections that the front keeps open.
                if front is not None and not replaced.is_set():
                    await front.close()

                closing.set()
                await server_task

    if front is not None:
        hand_over_state.front = front.pid

    return hand_over_state if replaced.is_set() else None


async def _start_server(
    app: PlatformApp, settings: PlatformSettings, listening: socket.socket, closing: asyncio.Event
) -> asyncio.Task[None]:
    """Answer requests from now on; return the task that does so until `closing` is set."""
    server = Server(
        app.asgi,
        draining=app.draining,
        grace_s=STREAM_GRACE_S,
        body_within_s=settings.http_request_body_timeout_seconds,
    )

    await server.open([listening])
    return asyncio.create_task(server.serve_until(closing))


async def _wait_for_signal(ready: asyncio.Task[None], replaced: asyncio.Event) -> None:
    """Wait until the program is interrupted or replaced; the signal of a hand-over sets `replaced`.

    Raises what `ready` raises before that.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def hand_over() -> None:
        replaced.set()
        stop.set()

    loop.add_signal_handler(SIGNAL, hand_over)
    stop_task = asyncio.create_task(stop.wait())
    with interruption.instead(lambda: loop.call_soon_threadsafe(stop.set)):
        await asyncio.wait([stop_task, ready], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()

        await stop_task


@asynccontextmanager
async def _run_front(front: Front | None, replaced: asyncio.Event) -> AsyncIterator[None]:
    """Run the front's program during the block; it starts while the platform opens its database.

    It continues if this program is replaced.
    """
    if front is None:
        yield
        return

    front.start()
    try:
        yield
    finally:
        if not replaced.is_set():
            await front.close()


def _build_listener_environment(
    home: Home, settings: PlatformSettings, database_url: str, app: PlatformApp
) -> dict[str, str]:
    return {
        "CONTROL_PLANE_URL": settings.local_url,
        "CONTROL_PLANE_API_KEY": app.listener_key,
        "CONTROL_PLANE_API_KEY_FILE": str(home.listener_key),
        "PORTSIDE_HOME": str(home.path),
        "PROVISION_DATABASE_URL": database_url,
        "EXIT_WITH_PARENT": "true",
        "DISK_RESERVE_BYTES": str(settings.disk_reserve_bytes),
        "DISK_RESERVE_PERCENT": str(settings.disk_reserve_percent),
    }

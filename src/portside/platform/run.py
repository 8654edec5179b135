"""Running a platform: its server and its listener until a stop is asked for."""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable

from portside.kernel.http.server import Server
from portside.platform.app import PlatformApp, open_platform
from portside.platform.home import Home
from portside.platform.listener import ListenerProcess
from portside.platform.settings import PlatformSettings

STREAMS_LEFT_S = 5.0
OnReady = Callable[[PlatformApp], Awaitable[None]]


async def run_platform(
    home: Home, settings: PlatformSettings, database_url: str, listening: socket.socket, on_ready: OnReady
) -> None:
    """Serve until SIGINT or SIGTERM; `on_ready` runs beside the server and may fail the whole start."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_platform(home, settings, database_url) as app:
        server = Server(
            app.asgi,
            draining=app.draining,
            grace_s=STREAMS_LEFT_S,
            body_within_s=settings.http_request_body_timeout_seconds,
        )
        await server.open([listening])
        closing = asyncio.Event()
        serving = asyncio.create_task(server.serve_until(closing))
        listener = ListenerProcess(_listener_environment(home, settings, database_url, app), home.listener_log)
        if settings.own_listener:
            listener.start()
        stopped = asyncio.create_task(stop.wait())
        ready = asyncio.ensure_future(on_ready(app))
        try:
            await asyncio.wait([stopped, ready], return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
            await stopped
        finally:
            ready.cancel()
            # The listener first: it tells the control plane how its deployments ended while that still answers.
            await listener.stop()
            app.changes.close()
            closing.set()
            await serving


def _listener_environment(
    home: Home, settings: PlatformSettings, database_url: str, app: PlatformApp
) -> dict[str, str]:
    return {
        "CONTROL_PLANE_URL": settings.public_url,
        "CONTROL_PLANE_API_KEY": app.listener_key,
        "PORTSIDE_HOME": str(home.path),
        "PROVISION_DATABASE_URL": database_url,
        "EXIT_WITH_PARENT": "true",
    }

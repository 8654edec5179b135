"""A server of tier executor: a bridge to its orchestrator, its health, and the routes for operators."""

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from portside.agent.config import AgentConfig
from portside.agent.executors.core_api.bridge import Bridge
from portside.agent.executors.core_api.grpc_server import GrpcServer
from portside.agent.log_reports import forwarded_logs
from portside.agent.settings import AgentSettings
from portside.kernel.codec import dump_api
from portside.kernel.http.error_responses import ErrorFormat
from portside.kernel.http.health import HealthChecks, check_all
from portside.kernel.http.middleware import RequestMiddleware
from portside.kernel.http.server import Server, listen
from portside.kernel.logs import get_logger
from portside.kernel.metrics import format_metrics
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.version import full_version

log = get_logger(__name__)


async def serve(config: AgentConfig, settings: AgentSettings, *, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM (runs may end within the grace period) or SIGINT.

    Raises UserMistake if the project does not load, and DependencyUnavailable if a port is taken.
    """
    with forwarded_logs(settings):
        await _serve(config, settings, on_ready)


async def _serve(config: AgentConfig, settings: AgentSettings, on_ready: Callable[[], None]) -> None:
    stop = asyncio.Event()
    hurry = asyncio.Event()
    draining = asyncio.Event()
    bridge = Bridge(config, settings)
    grpc_server = GrpcServer()
    listening = listen(settings.host, settings.port)
    app = _build_operators_app(bridge, grpc_server, settings)
    server = Server(RequestMiddleware(app, ErrorFormat.TEXT, draining=draining), draining=draining, grace_s=0.0)

    _stop_on_signals(stop, hurry)
    await grpc_server.start(partial(_listen, settings))
    await grpc_server.set_serving(is_serving=False)
    await server.open([listening])

    try:
        starting = asyncio.create_task(bridge.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)

        if starting.done():
            await starting
            log.info("executor tier ready", executors=max(1, settings.executors), graphs=list(config.graphs))
            on_ready()

        watching = asyncio.create_task(_report_health(bridge, grpc_server))

        async def drain() -> None:
            watching.cancel()
            await cancel_and_wait(starting)
            await grpc_server.set_serving(is_serving=False)

            closing = asyncio.create_task(bridge.close(settings.bg_job_shutdown_grace_period_secs))
            hurried = asyncio.create_task(hurry.wait())
            await asyncio.wait([closing, hurried], return_when=asyncio.FIRST_COMPLETED)

            if not closing.done():
                await cancel_and_wait(closing)
                await bridge.close()

            hurried.cancel()

        await server.serve_until(stop, drain)
    finally:
        await bridge.close()
        await grpc_server.close()

    log.info("executor tier stopped")


def _listen(settings: AgentSettings, server: Any) -> int:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return int(server.add_insecure_port(f"{host}:{settings.executor_grpc_port}"))


def _stop_on_signals(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    def shut_down(*, at_once: bool) -> None:
        if at_once or stop.is_set():
            hurry.set()
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, partial(shut_down, at_once=False))
    loop.add_signal_handler(signal.SIGINT, partial(shut_down, at_once=True))


async def _report_health(bridge: Bridge, grpc_server: GrpcServer) -> None:
    """Report through `grpc.health.v1` whether an executor is connected."""
    while True:
        await bridge.changed.wait()
        bridge.changed.clear()
        await grpc_server.set_serving(is_serving=bridge.is_connected)


def _build_operators_app(bridge: Bridge, grpc_server: GrpcServer, settings: AgentSettings) -> Starlette:
    """Return the routes for operators: a server of this tier has no others."""

    async def is_connected() -> bool:
        return bridge.is_connected

    checks = HealthChecks({"grpc": grpc_server.is_healthy, "orchestrator": is_connected})

    async def check_health(_request: Request) -> Response:
        health = await check_all(checks)
        return Response(dump_api(health), 200 if health.ok else 500, media_type="application/json")

    async def get_metrics(_request: Request) -> Response:
        body, media_type = format_metrics()
        return Response(body, media_type=media_type)

    async def get_info(_request: Request) -> Response:
        host = {"kind": "self-hosted", "project_id": settings.deployment_id, "revision_id": settings.revision_id}
        return Response(dump_api({"version": full_version(), "host": host}), media_type="application/json")

    return Starlette(routes=[Route("/ok", check_health), Route("/metrics", get_metrics), Route("/info", get_info)])

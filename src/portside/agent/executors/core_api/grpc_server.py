"""A gRPC server that reports its health as `grpc.health.v1` does."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import OVERALL_HEALTH
from grpc_health.v1.health import aio as health

from portside.agent.executors.core_api.session import SERVICE
from portside.kernel.errors import DependencyUnavailable
from portside.kernel.timeouts import timeout

START_WITHIN_S = 60.0
CHECK_WITHIN_S = 5.0
MAX_SESSIONS = 4096
# Keepalive ends connections whose peer vanished without closing them.
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class GrpcServer:
    """A gRPC server with `grpc.health.v1`. It checks its own health through a socket that only this user can reach."""

    def __init__(self) -> None:
        self._server: Any = None
        self._servicer: Any = None
        self._channel: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def start(self, listen: Callable[[Any], int], *handlers: Any) -> None:
        """Start within a minute. Raises DependencyUnavailable if the port is taken, or the server does not start."""
        self._servicer = health.HealthServicer()
        self._server = grpc.aio.server(options=_SERVER_OPTIONS, maximum_concurrent_rpcs=MAX_SESSIONS)
        self._server.add_generic_rpc_handlers(handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, self._server)

        self._folder = tempfile.TemporaryDirectory(prefix="portside-")
        health_address = f"unix:{Path(self._folder.name, 'health')}"
        try:
            listen(self._server)
            self._server.add_insecure_port(health_address)
            async with timeout(START_WITHIN_S):
                await self._server.start()
        except (RuntimeError, TimeoutError) as exc:
            reason = str(exc) or "it took more than a minute"
            raise DependencyUnavailable(f"the gRPC server did not start: {reason}") from exc

        self._channel = grpc.aio.insecure_channel(health_address)
        await self.set_serving(is_serving=True)

    async def set_serving(self, *, is_serving: bool) -> None:
        """Report through the health service whether this server serves."""
        status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in (OVERALL_HEALTH, SERVICE):
            await self._servicer.set(service, status)

    async def is_healthy(self) -> bool:
        """Ask the health service as any client does."""
        if self._channel is None:
            return False

        try:
            stub = health_pb2_grpc.HealthStub(self._channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=CHECK_WITHIN_S)
        except grpc.aio.AioRpcError:
            return False

        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        """Stop: calls under way end at once."""
        if self._servicer is not None:
            await self._servicer.enter_graceful_shutdown()

        if self._channel is not None:
            await self._channel.close()

        if self._server is not None:
            await self._server.stop(None)

        if self._folder is not None:
            self._folder.cleanup()

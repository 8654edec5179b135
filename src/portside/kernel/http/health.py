"""Routes that every server has: liveness and metrics."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.responses import Response

from portside.kernel.codec import dump_api
from portside.kernel.http.routes import Context, Routes
from portside.kernel.metrics import exposition

routes = Routes("system")


class HealthChecks(msgspec.Struct, frozen=True):
    """What this server depends on, by name, and how to ask whether it is there."""

    checks: Mapping[str, Callable[[], Awaitable[bool]]]


class Health(msgspec.Struct):
    """Whether the server and each of its dependencies answer."""

    ok: bool
    services: dict[str, bool]


async def check_all(health: HealthChecks) -> Health:
    """Ask every dependency, one after the other: only the database is far away."""
    found = {name: await check() for name, check in health.checks.items()}
    return Health(all(found.values()), found)


@routes.get("/ok", public=True)
async def check_health(ctx: Context) -> Response:
    """Answer 200 when every dependency answers, 500 when one does not (contract: system routes)."""
    health = await check_all(ctx.get(HealthChecks))
    return Response(dump_api(health), 200 if health.ok else 500, media_type="application/json")


@routes.get("/metrics", public=True, media_type="text/plain")
async def show_metrics(_ctx: Context) -> Response:
    """Return the metrics in the Prometheus text format."""
    body, media_type = exposition()
    return Response(body, media_type=media_type)

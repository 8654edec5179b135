"""Routes that every server has: liveness and metrics."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from portside.kernel.codec import dump_api
from portside.kernel.http.routes import BaseServices, Context, Routes
from portside.kernel.metrics import format_metrics
from portside.kernel.modules import Module


class HealthChecks(msgspec.Struct, frozen=True):
    """The dependencies of a server by name, each with a function that checks whether it answers.

    `problems` are functions for the programs that the server supervises. They return a description, or None if all is
    well.
    """

    checks: Mapping[str, Callable[[], Awaitable[bool]]]
    problems: Mapping[str, Callable[[], str | None]] = {}


NO_CHECKS = HealthChecks({})


@dataclass(frozen=True, kw_only=True)
class HealthServices(BaseServices):
    """The services that `GET /ok` uses."""

    health: HealthChecks


routes = Routes[Context[HealthServices]]("system")


class Health(msgspec.Struct, omit_defaults=True):
    """Whether the server and each of its dependencies answer, and which parts it cannot keep running."""

    ok: bool
    services: dict[str, bool]
    problems: dict[str, str] = {}


class HealthQuery(msgspec.Struct):
    """Whether to check the dependencies: without them, the answer says only that this process works."""

    check_db: bool = True


async def check_all(health: HealthChecks) -> Health:
    """Check every dependency. One after the other is fast enough: only the database is remote."""
    services = {name: await check() for name, check in health.checks.items()}
    descriptions = {name: describe() for name, describe in health.problems.items()}
    problems = {name: text for name, text in descriptions.items() if text is not None}
    return Health(ok=all(services.values()), services=services, problems=problems)


@routes.get("/ok", public=True)
async def check_health(ctx: Context[HealthServices], query: HealthQuery) -> Response:
    """Answer 200 if every dependency answers, 500 if one does not."""
    health = await check_all(ctx.services.health if query.check_db else NO_CHECKS)
    status = 200 if health.ok else 500
    return Response(dump_api(health), status_code=status, media_type="application/json")


@routes.get("/metrics", public=True, media_type="text/plain")
async def get_metrics(_ctx: Context[Any]) -> Response:
    """Return the metrics in the Prometheus text format."""
    return build_metrics_response()


def build_metrics_response() -> Response:
    """Return the response with the metrics of this process."""
    body, media_type = format_metrics()
    return Response(body, media_type=media_type)


module = Module[HealthServices](package="portside.kernel", routes=list(routes), has_rate_limits=False)

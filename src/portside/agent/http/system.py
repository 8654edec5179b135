"""What a server says of itself: health, and what it is (contract: System routes)."""

import importlib.metadata
from typing import Any

import msgspec
from starlette.responses import Response

from portside import __version__
from portside.agent.settings import AgentSettings
from portside.kernel.codec import dump_api
from portside.kernel.http.health import HealthChecks, check_all, show_metrics
from portside.kernel.http.openapi import Described
from portside.kernel.http.refusals import ErrorForm
from portside.kernel.http.routes import Context, Routes

routes = Routes("system")
DESCRIBED = Described("Portside agent server", __version__, ErrorForm.TEXT, wants_key=False)


class Traffic(msgspec.Struct):
    """Whether this replica answers on the deployment's own address yet."""

    is_served: bool = True


class HealthQuery(msgspec.Struct):
    """`serving` asks not whether the server is healthy but whether it has taken over traffic."""

    serving: bool = False


@routes.get("/ok", public=True)
async def check_health(ctx: Context, query: HealthQuery) -> Response:
    """Answer 200 when every dependency answers, 500 when one does not."""
    health = await check_all(ctx.get(HealthChecks))
    is_ok = health.ok and (ctx.get(Traffic).is_served or not query.serving)
    return Response(dump_api(health), 200 if is_ok else 500, media_type="application/json")


@routes.get("/info", public=True)
async def show_info(ctx: Context) -> dict[str, Any]:
    """Return versions, what this server can do, and the deployment it belongs to."""
    settings = ctx.get(AgentSettings)
    return {
        "version": __version__,
        "langgraph_py_version": importlib.metadata.version("langgraph"),
        "flags": {"assistants": True, "crons": False, "langsmith": True},
        "host": {
            "kind": "self-hosted",
            "project_id": settings.deployment_id,
            "host_revision_id": settings.revision_id,
            "revision_id": settings.revision_id,
            "tenant_id": settings.tenant_id,
        },
    }


routes.get("/metrics", public=True, media_type="text/plain")(show_metrics)

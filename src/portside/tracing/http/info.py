"""The routes that describe this server: what SDKs read first, and whether all is well."""

from starlette.responses import Response

from portside.kernel.http.health import HealthQuery, check_health
from portside.tracing.services import Context, PlatformInfo, Routes

routes = Routes("tracing")


@routes.get("/info", public=True)
async def get_info(ctx: Context) -> PlatformInfo:
    """Return the region, versions and limits of this server, which SDKs read first."""
    return ctx.services.info


@routes.get("/info/health", public=True)
async def get_instance_health(ctx: Context) -> Response:
    """Return 200 if every dependency responds and 500 otherwise, like `/ok`."""
    return await check_health(ctx, HealthQuery())

"""Diagnostics of a server. These routes exist only if the operator sets DEBUG_FOLDER."""

from typing import Annotated

import msgspec
from starlette.responses import Response

from portside.agent.http.context import Context, Routes
from portside.kernel.diagnostics import DiagnosisUnderWay, Diagnostics, HeapDump
from portside.kernel.errors import NotFound

routes = Routes("debugging", works_on_full_disk=True)
# A caller that may deploy can read everything in the server anyway.
DEBUG_PERMISSION = "deployments:update"


class ProfileQuery(msgspec.Struct):
    """How many seconds to sample."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5


@routes.post("/heapdump", permission=DEBUG_PERMISSION, raises=(DiagnosisUnderWay,))
async def dump_heap(ctx: Context) -> HeapDump:
    """Write the objects in memory, by type, to a file on the server, and return its path."""
    return await _diagnostics(ctx).dump_heap()


@routes.get(
    "/profile",
    operation="profiles_get",
    permission=DEBUG_PERMISSION,
    raises=(DiagnosisUnderWay,),
    media_type="text/plain",
)
async def profile(ctx: Context, query: ProfileQuery) -> Response:
    """Sample the stacks of all threads; one line for each stack with its count, the input of flame graphs."""
    return Response(await _diagnostics(ctx).profile(query.seconds), media_type="text/plain")


def _diagnostics(ctx: Context) -> Diagnostics:
    diagnostics = ctx.services.diagnostics
    if diagnostics is None:
        raise NotFound

    return diagnostics

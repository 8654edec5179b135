"""A look inside the server over HTTP, where its operator has set a folder for it (setting `DEBUG_FOLDER`)."""

from typing import Annotated

import msgspec
from starlette.responses import Response

from portside.kernel.diagnostics import DiagnosisUnderWay, Diagnostics, HeapDump
from portside.kernel.http.routes import Context, Routes

routes = Routes("debugging")
# Who may deploy can read everything in the server anyway; nobody else is shown its inside.
LOOKS_INSIDE = "deployments:update"


class ProfileQuery(msgspec.Struct):
    """For how many seconds to watch."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5


@routes.post("/heapdump", permission=LOOKS_INSIDE, raises=(DiagnosisUnderWay,))
async def dump_heap(ctx: Context) -> HeapDump:
    """Write what the memory holds, by type, into a file of the server, and return its path."""
    return await ctx.get(Diagnostics).dump_heap()


@routes.get("/profile", permission=LOOKS_INSIDE, raises=(DiagnosisUnderWay,), media_type="text/plain")
async def profile(ctx: Context, query: ProfileQuery) -> Response:
    """Watch where all threads are; a line for each stack with how often it was seen, as flame graphs are drawn from."""
    return Response(await ctx.get(Diagnostics).profile(query.seconds), media_type="text/plain")

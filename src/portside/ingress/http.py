"""The route that Caddy asks before it gets a certificate for a name. Only this machine reaches it."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from portside.ingress.front import Front
from portside.kernel.errors import NotFound
from portside.kernel.http import routes as kernel_routes


@dataclass(frozen=True, kw_only=True)
class FrontServices(kernel_routes.BaseServices):
    """The services of the front's routes; without a front there is no name."""

    front: Front | None = None


Context = kernel_routes.Context[FrontServices]
routes = kernel_routes.Routes[Context]("front")


class NameNotServed(NotFound):
    """The front serves no such name: it is neither the domain nor an address of a deployment."""

    code = "name_not_served"


class NameQuery(msgspec.Struct, frozen=True):
    """The host name of a certificate."""

    domain: Annotated[str, msgspec.Meta(max_length=253)]


@routes.get("/internal/front/names", public=True, status=204, raises=(NameNotServed,))
async def check_name(ctx: Context, query: NameQuery) -> None:
    """Answer whether the front may get a certificate for a host name."""
    front = ctx.services.front
    if front is None or not front.serves(query.domain.lower()):
        raise NameNotServed

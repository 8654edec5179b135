"""What request handlers of the agent server get, and the headers of the pages that they return."""

from typing import TypeVar

from portside.agent.http.services import AgentServices
from portside.agent.rows import SearchPage
from portside.kernel.http import routes, websockets

Context = routes.Context[AgentServices]
Routes = routes.Routes[Context]
SocketContext = websockets.SocketContext[AgentServices]
SocketRoutes = routes.Routes[SocketContext]
T = TypeVar("T")
PAGING = ("X-Pagination-Total", "X-Pagination-Next")


def take_page(ctx: Context, page: SearchPage[T], offset: int) -> list[T]:
    """Return the rows of a page, and set the pagination headers: the total, and the next offset."""
    set_paging(ctx, offset=offset, count=len(page.items), total=page.total)
    return page.items


def set_paging(ctx: Context, *, offset: int, count: int, total: int) -> None:
    """Set the pagination headers of a page of `count` rows."""
    ctx.headers["X-Pagination-Total"] = str(total)
    if count and offset + count < total:
        ctx.headers["X-Pagination-Next"] = str(offset + count)

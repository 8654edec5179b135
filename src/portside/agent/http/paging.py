"""Pagination headers of searches: the true total, and where the next page starts (contract: Conventions)."""

from typing import TypeVar

from portside.agent.types.pages import Page
from portside.kernel.http.routes import Context

T = TypeVar("T")
PAGING = ("X-Pagination-Total", "X-Pagination-Next")


def show_page(ctx: Context, found: Page[T], offset: int) -> list[T]:
    """Return a page's rows; say in headers how many match in all, and where the next page starts if there is one."""
    ctx.headers["X-Pagination-Total"] = str(found.total)
    after = offset + len(found.items)
    if found.items and after < found.total:
        ctx.headers["X-Pagination-Next"] = str(after)
    return found.items

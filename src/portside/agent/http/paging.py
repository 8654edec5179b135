"""Pagination headers of searches (contract: Conventions)."""

from typing import TypeVar

from portside.kernel.http.routes import Context

T = TypeVar("T")


def page(ctx: Context, found: list[T], limit: int, offset: int) -> list[T]:
    """Cut a list that holds one row more than asked for down to a page, and say in headers whether more follow."""
    ctx.headers["X-Pagination-Total"] = str(offset + len(found))
    if len(found) > limit:
        ctx.headers["X-Pagination-Next"] = str(offset + limit)
    return found[:limit]

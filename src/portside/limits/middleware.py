"""Counts each request against its row of the table, and refuses what is over it (spec: Limits)."""

import hashlib
from typing import Any

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.responses import Response

from portside.kernel.codec import dump_api
from portside.kernel.errors import PortsideError, TooManyRequests
from portside.limits.callers import Callers
from portside.limits.table import Row, Table
from portside.limits.types import Budget
from portside.limits.windows import Windows


class RefusalBody(msgspec.Struct):
    """A refusal in both forms that clients of the hosted API read."""

    detail: str
    error: str


class RateLimits:
    """Lets requests pass while their budget lasts, and tells every caller what is left of it.

    `spared` are the beginnings of paths that no row speaks of: what is not the hosted API.
    """

    def __init__(self, app: Any, table: Table, callers: Callers, windows: Windows, *, spared: tuple[str, ...]) -> None:
        self.app = app
        self._table, self._callers, self._windows = table, callers, windows
        self._spared = spared

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Count an HTTP request; other scopes pass."""
        if scope["type"] != "http" or scope["path"].startswith(self._spared):
            await self.app(scope, receive, send)
            return
        budget = await self._count(scope)
        if budget is None:
            await self.app(scope, receive, send)
            return
        headers = _headers(budget)

        async def tell(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        try:
            await (_refusal(headers) if budget.is_over else self.app)(scope, receive, tell)
        except PortsideError as exc:
            exc.headers.update(headers)
            raise

    async def _count(self, scope: Any) -> Budget | None:
        names = await self._callers.names(scope)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        # Below a prefix like /api/v1, both what was asked for and what is left of it may be what a row names.
        paths = {scope["path"], scope["raw_path"].decode("latin-1")}
        row = self._table.row(method, paths, names)
        limit = row.limits[self._table.region] if row else None
        if row is None or limit is None:
            return None
        return await self._windows.spend(_budget_name(row, names[row.identity]), limit)


def _budget_name(row: Row, caller: str) -> bytes:
    return hashlib.blake2b(f"{row.match}|{row.identity}|{caller}".encode(), digest_size=16).digest()


def _headers(budget: Budget) -> dict[str, str]:
    seconds = str(budget.seconds_left)
    headers = {
        "X-RateLimit-Limit": str(budget.limit.count),
        "X-RateLimit-Remaining": str(budget.remaining),
        "X-RateLimit-Reset": seconds,
    }
    return headers | {"Retry-After": seconds} if budget.is_over else headers


def _refusal(headers: dict[str, str]) -> Response:
    detail = f"Rate limit exceeded; try again in {headers['Retry-After']} s."
    return Response(dump_api(RefusalBody(detail, detail)), TooManyRequests.status, headers, "application/json")

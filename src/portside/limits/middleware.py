"""Middleware that counts requests against their row of the table and refuses those over the limit."""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.responses import Response

from portside.kernel.codec import dump_api
from portside.kernel.errors import PortsideError, TooManyRequests, Unauthorized
from portside.limits.callers import Callers
from portside.limits.table import Row, Table
from portside.limits.types import Budget, CallerIdentity, Limit
from portside.limits.windows import Windows

# This many requests of an address over their limit still get 401 for a missing or invalid key. Each costs a lookup.
UNAUTHORIZED = Limit(600, 60)


class RefusalBody(msgspec.Struct):
    """A refusal with both fields that clients of the hosted API read."""

    detail: str
    error: str


class LimitScope(NamedTuple):
    """The requests that the limits apply to, as functions of the ASGI scope of a request."""

    # Whether the request has no limits.
    is_unlimited: Callable[[Any], bool]
    # Whether the request needs a key or login.
    needs_key: Callable[[Any], bool]


class RateBudget(msgspec.Struct):
    """A rate limit of this caller: requests in a window, those that are left, and the seconds until it ends.

    Before the first request of a window everything is left and `seconds_left` is null.
    """

    match: str
    category: str
    count: int
    seconds: int
    remaining: int
    seconds_left: int | None


class BudgetReader:
    """Reads the budgets of a caller without spending them."""

    def __init__(self, table: Table, callers: Callers, windows: Windows) -> None:
        self._table = table
        self._callers = callers
        self._windows = windows

    async def read(self, scope: Any) -> list[RateBudget]:
        """Return the budgets of a request's sender, in the order of the table. Rows of addresses are left out."""
        callers = await self._callers.names(scope)
        callers.pop(CallerIdentity.IP, None)

        limited_rows: list[tuple[bytes, Row, Limit]] = []
        for row in self._table.rows:
            limit = row.limits[self._table.region]
            if row.identity in callers and limit is not None:
                name = _budget_name(row.match, row.identity, callers[row.identity])
                limited_rows.append((name, row, limit))

        use = await self._windows.read_use([name for name, _, _ in limited_rows])
        budgets: list[RateBudget] = []
        for name, row, limit in limited_rows:
            requests, seconds_left = use.get(name, (0, None))
            budget = RateBudget(
                match=row.match,
                category=row.category,
                count=limit.count,
                seconds=limit.seconds,
                remaining=max(limit.count - requests, 0),
                seconds_left=seconds_left,
            )
            budgets.append(budget)

        return budgets


class RateLimits:
    """Passes requests on while their budget lasts, and adds headers with the rest of the budget.

    A request over its limit without a valid key, where one is needed, still gets 401, unless its address floods.
    """

    def __init__(self, app: Any, table: Table, callers: Callers, windows: Windows, scope: LimitScope) -> None:
        self.app = app
        self._table = table
        self._callers = callers
        self._windows = windows
        self._is_unlimited = scope.is_unlimited
        self._needs_key = scope.needs_key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Count an HTTP request; other scopes pass."""
        if scope["type"] != "http" or self._is_unlimited(scope):
            await self.app(scope, receive, send)
            return

        budget = await self._count(scope)
        if budget is None:
            await self.app(scope, receive, send)
            return

        headers = _build_headers(budget)
        if budget.is_over and await self._lacks_key(scope):
            del headers["Retry-After"]
            raise Unauthorized(headers=headers)

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        app = _build_refusal(headers) if budget.is_over else self.app
        try:
            await app(scope, receive, send_with_headers)
        except PortsideError as exc:
            exc.headers.update(headers)
            raise

    async def _count(self, scope: Any) -> Budget | None:
        callers = await self._callers.names(scope)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]

        # With a prefix like /api/v1, a row may match the requested path or the path without the prefix.
        paths = {scope["path"], scope["raw_path"].decode("latin-1")}
        row = self._table.find_row(method, paths, callers)
        limit = row.limits[self._table.region] if row else None
        if row is None or limit is None:
            return None

        name = _budget_name(row.match, row.identity, callers[row.identity])
        return await self._windows.spend(name, limit)

    async def _lacks_key(self, scope: Any) -> bool:
        """Whether to answer a request over its limit with 401."""
        if not self._needs_key(scope):
            return False

        name = _budget_name("unauthorized", CallerIdentity.IP, self._callers.address(scope))
        budget = await self._windows.spend(name, UNAUTHORIZED)
        return not budget.is_over and not await self._callers.has_key(scope)


def _budget_name(match: str, identity: CallerIdentity, caller: str) -> bytes:
    return hashlib.blake2b(f"{match}|{identity}|{caller}".encode(), digest_size=16).digest()


def _build_headers(budget: Budget) -> dict[str, str]:
    seconds = str(budget.seconds_left)
    headers = {
        "X-RateLimit-Limit": str(budget.limit.count),
        "X-RateLimit-Remaining": str(budget.remaining),
        "X-RateLimit-Reset": seconds,
    }

    if budget.is_over:
        headers["Retry-After"] = seconds

    return headers


def _build_refusal(headers: dict[str, str]) -> Response:
    detail = f"Rate limit exceeded; try again in {headers['Retry-After']} s."
    body = RefusalBody(detail=detail, error=detail)
    return Response(dump_api(body), status_code=TooManyRequests.status, headers=headers, media_type="application/json")

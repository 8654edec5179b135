"""Which headers of requests a server passes on: to what a request starts, and into its log.

Patterns choose by name; `*` stands for any characters, and what is excluded stays out whatever else matches. Headers
that carry secrets are never passed on, and neither are names with an underscore: proxies take these for the same name
with a hyphen, and what headers become knows keys of ours that are written like that.
"""

import contextvars
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any

import msgspec

from portside.kernel.errors import Invalid

SECRET = frozenset({"x-api-key", "x-tenant-id", "x-service-key"})
SECRET_PARTS = ("authorization", "cookie", "_")
VALUE_LIMIT = 4096
SHOWN_LIMIT = 200

Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Patterns = Annotated[list[Pattern], msgspec.Meta(max_length=200)]
_forwarded: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("forwarded_headers", default=None)


class HeaderRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Patterns of names that are passed on, and of those that are not; each list is known by two names."""

    includes: Patterns = []
    excludes: Patterns = []
    include: Patterns = []
    exclude: Patterns = []

    @cached_property
    def _wanted(self) -> re.Pattern[str]:
        return _any_of([*self.includes, *self.include])

    @cached_property
    def _unwanted(self) -> re.Pattern[str]:
        return _any_of([*self.excludes, *self.exclude])

    @property
    def never(self) -> list[str]:
        """The names that are asked for and are not passed on all the same, because they carry secrets."""
        return [name for name in (*self.includes, *self.include) if "*" not in name and _is_secret(name.lower())]

    def choose(self, headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
        """Return the headers to pass on by their names in lower case; of one that comes twice, both values."""
        chosen: dict[str, str] = {}
        for raw_name, value in headers:
            name = raw_name.decode("latin-1").lower()
            if self._wanted.fullmatch(name) and not self._unwanted.fullmatch(name) and not _is_secret(name):
                text = value.decode("latin-1")
                chosen[name] = f"{chosen[name]}, {text}" if name in chosen else text
        return chosen


class ForwardHeaders:
    """Keeps the chosen headers of a request for what it starts: `forwarded_headers`."""

    def __init__(self, app: Any, rules: HeaderRules) -> None:
        self.app = app
        self.rules = rules

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on. What it starts is in a task of its own, or in one that begins in this context."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        token = _forwarded.set(self.rules.choose(scope["headers"]))
        try:
            await self.app(scope, receive, send)
        finally:
            _forwarded.reset(token)


def forwarded_headers() -> dict[str, str]:
    """Return the headers of the request that is being answered that are passed on. Raises Invalid for a long one."""
    chosen = _forwarded.get() or {}
    for name, value in chosen.items():
        if len(value) > VALUE_LIMIT:
            raise Invalid.field(["header", name], f"Expected at most {VALUE_LIMIT} characters")
    return chosen


def shown(chosen: dict[str, str]) -> dict[str, str]:
    """Return headers as a log shows them: short, and without what a terminal would take for a command."""
    return {name: value[:SHOWN_LIMIT].encode("ascii", "backslashreplace").decode() for name, value in chosen.items()}


def _is_secret(name: str) -> bool:
    return name in SECRET or any(part in name for part in SECRET_PARTS)


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    """Make one expression of patterns; of none, one that no name matches."""
    # Two stars mean what one does, and would be slow to find out about.
    named = [".*".join(map(re.escape, re.split(r"\*+", pattern.lower()))) for pattern in patterns]
    return re.compile("|".join(named) if named else r"(?!)")

"""Selecting the headers of requests that a server passes on to runs and into its log.

Patterns select headers by name; `*` matches any characters, and excludes win over includes. Headers that carry secrets
are never passed on. Neither are names with an underscore: proxies treat them as the same name with a hyphen, and in a
run's configuration they could collide with keys of ours.
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
LOGGED_LIMIT = 200

Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Patterns = Annotated[list[Pattern], msgspec.Meta(max_length=200)]

_forwarded: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("forwarded_headers", default=None)


class HeaderRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Patterns of the names that are passed on, and of those that are not. Each key has two accepted names."""

    includes: Patterns = []
    excludes: Patterns = []
    include: Patterns = []
    exclude: Patterns = []

    @cached_property
    def _included(self) -> re.Pattern[str]:
        return _compile_patterns([*self.includes, *self.include])

    @cached_property
    def _excluded(self) -> re.Pattern[str]:
        return _compile_patterns([*self.excludes, *self.exclude])

    @property
    def ignored(self) -> list[str]:
        """The included names that are not passed on, because they carry secrets."""
        return [name for name in (*self.includes, *self.include) if "*" not in name and _is_secret(name.lower())]

    def select(self, headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
        """Return the headers to pass on, by lower-case name; repeated headers are joined by commas."""
        selected: dict[str, str] = {}
        for raw_name, value in headers:
            name = raw_name.decode("latin-1").lower()
            if not self._is_selected(name):
                continue

            text = value.decode("latin-1")
            selected[name] = f"{selected[name]}, {text}" if name in selected else text

        return selected

    def _is_selected(self, name: str) -> bool:
        is_included = self._included.fullmatch(name) is not None
        is_excluded = self._excluded.fullmatch(name) is not None or _is_secret(name)
        return is_included and not is_excluded


class ForwardHeaders:
    """Makes the selected headers of a request available to the run that it starts (`get_forwarded_headers`)."""

    def __init__(self, app: Any, rules: HeaderRules) -> None:
        self.app = app
        self.rules = rules

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on. Tasks that it starts inherit the context variable."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return

        token = _forwarded.set(self.rules.select(scope["headers"]))
        try:
            await self.app(scope, receive, send)
        finally:
            _forwarded.reset(token)


def get_forwarded_headers() -> dict[str, str]:
    """Return the selected headers of the current request. Raises Invalid if a value is too long."""
    selected = _forwarded.get() or {}
    for name, value in selected.items():
        if len(value) > VALUE_LIMIT:
            raise Invalid.field(["header", name], f"Expected at most {VALUE_LIMIT} characters")

    return selected


def format_headers(selected: dict[str, str]) -> dict[str, str]:
    """Return headers as the log shows them: shortened, and without control characters."""
    return {name: value[:LOGGED_LIMIT].encode("ascii", "backslashreplace").decode() for name, value in selected.items()}


def _is_secret(name: str) -> bool:
    return name in SECRET or any(part in name for part in SECRET_PARTS)


def _compile_patterns(patterns: list[str]) -> re.Pattern[str]:
    """Return one regular expression for all patterns. Without patterns it matches nothing."""
    # Several stars in a row mean the same as one, and would backtrack slowly.
    expressions = [".*".join(map(re.escape, re.split(r"\*+", pattern.lower()))) for pattern in patterns]
    return re.compile("|".join(expressions) or r"(?!)")

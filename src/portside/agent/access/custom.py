"""The project's own authentication (`@auth.authenticate`): called with what it asks for by name."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import HTTPConnection, Request

from portside.agent.access.errors import HandlerFailed, refusal_of
from portside.agent.access.memory import Remembered, digest_of
from portside.agent.access.users import NotAuthenticated, NoUser, caller_from
from portside.agent.types.access import AuthCache, Caller
from portside.kernel.errors import Unauthorized, UserMistake
from portside.kernel.logs import get_logger

log = get_logger(__name__)
ANSWERED_WITHIN_S = 30.0
UNAUTHORIZED = "Unauthorized"


async def _body(connection: HTTPConnection) -> Any:
    if not isinstance(connection, Request):
        return {}
    try:
        return json.loads(await connection.body() or b"{}")
    except ValueError:
        return {}


class _Headers(dict[bytes, bytes]):
    """The headers of a request as handlers are given them: bytes by their names, and text by names that are text."""

    @classmethod
    def of(cls, connection: HTTPConnection) -> "_Headers":
        """Return the headers of a request; of several of a name the last one."""
        return cls(connection.scope["headers"])

    def __missing__(self, name: Any) -> Any:
        return self[_raw(name)].decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return super().__contains__(_raw(name) if isinstance(name, str) else name)

    def get(self, name: Any, default: Any = None) -> Any:
        """Return a header, or what stands for one that was not sent."""
        return self[name] if name in self else default  # noqa: SIM401 - this is what that would call


def _raw(name: Any) -> bytes:
    if not isinstance(name, str):
        raise KeyError(name)
    return name.lower().encode("latin-1", "replace")


_GIVEN: dict[str, Callable[[HTTPConnection], Any]] = {
    "request": lambda connection: connection,
    "body": _body,
    "path": lambda connection: connection.scope["path"],
    "method": lambda connection: connection.scope.get("method", "GET"),
    "path_params": lambda connection: dict(connection.scope.get("path_params") or {}),
    "query_params": lambda connection: dict(connection.query_params),
    "headers": _Headers.of,
    "authorization": lambda connection: connection.headers.get("authorization"),
}


class CustomAuthentication:
    """Asks the project's handler who sends a request. Raises UserMistake for a handler that wants what there is not."""

    def __init__(self, handler: Callable[..., Any], cache: AuthCache | None = None) -> None:
        self._handler = handler
        self._wanted = _wanted(handler)
        self._keys = cache.cache_keys if cache else []
        self._remembered = Remembered[Caller](ttl_s=cache.ttl_seconds, most=cache.max_size) if cache else None

    async def __call__(self, connection: HTTPConnection) -> Caller:
        """Return who sends a request. Raises Unauthorized, Refused as the handler wants, and HandlerFailed."""
        if self._remembered is None:
            return await self._ask(connection)
        given = [connection.headers.get(name) for name in self._keys]
        if not any(given):
            return await self._ask(connection)
        key = digest_of(given)
        caller = self._remembered.get(key)
        if caller is None:
            caller = await self._ask(connection)
            self._remembered.put(key, caller)
        return caller

    async def _ask(self, connection: HTTPConnection) -> Caller:
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                return caller_from(await self._call(connection))
        except (AssertionError, NotAuthenticated) as exc:
            raise Unauthorized(UNAUTHORIZED) from exc
        except NoUser as exc:
            log.error("authentication returned no user", reason=str(exc))  # noqa: TRY400 - there is nothing to trace
            raise HandlerFailed from exc
        except Exception as exc:
            if refusal := refusal_of(exc):
                raise refusal from exc
            log.exception("authentication failed")
            raise HandlerFailed from exc

    async def _call(self, connection: HTTPConnection) -> Any:
        arguments: Mapping[str, Any] = {name: _GIVEN[name](connection) for name in self._wanted}
        arguments = {name: await value if inspect.isawaitable(value) else value for name, value in arguments.items()}
        if not inspect.iscoroutinefunction(inspect.unwrap(self._handler)):
            # One that is not async may wait for something, and everybody else would with it.
            answer = await asyncio.to_thread(self._handler, **arguments)
            return await answer if isinstance(answer, Awaitable) else answer
        return await self._handler(**arguments)


def _wanted(handler: Callable[..., Any]) -> list[str]:
    """Return the names that a handler is given."""
    parameters = inspect.signature(handler).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return [name for name in _GIVEN if name != "body"]
    unknown = [
        parameter.name
        for parameter in parameters
        if parameter.name not in _GIVEN
        and parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    if unknown:
        raise UserMistake(
            f"the authenticate handler wants {', '.join(unknown)}; it may ask for {', '.join(_GIVEN)}, by these names"
        )
    return [parameter.name for parameter in parameters if parameter.name in _GIVEN]

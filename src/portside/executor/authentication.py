"""Calls the project's `@auth.authenticate` handler with the arguments that it takes."""

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl

from portside.executor.handler_calls import HANDLER_TIMEOUT_S, HandlerFailed, find_refusal
from portside.executor.user import Identity, NotAuthenticated, NoUser, read_identity
from portside.kernel.errors import Unauthorized, UserMistake
from portside.kernel.timeouts import timeout

log = logging.getLogger(__name__)
UNAUTHORIZED = "Unauthorized"


class HttpConnection(Protocol):
    """A request or a handshake, as Starlette has it. Only a request has a `body`."""

    @property
    def scope(self) -> Any:
        """The scope of ASGI."""
        ...


class Authentication:
    """Calls the project's handler. Raises UserMistake for a handler with unknown parameters."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self._handler = handler
        self.parameters = _read_parameters(handler)

    async def __call__(self, connection: HttpConnection) -> Identity:
        """Return the user that the handler identifies. Raises Unauthorized, HandlerRefused and HandlerFailed."""
        try:
            async with timeout(HANDLER_TIMEOUT_S):
                return read_identity(await self._call(connection))
        except (AssertionError, NotAuthenticated) as exc:
            raise Unauthorized(UNAUTHORIZED) from exc
        except NoUser as exc:
            # There is nothing to trace.
            log.error("authentication returned no user", extra={"fields": {"reason": str(exc)}})  # noqa: TRY400
            raise HandlerFailed from exc
        except Exception as exc:
            if refusal := find_refusal(exc):
                raise refusal from exc

            log.exception("authentication failed")
            raise HandlerFailed from exc

    async def _call(self, connection: HttpConnection) -> Any:
        arguments: Mapping[str, Any] = {name: _ARGUMENTS[name](connection) for name in self.parameters}
        arguments = {name: await value if inspect.isawaitable(value) else value for name, value in arguments.items()}
        if not inspect.iscoroutinefunction(inspect.unwrap(self._handler)):
            # A handler that is not async may block, and would block the event loop.
            result = await asyncio.to_thread(self._handler, **arguments)
            return await result if isinstance(result, Awaitable) else result

        return await self._handler(**arguments)


def _read_parameters(handler: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a handler takes."""
    parameters = inspect.signature(handler).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return [name for name in _ARGUMENTS if name != "body"]

    unknown = [
        parameter.name
        for parameter in parameters
        if parameter.name not in _ARGUMENTS
        and parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    if unknown:
        raise UserMistake(
            f"the authenticate handler has unknown parameters: {', '.join(unknown)}; "
            f"it may take {', '.join(_ARGUMENTS)}"
        )

    return [parameter.name for parameter in parameters if parameter.name in _ARGUMENTS]


async def _read_body(connection: Any) -> Any:
    if not hasattr(connection, "body"):
        return {}

    try:
        return json.loads(await connection.body() or b"{}")
    except ValueError:
        return {}


class _Headers(dict[bytes, bytes]):
    """The headers of a request as handlers get them: bytes for a name in bytes, and a string for a string."""

    @classmethod
    def from_connection(cls, connection: HttpConnection) -> "_Headers":
        """Return the headers of a request; of several with one name, the last."""
        return cls(connection.scope["headers"])

    def __missing__(self, name: Any) -> Any:
        return self[_encode_header_name(name)].decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return super().__contains__(_encode_header_name(name) if isinstance(name, str) else name)

    def get(self, name: Any, default: Any = None) -> Any:
        """Return a header, or the default."""
        return self[name] if name in self else default  # noqa: SIM401 - this is what that would call


def _encode_header_name(name: Any) -> bytes:
    if not isinstance(name, str):
        raise KeyError(name)
    return name.lower().encode("latin-1", "replace")


def _parse_query(connection: HttpConnection) -> dict[str, str]:
    return dict(parse_qsl(connection.scope["query_string"].decode("latin-1"), keep_blank_values=True))


def _find_authorization(connection: HttpConnection) -> str | None:
    headers = connection.scope["headers"]
    value: bytes | None = next((value for name, value in headers if name == b"authorization"), None)
    return None if value is None else value.decode("latin-1")


# The arguments that a handler may take, and how each is read.
_ARGUMENTS: dict[str, Callable[[HttpConnection], Any]] = {
    "request": lambda connection: connection,
    "body": _read_body,
    "path": lambda connection: connection.scope["path"],
    "method": lambda connection: connection.scope.get("method", "GET"),
    "path_params": lambda connection: dict(connection.scope.get("path_params") or {}),
    "query_params": _parse_query,
    "headers": _Headers.from_connection,
    "authorization": _find_authorization,
}

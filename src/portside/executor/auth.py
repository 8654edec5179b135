"""The project's authentication (`@auth.authenticate`) and authorization (`@auth.on`), as its `Auth` object has them.

Handlers may raise the SDK's or Starlette's HTTPException. Any other failure refuses the request as well, and is logged.

One handler decides: that of the resource and the action, else that of the resource, else that of the action for every
resource, else the global one. Without any the action is allowed.

A handler may return a filter on the metadata of the resource. It is checked, and converted to the one form that the
database function `matches_access` takes:

    {"owner": "alice"}                         the metadata has `owner`, and it is "alice"
    {"owner": {"$eq": "alice"}}                the same
    {"members": {"$contains": "alice"}}        the metadata has a list `members` that contains "alice"
    {"members": {"$contains": ["a", "b"]}}     a list that contains both
    {"$or": [{…}, {…}]}, {"$and": [{…}, {…}]}  one of them, all of them

All keys of an object must hold. Conditions that an index can answer (top-level fields with scalar values) go into
`equal`, all others into `rest`. Anything else is a mistake of the handler, and denies access.
"""

import asyncio
import inspect
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

from langgraph_sdk.auth import Auth
from langgraph_sdk.auth.exceptions import HTTPException

from portside.executor.imports import add_to_path, import_object
from portside.executor.project import Project
from portside.executor.requests import Filter
from portside.executor.user import Identity, NotAuthenticated, NoUser, read_identity
from portside.kernel.errors import Forbidden, PortsideError, Unauthorized, UserMistake
from portside.kernel.timeouts import timeout
from portside.kernel.user_json import plain

log = logging.getLogger(__name__)
HANDLER_TIMEOUT_S = 30.0
AUTH_LABEL = "auth"
UNAUTHORIZED = "Unauthorized"
LOWEST_STATUS = 400
HIGHEST_STATUS = 599
MAX_CONDITIONS = 100
MAX_DEPTH = 10
SCALARS = (str, bool, int, float)
ANY = "*"


class HandlerRefused(PortsideError):
    """Refused by the authentication of this server."""

    code = "refused"

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail, headers=headers)
        self.status = status  # type: ignore[misc]


class HandlerFailed(PortsideError):
    """Internal Server Error"""  # noqa: D415 - clients learn nothing about the failure

    code = "auth_failed"


def find_refusal(exc: BaseException) -> HandlerRefused | None:
    """Return the response that an exception of the project's code asks for; None if the exception is a failure."""
    # Only code that has imported Starlette raises its exception.
    starlette = sys.modules.get("starlette.exceptions")
    if not isinstance(exc, HTTPException if starlette is None else (HTTPException, starlette.HTTPException)):
        return None

    http_exception: Any = exc
    status: Any = http_exception.status_code
    if not isinstance(status, int) or not LOWEST_STATUS <= status <= HIGHEST_STATUS:
        return None

    return HandlerRefused(status, str(http_exception.detail or _phrase(status)), http_exception.headers)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Refused"


class BadFilter(ValueError):
    """An authorization handler returned an invalid filter; the text is for the project's log only."""


def read_filter(source: Mapping[str, Any]) -> Filter:
    """Return a handler's filter in the form of the database. Raises BadFilter."""
    equal: dict[str, Any] = {}
    other_conditions: list[dict[str, Any]] = []
    for condition in _conditions(source, 1):
        key = condition.get("key")
        value = condition.get("value")
        if condition["op"] == "eq" and isinstance(value, SCALARS) and key not in equal:
            equal[str(key)] = value
        else:
            other_conditions.append(condition)

    return Filter({"equal": equal, "rest": other_conditions})


class HttpConnection(Protocol):
    """A request or a handshake, as Starlette has it. Only a request has a `body`."""

    @property
    def scope(self) -> Any:
        """The scope of ASGI."""
        ...


async def _body(connection: Any) -> Any:
    if not hasattr(connection, "body"):
        return {}

    try:
        return json.loads(await connection.body() or b"{}")
    except ValueError:
        return {}


class _Headers(dict[bytes, bytes]):
    """The headers of a request as handlers get them: bytes for a name in bytes, and a string for a string."""

    @classmethod
    def of(cls, connection: HttpConnection) -> "_Headers":
        """Return the headers of a request; of several with one name, the last."""
        return cls(connection.scope["headers"])

    def __missing__(self, name: Any) -> Any:
        return self[_header_name(name)].decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return super().__contains__(_header_name(name) if isinstance(name, str) else name)

    def get(self, name: Any, default: Any = None) -> Any:
        """Return a header, or the default."""
        return self[name] if name in self else default  # noqa: SIM401 - this is what that would call


def _header_name(name: Any) -> bytes:
    if not isinstance(name, str):
        raise KeyError(name)
    return name.lower().encode("latin-1", "replace")


def _query(connection: HttpConnection) -> dict[str, str]:
    return dict(parse_qsl(connection.scope["query_string"].decode("latin-1"), keep_blank_values=True))


def _authorization(connection: HttpConnection) -> str | None:
    headers = connection.scope["headers"]
    value: bytes | None = next((value for name, value in headers if name == b"authorization"), None)
    return None if value is None else value.decode("latin-1")


_ARGUMENTS: dict[str, Callable[[HttpConnection], Any]] = {
    "request": lambda connection: connection,
    "body": _body,
    "path": lambda connection: connection.scope["path"],
    "method": lambda connection: connection.scope.get("method", "GET"),
    "path_params": lambda connection: dict(connection.scope.get("path_params") or {}),
    "query_params": _query,
    "headers": _Headers.of,
    "authorization": _authorization,
}


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


def _conditions(source: Any, depth: int) -> list[dict[str, Any]]:
    if not isinstance(source, Mapping):
        raise BadFilter(f"a filter must be an object, not {type(source).__name__}")
    if depth > MAX_DEPTH:
        raise BadFilter(f"a filter may be nested at most {MAX_DEPTH} objects deep")
    if len(source) > MAX_CONDITIONS:
        raise BadFilter(f"a filter may have at most {MAX_CONDITIONS} conditions at one level")

    conditions: list[dict[str, Any]] = []
    for key, value in source.items():
        if key in {"$and", "$or"}:
            parts = [{"op": "all", "of": _conditions(part, depth + 1)} for part in _branches(key, value)]
            conditions.append({"op": "all" if key == "$and" else "any", "of": parts})
        elif not isinstance(key, str) or key.startswith("$"):
            raise BadFilter(f"{key!r} is neither a field nor an operator of a filter; the operators are $and and $or")
        else:
            conditions += _field_conditions(key, value)

    return conditions


def _branches(operator: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MAX_CONDITIONS:
        raise BadFilter(f"{operator} takes a list of 1 to {MAX_CONDITIONS} filters")
    return list(value)


def _field_conditions(key: str, value: Any) -> list[dict[str, Any]]:
    """Return the conditions on one field."""
    if not isinstance(value, Mapping):
        return [{"op": "eq", "key": key, "value": _json_value(key, value)}]
    if not value or not value.keys() <= {"$eq", "$contains"}:
        raise BadFilter(f"the field {key!r} of a filter takes a value, $eq or $contains")

    conditions = []
    if "$eq" in value:
        conditions.append({"op": "eq", "key": key, "value": _json_value(key, value["$eq"])})

    if "$contains" in value:
        contained = _json_value(key, value["$contains"])
        several = contained if isinstance(contained, list) else [contained]
        if len(several) > MAX_CONDITIONS:
            raise BadFilter(f"$contains of the field {key!r} takes at most {MAX_CONDITIONS} values")

        conditions.append({"op": "has", "key": key, "values": several})

    return conditions


def _json_value(key: str, value: Any) -> Any:
    """Return a value as it would be stored: ids and times become strings."""
    try:
        return plain(value)
    except (TypeError, ValueError) as exc:
        raise BadFilter(f"the value of {key!r} in a filter cannot be written as JSON") from exc


class Sender(Protocol):
    """The sender of a request: the user whom authentication returned, and the user's permissions."""

    @property
    def permissions(self) -> Sequence[str]:
        """The permissions, such as `threads:read`."""
        ...

    @property
    def user(self) -> Any:
        """The user."""
        ...


class AuthorizationHandlers:
    """The handlers of one `Auth` object."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    def find(self, resource: str, action: str) -> Any:
        """Return the handler that decides about an action; None if there is none."""
        keyed = self._auth._handlers  # noqa: SLF001 - the SDK keeps these names stable for servers
        for key in ((resource, action), (resource, ANY), (ANY, action), (ANY, ANY)):
            if handlers := keyed.get(key):
                return handlers[-1]

        everywhere = self._auth._global_handlers  # noqa: SLF001 - the same
        return everywhere[-1] if everywhere else None

    def keys(self) -> list[tuple[str, str]]:
        """Return the resource and the action of each handler; `*` stands for all."""
        # The SDK keeps these names stable for servers.
        everywhere = [(ANY, ANY)] if self._auth._global_handlers else []  # noqa: SLF001
        return [*self._auth._handlers, *everywhere]  # noqa: SLF001

    async def decide(self, caller: Sender, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Call the handler of an action and return its filter; None means no condition.

        Raises Forbidden, HandlerRefused and HandlerFailed.
        """
        handler = self.find(resource, action)
        if handler is None:
            return None

        names: dict[str, Any] = {"resource": resource, "action": action}
        context = Auth.types.AuthContext(permissions=list(caller.permissions), user=caller.user, **names)
        try:
            async with timeout(HANDLER_TIMEOUT_S):
                result = await handler(ctx=context, value=value)
        except AssertionError as exc:
            raise Forbidden("Forbidden") from exc
        except Exception as exc:
            if refusal := find_refusal(exc):
                raise refusal from exc

            log.exception("an authorization handler failed", extra={"fields": names})
            raise HandlerFailed from exc

        return read_result(result, resource, action)


def read_result(result: Any, resource: str, action: str) -> Filter | None:
    """Return the filter that a handler returned; None is no condition. Raises Forbidden and HandlerFailed."""
    if result is None or result is True or result == {}:
        return None
    if result is False:
        raise Forbidden("Forbidden")

    event = {"fields": {"resource": resource, "action": action}}
    if not isinstance(result, Mapping):
        log.error("an authorization handler returned neither a boolean, None nor a filter", extra=event)
        raise HandlerFailed

    try:
        return read_filter(result)
    except BadFilter as exc:
        log.exception("an authorization handler returned an invalid filter", extra=event)
        raise HandlerFailed from exc


class LoadedAuth(NamedTuple):
    """The handlers of a project's `Auth` object: the one for authentication, and those for authorization."""

    authenticate: Authentication
    handlers: AuthorizationHandlers


def load_auth(project: Project, path: str) -> LoadedAuth:
    """Import the project's `Auth` object. Raises UserMistake."""
    auth = import_object(project, AUTH_LABEL, path, roots=add_to_path(project))
    if not isinstance(auth, Auth):
        kind = type(auth).__name__
        raise UserMistake(f"{project.file}: auth ({path}) is of type {kind}; export a langgraph_sdk.Auth")

    handler = auth._authenticate_handler  # noqa: SLF001 - the SDK keeps these names stable for servers
    if handler is None:
        raise UserMistake(
            f"{project.file}: auth ({path}) has no @authenticate handler, so every request would be refused"
        )

    return LoadedAuth(Authentication(handler), AuthorizationHandlers(auth))

"""The project's authorization handlers (`@auth.on`), and the filters and errors that they return and raise.

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
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from langgraph_sdk.auth import Auth
from langgraph_sdk.auth.exceptions import HTTPException
from starlette.exceptions import HTTPException as StarletteException

from portside.agent.types.access import Caller, Filter
from portside.kernel.codec import load
from portside.kernel.errors import Forbidden, PortsideError
from portside.kernel.logs import get_logger
from portside.kernel.user_json import dump_user

LOWEST_STATUS, HIGHEST_STATUS = 400, 599


class HandlerRefused(PortsideError):
    """Refused by the authentication of this server."""

    code = "refused"

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail, headers=headers)
        self.status = status  # type: ignore[misc]


class HandlerFailed(PortsideError):
    """Internal Server Error"""  # noqa: D415 - clients learn nothing about the failure

    code = "auth_failed"


def refusal_of(exc: BaseException) -> HandlerRefused | None:
    """Return the response that an exception of the project's code asks for; None if the exception is a failure."""
    if not isinstance(exc, (HTTPException, StarletteException)):
        return None
    status: Any = exc.status_code
    if not isinstance(status, int) or not LOWEST_STATUS <= status <= HIGHEST_STATUS:
        return None
    return HandlerRefused(status, str(exc.detail or _phrase(status)), exc.headers)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Refused"


MAX_CONDITIONS = 100
MAX_DEPTH = 10
SCALARS = (str, bool, int, float)


class BadFilter(ValueError):
    """An authorization handler returned an invalid filter; the text is for the project's log only."""


def read_filter(given: Mapping[str, Any]) -> Filter:
    """Return a handler's filter in the form of the database. Raises BadFilter."""
    equal: dict[str, Any] = {}
    rest: list[dict[str, Any]] = []
    for condition in _conditions(given, 1):
        key, value = condition.get("key"), condition.get("value")
        if condition["op"] == "eq" and isinstance(value, SCALARS) and key not in equal:
            equal[str(key)] = value
        else:
            rest.append(condition)
    return Filter({"equal": equal, "rest": rest})


def matches(metadata: Mapping[str, Any], wanted: Filter | None) -> bool:
    """Whether metadata matches a filter. This is `matches_access` of the database, for what is not stored yet."""
    if wanted is None:
        return True
    equal = ({"op": "eq", "key": key, "value": value} for key, value in wanted["equal"].items())
    return all(_holds(metadata, condition) for condition in (*equal, *wanted["rest"]))


def _conditions(given: Any, depth: int) -> list[dict[str, Any]]:
    if not isinstance(given, Mapping):
        raise BadFilter(f"a filter must be an object, not {type(given).__name__}")
    if depth > MAX_DEPTH:
        raise BadFilter(f"a filter may be nested {MAX_DEPTH} objects deep")
    if len(given) > MAX_CONDITIONS:
        raise BadFilter(f"a filter may have {MAX_CONDITIONS} conditions at one level")
    found: list[dict[str, Any]] = []
    for key, value in given.items():
        if key in {"$and", "$or"}:
            parts = [{"op": "all", "of": _conditions(part, depth + 1)} for part in _branches(key, value)]
            found.append({"op": "all" if key == "$and" else "any", "of": parts})
        elif not isinstance(key, str) or key.startswith("$"):
            raise BadFilter(f"{key!r} is neither a field nor an operator of a filter; the operators are $and and $or")
        else:
            found += _field_conditions(key, value)
    return found


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
    found = []
    if "$eq" in value:
        found.append({"op": "eq", "key": key, "value": _json_value(key, value["$eq"])})
    if "$contains" in value:
        wanted = _json_value(key, value["$contains"])
        several = wanted if isinstance(wanted, list) else [wanted]
        if len(several) > MAX_CONDITIONS:
            raise BadFilter(f"$contains of the field {key!r} takes at most {MAX_CONDITIONS} values")
        found.append({"op": "has", "key": key, "values": several})
    return found


def _json_value(key: str, value: Any) -> Any:
    """Return a value as it would be stored: ids and times become strings."""
    try:
        return load(dump_user(value))
    except (TypeError, ValueError) as exc:
        raise BadFilter(f"the value of {key!r} in a filter cannot be written as JSON") from exc


def _holds(metadata: Mapping[str, Any], condition: dict[str, Any]) -> bool:
    match condition["op"]:
        case "all":
            return all(_holds(metadata, part) for part in condition["of"])
        case "any":
            return any(_holds(metadata, part) for part in condition["of"])
        case "eq":
            return condition["key"] in metadata and _json_equal(metadata[condition["key"]], condition["value"])
        case _:
            stored = metadata.get(condition["key"])
            return isinstance(stored, (list, tuple)) and all(
                any(_json_equal(one, wanted) for one in stored) for wanted in condition["values"]
            )


def _json_equal(stored: Any, wanted: Any) -> bool:
    """Whether two values are equal in JSON, where true is not 1."""
    return bool(_typed(load(dump_user(stored))) == _typed(wanted))


def _typed(value: Any) -> Any:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return [_typed(part) for part in value]
    return {key: _typed(part) for key, part in value.items()} if isinstance(value, dict) else value


log = get_logger(__name__)
HANDLER_TIMEOUT_S = 30.0
ANY, STORE = "*", "store"


class AuthorizationHandlers:
    """The handlers of one `Auth` object."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    def find(self, resource: str, action: str) -> Any:
        """Return the handler that decides about an action; None if there is none."""
        keyed = self._auth._handlers  # noqa: SLF001 - the SDK keeps these names stable for servers
        for key in ((resource, action), (resource, ANY), (ANY, action), (ANY, ANY)):
            if found := keyed.get(key):
                return found[-1]
        everywhere = self._auth._global_handlers  # noqa: SLF001 - the same
        return everywhere[-1] if everywhere else None

    async def decide(self, caller: Caller, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Call the handler of an action and return its filter; None means no condition.

        Raises Forbidden, HandlerRefused and HandlerFailed.
        """
        handler = self.find(resource, action)
        if handler is None:
            return None
        names: dict[str, Any] = {"resource": resource, "action": action}
        context = Auth.types.AuthContext(permissions=list(caller.permissions), user=caller.user, **names)
        try:
            async with asyncio.timeout(HANDLER_TIMEOUT_S):
                result = await handler(ctx=context, value=value)
        except AssertionError as exc:
            raise Forbidden("Forbidden") from exc
        except Exception as exc:
            if refusal := refusal_of(exc):
                raise refusal from exc
            log.exception("an authorization handler failed", resource=resource, action=action)
            raise HandlerFailed from exc
        return _read_result(result, resource, action)


def _read_result(result: Any, resource: str, action: str) -> Filter | None:
    if result is None or result is True or result == {}:
        return None
    if result is False:
        raise Forbidden("Forbidden")
    if isinstance(result, Mapping):
        if resource == STORE:
            log.error("items of the store have no metadata to filter by: rewrite value['namespace']", action=action)
            raise HandlerFailed
        try:
            return read_filter(result)
        except BadFilter as exc:
            log.exception("an authorization handler returned an invalid filter", resource=resource, action=action)
            raise HandlerFailed from exc
    log.error(
        "an authorization handler returned neither a boolean, None nor a filter", resource=resource, action=action
    )
    raise HandlerFailed

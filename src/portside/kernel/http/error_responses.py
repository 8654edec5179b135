"""Error responses: maps exceptions to errors, and errors to bodies.

Every body is `{"detail": …}`. Only a failed validation (422) has two formats. The `detail` of the platform is the array
of problems. The clients of agent servers print only text, so their `detail` is a text, with the array under `errors`.
"""

import enum
from typing import Any

import msgspec
from starlette.responses import Response

from portside.kernel.codec import dump_api
from portside.kernel.disk import DiskFull
from portside.kernel.errors import BadRequest, Conflict, Invalid, NotSupported, PortsideError, Problem, Unavailable
from portside.kernel.http.json_validation import NOT_JSON
from portside.kernel.logs import get_logger
from portside.kernel.pool import is_conflict
from portside.kernel.transient_errors import is_retryable, log_failure

log = get_logger(__name__)
# The SQL states of text with a NUL character: untranslatable character, character not in repertoire.
_NUL_STATES = frozenset({"22P05", "22021"})
# The SQL states of values that a column or parameter cannot hold, and of keys and documents that are too large.
_VALUE_STATES = frozenset({"22000", "22001", "22003", "22007", "22008", "22P02", "54000", "54001"})


class ErrorBody(msgspec.Struct, omit_defaults=True):
    """An error; some clients look for the word under `error`."""

    detail: str
    error: str | None = None


class ProblemsBody(msgspec.Struct):
    """A failed validation, as one entry for each problem."""

    detail: list[Problem]


class TextBody(msgspec.Struct):
    """A failed validation as text, and as entries."""

    detail: str
    errors: list[Problem]


class ErrorFormat(enum.Enum):
    """The format of a server's failed validations."""

    PROBLEMS = ProblemsBody
    TEXT = TextBody


def build_error_response(error: PortsideError, form: ErrorFormat = ErrorFormat.PROBLEMS) -> Response:
    """Return the response for an error."""
    body: ErrorBody | ProblemsBody | TextBody
    if not isinstance(error, Invalid):
        body = ErrorBody(error.message, error.error)
    elif form is ErrorFormat.TEXT:
        body = TextBody(describe_problems(error.problems), error.problems)
    else:
        body = ProblemsBody(error.problems)

    return Response(dump_api(body), status_code=error.status, headers=error.headers, media_type="application/json")


async def refuse_websocket(response: Response, scope: Any, send: Any) -> None:
    """Answer a handshake with an HTTP error, or close the connection if the server does not support that."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 4000 + response.status_code})
        return

    request_id = scope.get("state", {}).get("request_id")
    if request_id is not None:
        response.headers["x-request-id"] = request_id

    head = {"type": "websocket.http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await send(head)
    await send({"type": "websocket.http.response.body", "body": response.body})


def describe_problems(problems: list[Problem]) -> str:
    """Return the problems as text, each with its field. A few texts are exact, because clients match them."""
    return "; ".join(_describe_problem(problem) for problem in problems)


def _describe_problem(problem: Problem) -> str:
    if problem.type == "json_invalid":
        return NOT_JSON
    if problem.loc[0] == "path" and problem.type == "uuid_parsing":
        return problem.msg

    return f"{'.'.join(map(str, problem.loc))}: {problem.msg}"


def to_error(exc: Exception, path: str) -> PortsideError:
    """Return the error that the client gets for an exception. Logs it, unless the client caused it."""
    if isinstance(exc, PortsideError):
        if isinstance(exc, NotSupported):
            log.info("the request needs a feature that is not built", path=path, error=str(exc))
        elif exc.status >= 500 and not isinstance(exc, DiskFull):
            # The watch has logged a full disk; a line for each refused request would fill what is left of it.
            log.error("request failed", path=path, error=str(exc))

        return exc

    state = getattr(exc, "sqlstate", None)
    if state in _NUL_STATES:
        return BadRequest("The request holds a NUL character (\\u0000), which cannot be stored.")

    if state in _VALUE_STATES:
        log.warning("the database refused a value", path=path, error=str(exc))
        return BadRequest("The request holds a value that cannot be stored: out of range, too long or malformed.")

    if is_conflict(exc):
        log.warning("a transaction conflicted with another one", path=path, error=str(exc))
        return Conflict("The request conflicted with a concurrent one and changed nothing; send it again.")

    log_failure("request failed", exc, path=path)
    return Unavailable() if is_retryable(exc) else PortsideError()

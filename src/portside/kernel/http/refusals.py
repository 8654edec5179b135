"""Errors as answers: which error an exception is to a client, and the form in which a server tells it.

Every error is `{"detail": …}`. Only a failed validation (422) comes in two forms: the control plane's `detail` is the
array of problems; agent servers, whose clients print nothing but text, say it in words and give the array beside it.
"""

import enum
from typing import Any

import msgspec
from starlette.responses import Response

from portside.kernel.codec import dump_api
from portside.kernel.db import CROSSED_STATES
from portside.kernel.errors import BadRequest, Conflict, Invalid, NotBuilt, PortsideError, Problem, Unavailable
from portside.kernel.http.vetting import NOT_JSON
from portside.kernel.logs import get_logger

log = get_logger(__name__)
# Postgres' words for text that holds a NUL character: untranslatable character, character not in repertoire.
_NUL_STATES = frozenset({"22P05", "22021"})
# Its words for values that a column or a parameter does not take, and for keys and documents that are too large.
_VALUE_STATES = frozenset({"22000", "22001", "22003", "22007", "22008", "22P02", "54000", "54001"})


class ErrorBody(msgspec.Struct, omit_defaults=True):
    """An error, in words; with the one word that some clients look for, where there is one."""

    detail: str
    error: str | None = None


class ProblemsBody(msgspec.Struct):
    """A failed validation: one entry for each problem."""

    detail: list[Problem]


class TextBody(msgspec.Struct):
    """A failed validation in words, and the same for programs."""

    detail: str
    errors: list[Problem]


class ErrorForm(enum.Enum):
    """How a server shows a failed validation."""

    PROBLEMS = ProblemsBody
    TEXT = TextBody


def error_response(error: PortsideError, form: ErrorForm = ErrorForm.PROBLEMS) -> Response:
    """Make the answer that an error is."""
    body: Any = ErrorBody(error.message, error.error)
    if isinstance(error, Invalid):
        is_text = form is ErrorForm.TEXT
        body = TextBody(in_words(error.problems), error.problems) if is_text else ProblemsBody(error.problems)
    return Response(dump_api(body), error.status, error.headers, "application/json")


def in_words(problems: list[Problem]) -> str:
    """Say what is wrong: each problem with its field, but for those that clients know by their exact words."""
    return "; ".join(_in_words(problem) for problem in problems)


def _in_words(problem: Problem) -> str:
    if problem.type == "json_invalid":
        return NOT_JSON
    if problem.loc[0] == "path" and problem.type == "uuid_parsing":
        return problem.msg
    return f"{'.'.join(map(str, problem.loc))}: {problem.msg}"


def error_of(exc: Exception, path: str) -> PortsideError:
    """Return the error that an exception is to the client. Logs what is not the client's doing."""
    state = getattr(exc, "sqlstate", None)
    if isinstance(exc, PortsideError):
        if isinstance(exc, NotBuilt):
            log.info("what was asked for is not offered", path=path, error=str(exc))
        elif exc.status >= 500:
            log.error("request failed", path=path, error=str(exc))
        return exc
    if state in _NUL_STATES:
        return BadRequest("The request holds a NUL character (\\u0000), which cannot be stored.")
    if state in _VALUE_STATES:
        log.warning("the database refused a value", path=path, error=str(exc))
        return BadRequest("The request holds a value that cannot be stored: out of range, too long or malformed.")
    if state in CROSSED_STATES:
        log.warning("a transaction crossed another one", path=path, error=str(exc))
        return Conflict("The request crossed another one that changes the same, and changed nothing; send it again.")
    if isinstance(exc, (ConnectionError, TimeoutError)):
        log.exception("a dependency did not answer", path=path, exc_info=exc)
        return Unavailable()
    log.exception("request failed", path=path, exc_info=exc)
    return PortsideError()

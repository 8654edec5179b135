"""The errors that servers answer with: one class for each way in which a request can fail.

    PortsideError 500
    ├── BadRequest 400
    ├── Unauthorized 401
    ├── Forbidden 403
    ├── NotFound 404
    ├── MethodNotAllowed 405
    ├── Conflict 409
    ├── BodyTooLarge 413
    ├── Invalid 422
    ├── TooManyRequests 429
    ├── NotSupported 501
    └── Unavailable 503

All have one JSON shape, `{"detail": …}`, which `http/error_responses.py` writes. The first line of the docstring of a
class is its default message.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

# Retry-After of 503 responses. The embedded Postgres usually restarts within two seconds after a crash.
RETRY_AFTER_S = 2


@dataclass(slots=True)
class Problem:
    """One problem of a request: its location, a message and its kind."""

    loc: list[str | int]
    msg: str
    type: str


class PortsideError(Exception):
    """Something went wrong on our side; the request id names it in the log."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    # A field that some clients of the hosted API read beside `detail`.
    error: ClassVar[str | None] = None

    def __init__(self, message: str | None = None, *, headers: Mapping[str, str] | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip().split("\n", 1)[0]
        self.headers = dict(headers or {})
        super().__init__(self.message)


class BadRequest(PortsideError):
    """The request is well formed, but cannot be carried out; the message says why."""

    status = 400
    code = "bad_request"


class Unauthorized(PortsideError):
    """No valid API key was sent; put one in the X-Api-Key header."""

    status = 401
    code = "unauthorized"


class Forbidden(PortsideError):
    """The key is valid, but it may not do this."""

    status = 403
    code = "forbidden"


class NotFound(PortsideError):
    """Not Found"""  # noqa: D415 - the exact text that clients know

    status = 404
    code = "not_found"


class MethodNotAllowed(PortsideError):
    """Method Not Allowed"""  # noqa: D415 - the exact text that clients know

    status = 405
    code = "method_not_allowed"


class Conflict(PortsideError):
    """The request conflicts with the current state; the message says how."""

    status = 409
    code = "conflict"


class BodyTooLarge(PortsideError):
    """The request body is larger than this server accepts."""

    status = 413
    code = "body_too_large"


class Invalid(PortsideError):
    """The request does not have the documented shape; every problem names its field."""

    status = 422
    code = "invalid"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(f"{'.'.join(map(str, p.loc))}: {p.msg}" for p in self.problems))

    @classmethod
    def field(cls, loc: Sequence[str | int], msg: str, kind: str = "value_error") -> "Invalid":
        """Return the error for one field; `loc` starts with `body`, `query` or `path`."""
        return cls([Problem(list(loc), msg, kind)])


class TooManyRequests(PortsideError):
    """Rate limit exceeded; retry after the number of seconds in Retry-After."""

    status = 429
    code = "too_many_requests"


class NotSupported(PortsideError):
    """The server does not support the request; the message says which part."""

    status = 501
    code = "not_supported"


class Unavailable(PortsideError):
    """The service cannot answer right now; retry after the number of seconds in Retry-After."""

    status = 503
    code = "unavailable"

    def __init__(self, message: str | None = None, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, headers={"Retry-After": str(RETRY_AFTER_S), **(headers or {})})


class UserMistake(Exception):
    """An error that the user of the program can correct. Its message is shown without a stack trace."""

    exit_code: ClassVar[int] = 1


class DependencyUnavailable(UserMistake):
    """The program cannot start because something that it depends on is unavailable: its port, its database."""

    # EX_UNAVAILABLE of sysexits.h tells the process that started the program that other code would fail too.
    exit_code = 69


def error_classes(root: type[PortsideError] = PortsideError) -> Iterator[type[PortsideError]]:
    """Yield the error class and all that derive from it, parents first."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)

"""What the project's own code refuses with, and what it fails with."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from langgraph_sdk.auth.exceptions import HTTPException
from starlette.exceptions import HTTPException as StarletteException

from portside.kernel.errors import PortsideError

LEAST, MOST = 400, 599


class Refused(PortsideError):
    """Refused by the authentication of this server."""

    code = "refused"

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail, headers=headers)
        self.status = status  # type: ignore[misc]


class HandlerFailed(PortsideError):
    """Internal Server Error"""  # noqa: D415 - no word of what happened leaves the server

    code = "auth_failed"


def refusal_of(exc: BaseException) -> Refused | None:
    """Return the answer that the project's code asks for with an exception; None where it is a failure."""
    if not isinstance(exc, (HTTPException, StarletteException)):
        return None
    status: Any = exc.status_code
    if not isinstance(status, int) or not LEAST <= status <= MOST:
        return None
    return Refused(status, str(exc.detail or _phrase(status)), exc.headers)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Refused"

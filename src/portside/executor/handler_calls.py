"""What calls of the project's handlers have in common: their time limit, and how they refuse a request.

Handlers may raise the SDK's or Starlette's HTTPException. Any other failure refuses the request as well, and is logged.
"""

import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from langgraph_sdk.auth.exceptions import HTTPException

from portside.kernel.errors import PortsideError

HANDLER_TIMEOUT_S = 30.0
LOWEST_STATUS = 400
HIGHEST_STATUS = 599


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
    refusals: list[type[BaseException]] = [HTTPException]
    # Only code that has imported Starlette raises its exception.
    if (starlette := sys.modules.get("starlette.exceptions")) is not None:
        refusals.append(starlette.HTTPException)

    if not isinstance(exc, tuple(refusals)):
        return None

    http_exception: Any = exc
    status: Any = http_exception.status_code
    if not isinstance(status, int) or not LOWEST_STATUS <= status <= HIGHEST_STATUS:
        return None

    return HandlerRefused(status, str(http_exception.detail or _get_phrase(status)), http_exception.headers)


def _get_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Refused"

"""Calls the project's `@auth.on` handlers.

One handler decides: that of the resource and the action, else that of the resource, else that of the action for every
resource, else the global one. Without any the action is allowed.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from langgraph_sdk.auth import Auth

from portside.executor.access_filters import BadFilter, read_filter
from portside.executor.handler_calls import HANDLER_TIMEOUT_S, HandlerFailed, find_refusal
from portside.executor.requests import Filter
from portside.kernel.errors import Forbidden
from portside.kernel.timeouts import timeout

log = logging.getLogger(__name__)
ANY = "*"


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

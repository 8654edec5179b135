"""The project's authorization handlers (`@auth.on`): which one decides, and what its answer means.

One handler decides: that of the resource and the action, else that of the resource, else that of the action for every
resource, else the global one. Where there is none the action is allowed.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from langgraph_sdk.auth import Auth

from portside.agent.access.errors import HandlerFailed, refusal_of
from portside.agent.access.filters import read_filter
from portside.agent.types.access import Caller, Filter
from portside.kernel.errors import Forbidden
from portside.kernel.logs import get_logger

log = get_logger(__name__)
ANSWERED_WITHIN_S = 30.0
ANY, STORE = "*", "store"


class Handlers:
    """The handlers of one `Auth` object."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    def find(self, resource: str, action: str) -> Any:
        """Return the handler that decides about an action; None where there is none."""
        keyed = self._auth._handlers  # noqa: SLF001 - the SDK keeps these names stable for servers
        for key in ((resource, action), (resource, ANY), (ANY, action), (ANY, ANY)):
            if found := keyed.get(key):
                return found[-1]
        everywhere = self._auth._global_handlers  # noqa: SLF001 - the same
        return everywhere[-1] if everywhere else None

    async def decide(self, caller: Caller, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Ask the handler; None is no condition. Raises Forbidden, Refused, BadFilter and HandlerFailed."""
        handler = self.find(resource, action)
        if handler is None:
            return None
        names: dict[str, Any] = {"resource": resource, "action": action}
        context = Auth.types.AuthContext(permissions=list(caller.permissions), user=caller.user, **names)
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                answer = await handler(ctx=context, value=value)
        except AssertionError as exc:
            raise Forbidden("Forbidden") from exc
        except Exception as exc:
            if refusal := refusal_of(exc):
                raise refusal from exc
            log.exception("an authorization handler failed", resource=resource, action=action)
            raise HandlerFailed from exc
        return _meant(answer, resource, action)


def _meant(answer: Any, resource: str, action: str) -> Filter | None:
    if answer is None or answer is True or answer == {}:
        return None
    if answer is False:
        raise Forbidden("Forbidden")
    if isinstance(answer, Mapping):
        if resource == STORE:
            log.error("items of the store have no metadata to filter by: rewrite value['namespace']", action=action)
            raise HandlerFailed
        return read_filter(answer)
    log.error("an authorization handler answered neither yes, no nor a filter", resource=resource, action=action)
    raise HandlerFailed

"""How large the bodies of requests may be."""

from collections.abc import Mapping
from typing import Any

from portside.kernel.errors import BodyTooLarge
from portside.kernel.http.headers import header_of

_DISCARD_AT_MOST = 128 * 1024 * 1024


class LimitBody:
    """Refuses bodies over the limit, by their declared length or while they arrive (413).

    Routes with a limit of their own are told apart by what their paths begin with.
    """

    def __init__(self, app: Any, max_bytes: int, special: Mapping[str, int] | None = None) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self._special = tuple((special or {}).items())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Count the body of an HTTP request as it is read."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = header_of(scope, b"content-length") or "0"
        max_bytes = self._limit_of(scope["path"])
        if declared.isdigit() and int(declared) > max_bytes:
            await _read_away(receive)
            raise self._too_large(max_bytes)
        seen = 0

        async def count() -> Any:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > max_bytes:
                    if message.get("more_body"):
                        await _read_away(receive)
                    raise self._too_large(max_bytes)
            return message

        await self.app(scope, count, send)

    def _limit_of(self, path: str) -> int:
        for start, limit in self._special:
            if path.startswith(start):
                return limit
        return self.max_bytes

    def _too_large(self, max_bytes: int) -> BodyTooLarge:
        setting = " of this server (setting HTTP_MAX_REQUEST_BODY_BYTES)" if max_bytes == self.max_bytes else ""
        return BodyTooLarge(
            f"The request body is larger than {max_bytes} bytes, the limit{setting}.",
            headers={"Connection": "close"},
        )


async def _read_away(receive: Any) -> None:
    """Read the rest of a body, within bounds, so that the client gets to read the answer."""
    dropped = 0
    while dropped < _DISCARD_AT_MOST:
        message = await receive()
        dropped += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            break

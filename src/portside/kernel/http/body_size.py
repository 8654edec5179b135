"""The size of request bodies: its limits, and dropping what a refused client still sends."""

from collections.abc import Awaitable, Mapping
from typing import Any

from portside.kernel.errors import BodyTooLarge
from portside.kernel.http.body_settings import MAX_VALUES
from portside.kernel.http.headers import get_header
from portside.kernel.http.json_validation import value_limit

# A client that sends more than this after a refusal is disconnected before it has read the refusal.
_MAX_DRAINED_BYTES = 128 * 1024 * 1024


class LimitBody:
    """Refuses bodies over the limit with 413, by their declared length or while they arrive.

    `special` maps prefixes of paths to limits of their own. Whoever decodes a body as JSON refuses more than
    `max_values` values in it.
    """

    def __init__(
        self, app: Any, max_bytes: int, special: Mapping[str, int] | None = None, *, max_values: int = MAX_VALUES
    ) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self._max_values = max_values
        self._special = tuple((special or {}).items())

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        """Pass a request on; count the body of one that does not declare an accepted length as it is read."""
        value_limit.set(self._max_values)
        if scope["type"] == "http" and not self._is_short(scope):
            return self._count(scope, receive, send)

        response: Awaitable[None] = self.app(scope, receive, send)
        return response

    def _is_short(self, scope: Any) -> bool:
        """Whether a request declares a length within the limit; the HTTP server reads no more than that."""
        length = b"0"

        for name, value in scope["headers"]:
            if name == b"content-length":
                length = value
            elif name == b"transfer-encoding":
                return False

        return length.isdigit() and int(length) <= self._get_limit(scope["path"])

    async def _count(self, scope: Any, receive: Any, send: Any) -> None:
        length = get_header(scope, b"content-length") or "0"
        max_bytes = self._get_limit(scope["path"])
        if length.isdigit() and int(length) > max_bytes:
            await drain_body(receive)
            raise self._too_large(max_bytes)

        received_bytes = 0

        async def receive_within_limit() -> Any:
            nonlocal received_bytes
            message = await receive()
            if message["type"] != "http.request":
                return message

            received_bytes += len(message.get("body", b""))
            if received_bytes > max_bytes:
                if message.get("more_body"):
                    await drain_body(receive)
                raise self._too_large(max_bytes)

            return message

        await self.app(scope, receive_within_limit, send)

    def _get_limit(self, path: str) -> int:
        for start, limit in self._special:
            if path.startswith(start):
                return limit

        return self.max_bytes

    def _too_large(self, max_bytes: int) -> BodyTooLarge:
        is_of_server = max_bytes == self.max_bytes
        limit = "the limit of this server (setting HTTP_MAX_REQUEST_BODY_BYTES)" if is_of_server else "the limit"
        return BodyTooLarge(
            f"The request body is larger than {max_bytes} bytes, {limit}.",
            headers={"Connection": "close"},
        )


async def drain_body(receive: Any) -> None:
    """Read and drop the rest of a body, up to a limit.

    Many clients read the response only after they have sent their body.
    """
    dropped = 0
    while dropped < _MAX_DRAINED_BYTES:
        message = await receive()
        dropped += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            break

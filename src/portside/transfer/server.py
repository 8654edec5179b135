"""One of the two servers of a transfer: requests, which are tried again while the server is busy, and bounded answers.

A server that answers 429, 502, 503 or 504, or not at all, is asked again after the time that it names in `Retry-After`,
else after pauses that grow. Keys are sent to the server's own address alone, and are in no message.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit
from uuid import UUID

import httpx2
import msgspec

from portside import __version__
from portside.kernel.errors import UserMistake

TIMEOUT_S = 120.0
MAX_ANSWER_BYTES = 256 * 1024 * 1024
MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_REASON = 500
# Between tries without `Retry-After`, in seconds; after the last one the server counts as gone.
PAUSES_S = (1, 2, 4, 8, 15, 30, 60, 60, 60)
MAX_PAUSE_S = 900.0
_BUSY = frozenset({429, 502, 503, 504})
Query = Mapping[str, Any]


class RequestRefused(Exception):
    """A server refused a request."""

    def __init__(self, status: int, detail: str, *, role: str = "target") -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status
        self.detail = detail
        self.role = role


class UnexpectedAnswer(Exception):
    """A server answered with something else than its API promises."""


class MultipartField(NamedTuple):
    """A part of a multipart body."""

    name: str
    content_type: str
    data: bytes


class RemoteServer:
    """The API of one server. `role` names it in messages: source or target."""

    def __init__(
        self, role: str, url: str, headers: Mapping[str, str], *, say: Callable[[str], None], trust: Any = True
    ) -> None:
        self.role = role
        self.url = url.rstrip("/")
        self._say = say
        self._client = httpx2.Client(
            headers={**headers, "User-Agent": f"portside/{__version__}", "Accept": "application/json"},
            timeout=TIMEOUT_S,
            verify=trust,
        )
        # For addresses that an answer names: without the keys of the server.
        self._plain_client = httpx2.Client(timeout=TIMEOUT_S, verify=trust)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._plain_client.close()

    def call(self, method: str, path: str, *, body: Any = None, query: Query | None = None) -> Any:
        """Send a JSON request and return what it answers. Raises RequestRefused, UnexpectedAnswer and UserMistake."""
        content = None if body is None else msgspec.json.encode(body)
        return self._decode(self._send(method, path, query, content, "application/json"))

    def find(self, path: str, *, query: Query | None = None) -> Any:
        """Get a resource; None if the server has none there. Raises the same errors as `call`."""
        try:
            return self.call("GET", path, query=query)
        except RequestRefused as refusal:
            if refusal.status == 404:
                return None
            raise

    def upload(self, path: str, parts: list[MultipartField], *, query: Query | None = None) -> Any:
        """Post a multipart body and return the decoded answer. Raises the same errors as `call`."""
        boundary = f"portside-{time.time_ns():x}-{id(parts):x}"
        content = b"".join(_encode_part(boundary, part) for part in parts) + f"--{boundary}--\r\n".encode()
        return self._decode(self._send("POST", path, query, content, f"multipart/form-data; boundary={boundary}"))

    def pages(self, path: str, query: Query, *, key: str | None = None, limit: int = 100) -> Iterator[dict[str, Any]]:
        """Yield the items of a list that has pages by offset. `key` holds the items, if the answer is an object."""
        offset = 0
        while True:
            answer = self.call("GET", path, query={**query, "limit": limit, "offset": offset})
            items = to_objects(answer[key] if key is not None and isinstance(answer, dict) else answer)
            yield from items

            offset += len(items)
            if len(items) < limit:
                return

    def search(self, path: str, body: Mapping[str, Any], *, limit: int = 100) -> Iterator[dict[str, Any]]:
        """Yield the items of a search that has pages by offset."""
        offset = 0
        while True:
            items = to_objects(self.call("POST", path, body={**body, "limit": limit, "offset": offset}))
            yield from items

            offset += len(items)
            if len(items) < limit:
                return

    def download(self, address: str) -> bytes:
        """Get a file at an address that an answer names.

        Other hosts get no keys, and must not be addresses inside of networks.
        Raises RequestRefused, UnexpectedAnswer and UserMistake.
        """
        url = urljoin(f"{self.url}/", address)
        parts = urlsplit(url)
        own = urlsplit(self.url)
        is_own = (parts.scheme, parts.netloc) == (own.scheme, own.netloc)
        if parts.scheme not in {"http", "https"} or not (is_own or _is_public(parts.hostname or "")):
            raise UnexpectedAnswer("a file's address leads into a network, so it is not downloaded")

        client = self._client if is_own else self._plain_client
        return self._retry(lambda: self._read(client.stream("GET", url), MAX_FILE_BYTES))

    def _send(self, method: str, path: str, query: Query | None, content: bytes | None, content_type: str) -> bytes:
        headers = {} if content is None else {"Content-Type": content_type}
        params = {name: value for name, value in (query or {}).items() if value is not None}

        def send() -> bytes:
            stream = self._client.stream(method, self.url + path, params=params, content=content, headers=headers)
            return self._read(stream, MAX_ANSWER_BYTES)

        return self._retry(send)

    def _retry(self, send: Callable[[], bytes]) -> bytes:
        for pause_s in (*PAUSES_S, None):
            try:
                return send()
            except _Busy as busy:
                if pause_s is None:
                    raise UserMistake(
                        f"the {self.role} {self.url} does not answer ({busy.reason}); start the import again later, "
                        "and it goes on"
                    ) from busy

                wait_s = pause_s if busy.retry_after_s is None else min(busy.retry_after_s, MAX_PAUSE_S)
                self._say(f"the {self.role} is busy ({busy.reason}); trying again in {wait_s:g} s")
                time.sleep(wait_s)

        raise AssertionError

    def _read(self, stream: Any, max_bytes: int) -> bytes:
        try:
            with stream as response:
                if response.has_redirect_location:
                    raise UserMistake(
                        f"the {self.role} {self.url} redirects to another address; name the address that it leads to"
                    )

                chunks = []
                size = 0
                for chunk in response.iter_bytes():
                    size += len(chunk)
                    if size > max_bytes:
                        raise UnexpectedAnswer(f"an answer of the {self.role} is larger than {max_bytes} bytes")
                    chunks.append(chunk)

                content = b"".join(chunks)
                if response.status_code in _BUSY:
                    raise _Busy(f"{response.status_code}", _parse_retry_after(response.headers.get("retry-after")))
                if response.is_error:
                    raise RequestRefused(response.status_code, _explain(content), role=self.role)

                return content
        except httpx2.TransportError as exc:
            raise _Busy(type(exc).__name__, None) from exc

    def _decode(self, content: bytes) -> Any:
        if not content:
            return None

        try:
            return msgspec.json.decode(content)
        except msgspec.DecodeError as exc:
            raise UnexpectedAnswer(f"the {self.role} answered with something else than JSON") from exc


class _Busy(Exception):
    """A server cannot answer now."""

    def __init__(self, reason: str, retry_after_s: float | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


def to_objects(value: Any) -> list[dict[str, Any]]:
    """Return a value that must be a list of objects. Raises UnexpectedAnswer."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnexpectedAnswer("a list of objects was expected")

    return value


def to_id(value: Any) -> str:
    """Return a value that must be a UUID as text, for example to put it into a path. Raises UnexpectedAnswer."""
    try:
        return str(UUID(str(value)))
    except ValueError as exc:
        raise UnexpectedAnswer(f"{str(value)[:100]!r} is no id") from exc


def pick(item: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the fields of an item that have a value."""
    return {name: item[name] for name in names if item.get(name) is not None}


def _encode_part(boundary: str, part: MultipartField) -> bytes:
    # A name comes from the source: quotes and line breaks would end the header.
    name = part.name.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", " ")
    content_type = part.content_type.replace("\r", " ").replace("\n", " ")
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\nContent-Type: {content_type}\r\n'
        f"Content-Length: {len(part.data)}\r\n\r\n"
    )
    return head.encode() + part.data + b"\r\n"


def _is_public(host: str) -> bool:
    """Whether a host may be one of the internet: no address of a network, and no name of this machine."""
    if host == "localhost" or host.endswith((".localhost", ".internal", ".local")) or "." not in host:
        return False

    try:
        return ip_address(host).is_global
    except ValueError:
        return True


def _parse_retry_after(text: str | None) -> float | None:
    """Return the seconds of `Retry-After`: a number or a date."""
    if text is None:
        return None

    try:
        return max(float(text), 0.0)
    except ValueError:
        pass

    try:
        return max((parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return None


def _explain(content: bytes) -> str:
    try:
        answer = msgspec.json.decode(content)
        detail = answer.get("detail") or answer.get("error") or answer.get("message")
    except (msgspec.DecodeError, AttributeError):
        detail = content[:MAX_REASON].decode("utf-8", "replace")

    return str(detail)[:MAX_REASON]

"""Reading single headers of requests: values, cookies, bearer tokens, and the address that the client used."""

import re
from typing import Any

from starlette.requests import HTTPConnection

from portside.kernel.ids import random_id

Header = tuple[bytes, bytes]
_BLANKS = " \t"
# Characters that a request id may not hold: it is written to the log, which terminals show.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:-]")
_REQUEST_ID_LENGTH = 200


def get_header(scope: Any, name: bytes) -> str | None:
    """Return the first header with this lower-case name, or None."""
    for header_name, value in scope["headers"]:
        if header_name == name:
            text: str = value.decode("latin-1")
            return text

    return None


def get_first_headers(scope: Any) -> dict[bytes, bytes]:
    """Return the headers by lower-case name; of repeated headers, the first."""
    return dict(reversed(scope["headers"]))


def parse_cookies(header: str | None, name: str) -> list[str]:
    """Return the values of all cookies with a name in a Cookie header.

    Only spaces and tabs are no part of a name. Browsers do not protect the prefix `__Host-` behind another character,
    so a page of another host could set a cookie with one.
    """
    values: list[str] = []
    for pair in (header or "").split(";"):
        cookie_name, _, value = pair.partition("=")
        if cookie_name.strip(_BLANKS) == name:
            values.append(value.strip(_BLANKS).strip('"'))

    return values


def parse_bearer(authorization: str | None) -> str | None:
    """Return the bearer token of an Authorization header, or None."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def is_tls(request: HTTPConnection) -> bool:
    """Whether the client reaches this server over TLS, maybe through a proxy."""
    forwarded_scheme = request.headers.get("x-forwarded-proto", "").split(",")[0].strip()
    if forwarded_scheme in {"http", "https"}:
        return forwarded_scheme == "https"

    return request.scope["scheme"] in {"https", "wss"}


def get_origin(request: HTTPConnection) -> str:
    """Return scheme, host and port of the server as this client used them."""
    scheme = "https" if is_tls(request) else "http"
    return f"{scheme}://{request.url.netloc}"


def get_base_url(request: HTTPConnection) -> str:
    """Return the server's base URL as this client used it, which works through the same proxies again."""
    requested_path = request.scope["raw_path"].decode("latin-1").split("?")[0]
    prefix = requested_path.removesuffix(request.scope["path"])
    return f"{get_origin(request)}{prefix}"


def get_request_id(headers: dict[bytes, bytes]) -> str:
    """Return the X-Request-Id that the client sent, without unsafe characters, or a new id."""
    value = headers.get(b"x-request-id")
    if not value:
        return random_id()

    safe_characters = _UNSAFE.sub("", value.decode("latin-1"))
    return safe_characters[:_REQUEST_ID_LENGTH] or random_id()

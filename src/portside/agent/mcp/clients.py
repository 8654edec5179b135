"""Which requests are answered at all: those of programs, and of web pages that are meant to speak with this server.

A page that its visitor's browser takes to an address of this machine (DNS rebinding) could otherwise call agents there.
That any page may call the other routes, the default of `cors`, is not enough here: the protocol wants pages named.
"""

from typing import ClassVar
from urllib.parse import urlsplit

from portside.kernel.errors import BadRequest, Forbidden, PortsideError
from portside.kernel.http.cors import CorsRules

JSON, STREAM = "application/json", "text/event-stream"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ForeignPage(Forbidden):
    """Web pages of this origin may not call tools here; name it in http.cors.allow_origins if they should."""

    code = "foreign_page"


class NotAcceptable(BadRequest):
    """Accept header must include application/json or text/event-stream"""  # noqa: D415 - the words of the contract

    code = "mcp_not_acceptable"
    error: ClassVar[str | None] = "Accept header must include application/json or text/event-stream"


class NotJsonContent(PortsideError):
    """Content-Type must be application/json"""  # noqa: D415 - the words that clients know

    status = 415
    code = "mcp_content_type"


def check_origin(origin: str | None, rules: CorsRules | None, named: str) -> None:
    """Look whether a web page may ask: one of this machine, or one that the configuration or a setting names.

    Raises ForeignPage.
    """
    if origin is None or _is_of_this_machine(origin):
        return
    chosen = rules or (CorsRules.of(named) if named.strip() != "*" else None)
    if chosen is None or not chosen.allows(origin):
        raise ForeignPage


def takes_streams(accept: str) -> bool:
    """Whether a client takes a stream of events for an answer. Raises NotAcceptable if neither that nor JSON."""
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.split(",")}
    if not kinds & {JSON, STREAM}:
        raise NotAcceptable
    return STREAM in kinds


def check_content_type(content_type: str) -> None:
    """Look whether a body is JSON, which a page cannot send elsewhere without being let to. Raises NotJsonContent."""
    if content_type.partition(";")[0].strip().lower() != JSON:
        raise NotJsonContent


def _is_of_this_machine(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and parts.hostname in LOOPBACK

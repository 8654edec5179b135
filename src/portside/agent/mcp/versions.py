"""The revisions of the protocol, and by which one a request is answered.

Until 2025-11-25 a client begins with `initialize`, where the revision is agreed upon. Since 2026-07-28 nothing is
agreed: each request says its revision twice, in `_meta` for the server and in headers for whatever stands between, and
both have to say the same. A server that speaks both tells them apart by the request alone.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from portside.agent.mcp.messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
    Request,
    RequestFailed,
)

AGREED = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LATEST_AGREED = AGREED[-1]
DECLARED = ("2026-07-28",)
SUPPORTED = [*DECLARED, *reversed(AGREED)]

PREFIX = "io.modelcontextprotocol/"
VERSION, CAPABILITIES, SERVER = f"{PREFIX}protocolVersion", f"{PREFIX}clientCapabilities", f"{PREFIX}serverInfo"
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_ENCODED, _END = "=?base64?", "?="


def is_declared(request: Request, headers: Mapping[str, str]) -> bool:
    """Whether a request declares its revision, and is answered as one that was never agreed upon."""
    if VERSION in request.meta:
        return True
    return request.method != "initialize" and (_told(headers, "mcp-protocol-version") or LATEST_AGREED) not in AGREED


def agreed_version(asked: Any) -> str:
    """Return the revision that is agreed upon with a client: the one it asks for, or the latest."""
    return asked if asked in AGREED else LATEST_AGREED


def check_declared(request: Request, headers: Mapping[str, str]) -> None:
    """Look whether what a request declares makes sense. Raises RequestFailed."""
    told = _told(headers, "mcp-protocol-version")
    if request.id is None or (told not in (None, *SUPPORTED) and VERSION not in request.meta):
        _check_supported(told)
        return
    if missing := [key for key in (VERSION, CAPABILITIES) if key not in request.meta]:
        raise RequestFailed(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}")
    _check_same("MCP-Protocol-Version", told, request.meta[VERSION])
    _check_same("Mcp-Method", _told(headers, "mcp-method"), request.method)
    name = request.params.get(_NAMED.get(request.method, ""))
    if name is not None:
        _check_same("Mcp-Name", _decoded(_told(headers, "mcp-name")), name)
    _check_supported(told)


def _told(headers: Mapping[str, str], name: str) -> str | None:
    """Return what a header says, without the space that may stand around it."""
    value = headers.get(name)
    return None if value is None else value.strip()


def _check_same(header: str, told: str | None, meant: Any) -> None:
    if told != meant:
        raise RequestFailed(HEADER_MISMATCH, f"Header mismatch: {header} is not what the body says")


def _check_supported(version: str | None) -> None:
    if version not in DECLARED:
        data = {"supported": SUPPORTED, "requested": version or ""}
        raise RequestFailed(UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def _decoded(told: str | None) -> str | None:
    """Read a header's value; one that a header cannot hold comes as base64."""
    if told is None or not (told.startswith(_ENCODED) and told.endswith(_END)):
        return told
    try:
        return base64.b64decode(told[len(_ENCODED) : -len(_END)], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None

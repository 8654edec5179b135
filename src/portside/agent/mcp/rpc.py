"""MCP's JSON-RPC layer: allowed origins, messages, and the revisions of the protocol.

Up to 2025-11-25 a client begins with `initialize` and negotiates the revision. From 2026-07-28 on nothing is
negotiated: each request declares its revision twice, in `_meta` and in headers, and both must agree. The request alone
tells the two kinds apart.

A web page that a browser loads from an address of this machine (DNS rebinding) could call agents here. The other
routes leave that to `cors`, whose default allows every page; the protocol wants the allowed origins named.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from portside.kernel.codec import dump_api
from portside.kernel.errors import BadRequest, Forbidden, Invalid, PortsideError
from portside.kernel.http.cors import CorsRules
from portside.kernel.http.error_responses import describe_problems
from portside.kernel.http.json_validation import read_json
from portside.kernel.local_addresses import is_loopback_url
from portside.kernel.user_json import dump_user

JSON = "application/json"
STREAM = "text/event-stream"
INVALID_PARAMS = -32602
METHOD_NOT_FOUND = -32601
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

NEGOTIATED = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LATEST_NEGOTIATED = NEGOTIATED[-1]
DECLARED = ("2026-07-28",)
LINKS_SINCE = "2025-06-18"
SUPPORTED = [*DECLARED, *reversed(NEGOTIATED)]

PREFIX = "io.modelcontextprotocol/"
VERSION = f"{PREFIX}protocolVersion"
CAPABILITIES = f"{PREFIX}clientCapabilities"
SERVER = f"{PREFIX}serverInfo"
VERSION_HEADER = "mcp-protocol-version"
_NAME_PARAMS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_BASE64_PREFIX = "=?base64?"
_BASE64_SUFFIX = "?="

Id = str | int


# Errors with an HTTP status: the body is not a message, or the client may not call this server.


class ForeignOrigin(Forbidden):
    """Web pages of this origin may not call tools here; add the origin to http.cors.allow_origins if they should."""

    code = "foreign_page"


class NotAcceptable(BadRequest):
    """Accept header must include application/json or text/event-stream"""  # noqa: D415 - clients know this text

    code = "mcp_not_acceptable"
    error: ClassVar[str | None] = "Accept header must include application/json or text/event-stream"


class WrongContentType(PortsideError):
    """Content-Type must be application/json"""  # noqa: D415 - clients know this text

    status = 415
    code = "mcp_content_type"


class InvalidJson(BadRequest):
    """Invalid JSON"""  # noqa: D415 - clients know this text

    code = "mcp_not_json"
    error: ClassVar[str | None] = "Invalid JSON"


class InvalidMessage(BadRequest):
    """Invalid message format."""

    code = "mcp_no_message"
    error: ClassVar[str | None] = "Invalid message format."


class MissingJsonRpcVersion(BadRequest):
    """Invalid JSON-RPC message. Missing or invalid jsonrpc version."""

    code = "mcp_no_version"
    error: ClassVar[str | None] = "Invalid JSON-RPC message. Missing or invalid jsonrpc version."


HTTP_ERRORS = (
    ForeignOrigin,
    NotAcceptable,
    WrongContentType,
    InvalidJson,
    InvalidMessage,
    MissingJsonRpcVersion,
)


def check_origin(origin: str | None, rules: CorsRules | None, setting: str) -> None:
    """Refuse web pages, except those of this machine and of the origins in the configuration or the setting.

    Raises ForeignOrigin.
    """
    if origin is None or _is_local_page(origin):
        return

    allowed = rules
    if allowed is None and setting.strip() != "*":
        allowed = CorsRules.of(setting)

    if allowed is None or not allowed.allows(origin):
        raise ForeignOrigin


def accepts_streams(accept: str) -> bool:
    """Whether a client accepts a stream of events. Raises NotAcceptable if it accepts neither that nor JSON."""
    types = {media_type.partition(";")[0].strip().lower() for media_type in accept.split(",")}
    if not types & {JSON, STREAM}:
        raise NotAcceptable

    return STREAM in types


def check_content_type(content_type: str) -> None:
    """Refuse bodies that are not JSON, because browsers send those to other origins without asking.

    Raises WrongContentType.
    """
    if content_type.partition(";")[0].strip().lower() != JSON:
        raise WrongContentType


def _is_local_page(origin: str) -> bool:
    return origin.startswith(("http://", "https://")) and is_loopback_url(origin)


# Messages.


class McpError(Exception):
    """The request was understood and fails with a JSON-RPC code."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class ClientResponse(NamedTuple):
    """A client's response to a request of this server; `result` is None if the client answered with an error."""

    id: Any
    result: Any


class McpRequest(NamedTuple):
    """A request, or a notification if `id` is None."""

    id: Id | None
    method: str
    params: dict[str, Any]

    @property
    def meta(self) -> dict[str, Any]:
        """The `_meta` member, where the client describes the request itself."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


def read_body(raw: bytes) -> Any:
    """Decode a body. Raises InvalidJson, and InvalidMessage for JSON that this server refuses."""
    try:
        return read_json(raw)
    except Invalid as exc:
        if exc.problems[0].type == "json_invalid":
            raise InvalidJson from exc
        raise InvalidMessage(f"Invalid message format. {describe_problems(exc.problems)}") from exc


def read_message(message: Any) -> McpRequest | ClientResponse:
    """Parse one message.

    Raises InvalidMessage, MissingJsonRpcVersion, and McpError if the parameters are not an object.
    """
    if not isinstance(message, dict):
        raise InvalidMessage
    if message.get("jsonrpc") != "2.0":
        raise MissingJsonRpcVersion

    method = message.get("method")
    is_request = "id" in message

    if method is None and ("result" in message or "error" in message):
        return ClientResponse(message.get("id"), message.get("result"))
    if not isinstance(method, str) or (is_request and not _is_id(message["id"])):
        raise InvalidMessage

    params = message.get("params")
    if not isinstance(params, dict | None):
        raise McpError(INVALID_PARAMS, "params must be an object")

    return McpRequest(message["id"] if is_request else None, method, params or {})


def read_id(message: Any) -> Id | None:
    """Return the id of a message that may be malformed, for the error response."""
    message_id = message.get("id") if isinstance(message, dict) else None
    return message_id if _is_id(message_id) else None


def _is_id(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def encode_result(request_id: Id | None, result: dict[str, Any]) -> bytes:
    """Encode a successful response."""
    return dump_api({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: Id | None, failure: McpError) -> bytes:
    """Encode an error response."""
    error = {"code": failure.code, "message": str(failure)}
    if failure.data is not None:
        error["data"] = failure.data

    return dump_api({"jsonrpc": "2.0", "id": request_id, "error": error})


def encode_request(request_id: Id, method: str, params: dict[str, Any]) -> bytes:
    """Encode a request to the client."""
    return dump_user({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def encode_notification(method: str, params: dict[str, Any]) -> bytes:
    """Encode a notification."""
    return dump_api({"jsonrpc": "2.0", "method": method, "params": params})


# Revisions of the protocol.


def declares_version(request: McpRequest, headers: Mapping[str, str]) -> bool:
    """Whether a request declares its revision itself, as clients since 2026-07-28 do."""
    if VERSION in request.meta:
        return True

    version = _read_header(headers, VERSION_HEADER) or LATEST_NEGOTIATED
    return request.method != "initialize" and version not in NEGOTIATED


def negotiate_version(requested: Any) -> str:
    """Return the revision for a client that negotiates: the one it requested if it is supported, else the latest."""
    return requested if requested in NEGOTIATED else LATEST_NEGOTIATED


def knows_links(headers: Mapping[str, str]) -> bool:
    """Whether a client reads links to resources. A client that names no revision is older than these links."""
    version = _read_header(headers, VERSION_HEADER)
    return version in SUPPORTED and version >= LINKS_SINCE


def check_declared(request: McpRequest, headers: Mapping[str, str]) -> None:
    """Check that headers and body of a request declare the same. Raises McpError."""
    version = _read_header(headers, VERSION_HEADER)
    if request.id is None or (version not in (None, *SUPPORTED) and VERSION not in request.meta):
        _check_supported(version)
        return

    if missing := [key for key in (VERSION, CAPABILITIES) if key not in request.meta]:
        raise McpError(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}")

    _check_same("MCP-Protocol-Version", version, request.meta[VERSION])
    _check_same("Mcp-Method", _read_header(headers, "mcp-method"), request.method)

    name = request.params.get(_NAME_PARAMS.get(request.method, ""))
    if name is not None:
        _check_same("Mcp-Name", _decode_header(_read_header(headers, "mcp-name")), name)

    _check_supported(version)


def _read_header(headers: Mapping[str, str], name: str) -> str | None:
    value = headers.get(name)
    return None if value is None else value.strip()


def _check_same(header: str, value: str | None, in_body: Any) -> None:
    if value != in_body:
        raise McpError(HEADER_MISMATCH, f"Header mismatch: {header} differs from the body")


def _check_supported(version: str | None) -> None:
    if version not in DECLARED:
        data = {"supported": SUPPORTED, "requested": version or ""}
        raise McpError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def _decode_header(value: str | None) -> str | None:
    """Decode a header; a client sends base64 for a name that a header cannot hold."""
    if value is None or not (value.startswith(_BASE64_PREFIX) and value.endswith(_BASE64_SUFFIX)):
        return value

    try:
        return base64.b64decode(value[len(_BASE64_PREFIX) : -len(_BASE64_SUFFIX)], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None

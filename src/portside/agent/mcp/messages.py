"""JSON-RPC messages: read from a body, written into an answer. What is no message at all is refused over HTTP."""

from typing import Any, ClassVar, NamedTuple

from portside.kernel.codec import dump_api
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.http.refusals import in_words
from portside.kernel.http.vetting import read_json

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32600, -32601, -32602
HEADER_MISMATCH, UNSUPPORTED_VERSION = -32020, -32022


Id = str | int


class NotJson(BadRequest):
    """Invalid JSON"""  # noqa: D415 - the words of the contract

    code = "mcp_not_json"
    error: ClassVar[str | None] = "Invalid JSON"


class NoMessage(BadRequest):
    """Invalid message format."""

    code = "mcp_no_message"
    error: ClassVar[str | None] = "Invalid message format."


class NoVersion(BadRequest):
    """Invalid JSON-RPC message. Missing or invalid jsonrpc version."""

    code = "mcp_no_version"
    error: ClassVar[str | None] = "Invalid JSON-RPC message. Missing or invalid jsonrpc version."


class RequestFailed(Exception):
    """The request was understood and fails with a code of JSON-RPC."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data


class Request(NamedTuple):
    """A request, or a notification where `id` is None."""

    id: Id | None
    method: str
    params: dict[str, Any]

    @property
    def meta(self) -> dict[str, Any]:
        """What the client says of the request itself."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


def read_body(raw: bytes) -> Any:
    """Decode a body. Raises NotJson, and NoMessage for JSON that this server does not take."""
    try:
        return read_json(raw)
    except Invalid as exc:
        if exc.problems[0].type == "json_invalid":
            raise NotJson from exc
        raise NoMessage(f"Invalid message format. {in_words(exc.problems)}") from exc


def read_message(given: Any) -> Request | None:
    """Read one message; None is a response of the client, which nobody waits for.

    Raises NoMessage, NoVersion, and RequestFailed for parameters that are none.
    """
    if not isinstance(given, dict):
        raise NoMessage
    if given.get("jsonrpc") != "2.0":
        raise NoVersion
    method, is_request = given.get("method"), "id" in given
    if method is None and ("result" in given or "error" in given):
        return None
    if not isinstance(method, str) or (is_request and not _is_id(given["id"])):
        raise NoMessage
    params = given.get("params")
    if not isinstance(params, dict | None):
        raise RequestFailed(INVALID_PARAMS, "params must be an object")
    return Request(given["id"] if is_request else None, method, params or {})


def id_of(given: Any) -> Id | None:
    """Return the id that a message may have, for an answer that refuses it."""
    found = given.get("id") if isinstance(given, dict) else None
    return found if _is_id(found) else None


def _is_id(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def result_of(request_id: Id | None, result: dict[str, Any]) -> bytes:
    """Write the answer of a request that was done."""
    return dump_api({"jsonrpc": "2.0", "id": request_id, "result": result})


def error_of(request_id: Id | None, failure: RequestFailed) -> bytes:
    """Write the answer of a request that failed."""
    error = {"code": failure.code, "message": str(failure)}
    if failure.data is not None:
        error["data"] = failure.data
    return dump_api({"jsonrpc": "2.0", "id": request_id, "error": error})


def notification(method: str, params: dict[str, Any]) -> bytes:
    """Write something that is told without being asked for."""
    return dump_api({"jsonrpc": "2.0", "method": method, "params": params})

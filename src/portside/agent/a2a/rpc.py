"""The A2A protocol's JSON-RPC layer: errors, requests, responses, and the parameters of each method."""

from typing import Any, ClassVar, NamedTuple

from portside.agent.assistants.records import AssistantNotFound
from portside.agent.runs.errors import RunNotFound, ThreadBusy
from portside.agent.threads.records import ThreadNotFound
from portside.executor.errors import GraphFailed
from portside.kernel.errors import BadRequest, Invalid, PortsideError
from portside.kernel.http.error_responses import describe_problems
from portside.kernel.http.json_validation import read_json
from portside.kernel.http.sse import sse_event
from portside.kernel.user_json import dump_user

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
DOMAIN = "a2a-protocol.org"
MAX_ID_LENGTH = 1000
_READ_TYPES = frozenset({"application/json", "application/x-www-form-urlencoded"})
BAD_ID = "Invalid Request: id must be a string or an integer"

Id = str | int | None
Plain = dict[str, Any]


class RpcError(Exception):
    """A call failed; `code` and `reason` are those of JSON-RPC and of the protocol."""

    code: ClassVar[int] = -32603
    reason: ClassVar[str] = "INTERNAL_ERROR"

    def __init__(self, message: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n", 1)[0]
        super().__init__(self.message)


# The docstrings of these classes are their default messages. Clients know them, so they keep JSON-RPC's spelling.
class ParseError(RpcError):
    """Parse error"""  # noqa: D415

    code = -32700
    reason = "PARSE_ERROR"


class InvalidRequest(RpcError):
    """Invalid Request"""  # noqa: D415

    code = -32600
    reason = "INVALID_REQUEST"


class MethodNotFound(RpcError):
    """Method not found"""  # noqa: D415

    code = -32601
    reason = "METHOD_NOT_FOUND"


class InvalidParams(RpcError):
    """Invalid params"""  # noqa: D415

    code = -32602
    reason = "INVALID_PARAMS"


class TaskNotFound(RpcError):
    """Task not found"""  # noqa: D415

    code = -32001
    reason = "TASK_NOT_FOUND"


class TaskNotCancelable(RpcError):
    """Task is not cancelable in its current state"""  # noqa: D415

    code = -32002
    reason = "TASK_NOT_CANCELABLE"


class PushNotificationsNotSupported(RpcError):
    """Push notifications are not supported; follow the task with tasks/resubscribe or ask for it with tasks/get."""

    code = -32003
    reason = "PUSH_NOTIFICATION_NOT_SUPPORTED"


class UnsupportedOperation(RpcError):
    """Operation not supported"""  # noqa: D415

    code = -32004
    reason = "UNSUPPORTED_OPERATION"


class ContentTypeNotSupported(RpcError):
    """Content type not supported; send the request as application/json."""

    code = -32005
    reason = "CONTENT_TYPE_NOT_SUPPORTED"


class ExtendedCardNotConfigured(RpcError):
    """The agent has no extended card: the server authenticates nobody, so there is only the public one."""

    code = -32007
    reason = "EXTENDED_AGENT_CARD_NOT_CONFIGURED"


class VersionNotSupported(RpcError):
    """Version of the protocol not supported; use 0.3 or 1.0."""

    code = -32009
    reason = "VERSION_NOT_SUPPORTED"


def to_rpc_error(exc: PortsideError) -> RpcError:
    """Translate an error into one of the protocol; 401, 403 and 5xx are raised, as an HTTP status says them better."""
    if isinstance(exc, Invalid):
        return InvalidParams(describe_problems(exc.problems))
    if isinstance(exc, (ThreadNotFound, RunNotFound)):
        return TaskNotFound()
    if isinstance(exc, ThreadBusy):
        return UnsupportedOperation("The context is busy with another message; send this one again when it is done.")

    if isinstance(exc, (AssistantNotFound, BadRequest)):
        return InvalidParams(exc.message)
    if isinstance(exc, GraphFailed):
        return RpcError(exc.message)

    raise exc


class RpcRequest(NamedTuple):
    """A call of a method. `id` is None for a notification, which no method of the protocol accepts."""

    id: Id
    method: str
    params: Plain


class MalformedRequest(Exception):
    """The body is not a JSON-RPC request; `id` is its id, as far as one could be read."""

    def __init__(self, error: RpcError, request_id: Id = None) -> None:
        super().__init__(error.message)
        self.id = request_id
        self.error = error


def refuse_content_type(content_type: str) -> None:
    """Refuse a body that says it is no JSON. curl calls every body a form unless it is told otherwise.

    Raises MalformedRequest.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type and media_type not in _READ_TYPES and not media_type.endswith("+json"):
        raise MalformedRequest(ContentTypeNotSupported())


def read_request(raw: bytes) -> RpcRequest:
    """Parse a request or a notification. Raises MalformedRequest."""
    try:
        message = read_json(raw)
    except Invalid as exc:
        is_json = exc.problems[0].type != "json_invalid"
        raise MalformedRequest(InvalidParams(describe_problems(exc.problems)) if is_json else ParseError()) from exc

    if not isinstance(message, dict):
        why = "batches are not supported" if isinstance(message, list) else "a request is an object"
        raise MalformedRequest(InvalidRequest(f"Invalid Request: {why}"))

    request_id = message.get("id")
    if "id" in message and (isinstance(request_id, bool) or not isinstance(request_id, (str, int))):
        raise MalformedRequest(InvalidRequest(BAD_ID))
    if isinstance(request_id, str) and len(request_id) > MAX_ID_LENGTH:
        raise MalformedRequest(InvalidRequest(f"Invalid Request: id must have at most {MAX_ID_LENGTH} characters"))
    if message.get("jsonrpc") != "2.0":
        raise MalformedRequest(InvalidRequest('Invalid Request: jsonrpc must be "2.0"'), request_id)

    method = message.get("method")
    params = message.get("params")

    if not isinstance(method, str) or not method:
        raise MalformedRequest(InvalidRequest("Invalid Request: method must be a string"), request_id)
    if params is not None and not isinstance(params, dict):
        raise MalformedRequest(InvalidParams("Invalid params: params must be an object"), request_id)

    return RpcRequest(request_id, method, params or {})


def encode_result(request_id: Id, result: Any) -> bytes:
    """Encode a successful response; the result may hold values of the user's graph."""
    return dump_user({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: Id, error: RpcError, *, with_details: bool) -> bytes:
    """Encode an error response; version 1.0 of the protocol wants details in it."""
    body: Plain = {"code": error.code, "message": error.message}
    if with_details:
        body["data"] = [{"@type": ERROR_INFO, "reason": error.reason, "domain": DOMAIN, "metadata": {}}]

    return dump_user({"jsonrpc": "2.0", "id": request_id, "error": body})


def encode_event(response: bytes) -> bytes:
    """Encode a response as one server-sent event."""
    return sse_event("message", response)

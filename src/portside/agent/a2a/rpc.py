"""The A2A protocol's JSON-RPC layer: errors, requests, responses, and the parameters of each method."""

from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import msgspec

from portside.agent.assistants.records import AssistantNotFound
from portside.agent.runs.errors import RunNotFound, ThreadBusy
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.runs import Command
from portside.executor.errors import GraphFailed
from portside.kernel.errors import BadRequest, Invalid, PortsideError
from portside.kernel.http.decode import convert
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
P = TypeVar("P", bound=msgspec.Struct)


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


Name = Annotated[str, msgspec.Meta(max_length=1000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]
Scope = Literal["context", "task"]


class FileContent(msgspec.Struct, rename="camel"):
    """A file as version 0.3 sends it: a URI, or its bytes in base64."""

    uri: str | None = None
    bytes: str | None = None
    mime_type: str | None = None
    name: str | None = None


class MessagePart(msgspec.Struct, rename="camel"):
    """A part of a message: text, data or a file. Version 1.0 puts the fields of a file into the part itself."""

    kind: Literal["text", "data", "file"] | None = None
    text: str | None = None
    data: Any = msgspec.UNSET
    file: FileContent | None = None
    raw: str | None = None
    url: str | None = None
    filename: str | None = None
    media_type: str | None = None
    metadata: Plain | None = None


class AgentMessage(msgspec.Struct, rename="camel", kw_only=True):
    """A message: its author's role, its parts, and the context and task that it belongs to."""

    message_id: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    role: Literal["user", "agent", "ROLE_USER", "ROLE_AGENT"]
    parts: Annotated[list[MessagePart], msgspec.Meta(max_length=1000)]
    context_id: Name | None = None
    task_id: Name | None = None
    metadata: Plain | None = None
    extensions: list[str] | None = None
    reference_task_ids: list[str] | None = None


class SendConfiguration(msgspec.Struct, rename="camel"):
    """How the client wants its message answered."""

    accepted_output_modes: list[str] | None = None
    blocking: bool | None = None
    return_immediately: bool | None = None
    history_length: Count | None = None
    history_scope: Scope | None = None
    push_notification_config: Any = None
    task_push_notification_config: Any = None


class SendParams(msgspec.Struct, rename="camel", kw_only=True):
    """A message to an agent. `command` steers the graph; `context` is the context of the run."""

    message: AgentMessage
    configuration: SendConfiguration | None = None
    command: Command | None = None
    context: Plain | None = None
    metadata: Plain | None = None
    history_scope: Scope | None = None
    tenant: str | None = None


class TaskParams(msgspec.Struct, rename="camel", kw_only=True):
    """A task by its id, and how much of its history to return."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    history_length: Count | None = None
    history_scope: Scope | None = None
    metadata: Plain | None = None
    tenant: str | None = None


class ListTasksParams(msgspec.Struct, rename="camel", kw_only=True):
    """Which tasks to list; the latest change comes first."""

    context_id: Name | None = None
    status: str | None = None
    page_size: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    page_token: Name | None = None
    history_length: Count | None = None
    history_scope: Scope | None = None
    include_artifacts: bool | None = None
    status_timestamp_after: Name | None = None
    tenant: str | None = None


class NoParams(msgspec.Struct):
    """The parameters of a method that reads none."""


def read_params(params: Plain, kind: type[P]) -> P:
    """Parse the parameters of a method, with members in camelCase or snake_case; null counts as absent.

    Raises InvalidParams that names the field.
    """
    try:
        read: P = convert(_to_camel_case(params, _type_info(kind)), kind, "params")
    except Invalid as exc:
        raise InvalidParams(f"Invalid params: {describe_problems(exc.problems)}") from exc

    if getattr(read, "tenant", None):
        raise InvalidParams("Invalid params: params.tenant: this agent has no tenants")

    return read


_type_info = cache(msgspec.inspect.type_info)


def _to_camel_case(value: Any, shape: msgspec.inspect.Type) -> Any:
    """Rename snake_case members to camelCase. Where a client sends both, camelCase wins."""
    if isinstance(shape, msgspec.inspect.UnionType):
        for part in shape.types:
            value = _to_camel_case(value, part)
    elif isinstance(shape, msgspec.inspect.ListType) and isinstance(value, list):
        return [_to_camel_case(item, shape.item_type) for item in value]
    elif isinstance(shape, msgspec.inspect.StructType) and isinstance(value, dict):
        members = dict(value)
        for field in shape.fields:
            if field.name != field.encode_name and field.name in members:
                snake_value = members.pop(field.name)
                members.setdefault(field.encode_name, snake_value)

            if field.encode_name in members:
                members[field.encode_name] = _to_camel_case(members[field.encode_name], field.type)

        return members

    return value

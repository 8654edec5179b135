"""The parameters of the methods of the A2A protocol."""

from functools import cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from portside.agent.a2a.rpc import InvalidParams, Plain
from portside.agent.types.runs import Command
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import convert
from portside.kernel.http.error_responses import describe_problems

P = TypeVar("P", bound=msgspec.Struct)
Name = Annotated[str, msgspec.Meta(max_length=1000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]
Scope = Literal["context", "task"]
_type_info = cache(msgspec.inspect.type_info)


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

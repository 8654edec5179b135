"""What the methods take, in the spellings of both versions of the protocol (contract: section 10)."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from portside.agent.a2a.errors import BadParams
from portside.agent.types.runs import Command
from portside.kernel.errors import Invalid
from portside.kernel.http.decode import convert
from portside.kernel.http.refusals import in_words

Name = Annotated[str, msgspec.Meta(max_length=1000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2_147_483_647)]
Scope = Literal["context", "task"]
P = TypeVar("P", bound=msgspec.Struct)


class File(msgspec.Struct, rename="camel"):
    """A file of version 0.3: where it is, or its bytes in base64."""

    uri: str | None = None
    bytes: str | None = None
    mime_type: str | None = None
    name: str | None = None


class Part(msgspec.Struct, rename="camel"):
    """A part of a message: text, data, or a file; version 1.0 has the file's fields in the part itself."""

    kind: Literal["text", "data", "file"] | None = None
    text: str | None = None
    data: Any = msgspec.UNSET
    file: File | None = None
    raw: str | None = None
    url: str | None = None
    filename: str | None = None
    media_type: str | None = None
    metadata: dict[str, Any] | None = None


class Message(msgspec.Struct, rename="camel", kw_only=True):
    """A message: who says what, in which context, about which task."""

    message_id: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    role: Literal["user", "agent", "ROLE_USER", "ROLE_AGENT"]
    parts: Annotated[list[Part], msgspec.Meta(max_length=1000)]
    context_id: Name | None = None
    task_id: Name | None = None
    metadata: dict[str, Any] | None = None
    extensions: list[str] | None = None
    reference_task_ids: list[str] | None = None


class Configuration(msgspec.Struct, rename="camel"):
    """How to answer a message."""

    accepted_output_modes: list[str] | None = None
    blocking: bool | None = None
    return_immediately: bool | None = None
    history_length: Count | None = None
    history_scope: Scope | None = None
    push_notification_config: Any = None
    task_push_notification_config: Any = None


class Send(msgspec.Struct, rename="camel", kw_only=True):
    """A message to an agent; `command` steers the graph, `context` is the context of the run."""

    message: Message
    configuration: Configuration | None = None
    command: Command | None = None
    context: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    history_scope: Scope | None = None
    tenant: str | None = None


class Named(msgspec.Struct, rename="camel", kw_only=True):
    """Which task, and how much of its history to tell."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    history_length: Count | None = None
    history_scope: Scope | None = None
    metadata: dict[str, Any] | None = None
    tenant: str | None = None


class Listing(msgspec.Struct, rename="camel", kw_only=True):
    """Which tasks to list, most lately changed first."""

    context_id: Name | None = None
    status: str | None = None
    page_size: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    page_token: Name | None = None
    history_length: Count | None = None
    history_scope: Scope | None = None
    include_artifacts: bool | None = None
    status_timestamp_after: Name | None = None
    tenant: str | None = None


def read_params(params: dict[str, Any], kind: type[P]) -> P:
    """Read what a method takes; null is as good as nothing. Raises BadParams that names the field."""
    try:
        read: P = convert(params, kind, "params")
    except Invalid as exc:
        raise BadParams(f"Invalid params: {in_words(exc.problems)}") from exc
    if getattr(read, "tenant", None):
        raise BadParams("Invalid params: params.tenant: this agent has no tenants")
    return read

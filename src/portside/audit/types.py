"""The structs of the audit log: its entries as the API shows them, and which of them to return."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from portside.kernel.clock import Moment

ActorKind = Literal["user", "service_key", "platform", "anonymous"]
Outcome = Literal["ok", "refused", "failed"]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=320)]
ActionName = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[a-z_]+(\.[a-z_]+)?$(?!\n)")]


class AuditEntry(msgspec.Struct):
    """What one request did, or tried to do. `fields` are the names of the fields that it set, without their values.

    `count` is above 1 for refused requests that were only counted. `hash` depends on all entries before this one.
    """

    seq: int
    id: UUID
    at: datetime
    organization_id: UUID | None
    workspace_id: UUID | None
    actor_kind: ActorKind
    user_id: UUID | None
    user_email: str | None
    key_id: UUID | None
    short_key: str | None
    session_id: UUID | None
    address: str | None
    client: str | None
    action: str
    object_ids: list[str]
    object_name: str | None
    fields: list[str]
    outcome: Outcome
    status: int | None
    error: str | None
    request_id: str | None
    count: int
    hash: str


class AuditFilter(msgspec.Struct):
    """Which entries to return.

    `actor` is an email, a short key, an address, an id of a user, key or session, or a kind of actor. `action` may be
    only the part before the dot. `object` is an id or the name.
    """

    actor: Text | None = None
    action: ActionName | None = None
    object: Text | None = None
    outcome: Outcome | None = None
    start_time: Moment | None = None
    end_time: Moment | None = None
    workspace_id: UUID | None = None


class AuditQuery(AuditFilter):
    """Which page of the entries to return: the one before `cursor`, newest first."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    cursor: Annotated[int, msgspec.Meta(ge=1, le=2**62)] | None = None


class AuditExportQuery(AuditFilter):
    """Which entries to export, and how."""

    format: Literal["csv", "jsonl"] = "jsonl"


class AuditPage(msgspec.Struct):
    """Entries, newest first, and the cursor of the next page, if there is one."""

    items: list[AuditEntry]
    cursor: int | None


class AuditChain(msgspec.Struct):
    """Whether every entry has the hash that follows from the entries before it; `broken_at` is the first that has not.

    `last_hash` belongs to the entry `last_seq`. Keep both elsewhere: a later check that does not find them shows that
    the log was replaced.
    """

    entries: int
    first_seq: int | None
    last_seq: int | None
    last_hash: str | None
    broken_at: int | None


class ActivityQuery(msgspec.Struct):
    """Which page of the events to return: those of a period, both ends included, and of some operations."""

    start_time: Moment
    end_time: Moment
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    cursor: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    workspace_id: UUID | None = None
    operations: Annotated[list[Annotated[str, msgspec.Meta(max_length=100)]], msgspec.Meta(max_length=500)] | None = (
        None
    )


class ApiActivity(msgspec.Struct, kw_only=True):
    """An entry as an event "API Activity" of OCSF 1.7.0 (https://schema.ocsf.io/1.7.0/classes/api_activity).

    `time` is in milliseconds since 1970. `unmapped.original_audit_log` has the entry with its workspace.
    """

    class_uid: Literal[6003] = 6003
    class_name: Literal["API Activity"] = "API Activity"
    category_uid: Literal[6] = 6
    category_name: Literal["Application Activity"] = "Application Activity"
    severity_id: Literal[99] = 99
    type_uid: int
    activity_id: int
    activity_name: str
    status_id: int
    status: Literal["Success", "Failure"]
    time: int
    metadata: dict[str, Any]
    api: dict[str, str]
    http_request: dict[str, Any]
    http_response: dict[str, int | None]
    actor: dict[str, dict[str, UUID | None]]
    src_endpoint: dict[str, Any]
    resources: list[dict[str, UUID]]
    unmapped: dict[str, dict[str, Any]]


class ActivityPage(msgspec.Struct):
    """Events, newest first, and the cursor of the next page, if there is one."""

    items: list[ApiActivity]
    cursor: str | None

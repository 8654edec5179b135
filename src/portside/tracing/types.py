"""The types of tracing: writes that ingest stores, and runs and projects as the API returns them.

User data stays the JSON text that clients sent; only the fields that the platform uses are decoded.
"""

from datetime import datetime
from typing import Any, NamedTuple, NewType
from uuid import UUID

import msgspec

from portside.kernel.errors import Problem
from portside.tracing.attachments import RunAttachment

ProjectId = NewType("ProjectId", UUID)
RunId = NewType("RunId", UUID)


class ProjectRef(msgspec.Struct, frozen=True):
    """A tracing project."""

    id: UUID
    name: str


class AnyObject(msgspec.Struct):
    """A JSON object with any fields; decoding it checks that it is one."""


class RunWrite(msgspec.Struct, kw_only=True):
    """What one request says about one run; None leaves a field unchanged. Data fields hold JSON text."""

    id: UUID
    is_post: bool = False
    trace_id: UUID | None = None
    parent_run_id: UUID | None = None
    dotted_order: str | None = None
    project_id: UUID | None = None
    session_name: str | None = None
    reference_example_id: UUID | None = None
    name: str | None = None
    run_type: str | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    tags: str | None = None
    error: str | None = None
    inputs: str | None = None
    outputs: str | None = None
    extra: str | None = None
    events: str | None = None
    serialized: str | None = None
    patched: int = 0
    """The fields that a patch set, as bits (`PATCH_BITS` of `run_merge.py`): a patch outweighs a post."""
    patch_order: float = 0.0
    """The end time of the patch: of two patches the later one wins."""
    is_awaited: bool = False
    """Whether a child waits for the position of this run."""


class FeedbackWrite(msgspec.Struct):
    """The JSON text of feedback, and the fields that are stored in columns."""

    id: UUID
    run_id: UUID | None
    trace_id: UUID | None
    key: str
    body: str
    modified_at: datetime
    extends_trace: bool = True


class AttachmentWrite(msgspec.Struct):
    """A file of a run."""

    run_id: UUID
    name: str
    content_type: str
    data: bytes


class RefusedRun(NamedTuple):
    """A run that is not stored, and why; the id is None where the request has none that can be read."""

    run_id: UUID | None
    problems: list[Problem]


class SpanAlias(NamedTuple):
    """The id that spans derive for the run of their parent, where that run has an id of its own."""

    alias_id: UUID
    run_id: UUID


class SpanParent(NamedTuple):
    """The parent of a span, whose run may have an id of its own: the derived id, and the ids of OpenTelemetry."""

    alias_id: UUID
    trace_id: UUID
    span_id: bytes


class IngestBatch(msgspec.Struct):
    """The writes of one request, in their order, and what of the request is not written."""

    runs: list[RunWrite] = []
    feedback: list[FeedbackWrite] = []
    attachments: list[AttachmentWrite] = []
    refused: list[RefusedRun] = []
    warnings: list[str] = []
    span_aliases: list[SpanAlias] = []
    span_parents: list[SpanParent] = []


class TracedRun(msgspec.Struct, kw_only=True):
    """A run as the API returns it. Inputs, outputs and other user data are exactly as sent."""

    id: UUID
    name: str
    run_type: str
    status: str
    trace_id: UUID
    dotted_order: str
    parent_run_id: UUID | None
    session_id: UUID
    app_path: str
    reference_example_id: UUID | None
    start_time: datetime
    end_time: datetime | None
    tags: list[str]
    error: str | None
    inputs: msgspec.Raw
    outputs: msgspec.Raw
    extra: msgspec.Raw
    events: msgspec.Raw
    serialized: msgspec.Raw
    parent_run_ids: list[str]
    first_token_time: datetime | None
    thread_id: str | None
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_cost: str | None
    completion_cost: str | None
    total_cost: str | None
    prompt_token_details: dict[str, int] | None = None
    completion_token_details: dict[str, int] | None = None
    prompt_cost_details: msgspec.Raw
    completion_cost_details: msgspec.Raw
    feedback_stats: msgspec.Raw
    trace_tier: str | None = None
    s3_urls: dict[str, RunAttachment] | None = None


class RunQuery(msgspec.Struct):
    """Fields to leave out of a run."""

    exclude_serialized: bool = False
    exclude_s3_stored_attributes: bool = False


class TracerSession(msgspec.Struct, kw_only=True):
    """A project as the API returns it. SDKs require the key `reference_dataset_id`.

    The statistics are null unless requested: times in seconds, costs as decimal text.
    """

    id: UUID
    tenant_id: UUID
    name: str
    start_time: datetime
    end_time: datetime | None = None
    description: str | None = None
    extra: dict[str, Any] | None = None
    reference_dataset_id: UUID | None = None
    default_dataset_id: UUID | None = None
    trace_tier: str | None = None
    run_count: int | None = None
    latency_p50: float | None = None
    latency_p99: float | None = None
    first_token_p50: float | None = None
    first_token_p99: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_cost: str | None = None
    completion_cost: str | None = None
    total_cost: str | None = None
    error_rate: float | None = None
    streaming_rate: float | None = None
    last_run_start_time: datetime | None = None
    feedback_stats: dict[str, Any] | None = None
    session_feedback_stats: dict[str, Any] | None = None


class IngestQuery(msgspec.Struct):
    """Whether the runs are carried over from another server."""

    imported: bool = False


class Accepted(msgspec.Struct):
    """The response of an operation without a result of its own."""

    message: str = "Accepted"

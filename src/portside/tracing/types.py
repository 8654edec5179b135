"""The values of tracing: what a delivery says, and runs and projects as the API shows them.

User data stays the JSON text that came; only what the platform acts on is decoded.
"""

from datetime import datetime
from typing import Any, NewType
from uuid import UUID

import msgspec

from portside.tracing.attachments import Attachment

ProjectId = NewType("ProjectId", UUID)
RunId = NewType("RunId", UUID)


class Project(msgspec.Struct, frozen=True):
    """A tracing project."""

    id: UUID
    name: str


class RunWrite(msgspec.Struct, kw_only=True):
    """What one delivery says about one run; None says nothing. JSON text in the last five fields of data."""

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
    patch_order: float = 0.0
    is_awaited: bool = False


class FeedbackWrite(msgspec.Struct):
    """Feedback as it came, and the fields it is found by."""

    id: UUID
    run_id: UUID | None
    trace_id: UUID | None
    key: str
    body: str
    modified_at: datetime
    extends_trace: bool = True


class AttachmentWrite(msgspec.Struct):
    """A file that belongs to a run."""

    run_id: UUID
    name: str
    content_type: str
    data: bytes


class Delivery(msgspec.Struct):
    """All that one request brought, in the order it came."""

    runs: list[RunWrite] = []
    feedback: list[FeedbackWrite] = []
    attachments: list[AttachmentWrite] = []


class Run(msgspec.Struct, kw_only=True):
    """A run as the API shows it (contract: RunSchema); inputs, outputs and the like exactly as they were sent."""

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
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_cost: str | None
    completion_cost: str | None
    total_cost: str | None
    feedback_stats: msgspec.Raw
    trace_tier: str | None = None
    s3_urls: dict[str, Attachment] | None = None


class RunQuery(msgspec.Struct):
    """What to leave out of a run."""

    exclude_serialized: bool = False
    exclude_s3_stored_attributes: bool = False


class TracerSession(msgspec.Struct, kw_only=True):
    """A project as the API shows it (contract: TracerSession); SDKs want the key `reference_dataset_id` to be there.

    The figures are null unless they are asked for: times in seconds, costs as decimal text.
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


class Accepted(msgspec.Struct):
    """The answer to a delivery: it is stored."""

    message: str = "Accepted"

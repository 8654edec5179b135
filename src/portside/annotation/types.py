"""The types of annotation: queues, the runs in them, and configurations of feedback keys."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from portside.kernel.clock import Moment
from portside.kernel.http.json_validation import NOT_TRUE, among

FeedbackKey = Annotated[str, msgspec.Meta(min_length=1, max_length=180)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
Text = Annotated[str, msgspec.Meta(max_length=20_000)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=100)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Descriptions = Annotated[dict[str, Text], msgspec.Meta(max_length=100)]
RunIds = Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=1000)]


class RubricItem(msgspec.Struct, kw_only=True):
    """A feedback key that reviewers fill in, with its instructions."""

    feedback_key: FeedbackKey
    description: Text | None = None
    value_descriptions: Descriptions | None = None
    score_descriptions: Descriptions | None = None
    is_required: bool | None = None


Rubric = Annotated[list[RubricItem], msgspec.Meta(max_length=100)]


class Queue(msgspec.Struct, kw_only=True):
    """A queue as the API returns it."""

    id: UUID
    tenant_id: UUID
    name: str
    description: str | None
    rubric_instructions: str | None
    rubric_items: list[RubricItem]
    created_at: Moment
    updated_at: datetime


class QueueRequest(msgspec.Struct, kw_only=True):
    """A queue to create."""

    name: Name
    id: UUID | None = None
    description: Text | None = None
    rubric_instructions: Text | None = None
    rubric_items: Rubric = []


class QueuePatch(msgspec.Struct, kw_only=True):
    """Changes of a queue; null leaves a field unchanged."""

    name: Name | None = None
    description: Text | None = None
    rubric_instructions: Text | None = None
    rubric_items: Rubric | None = None


class QueueQuery(msgspec.Struct, kw_only=True):
    """Filters of queues."""

    ids: RunIds | None = None
    name: Name | None = None
    name_contains: Name | None = None
    limit: Limit = 100
    offset: Offset = 0


class RunKey(msgspec.Struct, kw_only=True):
    """A run with its project and start time, as clients send it; this server uses the id alone."""

    run_id: UUID
    session_id: UUID | None = None
    start_time: Moment | None = None


RunKeys = Annotated[list[RunKey], msgspec.Meta(min_length=1, max_length=1000)]


class QueuedRun(msgspec.Struct):
    """The entry of a run in a queue."""

    id: UUID
    run_id: UUID
    queue_id: UUID
    added_at: datetime
    last_reviewed_time: Moment | None


class QueuedRunsQuery(msgspec.Struct, kw_only=True):
    """Filters of a queue's runs. A run is completed once anybody reviewed it; the others wait for everybody.

    `exclude_values` leaves out inputs, outputs, events and other data of the runs.
    """

    status: (
        Annotated[
            Literal["needs_my_review", "needs_others_review", "completed"], among(("needs_my_review", "completed"))
        ]
        | None
    ) = None
    exclude_values: bool = False
    limit: Limit = 100
    offset: Offset = 0


class Review(msgspec.Struct):
    """When a run was last reviewed; null makes it wait for review again."""

    last_reviewed_time: Annotated[datetime, msgspec.Meta(tz=True)] | None


class QueueSize(msgspec.Struct):
    """The number of runs in a queue, and how many of them are completed."""

    size: int
    completed: int


class Category(msgspec.Struct):
    """A feedback value with a label."""

    value: float
    label: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class FeedbackScale(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The values of feedback: numbers within bounds, categories, or free text."""

    type: Literal["continuous", "categorical", "freeform"]
    min: float | None = None
    max: float | None = None
    categories: Annotated[list[Category], msgspec.Meta(min_length=1, max_length=200)] | None = None


class FeedbackConfig(msgspec.Struct, kw_only=True):
    """The configuration of a feedback key as the API returns it."""

    feedback_key: str
    feedback_config: FeedbackScale
    tenant_id: UUID
    modified_at: Moment
    is_lower_score_better: bool
    is_enforced: Annotated[bool, NOT_TRUE] = False


class ConfigRequest(msgspec.Struct, kw_only=True):
    """A configuration to create."""

    feedback_key: FeedbackKey
    feedback_config: FeedbackScale
    is_lower_score_better: bool | None = None
    is_enforced: Annotated[bool, NOT_TRUE] = False


class ConfigPatch(msgspec.Struct, kw_only=True):
    """Changes of a configuration; null leaves a field unchanged."""

    feedback_key: FeedbackKey
    feedback_config: FeedbackScale | None = None
    is_lower_score_better: bool | None = None


class ConfigQuery(msgspec.Struct, kw_only=True):
    """Filters of configurations."""

    key: Annotated[list[FeedbackKey], msgspec.Meta(max_length=1000)] | None = None
    name_contains: FeedbackKey | None = None
    limit: Limit = 100
    offset: Offset = 0


class ConfigKey(msgspec.Struct):
    """The key of a configuration."""

    feedback_key: FeedbackKey

"""The values of annotation: queues, runs in them, and configurations of feedback, as requests and answers have them."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

FeedbackKey = Annotated[str, msgspec.Meta(min_length=1, max_length=180)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
Text = Annotated[str, msgspec.Meta(max_length=20_000)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=100)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Descriptions = Annotated[dict[str, Text], msgspec.Meta(max_length=100)]
RunIds = Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=1000)]


class RubricItem(msgspec.Struct, kw_only=True):
    """A key of feedback that people are asked for, and what is said to them about it."""

    feedback_key: FeedbackKey
    description: Text | None = None
    value_descriptions: Descriptions | None = None
    score_descriptions: Descriptions | None = None
    is_required: bool | None = None


Rubric = Annotated[list[RubricItem], msgspec.Meta(max_length=100)]


class Queue(msgspec.Struct, kw_only=True):
    """A queue as the API shows it."""

    id: UUID
    tenant_id: UUID
    name: str
    description: str | None
    rubric_instructions: str | None
    rubric_items: list[RubricItem]
    created_at: datetime
    updated_at: datetime


class QueueRequest(msgspec.Struct, kw_only=True):
    """What to make a queue of."""

    name: Name
    id: UUID | None = None
    description: Text | None = None
    rubric_instructions: Text | None = None
    rubric_items: Rubric = []


class QueuePatch(msgspec.Struct, kw_only=True):
    """What to change of a queue; null means unchanged."""

    name: Name | None = None
    description: Text | None = None
    rubric_instructions: Text | None = None
    rubric_items: Rubric | None = None


class QueueQuery(msgspec.Struct, kw_only=True):
    """Which queues."""

    ids: RunIds | None = None
    name: Name | None = None
    name_contains: Name | None = None
    limit: Limit = 100
    offset: Offset = 0


class RunKey(msgspec.Struct, kw_only=True):
    """A run by all that clients know of where it is; its id is enough here."""

    run_id: UUID
    session_id: UUID | None = None
    start_time: datetime | None = None


RunKeys = Annotated[list[RunKey], msgspec.Meta(min_length=1, max_length=1000)]


class QueuedRun(msgspec.Struct):
    """That a run is in a queue, since when, and when it was last looked at."""

    id: UUID
    run_id: UUID
    queue_id: UUID
    added_at: datetime
    last_reviewed_time: datetime | None


class QueuedRunsQuery(msgspec.Struct, kw_only=True):
    """Which runs of a queue: those that somebody reviewed are completed, the others wait for everybody."""

    status: Literal["needs_my_review", "needs_others_review", "completed"] | None = None
    limit: Limit = 100
    offset: Offset = 0


class Review(msgspec.Struct):
    """When a run was last reviewed; null puts it back among those that wait."""

    last_reviewed_time: Annotated[datetime, msgspec.Meta(tz=True)] | None


class QueueSize(msgspec.Struct):
    """How many runs are in a queue."""

    size: int


class Category(msgspec.Struct):
    """A value of feedback that stands for something."""

    value: float
    label: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class FeedbackScale(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How values of feedback are to be read: numbers between bounds, categories, or text."""

    type: Literal["continuous", "categorical", "freeform"]
    min: float | None = None
    max: float | None = None
    categories: Annotated[list[Category], msgspec.Meta(min_length=1, max_length=200)] | None = None


class FeedbackConfig(msgspec.Struct, kw_only=True):
    """The configuration of a key of feedback as the API shows it."""

    feedback_key: str
    feedback_config: FeedbackScale
    tenant_id: UUID
    modified_at: datetime
    is_lower_score_better: bool
    is_enforced: bool = False


class ConfigRequest(msgspec.Struct, kw_only=True):
    """What feedback of a key means."""

    feedback_key: FeedbackKey
    feedback_config: FeedbackScale
    is_lower_score_better: bool | None = None
    is_enforced: bool = False


class ConfigPatch(msgspec.Struct, kw_only=True):
    """What to change of a configuration; null means unchanged."""

    feedback_key: FeedbackKey
    feedback_config: FeedbackScale | None = None
    is_lower_score_better: bool | None = None


class ConfigQuery(msgspec.Struct, kw_only=True):
    """Which configurations."""

    key: Annotated[list[FeedbackKey], msgspec.Meta(max_length=1000)] | None = None
    name_contains: FeedbackKey | None = None
    limit: Limit = 100
    offset: Offset = 0


class ConfigKey(msgspec.Struct):
    """Which configuration."""

    feedback_key: FeedbackKey

"""The structs of alerts, as the API shows them."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from portside.identity.types import Email, Name

ChannelKind = Literal["webhook", "mail"]
Url = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=2000,
        pattern=r"^https?://[^\x00-\x20\x7f]+$(?!\n)",
        description="an http or https address",
    ),
]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Threshold = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Subject = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Alert(msgspec.Struct):
    """A condition that has been met for long enough, or was. `ended_at` is null while it holds.

    `subject` is the id of the deployment, listener or limit; `name` is its name.
    """

    id: UUID
    rule: str
    subject: str
    name: str
    detail: str
    value: float
    threshold: float
    began_at: datetime
    fired_at: datetime
    ended_at: datetime | None
    notified_at: datetime | None
    is_silenced: bool


class AlertQuery(msgspec.Struct):
    """Which alerts to list."""

    status: Literal["open", "ended"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class RuleInForce(msgspec.Struct):
    """A rule with the thresholds in force. `is_below` says that lower values are worse."""

    name: str
    summary: str
    unit: str
    threshold: float
    for_s: float
    is_below: bool
    is_enabled: bool
    is_default: bool


class RulePatch(msgspec.Struct):
    """A change of a rule; null keeps a value."""

    is_enabled: bool | None = None
    threshold: Threshold | None = None
    for_s: Seconds | None = None


class ChannelRequest(msgspec.Struct):
    """A new channel: a webhook with its `url`, or a mail with the addresses in `to`."""

    kind: ChannelKind
    name: Name
    url: Url | None = None
    to: Annotated[list[Email], msgspec.Meta(min_length=1, max_length=20)] | None = None


class Channel(msgspec.Struct):
    """Where alerts are sent. Of a webhook only the host is shown: the rest of its address is often a secret.

    `last_error` is why the last message was not delivered, null if it was. `last_delivered_at` is when a message was
    delivered for the last time.
    """

    id: UUID
    kind: ChannelKind
    name: str
    target: str
    created_at: datetime
    last_delivered_at: datetime | None
    last_error: str | None


class NewChannel(Channel):
    """A channel that was just made. A webhook's `secret` signs its messages, and cannot be read again."""

    secret: str | None = None


class TestResult(msgspec.Struct):
    """Whether a test message was delivered, and why not."""

    __test__ = False

    is_delivered: bool
    error: str | None


class SilenceRequest(msgspec.Struct):
    """Send no messages of a rule, or of one of its subjects, for some hours."""

    rule: Name
    hours: Annotated[float, msgspec.Meta(gt=0, le=8_760)]
    subject: Subject | None = None
    comment: Annotated[str, msgspec.Meta(max_length=500)] = ""


class Silence(msgspec.Struct):
    """A time until which no messages of a rule, or of one of its subjects, are sent."""

    id: UUID
    rule: str
    subject: str | None
    until: datetime
    comment: str
    created_at: datetime

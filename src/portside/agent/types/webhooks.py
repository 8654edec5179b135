"""Webhooks: their configuration, and the state of a delivery."""

from typing import Annotated
from uuid import UUID

import msgspec

PAYLOAD_FIELDS = (
    "run_id",
    "thread_id",
    "assistant_id",
    "metadata",
    "status",
    "kwargs",
    "multitask_strategy",
    "created_at",
    "updated_at",
    "error",
    "cancel_reason",
    "langsmith_session_name",
    "run_started_at",
    "run_ended_at",
    "webhook_sent_at",
    "values",
)


class WebhookUrls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The URLs that may be called. `*.example.com` stands for subdomains only."""

    require_https: bool = True
    allowed_domains: list[str] | None = None
    allowed_ports: list[Annotated[int, msgspec.Meta(ge=1, le=65535)]] | None = None
    max_url_length: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 65_536
    disable_loopback: bool = True
    disable_private: bool = True


class WebhookPayload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of the payload: those included, by default all, without those excluded."""

    include: list[str] | None = None
    exclude: list[str] = []


class WebhooksConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `webhooks`. Headers and secrets may name environment variables: `${{ env.NAME }}`."""

    env_prefix: str = "LG_WEBHOOK_"
    headers: dict[str, str] = {}
    url: WebhookUrls = WebhookUrls()
    payload: WebhookPayload = WebhookPayload()
    signing_secret: str | list[str] | None = None


class DeliveryAttempt(msgspec.Struct):
    """One attempt to call a webhook: the status of the response, or the reason why there was none."""

    at: str
    duration_ms: int
    status_code: int | None = None
    reason: str | None = None


class WebhookDelivery(msgspec.Struct):
    """The delivery of a run's webhook; `next_attempt_at` is null once it is finished."""

    run_id: UUID
    url: str
    status: str
    attempts: list[DeliveryAttempt]
    next_attempt_at: str | None

"""Calls webhooks: any process may deliver the end of a run, and tries again if a call fails.

A run is delivered at least once: if a process dies between a call and recording it, another process calls again under
the same id. Of a response only the status counts. A status from 200 to 299 is a success. After 408, 425, 429, 500 and
above, and if the host does not answer, the call is tried again later; any other status is final. No run waits for its
webhook.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

import msgspec
import prometheus_client

from portside.agent.encryption.codec import is_undecryptable
from portside.agent.problems import PROBLEMS
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.types.webhooks import DeliveryAttempt
from portside.agent.webhooks.policy import UrlRefused, WebhookPolicy, Webhooks
from portside.kernel.clock import iso, now
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Database, Record, Session
from portside.kernel.logs import get_logger
from portside.kernel.outbound import AddressNotAllowed, HostUnknown, HostUnreachable, build_signature_headers, post
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
CALLS = prometheus_client.Counter("portside_webhook_calls_total", "Calls of webhooks by this process.", ["outcome"])
CALLS_LIMIT = 64
CALLS_LIMIT_OF_A_HOST = 8
# Longer than a call may take (`OutboundRules.timeout_s`), so that no other process calls meanwhile.
CLAIM_S = 30.0
PAUSE_LIMIT_S = 3 * 3600.0
PAUSE_GROWTH = 4.0
RETRIED = frozenset({408, 425, 429})
REFUSED = frozenset({401, 403})
SUCCESSFUL = range(200, 300)
SERVER_ERROR = 500
ENCRYPTED = ("kwargs", "metadata", "error", "values")
# Completes rows with the long lists that are stored apart (`threads/long_values.py`).
WithLongValues = Callable[[Session, Sequence[Any]], Awaitable[list[Any]]]
IDS = ("run_id", "thread_id", "assistant_id")
AS_STORED = ("metadata", "status", "multitask_strategy", "error", "cancel_reason")
# Keys of `configurable` that the receiver does not get: the user who started the run.
WITHHELD = frozenset({"langgraph_auth_user"})


class RetryPolicy(NamedTuple):
    """How often a delivery is tried, and how long the first pause is. Each further pause is four times as long."""

    attempts: int
    first_pause_s: float

    def pause_s(self, attempt: int) -> float:
        """Return the pause after an attempt, with jitter: calls that failed together are not repeated together."""
        pause_s = min(self.first_pause_s * PAUSE_GROWTH ** (attempt - 1), PAUSE_LIMIT_S)
        return pause_s * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


class DeliveryStatus(StrEnum):
    """The status of a delivery after an attempt."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class CallResult(NamedTuple):
    """The status that a host answered with, why the call failed, and whether that is final. Success has no reason."""

    status_code: int | None
    reason: str | None
    is_final: bool


class Deliveries(Task):
    """Makes the deliveries that are due. Safe in every process at once."""

    every_s: ClassVar[float] = 1.0

    def __init__(
        self, db: Database, webhooks: Webhooks, retries: RetryPolicy, with_long_values: WithLongValues
    ) -> None:
        super().__init__()
        self._db = db
        self._with_long_values = with_long_values
        self._webhooks = webhooks
        self._retries = retries
        self.signal = webhooks.due

        # The host of each call under way.
        self._calls: dict[asyncio.Task[DeliveryStatus], str] = {}

    @property
    def _policy(self) -> WebhookPolicy:
        return self._webhooks.policy

    async def activate(self) -> Status:
        """Claim deliveries that are due, and return when a call is over, or when it is time to look again."""
        wake_up = asyncio.create_task(self.signal.wait())
        try:
            claim_count = await self._claim()
            if claim_count < CALLS_LIMIT_OF_A_HOST and self._calls:
                await asyncio.wait({*self._calls, wake_up}, timeout=self.every_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            for call in self._calls:
                call.cancel()

            raise
        finally:
            wake_up.cancel()

        finished_calls = [call for call in self._calls if call.done()]
        for call in finished_calls:
            del self._calls[call]

        counts = Counter(call.result().value for call in finished_calls)
        return Status(did=dict(counts), again=bool(self._calls))

    async def _claim(self) -> int:
        self.signal.clear()
        free = CALLS_LIMIT - len(self._calls)
        if free <= 0:
            return 0

        calls_by_host = Counter(self._calls.values())
        rows = await self._db.fetch(
            sql.claim_webhooks,
            claim_s=CLAIM_S,
            busy_hosts=[host for host, calls in calls_by_host.items() if calls >= CALLS_LIMIT_OF_A_HOST],
            limit=min(free, CALLS_LIMIT_OF_A_HOST),
        )
        for row in rows:
            self._calls[asyncio.create_task(self._deliver(row))] = row["host"]

        return len(rows)

    async def _deliver(self, delivery: Record) -> DeliveryStatus:
        """Make one attempt and record the outcome."""
        started_at = now()
        start = time.monotonic()
        try:
            result = await self._call(delivery)
        except Exception as exc:
            log.exception("calling a webhook failed", run_id=str(delivery["run_id"]))
            result = CallResult(None, type(exc).__name__, is_final=False)

        attempt = DeliveryAttempt(
            at=iso(started_at),
            duration_ms=round((time.monotonic() - start) * 1000),
            status_code=result.status_code,
            reason=result.reason,
        )
        status = self._get_status(delivery["attempts"], result)

        await self._db.execute(
            sql.record_webhook_attempt,
            run_id=delivery["run_id"],
            attempt=delivery["attempts"],
            status=status,
            entry=[msgspec.to_builtins(attempt)],
            delay_s=self._retries.pause_s(delivery["attempts"]),
        )

        CALLS.labels(status).inc()
        if status is DeliveryStatus.FAILED:
            log.warning("a webhook has failed for good", run_id=str(delivery["run_id"]), reason=result.reason)

        return status

    def _get_status(self, attempt: int, result: CallResult) -> DeliveryStatus:
        if result.reason is None:
            return DeliveryStatus.DELIVERED
        if result.is_final or attempt >= self._retries.attempts:
            return DeliveryStatus.FAILED

        return DeliveryStatus.PENDING

    async def _call(self, delivery: Record) -> CallResult:
        """Call an address once."""
        if self._policy.is_disabled:
            return CallResult(None, "webhooks are disabled (http.disable_webhooks)", is_final=True)
        if any(is_undecryptable(delivery[name]) for name in ENCRYPTED):
            reason = "the payload cannot be decrypted with the keys of this server"
            return CallResult(None, reason, is_final=True)

        try:
            self._policy.check_syntax(delivery["url"])
            status = await self._post(delivery)
        except (UrlRefused, AddressNotAllowed) as exc:
            return CallResult(None, str(exc), is_final=True)
        except (HostUnknown, HostUnreachable) as exc:
            # A name may be missing for some minutes only, such as while its receiver moves.
            return CallResult(None, str(exc), is_final=False)

        if status in SUCCESSFUL:
            PROBLEMS.forget(delivery["host"])
            return CallResult(status, None, is_final=True)

        if status in REFUSED:
            # The problem does not name the address, because everybody may read the metrics.
            PROBLEMS.note(
                delivery["host"],
                f"A webhook refuses the calls of this server ({status}): its receiver wants another key or signature. "
                "The log of the deployment names the run.",
            )

        may_succeed_later = status in RETRIED or status >= SERVER_ERROR
        return CallResult(status, f"answered {status}", is_final=not may_succeed_later)

    async def _post(self, delivery: Record | dict[str, Any]) -> int:
        sent_at = now()
        if delivery["long_values"] is not None:
            row = {**dict(delivery), "values": dump_api(delivery["values"]).decode()}
            [whole] = await self._with_long_values(self._db, [row])
            delivery = {**whole, "values": load(whole["values"])}

        # In a thread: encoding a large state must not hold up the streams of this process.
        policy = self._policy
        body = await asyncio.to_thread(build_payload, delivery, policy, sent_at)
        signature = build_signature_headers(policy.secrets, str(delivery["run_id"]), int(sent_at.timestamp()), body)

        url = delivery["url"]
        headers = {"User-Agent": "portside", **policy.headers, "Content-Type": "application/json", **signature}
        if policy.own_routes is not None and url.startswith("/"):
            return await policy.own_routes.post(url, headers, body, policy.rules.timeout_s)

        return await post(url, headers, body, policy.rules)


class WebhookCleanup(Task):
    """Deletes the records of deliveries that ended long enough ago. Safe in every process at once."""

    every_s: ClassVar[float] = 600.0
    deletes = True
    batch: ClassVar[int] = 1000

    def __init__(self, db: Database, keep_s: float) -> None:
        super().__init__()
        self._db = db
        self._keep_s = keep_s

    async def activate(self) -> Status:
        """Delete one batch."""
        deleted_count = await self._db.execute(sql.delete_old_webhooks, keep_s=self._keep_s, limit=self.batch)
        return Status(did={"deleted": deleted_count}, again=deleted_count == self.batch)


def build_webhook_chores(
    db: Database, webhooks: Webhooks, settings: AgentSettings, with_long_values: WithLongValues
) -> list[Task]:
    """Return the tasks that make deliveries, and that delete their records.

    `with_long_values` reads the lists that a delivery's values lack.
    """
    retries = RetryPolicy(settings.webhook_max_attempts, settings.webhook_retry_after_seconds)
    return [
        Deliveries(db, webhooks, retries=retries, with_long_values=with_long_values),
        WebhookCleanup(db, keep_s=settings.webhook_log_kept_hours * 3600),
    ]


def build_payload(delivery: Record | dict[str, Any], policy: WebhookPolicy, sent_at: datetime) -> bytes:
    """Return the body of a call as JSON, with the fields that the policy includes."""
    kwargs: dict[str, Any] = delivery["kwargs"]
    tracer: dict[str, Any] = kwargs.get("langsmith_tracer") or {}
    fields = {
        **{name: delivery[name] for name in AS_STORED},
        **{name: str(delivery[name]) for name in IDS},
        "kwargs": _without_caller(kwargs),
        "created_at": iso(delivery["run_created_at"]),
        "updated_at": iso(delivery["run_ended_at"]),
        "langsmith_session_name": tracer.get("project_name"),
        "run_started_at": None if delivery["run_started_at"] is None else iso(delivery["run_started_at"]),
        "run_ended_at": iso(delivery["run_ended_at"]),
        "webhook_sent_at": iso(sent_at),
        "values": delivery["values"],
    }

    return dump_api({name: value for name, value in fields.items() if name in policy.payload_fields})


def _without_caller(kwargs: dict[str, Any]) -> dict[str, Any]:
    config = kwargs.get("config") or {}
    configurable = {key: value for key, value in config.get("configurable", {}).items() if key not in WITHHELD}
    return {**kwargs, "config": {**config, "configurable": configurable}}

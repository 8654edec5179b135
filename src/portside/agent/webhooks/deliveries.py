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
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

import msgspec
import prometheus_client

from portside.agent.encryption.codec import is_undecryptable
from portside.agent.problems import PROBLEMS
from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.types.webhooks import DeliveryAttempt, WebhookDelivery
from portside.agent.webhooks.policy import UrlRefused, WebhookPolicy, Webhooks
from portside.kernel.clock import iso, now
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Database, Record, Session
from portside.kernel.errors import NotFound
from portside.kernel.logs import get_logger
from portside.kernel.outbound import AddressNotAllowed, HostUnknown, HostUnreachable, post, signature_headers
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
IDS = ("run_id", "thread_id", "assistant_id")
ENCRYPTED = ("kwargs", "metadata", "error", "values")
AS_STORED = ("metadata", "status", "multitask_strategy", "error", "cancel_reason")
# Keys of `configurable` that the receiver does not get: the user who started the run.
WITHHELD = frozenset({"langgraph_auth_user"})
# Completes rows with the long lists that are stored apart (`threads/long_values.py`).
WithLongValues = Callable[[Session, Sequence[Any]], Awaitable[list[Any]]]


class RetryPolicy(NamedTuple):
    """How often a delivery is tried, and how long the first pause is. Each further pause is four times as long."""

    attempts: int
    first_pause_s: float

    def pause_s(self, attempt: int) -> float:
        """Return the pause after an attempt, with jitter: calls that failed together are not repeated together."""
        pause_s = min(self.first_pause_s * PAUSE_GROWTH ** (attempt - 1), PAUSE_LIMIT_S)
        return pause_s * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


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
        self._calls: dict[asyncio.Task[str], str] = {}

    @property
    def _policy(self) -> WebhookPolicy:
        return self._webhooks.policy

    async def activate(self) -> Status:
        """Claim deliveries that are due, and return when a call is over, or when it is time to look again."""
        woken = asyncio.create_task(self.signal.wait())
        try:
            claims = await self._claim()
            if claims < CALLS_LIMIT_OF_A_HOST and self._calls:
                await asyncio.wait({*self._calls, woken}, timeout=self.every_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            for call in self._calls:
                call.cancel()
            raise
        finally:
            woken.cancel()

        ended_calls = [call for call in self._calls if call.done()]
        for call in ended_calls:
            del self._calls[call]

        return Status(did=dict(Counter(call.result() for call in ended_calls)), again=bool(self._calls))

    async def _claim(self) -> int:
        self.signal.clear()
        free = CALLS_LIMIT - len(self._calls)
        if free <= 0:
            return 0

        hosts = Counter(self._calls.values())
        busy = [host for host, calls in hosts.items() if calls >= CALLS_LIMIT_OF_A_HOST]
        limit = min(free, CALLS_LIMIT_OF_A_HOST)

        rows = await self._db.fetch(sql.claim_webhooks, claim_s=CLAIM_S, busy_hosts=busy, limit=limit)
        for row in rows:
            self._calls[asyncio.create_task(self._deliver(row))] = row["host"]

        return len(rows)

    async def _deliver(self, delivery: Record) -> str:
        """Make one attempt and record the outcome."""
        started = time.monotonic()
        at = now()
        try:
            status_code, reason, is_final = await self._call(delivery)
        except Exception as exc:
            log.exception("calling a webhook failed", run_id=str(delivery["run_id"]))
            status_code = None
            reason = type(exc).__name__
            is_final = False

        duration_ms = round((time.monotonic() - started) * 1000)
        entry = DeliveryAttempt(iso(at), duration_ms, status_code, reason)
        outcome = self._outcome(delivery["attempts"], reason, is_final=is_final)

        await self._db.execute(
            sql.record_webhook_attempt,
            run_id=delivery["run_id"],
            attempt=delivery["attempts"],
            status=outcome,
            entry=[msgspec.to_builtins(entry)],
            delay_s=self._retries.pause_s(delivery["attempts"]),
        )

        CALLS.labels(outcome).inc()
        if outcome == "failed":
            log.warning("a webhook has failed for good", run_id=str(delivery["run_id"]), reason=reason)

        return outcome

    def _outcome(self, attempt: int, reason: str | None, *, is_final: bool) -> str:
        if reason is None:
            return "delivered"
        return "failed" if is_final or attempt >= self._retries.attempts else "pending"

    async def _call(self, delivery: Record) -> tuple[int | None, str | None, bool]:
        """Call an address once. Return the status, the reason for a failure, and whether the outcome is final."""
        if self._policy.is_disabled:
            return None, "webhooks are disabled (http.disable_webhooks)", True
        if any(is_undecryptable(delivery[name]) for name in ENCRYPTED):
            return None, "the payload cannot be decrypted with the keys of this server", True

        try:
            self._policy.check_syntax(delivery["url"])
            status = await self._post(delivery)
        except (UrlRefused, AddressNotAllowed) as exc:
            return None, str(exc), True
        except (HostUnknown, HostUnreachable) as exc:
            # A name may be missing for some minutes only, such as while its receiver moves.
            return None, str(exc), False

        if status in SUCCESSFUL:
            PROBLEMS.forget(delivery["host"])
            return status, None, True

        if status in REFUSED:
            # The problem does not name the address, because everybody may read the metrics.
            PROBLEMS.note(
                delivery["host"],
                f"A webhook refuses the calls of this server ({status}): its receiver wants another key or signature. "
                "The log of the deployment names the run.",
            )

        return status, f"answered {status}", not (status in RETRIED or status >= SERVER_ERROR)

    async def _post(self, delivery: Record | dict[str, Any]) -> int:
        sent_at = now()

        if delivery["long_values"] is not None:
            row = {**dict(delivery), "values": dump_api(delivery["values"]).decode()}
            [whole] = await self._with_long_values(self._db, [row])
            delivery = {**whole, "values": load(whole["values"])}

        # In a thread: encoding a large state must not hold up the streams of this process.
        body = await asyncio.to_thread(build_payload, delivery, self._policy, sent_at)
        signed = signature_headers(self._policy.secrets, str(delivery["run_id"]), int(sent_at.timestamp()), body)

        headers = {"User-Agent": "portside", **self._policy.headers, "Content-Type": "application/json", **signed}
        url = delivery["url"]
        policy = self._policy
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
        deleted = await self._db.execute(sql.delete_old_webhooks, keep_s=self._keep_s, limit=self.batch)
        return Status(did={"deleted": deleted}, again=deleted == self.batch)


def webhook_chores(
    db: Database, webhooks: Webhooks, settings: AgentSettings, with_long_values: WithLongValues
) -> list[Task]:
    """Return the tasks that make deliveries, and that delete their records.

    `with_long_values` reads the lists that a delivery's values lack.
    """
    retries = RetryPolicy(settings.webhook_max_attempts, settings.webhook_retry_after_seconds)
    return [
        Deliveries(db, webhooks, retries, with_long_values),
        WebhookCleanup(db, settings.webhook_log_kept_hours * 3600),
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


class DeliveryNotFound(NotFound):
    """The run has no webhook delivery: it names no webhook, has not ended, or ended too long ago."""

    code = "webhook_delivery_not_found"


class WebhookLog:
    """The deliveries of webhooks, as clients see them."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def get(self, thread_id: UUID, run_id: UUID) -> WebhookDelivery:
        """Return the delivery of the end of a run. Raises DeliveryNotFound."""
        row = await self._db.fetchrow(sql.get_webhook_delivery, run_id=run_id, thread_id=thread_id)
        if row is None:
            raise DeliveryNotFound

        next_at = row["next_attempt_at"]
        return WebhookDelivery(
            run_id=row["run_id"],
            url=row["url"],
            status=row["status"],
            attempts=msgspec.convert(row["log"], list[DeliveryAttempt]),
            next_attempt_at=None if next_at is None else iso(next_at),
        )

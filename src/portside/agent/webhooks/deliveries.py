"""Calling webhooks: each end of a run is told until it was heard, a bounded number of times, by any process that looks.

At least once: a process that dies after the call and before it wrote that down leaves the delivery to another, which
calls again under the same id. What a call answers is not read but for its status. A status from 200 to 299 is heard;
408, 425, 429, 500 and above, and hosts that do not answer, are tried again later; all else is not. No run waits for any
of it.
"""

import asyncio
import random
import time
from collections import Counter
from typing import ClassVar, NamedTuple

import msgspec
import prometheus_client

from portside.agent.settings import AgentSettings
from portside.agent.sql import sql
from portside.agent.types.webhooks import DeliveryAttempt
from portside.agent.webhooks.payloads import is_readable, payload_of
from portside.agent.webhooks.policy import UrlRefused, WebhookPolicy, Webhooks
from portside.agent.webhooks.signing import signature_headers
from portside.kernel.clock import iso, now
from portside.kernel.db import Database, Record
from portside.kernel.logs import get_logger
from portside.kernel.outbound import AddressNotAllowed, HostUnreachable, post
from portside.kernel.reconcile import Status, Task

log = get_logger(__name__)
CALLS = prometheus_client.Counter("portside_webhook_calls_total", "Calls of webhooks by this process.", ["outcome"])
AT_ONCE = 64
AT_ONCE_FOR_A_HOST = 8
CLAIM_S = 30.0
LONGEST_PAUSE_S = 3 * 3600.0
PAUSE_GROWTH = 4.0
AGAIN = frozenset({408, 425, 429})
HEARD, SERVERS_FAULT = range(200, 300), 500


class Retries(NamedTuple):
    """How often a delivery is tried, and how long the first pause is; each next one is four times as long."""

    attempts: int
    first_pause_s: float

    def pause_s(self, attempt: int) -> float:
        """Return the pause after an attempt, a little more or less so that what failed at once comes back apart."""
        pause_s = min(self.first_pause_s * PAUSE_GROWTH ** (attempt - 1), LONGEST_PAUSE_S)
        return pause_s * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


class Deliveries(Task):
    """Calls the webhooks that are owed. Safe in every process at once."""

    every_s: ClassVar[float] = 1.0

    def __init__(self, db: Database, webhooks: Webhooks, retries: Retries) -> None:
        super().__init__()
        self._db = db
        self._webhooks = webhooks
        self._retries = retries
        self.signal = webhooks.owed
        self._calls: dict[asyncio.Task[str], str] = {}

    @property
    def _policy(self) -> WebhookPolicy:
        return self._webhooks.policy

    async def activate(self) -> Status:
        """Claim what is due, and return when a call is over, or when it is time to look again."""
        woken = asyncio.create_task(self.signal.wait())
        try:
            claimed = await self._claim()
            if claimed < AT_ONCE_FOR_A_HOST and self._calls:
                await asyncio.wait({*self._calls, woken}, timeout=self.every_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            for call in self._calls:
                call.cancel()
            raise
        finally:
            woken.cancel()
        done = [call for call in self._calls if call.done()]
        for call in done:
            del self._calls[call]
        return Status(did=dict(Counter(call.result() for call in done)), again=bool(self._calls))

    async def _claim(self) -> int:
        self.signal.clear()
        free = AT_ONCE - len(self._calls)
        if free <= 0:
            return 0
        hosts = Counter(self._calls.values())
        busy = [host for host, calls in hosts.items() if calls >= AT_ONCE_FOR_A_HOST]
        limit = min(free, AT_ONCE_FOR_A_HOST)
        rows = await self._db.fetch(sql.claim_webhooks, claim_s=CLAIM_S, busy_hosts=busy, limit=limit)
        for row in rows:
            self._calls[asyncio.create_task(self._deliver(row))] = row["host"]
        return len(rows)

    async def _deliver(self, owed: Record) -> str:
        """Make one attempt and write down what came of it."""
        began, at = time.monotonic(), now()
        try:
            status_code, reason, is_final = await self._call(owed)
        except Exception as exc:
            log.exception("a webhook could not be called", run_id=str(owed["run_id"]))
            status_code, reason, is_final = None, type(exc).__name__, False
        duration_ms = round((time.monotonic() - began) * 1000)
        entry = DeliveryAttempt(iso(at), duration_ms, status_code, reason)
        outcome = self._outcome(owed["attempts"], reason, is_final=is_final)
        await self._db.execute(
            sql.settle_webhook,
            run_id=owed["run_id"],
            attempt=owed["attempts"],
            status=outcome,
            entry=[msgspec.to_builtins(entry)],
            delay_s=self._retries.pause_s(owed["attempts"]),
        )
        CALLS.labels(outcome).inc()
        if outcome == "failed":
            log.warning("a webhook is given up", run_id=str(owed["run_id"]), reason=reason)
        return outcome

    def _outcome(self, attempt: int, reason: str | None, *, is_final: bool) -> str:
        if reason is None:
            return "delivered"
        return "failed" if is_final or attempt >= self._retries.attempts else "pending"

    async def _call(self, owed: Record) -> tuple[int | None, str | None, bool]:
        """Call an address once. Returns the status, why it was not heard, and whether that will stay so."""
        if self._policy.is_disabled:
            return None, "webhooks are disabled (http.disable_webhooks)", True
        if not is_readable(owed):
            return None, "what is to be told cannot be decrypted with the keys of this server", True
        try:
            self._policy.judge(owed["url"])
            status = await self._post(owed)
        except (UrlRefused, AddressNotAllowed) as exc:
            return None, str(exc), True
        except HostUnreachable as exc:
            return None, str(exc), False
        if status in HEARD:
            return status, None, True
        return status, f"answered {status}", not (status in AGAIN or status >= SERVERS_FAULT)

    async def _post(self, owed: Record) -> int:
        sent_at = now()
        # What a large state takes to encode must not hold up the streams of this process.
        body = await asyncio.to_thread(payload_of, owed, self._policy, sent_at)
        signed = signature_headers(self._policy.secrets, str(owed["run_id"]), int(sent_at.timestamp()), body)
        headers = {"User-Agent": "portside", **self._policy.headers, "Content-Type": "application/json", **signed}
        url, policy = owed["url"], self._policy
        if policy.own is not None and url.startswith("/"):
            return await policy.own.post(url, headers, body, policy.rules.timeout_s)
        return await post(url, headers, body, policy.rules)


class OldDeliveries(Task):
    """Deletes the records of deliveries that were over long enough ago. Safe in every process at once."""

    every_s: ClassVar[float] = 600.0
    batch: ClassVar[int] = 1000

    def __init__(self, db: Database, keep_s: float) -> None:
        super().__init__()
        self._db = db
        self._keep_s = keep_s

    async def activate(self) -> Status:
        """Delete one batch."""
        deleted = await self._db.execute(sql.delete_old_webhooks, keep_s=self._keep_s, limit=self.batch)
        return Status(did={"deleted": deleted}, again=deleted == self.batch)


def webhook_chores(db: Database, webhooks: Webhooks, settings: AgentSettings) -> list[Task]:
    """Return what calls webhooks, and what forgets that they were called."""
    retries = Retries(settings.webhook_max_attempts, settings.webhook_retry_after_seconds)
    return [Deliveries(db, webhooks, retries), OldDeliveries(db, settings.webhook_log_kept_hours * 3600)]

"""The rules of alerts, and the measurements that they judge.

A measurement is a number for one subject: a deployment, a listener, a limit, or the platform. A rule compares it with a
threshold. A condition without a number counts 1 while it holds.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from portside.alerts.sql import sql
from portside.backup.history import get_last_backup
from portside.ingress.options import FrontOptions
from portside.kernel.clock import now
from portside.kernel.db import Database, Record
from portside.kernel.disk import DiskWatch, measure
from portside.kernel.shortening import first_line, shorten_line
from portside.kernel.timeouts import timeout
from portside.kernel.transient_errors import log_failure

PLATFORM = "platform"
RESTARTS_WITHIN_S = 600.0
ERRORS_WITHIN_S = 900.0
LEAST_TRACES = 20
# What costs more than a look at a small table is measured less often.
EVERY_S = {"error_rate": 60.0, "limit_used": 300.0, "certificate_expiring": 600.0}
CONNECT_S = 10.0
ENDS_AFTER_S = 60.0
_DAY_S = 86_400.0
_MAX_DETAIL = 300


class Rule(msgspec.Struct, frozen=True):
    """What is measured, and from which threshold on an alert begins.

    It begins when the threshold is reached for `for_s` seconds, and ends when the value has been beyond `ends_at` times
    the threshold for `ENDS_AFTER_S`, so that a value at the threshold does not send a message each minute. `is_below`
    turns the comparison around.
    """

    name: str
    summary: str
    unit: str
    threshold: float
    for_s: float = 0.0
    ends_at: float = 1.0
    is_below: bool = False

    def is_met(self, value: float) -> bool:
        """Whether a value reaches the threshold."""
        return value <= self.threshold if self.is_below else value >= self.threshold

    def is_over(self, value: float) -> bool:
        """Whether a value is so far from the threshold that an alert may end."""
        limit = self.threshold * self.ends_at
        return value > limit if self.is_below else value < limit


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "deployment_failed", "The newest revision of a deployment could not be built or deployed.", "", threshold=1
        ),
        Rule("deployment_restarting", "Restarts of a deployment's replicas in ten minutes.", "restarts", threshold=3),
        Rule(
            "deployment_degraded",
            "A deployment lacks a replica, or its listener names a problem.",
            "",
            threshold=1,
            for_s=300,
        ),
        Rule(
            "queue_waiting",
            "How long the oldest run that could start has waited.",
            "s",
            threshold=300,
            for_s=60,
            ends_at=0.5,
        ),
        Rule(
            "error_rate",
            "Traces of a deployment with an error, of at least 20 in 15 minutes.",
            "%",
            threshold=50,
            ends_at=0.8,
        ),
        # After a jump of the clock, or while the platform was down, each seems silent until its next request.
        Rule(
            "listener_silent",
            "How long a listener with deployments has been silent.",
            "s",
            threshold=300,
            for_s=60,
        ),
        Rule(
            "disk_used",
            "How much of the disk of the home folder is used.",
            "%",
            threshold=90,
            for_s=60,
            ends_at=0.97,
        ),
        Rule("data_refused", "New data is refused: the disk or the database is nearly full.", "", threshold=1),
        Rule(
            "certificate_expiring",
            "How long the certificate of the domain is still valid.",
            "days",
            threshold=14,
            ends_at=1.1,
            is_below=True,
        ),
        Rule("backup_failed", "The last backup failed.", "", threshold=1),
        Rule(
            "backup_old",
            "The age of the last backup, as a share of the time between scheduled ones.",
            "%",
            threshold=150,
        ),
        Rule("limit_used", "How much of a monthly limit of a workspace is used.", "%", threshold=90),
        Rule("part_down", "A part that the platform runs is down: the front, the listener.", "", threshold=1, for_s=60),
    )
}


class Measurement(NamedTuple):
    """The value for one subject. `name` is for people, and `detail` says more in one line."""

    subject: str
    name: str
    value: float
    detail: str = ""


class MeasuredParts(NamedTuple):
    """The parts of the platform that are measured. `problems` are those of `GET /ok`."""

    db: Database
    home: Path
    disk: DiskWatch | None
    front: FrontOptions | None
    problems: Mapping[str, Callable[[], str | None]]
    backup_every: timedelta | None = None


class Measurements:
    """Measures everything that rules judge."""

    def __init__(self, parts: MeasuredParts) -> None:
        self._parts = parts
        self._restarts: dict[str, deque[tuple[float, int]]] = {}
        self._cache: dict[str, tuple[float, list[Measurement]]] = {}

        self._by_rule: dict[str, Callable[[], Awaitable[list[Measurement]]]] = {
            "deployment_failed": self._failed_deployments,
            "error_rate": self._error_rates,
            "listener_silent": self._silent_listeners,
            "disk_used": self._disk,
            "data_refused": self._refused_data,
            "certificate_expiring": self._certificates,
            "backup_failed": self._failed_backups,
            "backup_old": self._backup_age,
            "limit_used": self._limits,
            "part_down": self._parts_down,
        }

    async def take(self) -> dict[str, list[Measurement]]:
        """Measure. A rule that cannot be measured now is missing in the result, and its alerts stay as they are."""
        measurements: dict[str, list[Measurement]] = {}
        for rule, take in self._by_rule.items():
            until, cached = self._cache.get(rule, (0.0, []))
            if until > time.monotonic():
                measurements[rule] = cached
                continue

            try:
                measurements[rule] = await take()
                self._cache[rule] = (time.monotonic() + EVERY_S.get(rule, 0.0), measurements[rule])
            except Exception as exc:  # noqa: BLE001 - one measurement that fails must not end the others
                log_failure("a measurement for alerts failed", exc, rule=rule)

        try:
            measurements.update(await self._reports())
        except Exception as exc:  # noqa: BLE001 - likewise
            log_failure("a measurement for alerts failed", exc, rule="deployment_degraded")

        return measurements

    async def _failed_deployments(self) -> list[Measurement]:
        rows = await self._parts.db.fetch(sql.failed_deployments)
        return [
            Measurement(
                subject=str(row["id"]),
                name=_get_name(row),
                value=1,
                detail=f"{row['status']}: {first_line(row['status_message'] or 'see its log', _MAX_DETAIL)}",
            )
            for row in rows
        ]

    async def _reports(self) -> dict[str, list[Measurement]]:
        """Return what listeners reported of deployments, by rule."""
        rows = await self._parts.db.fetch(sql.measured_deployments)
        down_rows = await self._parts.db.fetch(sql.down_deployments)
        problems = {row["id"]: (_get_name(row), row["status_message"]) for row in down_rows}
        problems |= {
            row["id"]: (_get_name(row), row["metrics"]["problem"]) for row in rows if row["metrics"].get("problem")
        }
        restarts = {str(row["id"]): row["metrics"].get("restarts") or 0 for row in rows}
        recent = self._recent_restarts(restarts)

        return {
            "deployment_restarting": [
                Measurement(str(row["id"]), _get_name(row), recent[str(row["id"])]) for row in rows
            ],
            "deployment_degraded": [
                Measurement(str(deployment_id), name, 1, first_line(problem, _MAX_DETAIL))
                for deployment_id, (name, problem) in problems.items()
            ],
            "queue_waiting": [
                Measurement(
                    subject=str(row["id"]),
                    name=_get_name(row),
                    value=row["metrics"].get("oldest_wait_s") or 0,
                    detail=f"{row['metrics'].get('pending_runs') or 0} runs wait",
                )
                for row in rows
            ],
        }

    def _recent_restarts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the restarts of the last minutes. A listener counts from zero when it starts again."""
        at = time.monotonic()
        self._restarts = {subject: self._restarts.get(subject, deque()) for subject in counts}
        recent = {}
        for subject, count in counts.items():
            samples = self._restarts[subject]
            if samples and count < samples[-1][1]:
                samples.clear()

            samples.append((at, count))

            while samples[0][0] < at - RESTARTS_WITHIN_S:
                samples.popleft()

            recent[subject] = count - samples[0][1]

        return recent

    async def _error_rates(self) -> list[Measurement]:
        rows = await self._parts.db.fetch(sql.project_errors, window_s=ERRORS_WITHIN_S, least=LEAST_TRACES)
        return [
            Measurement(
                subject=str(row["id"]),
                name=_get_name(row),
                value=round(100 * row["failed"] / row["traces"], 1),
                detail=f"{row['failed']} of {row['traces']} traces",
            )
            for row in rows
        ]

    async def _silent_listeners(self) -> list[Measurement]:
        rows = await self._parts.db.fetch(sql.silent_listeners)
        return [Measurement(str(row["id"]), _get_name(row), round(row["silent_s"])) for row in rows]

    async def _disk(self) -> list[Measurement]:
        space = await asyncio.to_thread(measure, self._parts.home)
        percent = round(100 * (1 - space.free / space.total), 1) if space.total else 0
        return [Measurement(PLATFORM, "the disk of the platform", percent, f"{space.free / 1e9:.1f} GB are free")]

    async def _refused_data(self) -> list[Measurement]:
        shortage = None if self._parts.disk is None else self._parts.disk.shortage
        return [Measurement(PLATFORM, "the platform", float(shortage is not None), shortage or "")]

    async def _certificates(self) -> list[Measurement]:
        front = self._parts.front
        if front is None or not front.is_public or front.domain is None:
            return []

        ends_at = await fetch_certificate_end("127.0.0.1", front.https_port, front.domain)
        days = round((ends_at - now()).total_seconds() / _DAY_S, 1)
        return [Measurement(front.domain, front.domain, days, f"it ends at {ends_at:%Y-%m-%d %H:%M} UTC")]

    async def _failed_backups(self) -> list[Measurement]:
        failure = (await asyncio.to_thread(get_last_backup, self._parts.home)).failed
        if failure is None:
            return []

        error = " ".join((failure.error or "").split())
        detail = f"{failure.started_at:%Y-%m-%d %H:%M} UTC: {shorten_line(error, _MAX_DETAIL)}"
        return [Measurement(PLATFORM, "the backup", 1, detail)]

    async def _backup_age(self) -> list[Measurement]:
        """Return nothing before the first backup: if that fails, it is a failure and not an old one."""
        every = self._parts.backup_every
        succeeded = (await asyncio.to_thread(get_last_backup, self._parts.home)).succeeded
        if every is None or succeeded is None:
            return []

        age = now() - succeeded.started_at
        detail = f"the last one is of {succeeded.started_at:%Y-%m-%d %H:%M} UTC"
        return [Measurement(PLATFORM, "the backup", round(100 * age / every), detail)]

    async def _limits(self) -> list[Measurement]:
        rows = await self._parts.db.fetch(sql.used_limits)
        return [
            Measurement(
                subject=str(row["id"]),
                name=f"{row['limit_type']} of {row['workspace']}",
                value=100.0 if not row["limit_value"] else round(100 * row["used"] / row["limit_value"], 1),
                detail=f"{row['used']} of {row['limit_value']}",
            )
            for row in rows
        ]

    async def _parts_down(self) -> list[Measurement]:
        problems = {name: describe() for name, describe in self._parts.problems.items() if name != "backup"}
        return [Measurement(name, name, 1, text) for name, text in problems.items() if text is not None]


def get_rules_in_force(changes: Iterable[Record]) -> dict[str, Rule]:
    """Return the enabled rules, with the thresholds that the operator changed."""
    rules = dict(RULES)
    for change in changes:
        rule = rules.pop(change["rule"], None)
        if rule is not None and change["is_enabled"]:
            rules[rule.name] = msgspec.structs.replace(rule, threshold=change["threshold"], for_s=change["for_s"])

    return rules


async def fetch_certificate_end(host: str, port: int, name: str) -> datetime:
    """Return when the certificate ends that a server shows for a name. Raises OSError and TimeoutError."""
    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Whether browsers trust it is no question here, and an expired one must be read too.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    async with timeout(CONNECT_S):
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)

    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    return x509.load_der_x509_certificate(der).not_valid_after_utc


def _get_name(row: Record) -> str:
    return f"{row['name']} ({row['workspace']})"

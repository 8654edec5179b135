"""Decides which alerts begin and end, and queues one message for each.

A condition is pending until it has held for as long as its rule says, then its alert fires. The alert ends when the
value has been far enough from the threshold for a minute, or when its subject is gone. The row of an alert and its
messages are one transaction, so a restart neither loses nor repeats them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from prometheus_client import Gauge

from portside.alerts.rules import ENDS_AFTER_S, RULES, Measurement, Measurements, Rule, get_rules_in_force
from portside.alerts.sql import sql
from portside.alerts.types import Alert, AlertQuery, RuleInForce, RulePatch, Silence, SilenceRequest
from portside.kernel.clock import now
from portside.kernel.db import Database, Record, Session, Transaction
from portside.kernel.errors import Invalid, NotFound
from portside.kernel.ids import uuid7
from portside.kernel.reconcile import Status, Task

KEPT = timedelta(days=90)
MEASURED = Gauge(
    "portside_alert_measurement",
    "The values that alert rules compare with their thresholds, in the units of the rules.",
    ["rule", "subject"],
)


class RuleNotFound(NotFound):
    """There is no rule with this name; GET /alerts/rules lists them."""

    code = "alert_rule_not_found"


class SilenceNotFound(NotFound):
    """There is no silence with this id."""

    code = "alert_silence_not_found"


class Step(StrEnum):
    """What an evaluation of a condition does to its alert. Messages have the names of `FIRING` and `ENDED`."""

    # The condition is not met, and there is no alert.
    NONE = "none"
    # The condition is met, but not yet for as long as its rule says.
    PENDING = "pending"
    # The alert fires, or goes on firing.
    FIRING = "firing"
    # The alert fires, and ends if the value stays where it is.
    RECOVERING = "recovering"
    ENDED = "ended"
    # The condition ended before its alert fired.
    FORGOTTEN = "forgotten"


class State(msgspec.Struct, frozen=True):
    """The times of an alert that has not ended."""

    began_at: datetime
    fired_at: datetime | None = None
    recovering_since: datetime | None = None

    @classmethod
    def read(cls, row: Record, at: datetime) -> "State":
        """Return the state of a stored alert. What waits since a later time than `at` waits from now on.

        Such a time is of a clock that was set back since.
        """
        began_at = row["began_at"]
        fired_at = row["fired_at"]
        since = row["recovering_since"]

        return cls(
            began_at=began_at if fired_at is not None else min(began_at, at),
            fired_at=fired_at,
            recovering_since=None if since is None else min(since, at),
        )


def next_step(rule: Rule | None, state: State | None, value: float | None, at: datetime) -> Step:
    """Return what happens to an alert, for the value that was just measured; None if its subject is gone.

    Without a rule, which the operator switched off, an alert ends.
    """
    if rule is None or value is None:
        if state is None:
            return Step.NONE
        return Step.ENDED if state.fired_at else Step.FORGOTTEN

    if state is None or state.fired_at is None:
        began_at = at if state is None else state.began_at
        if not rule.is_met(value):
            return Step.NONE if state is None else Step.FORGOTTEN

        return Step.FIRING if at - began_at >= timedelta(seconds=rule.for_s) else Step.PENDING

    if not rule.is_over(value):
        return Step.FIRING

    since = state.recovering_since or at
    return Step.ENDED if at - since >= timedelta(seconds=ENDS_AFTER_S) else Step.RECOVERING


class AlertWatch(Task):
    """Measures, and begins and ends alerts. Safe in several processes at once."""

    every_s = 15.0

    def __init__(self, db: Database, measurements: Measurements, deliveries: Task, *, every_s: float) -> None:
        super().__init__(every_s=every_s)
        self._db = db
        self._measurements = measurements
        self._deliveries = deliveries

    async def activate(self) -> Status:
        """Measure once."""
        measured = await self._measurements.take()
        export_measurements(measured)

        queued = await judge(self._db, measured, now())
        if queued:
            self._deliveries.signal.set()

        return Status({"messages": queued})


def export_measurements(measured: Mapping[str, Sequence[Measurement]]) -> None:
    """Set the metrics for Prometheus; subjects that are gone have none."""
    MEASURED.clear()
    for rule, rule_measurements in measured.items():
        for measurement in rule_measurements:
            MEASURED.labels(rule, measurement.subject).set(measurement.value)


async def judge(db: Database, measured: Mapping[str, Sequence[Measurement]], at: datetime) -> int:
    """Begin and end alerts for what was measured; return the number of alerts for which messages were queued.

    A rule without measurements could not be measured: its alerts stay as they are.
    """
    queued = 0
    async with db.transaction() as tx:
        await tx.execute(sql.lock_alerts)
        rules = get_rules_in_force(await tx.fetch(sql.rule_changes))

        silences = await tx.fetch(sql.active_silences)
        rows = {(row["rule"], row["subject"]): row for row in await tx.fetch(sql.open_alerts)}
        by_key = {
            (rule, measurement.subject): measurement
            for rule, measurements in measured.items()
            for measurement in measurements
        }

        for key in rows.keys() | by_key.keys():
            rule_name, subject = key
            if rule_name in rules and rule_name not in measured:
                continue

            row = rows.get(key)
            measurement = by_key.get(key)
            state = None if row is None else State.read(row, at)
            value = None if measurement is None else measurement.value
            evaluation = _Evaluation(
                alert_id=uuid7() if row is None else row["id"],
                rule=rules.get(rule_name),
                state=state,
                measurement=measurement,
                step=next_step(rules.get(rule_name), state, value, at),
            )
            await _store(tx, evaluation, at)

            was_notified = row is not None and row["notified_at"] is not None
            is_silenced = any(
                silence["rule"] == rule_name and silence["subject"] in (None, subject) for silence in silences
            )
            begins = evaluation.step == Step.FIRING and not was_notified and not is_silenced
            ends = evaluation.step == Step.ENDED and was_notified
            if begins or ends:
                await tx.execute(sql.notify, alert_id=evaluation.alert_id, event=evaluation.step.value)
                queued += 1

    return queued


class OldAlerts(Task):
    """Deletes alerts and silences that ended `KEPT` ago."""

    every_s = 3600.0
    deletes = True

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Delete them."""
        before = now() - KEPT
        alerts = await self._db.execute(sql.delete_old_alerts, before=before)
        silences = await self._db.execute(sql.delete_old_silences, before=before)
        return Status({"alerts": alerts, "silences": silences})


class _Evaluation(NamedTuple):
    """The decision about one condition."""

    alert_id: UUID
    rule: Rule | None
    state: State | None
    measurement: Measurement | None
    step: Step


async def _store(tx: Transaction, evaluation: _Evaluation, at: datetime) -> None:
    """Store what an evaluation changes of an alert."""
    alert_id, rule, state, measurement, step = evaluation
    if step == Step.NONE:
        return

    if step == Step.FORGOTTEN:
        await tx.execute(sql.forget_alert, id=alert_id)
        return

    if rule is None or measurement is None:
        await tx.execute(sql.end_alert, id=alert_id, now=at)
        return

    earlier = state or State(at)
    await tx.execute(
        sql.store_alert,
        id=alert_id,
        rule=rule.name,
        threshold=rule.threshold,
        **measurement._asdict(),
        began_at=earlier.began_at,
        fired_at=earlier.fired_at or (at if step == Step.FIRING else None),
        recovering_since=(earlier.recovering_since or at) if step == Step.RECOVERING else None,
        ended_at=at if step == Step.ENDED else None,
    )


async def list_alerts(db: Session, query: AlertQuery) -> list[Alert]:
    """List alerts: those that fire first, then those that have ended, newest first."""
    is_open = None if query.status is None else query.status == "open"
    return [Alert(**row) for row in await db.fetch(sql.list_alerts, is_open=is_open, limit=query.limit)]


async def list_rules(db: Session) -> list[RuleInForce]:
    """List the rules with the thresholds in force."""
    changes = {row["rule"]: row for row in await db.fetch(sql.rule_changes)}
    rules = []
    for rule in RULES.values():
        change: Any = changes.get(rule.name, {"threshold": rule.threshold, "for_s": rule.for_s, "is_enabled": True})
        rules.append(
            RuleInForce(
                name=rule.name,
                summary=rule.summary,
                unit=rule.unit,
                threshold=change["threshold"],
                for_s=change["for_s"],
                is_below=rule.is_below,
                is_enabled=change["is_enabled"],
                is_default=rule.name not in changes,
            )
        )

    return rules


async def update_rule(db: Session, name: str, patch: RulePatch) -> RuleInForce:
    """Change the thresholds of a rule, or switch it off. Raises RuleNotFound."""
    rules = {rule.name: rule for rule in await list_rules(db)}
    if name not in rules:
        raise RuleNotFound

    changes = {key: value for key, value in msgspec.structs.asdict(patch).items() if value is not None}
    rule = msgspec.structs.replace(rules[name], is_default=False, **changes)
    await db.execute(sql.change_rule, rule=name, is_enabled=rule.is_enabled, threshold=rule.threshold, for_s=rule.for_s)

    return rule


async def list_silences(db: Session) -> list[Silence]:
    """List the silences that have not ended."""
    return [Silence(**row) for row in await db.fetch(sql.active_silences)]


async def create_silence(db: Session, request: SilenceRequest) -> Silence:
    """Send no messages of a rule for some hours. An alert that still fires afterwards is sent then. Raises Invalid."""
    if request.rule not in RULES:
        raise Invalid.field(["body", "rule"], f"is not a rule; use one of {', '.join(RULES)}")

    silence = Silence(
        id=uuid7(),
        rule=request.rule,
        subject=request.subject,
        until=now() + timedelta(hours=request.hours),
        comment=request.comment,
        created_at=now(),
    )

    values = msgspec.structs.asdict(silence)
    values.pop("created_at")
    await db.execute(sql.insert_silence, **values)

    return silence


async def delete_silence(db: Session, silence_id: UUID) -> None:
    """End a silence. Raises SilenceNotFound."""
    if not await db.execute(sql.delete_silence, id=silence_id):
        raise SilenceNotFound

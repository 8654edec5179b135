"""What operators may set and read of a running deployment: its number of replicas and its metrics.

A change of scale reaches listeners at once and makes no revision. Only the latest metrics are stored; Prometheus gets
them as gauges. The platform's metrics can be read without a key, so their labels are ids and not names.
"""

from uuid import UUID

import msgspec
from prometheus_client import Gauge

from portside.control.errors import BadCombination, BeingDeleted, DeploymentNotFound
from portside.control.listeners import check_scale, get_placement
from portside.control.revisions import lock_deployment
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types import DeploymentMetrics
from portside.kernel.clock import iso
from portside.kernel.db import Record
from portside.listener_api import DeploymentStatus, MetricsReport, Scale

_LABELS = ["deployment_id"]
_GAUGES = {
    "replicas": Gauge("portside_deployment_replicas", "Replicas that answer requests.", _LABELS),
    "queue_replicas": Gauge("portside_deployment_queue_replicas", "Replicas that only execute runs.", _LABELS),
    "is_asleep": Gauge("portside_deployment_asleep", "1 while a deployment sleeps because nobody uses it.", _LABELS),
    "cpu": Gauge("portside_deployment_cpu_cores", "Cores that all replicas use.", _LABELS),
    "memory_mb": Gauge("portside_deployment_memory_mb", "Resident memory of all replicas.", _LABELS),
    "restarts": Gauge("portside_deployment_restarts", "Replicas that died since the listener started.", _LABELS),
    "pending_runs": Gauge("portside_deployment_pending_runs", "Runs that are waiting.", _LABELS),
    "active_runs": Gauge("portside_deployment_active_runs", "Runs that are executing.", _LABELS),
    "oldest_wait_s": Gauge(
        "portside_deployment_oldest_wait_seconds", "How long the oldest run that could start has waited.", _LABELS
    ),
}


async def update_scale(scope: Scope, deployment_id: UUID, scale: Scale) -> Scale:
    """Set all four limits; null restores the revision's own limit.

    Raises DeploymentNotFound, BeingDeleted, BadCombination and Invalid.
    """
    _check_scale(scale)
    async with scope.change() as tx:
        row = await lock_deployment(tx, scope, deployment_id)
        if row["status"] == DeploymentStatus.AWAITING_DELETE:
            raise BeingDeleted

        check_scale(await get_placement(tx, scope, row), scale)
        await tx.execute(sql.set_scale, id=deployment_id, **msgspec.structs.asdict(scale))

    return scale


async def get_scale(scope: Scope, deployment_id: UUID) -> Scale:
    """Return the limits that were set. Raises DeploymentNotFound."""
    row = await scope.db.fetchrow(sql.get_scale, id=deployment_id, workspace_id=scope.workspace_id)
    if row is None:
        raise DeploymentNotFound.of(deployment_id)

    return to_scale(row)


def to_scale(row: Record) -> Scale:
    """Return the limits in a deployment's row."""
    return Scale(
        min_scale=row["min_scale"],
        max_scale=row["max_scale"],
        queue_min_scale=row["queue_min_scale"],
        queue_max_scale=row["queue_max_scale"],
    )


def _check_scale(scale: Scale) -> None:
    for least_name, most_name in (("min_scale", "max_scale"), ("queue_min_scale", "queue_max_scale")):
        least = getattr(scale, least_name)
        most = getattr(scale, most_name)
        if least is not None and most is not None and least > most:
            raise BadCombination(f"{least_name} must not be greater than {most_name}: {least} > {most}.")


async def store_metrics(scope: Scope, deployment_id: UUID, report: MetricsReport) -> None:
    """Store a listener's metrics of a deployment. Raises DeploymentNotFound."""
    updated_id = await scope.db.fetchval(
        sql.put_metrics,
        id=deployment_id,
        workspace_id=scope.workspace_id,
        metrics=msgspec.to_builtins(report),
    )
    if updated_id is None:
        raise DeploymentNotFound.of(deployment_id)

    for name, gauge in _GAUGES.items():
        value = getattr(report, name)
        gauge.labels(str(deployment_id)).set(float("nan") if value is None else value)


async def get_metrics(scope: Scope, deployment_id: UUID) -> DeploymentMetrics:
    """Return a deployment's latest metrics. Raises DeploymentNotFound."""
    row = await scope.db.fetchrow(sql.get_metrics, id=deployment_id, workspace_id=scope.workspace_id)
    if row is None:
        raise DeploymentNotFound.of(deployment_id)
    if row["measured_at"] is None:
        return DeploymentMetrics()

    return msgspec.convert({**row["metrics"], "measured_at": iso(row["measured_at"])}, DeploymentMetrics)


def remove_gauges(deployment_id: UUID) -> None:
    """Remove a deployment from the metrics for Prometheus."""
    for gauge in _GAUGES.values():
        gauge.remove(str(deployment_id))

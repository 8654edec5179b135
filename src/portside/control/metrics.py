"""What deployments were found to use: kept as it was told last, and shown to Prometheus.

The platform's metrics can be read without a key, so deployments are named by their ids there.
"""

from uuid import UUID

import msgspec
from prometheus_client import Gauge

from portside.control.errors import DeploymentNotFound
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types.operations import DeploymentMetrics, Measures
from portside.kernel.clock import iso

_LABELS = ["deployment_id"]
_GAUGES = {
    "replicas": Gauge("portside_deployment_replicas", "Replicas that answer requests.", _LABELS),
    "queue_replicas": Gauge("portside_deployment_queue_replicas", "Replicas that only execute runs.", _LABELS),
    "cpu": Gauge("portside_deployment_cpu_cores", "Cores that all replicas use.", _LABELS),
    "memory_mb": Gauge("portside_deployment_memory_mb", "Resident memory of all replicas.", _LABELS),
    "restarts": Gauge("portside_deployment_restarts", "Replicas that died since the listener began.", _LABELS),
    "pending_runs": Gauge("portside_deployment_pending_runs", "Runs that wait.", _LABELS),
    "active_runs": Gauge("portside_deployment_active_runs", "Runs that are executed.", _LABELS),
}


async def put_metrics(scope: Scope, deployment_id: UUID, measures: Measures) -> None:
    """Take note of what a deployment uses now. Raises DeploymentNotFound."""
    told = msgspec.to_builtins(measures)
    found = await scope.db.fetchval(sql.put_metrics, id=deployment_id, workspace_id=scope.workspace_id, measures=told)
    if found is None:
        raise DeploymentNotFound.of(deployment_id)
    for name, gauge in _GAUGES.items():
        value = getattr(measures, name)
        gauge.labels(str(deployment_id)).set(float("nan") if value is None else value)


async def get_metrics(scope: Scope, deployment_id: UUID) -> DeploymentMetrics:
    """Return what was told last. Raises DeploymentNotFound."""
    row = await scope.db.fetchrow(sql.get_metrics, id=deployment_id, workspace_id=scope.workspace_id)
    if row is None:
        raise DeploymentNotFound.of(deployment_id)
    if row["measured_at"] is None:
        return DeploymentMetrics()
    return msgspec.convert({**row["measures"], "measured_at": iso(row["measured_at"])}, DeploymentMetrics)


def forget_metrics(deployment_id: UUID) -> None:
    """Show a deployment to Prometheus no more."""
    for gauge in _GAUGES.values():
        gauge.remove(str(deployment_id))

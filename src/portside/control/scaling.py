"""How many replicas a deployment may have. Listeners follow at once; no revision is made."""

from uuid import UUID

import msgspec

from portside.control.errors import BadCombination, BeingDeleted, DeploymentNotFound
from portside.control.revisions import lock_deployment
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types.operations import Scale
from portside.control.types.statuses import DeploymentStatus
from portside.kernel.db import Record


async def set_scale(scope: Scope, deployment_id: UUID, scale: Scale) -> Scale:
    """Set all four bounds; one that is null is the revision's again.

    Raises DeploymentNotFound, BeingDeleted and BadCombination.
    """
    _check(scale)
    async with scope.change() as tx:
        row = await lock_deployment(tx, scope, deployment_id)
        if row["status"] == DeploymentStatus.AWAITING_DELETE:
            raise BeingDeleted
        await tx.execute(sql.set_scale, id=deployment_id, **msgspec.structs.asdict(scale))
    return scale


async def get_scale(scope: Scope, deployment_id: UUID) -> Scale:
    """Return the bounds that were set. Raises DeploymentNotFound."""
    row = await scope.db.fetchrow(sql.get_scale, id=deployment_id, workspace_id=scope.workspace_id)
    if row is None:
        raise DeploymentNotFound.of(deployment_id)
    return show_scale(row)


def show_scale(row: Record) -> Scale:
    """Show the bounds in a row of a deployment."""
    return Scale(row["min_scale"], row["max_scale"], row["queue_min_scale"], row["queue_max_scale"])


def _check(scale: Scale) -> None:
    ranges = {
        ("min_scale", "max_scale"): (scale.min_scale, scale.max_scale),
        ("queue_min_scale", "queue_max_scale"): (scale.queue_min_scale, scale.queue_max_scale),
    }
    for (least_name, most_name), (least, most) in ranges.items():
        if least is not None and most is not None and least > most:
            raise BadCombination(f"{least_name} must not be greater than {most_name}: {least} > {most}.")

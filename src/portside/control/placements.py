"""Which listener a deployment goes to, and into which namespace of its cluster.

A deployment that names no listener is taken by the first process listener to ask (`desired.py`); one that names a
listener is that listener's from the start.
"""

from uuid import UUID

import msgspec

from portside.control.errors import BadCombination
from portside.control.reserved_names import ON_CLUSTERS
from portside.control.scope import Scope
from portside.control.sources import IMAGE
from portside.control.sql import sql
from portside.control.types.dataplane import ComputeConfig
from portside.control.types.deployments import DeploymentCreate, DeploymentPatch, SourceConfig
from portside.kernel.db import Record, Transaction

SHOWN_LISTENERS = 100


class Placement(msgspec.Struct, frozen=True):
    """Where a deployment was put; nowhere in particular without a listener."""

    listener_id: UUID | None = None
    compute_type: str = "process"
    k8s_namespace: str | None = None


async def place(tx: Transaction, scope: Scope, source: str, config: SourceConfig) -> Placement:
    """Find the place that a create asks for. Raises BadCombination for one that is not there or is missing."""
    if config.listener_id is None:
        if source == IMAGE:
            await _check_none_needed(tx, scope)
        if _namespace(config):
            raise BadCombination("source_config.listener_config needs a source_config.listener_id.")
        return Placement()
    listener = await find_listener(tx, scope, config.listener_id)
    if listener is None:
        raise BadCombination(f"source_config.listener_id {config.listener_id} is no listener of this workspace.")
    return Placement(listener["id"], listener["compute_type"], _choose_namespace(listener, _namespace(config)))


async def place_of(tx: Transaction, scope: Scope, deployment: Record) -> Placement:
    """Return where a deployment was put."""
    listener_id = deployment["listener_id"]
    listener = None if listener_id is None else await find_listener(tx, scope, listener_id)
    if listener is None:
        return Placement()
    return Placement(listener_id, listener["compute_type"], deployment["k8s_namespace"])


def check_cluster_only(place: Placement, body: DeploymentCreate | DeploymentPatch) -> None:
    """Raises BadCombination for what only a cluster has: secrets to refer to, and stores of the user's own."""
    if place.compute_type == "k8s":
        return
    if body.secret_references:
        raise BadCombination("secret_references can only be set for deployments on a listener of compute type k8s.")
    for secret in body.secrets or []:
        if secret.name in ON_CLUSTERS:
            raise BadCombination(
                f"The secret {secret.name} can only be set for deployments on a listener of compute type k8s."
            )


async def find_listener(tx: Transaction, scope: Scope, listener_id: UUID) -> Record | None:
    """Return a listener's row, or None."""
    return await tx.fetchrow(
        sql.find_listeners,
        workspace_id=scope.workspace_id,
        id=listener_id,
        compute_type=None,
        limit=1,
        offset=0,
    )


async def _check_none_needed(tx: Transaction, scope: Scope) -> None:
    rows = await tx.fetch(
        sql.find_listeners,
        workspace_id=scope.workspace_id,
        id=None,
        compute_type="k8s",
        limit=SHOWN_LISTENERS,
        offset=0,
    )
    if rows:
        ids = [str(row["id"]) for row in rows]
        raise BadCombination(
            "Source configuration error: 'source_config.listener_id' is required for workspace with available "
            f"listener IDs: {ids}"
        )


def _namespace(config: SourceConfig) -> str | None:
    return config.listener_config.k8s_namespace if config.listener_config else None


def _choose_namespace(listener: Record, wanted: str | None) -> str | None:
    """Return the namespace to deploy into: the one asked for, or the listener's first."""
    if listener["compute_type"] != "k8s":
        if wanted is not None:
            raise BadCombination(
                "source_config.listener_config.k8s_namespace can only be set for a listener of compute type k8s, "
                f"and {listener['id']} is one of {listener['compute_type']}."
            )
        return None
    allowed = msgspec.convert(listener["compute_config"], ComputeConfig).k8s_namespaces
    if allowed is None or wanted in allowed:
        return wanted
    if wanted is None:
        return allowed[0]
    raise BadCombination(
        f"source_config.listener_config.k8s_namespace {wanted} is none of the listener's namespaces: {allowed}."
    )

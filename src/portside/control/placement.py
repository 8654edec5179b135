"""The choice of a listener and a Kubernetes namespace for each deployment.

A deployment that names no listener belongs to the first process listener that polls (`desired_state.py`).
"""

from uuid import UUID

import msgspec

from portside.control.errors import BadCombination
from portside.control.scope import Scope
from portside.control.secrets import CLUSTER_ONLY
from portside.control.sources import IMAGE
from portside.control.sql import sql
from portside.control.types import ComputeConfig, DeploymentCreate, DeploymentPatch, SourceConfig
from portside.kernel.db import Record, Transaction
from portside.listener_api import ComputeType

_MAX_NAMED_LISTENERS = 100


class Placement(msgspec.Struct, frozen=True):
    """The listener and namespace of a deployment; without a listener any process listener may take it."""

    listener_id: UUID | None = None
    compute_type: ComputeType = "process"
    k8s_namespace: str | None = None


async def choose_placement(tx: Transaction, scope: Scope, source: str, config: SourceConfig) -> Placement:
    """Return the placement that a create requests. Raises BadCombination for an unknown or a missing listener."""
    if config.listener_id is None:
        if source == IMAGE:
            await _check_listener_optional(tx, scope)

        if _get_namespace(config):
            raise BadCombination("source_config.listener_config needs a source_config.listener_id.")

        return Placement()

    await tx.execute(sql.lock_listener_for_use, id=config.listener_id, workspace_id=scope.workspace_id)
    listener = await find_listener(tx, scope, config.listener_id)
    if listener is None:
        raise BadCombination(f"source_config.listener_id {config.listener_id} is not a listener of this workspace.")

    return Placement(
        listener_id=listener["id"],
        compute_type=listener["compute_type"],
        k8s_namespace=_choose_namespace(listener, _get_namespace(config)),
    )


async def get_placement(tx: Transaction, scope: Scope, deployment: Record) -> Placement:
    """Return a deployment's placement."""
    listener_id = deployment["listener_id"]
    listener = None if listener_id is None else await find_listener(tx, scope, listener_id)
    if listener is None:
        return Placement()

    return Placement(
        listener_id=listener_id,
        compute_type=listener["compute_type"],
        k8s_namespace=deployment["k8s_namespace"],
    )


def check_compute(placement: Placement, body: DeploymentCreate | DeploymentPatch) -> None:
    """Refuse fields that the compute of a placement does not support. Raises BadCombination.

    Secret references and databases of the user's own need a cluster; sleeping and pinned threads need a machine.
    """
    if placement.compute_type == "k8s":
        if body.sleep_after_s:
            raise BadCombination("sleep_after_s can only be set for deployments on a machine; remove it.")
        if body.pin_threads:
            raise BadCombination("pin_threads can only be set for deployments on a machine; remove it.")

        return

    if body.secret_references:
        raise BadCombination(
            "secret_references can only be set for deployments on a listener of compute type k8s; use secrets instead."
        )

    for secret in body.secrets or []:
        if secret.name in CLUSTER_ONLY:
            raise BadCombination(
                f"The secret {secret.name} can only be set for deployments on a listener of compute type k8s; leave it "
                "out."
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


async def _check_listener_optional(tx: Transaction, scope: Scope) -> None:
    rows = await tx.fetch(
        sql.find_listeners,
        workspace_id=scope.workspace_id,
        id=None,
        compute_type="k8s",
        limit=_MAX_NAMED_LISTENERS,
        offset=0,
    )
    if rows:
        ids = [str(row["id"]) for row in rows]
        raise BadCombination(
            "Source configuration error: 'source_config.listener_id' is required for workspace with available "
            f"listener IDs: {ids}"
        )


def _get_namespace(config: SourceConfig) -> str | None:
    return config.listener_config.k8s_namespace if config.listener_config else None


def _choose_namespace(listener: Record, namespace: str | None) -> str | None:
    """Return the namespace to deploy into: the requested one, or the listener's first. Raises BadCombination."""
    if listener["compute_type"] != "k8s":
        if namespace is not None:
            raise BadCombination(
                "source_config.listener_config.k8s_namespace can only be set for a listener of compute type k8s, "
                f"but {listener['id']} has compute type {listener['compute_type']}."
            )

        return None

    allowed = msgspec.convert(listener["compute_config"], ComputeConfig).k8s_namespaces
    if allowed is None or namespace in allowed:
        return namespace
    if namespace is None:
        return allowed[0]

    raise BadCombination(
        f"source_config.listener_config.k8s_namespace {namespace} is not one of the listener's namespaces: {allowed}."
    )

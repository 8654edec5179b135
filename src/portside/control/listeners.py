"""Listeners: connect, create, list, change and delete them, and choose one for each deployment.

Clients create the listeners of clusters; process listeners register themselves. A deployment that names no
listener belongs to the first process listener that polls (`desired_state.py`).
"""

from uuid import UUID

import msgspec

from portside.control.errors import BadCombination, ListenerExists, ListenerInUse, ListenerNotFound, OtherCompute
from portside.control.resources import to_stored_fields, with_defaults
from portside.control.scope import Scope
from portside.control.secrets import CLUSTER_ONLY
from portside.control.sources import IMAGE
from portside.control.sql import sql
from portside.control.types import (
    ComputeConfig,
    DeploymentCreate,
    DeploymentPatch,
    Listener,
    ListenerCreate,
    ListenerList,
    ListenerPatch,
    ResourceSpec,
    SourceConfig,
)
from portside.kernel.clock import iso
from portside.kernel.db import Record, Transaction
from portside.kernel.errors import Invalid
from portside.kernel.ids import uuid7
from portside.listener_api import ComputeType, Connect, Connected, Scale
from portside.size_limits import SizeLimits, find_excess

_MAX_NAMED_LISTENERS = 100
NO_LIMITS = SizeLimits()


class Placement(msgspec.Struct, frozen=True):
    """The listener and namespace of a deployment; without a listener any process listener may take it."""

    listener_id: UUID | None = None
    compute_type: ComputeType = "process"
    k8s_namespace: str | None = None
    # What the operator of the listener allows, as far as it said so.
    size_limits: SizeLimits = NO_LIMITS


async def connect_listener(scope: Scope, body: Connect) -> Connected:
    """Register a listener, or find it again by its compute id. Raises OtherCompute."""
    listener_id: UUID | None = await scope.db.fetchval(
        sql.connect_listener,
        id=uuid7(),
        workspace_id=scope.workspace_id,
        compute_type=body.compute_type,
        compute_id=body.compute_id,
        version=body.version,
        key_id=scope.actor.key_id,
        size_limits=None if body.size_limits is None else msgspec.to_builtins(body.size_limits),
    )
    if listener_id is None:
        raise OtherCompute

    return Connected(listener_id)


async def create_listener(scope: Scope, body: ListenerCreate) -> Listener:
    """Create a listener that will connect later. Raises ListenerExists."""
    listener_id: UUID | None = await scope.db.fetchval(
        sql.insert_listener,
        id=uuid7(),
        workspace_id=scope.workspace_id,
        compute_type=body.compute_type,
        compute_id=body.compute_id,
        compute_config=msgspec.to_builtins(body.compute_config),
        version=body.version,
    )
    if listener_id is None:
        raise ListenerExists(
            f"Listener for LangSmith workspace ID '{scope.workspace_id}' and compute ID '{body.compute_id}' "
            "already exists."
        )

    return await get_listener(scope, listener_id)


async def get_listener(scope: Scope, listener_id: UUID) -> Listener:
    """Return one listener. Raises ListenerNotFound."""
    rows = await _find(scope, listener_id=listener_id)
    if not rows:
        raise ListenerNotFound.of(listener_id)

    return _to_listener(rows[0])


async def list_listeners(scope: Scope, limit: int, offset: int) -> ListenerList:
    """List the workspace's listeners, newest first."""
    rows = await _find(scope, limit=limit, offset=offset)
    return ListenerList([_to_listener(row) for row in rows], offset + len(rows))


async def update_listener(scope: Scope, listener_id: UUID, body: ListenerPatch) -> Listener:
    """Change a listener; existing deployments keep their namespaces. Raises ListenerNotFound."""
    updated_id = await scope.db.fetchval(
        sql.update_listener,
        id=listener_id,
        workspace_id=scope.workspace_id,
        version=body.version,
        compute_config=None if body.compute_config is None else msgspec.to_builtins(body.compute_config),
    )
    if updated_id is None:
        raise ListenerNotFound.of(listener_id)

    return await get_listener(scope, listener_id)


async def delete_listener(scope: Scope, listener_id: UUID) -> None:
    """Delete a listener that has no deployments. Raises ListenerNotFound and ListenerInUse."""
    async with scope.db.transaction() as tx:
        if await tx.fetchval(sql.lock_listener, id=listener_id, workspace_id=scope.workspace_id) is None:
            raise ListenerNotFound.of(listener_id)
        if await tx.fetchval(sql.is_listener_used, id=listener_id):
            raise ListenerInUse

        await tx.execute(sql.delete_listener, id=listener_id)


async def _find(scope: Scope, *, listener_id: UUID | None = None, limit: int = 1, offset: int = 0) -> list[Record]:
    return await scope.db.fetch(
        sql.find_listeners,
        workspace_id=scope.workspace_id,
        id=listener_id,
        compute_type=None,
        limit=limit,
        offset=offset,
    )


def _to_listener(row: Record) -> Listener:
    return Listener(
        id=row["id"],
        compute_type=row["compute_type"],
        compute_id=row["compute_id"],
        compute_config=msgspec.convert(row["compute_config"], ComputeConfig),
        version=row["version"],
        last_seen_at=None if row["last_seen_at"] is None else iso(row["last_seen_at"]),
        created_at=iso(row["created_at"]),
        updated_at=iso(row["updated_at"]),
    )


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
        size_limits=_read_size_limits(listener),
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
        size_limits=_read_size_limits(listener),
    )


def _read_size_limits(listener: Record) -> SizeLimits:
    return NO_LIMITS if listener["size_limits"] is None else msgspec.convert(listener["size_limits"], SizeLimits)


def check_sizes(placement: Placement, spec: ResourceSpec | None) -> None:
    """Refuse sizes that the operator of the placement's listener does not allow. Raises Invalid."""
    if spec is None:
        return

    excess = find_excess(with_defaults(to_stored_fields(spec)), placement.size_limits)
    if excess is not None:
        raise Invalid.field(["body", "source_config", "resource_spec", *excess.path], excess.reason)


def check_scale(placement: Placement, scale: Scale) -> None:
    """Refuse more replicas than the operator of the placement's listener allows. Raises Invalid."""
    excess = find_excess(msgspec.structs.asdict(scale), placement.size_limits)
    if excess is not None:
        raise Invalid.field(["body", *excess.path], excess.reason)


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

    changes = body.secret_changes if isinstance(body, DeploymentPatch) else None
    for secret in [*(body.secrets or []), *(changes.set if changes else [])]:
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

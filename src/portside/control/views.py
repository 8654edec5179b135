"""Conversion of rows to the API's structs. Only callers who may edit see secret values and credentials in addresses."""

import msgspec

from portside.control.addresses import get_public_url
from portside.control.agent_access import to_access
from portside.control.resources import to_resource_spec
from portside.control.scope import Scope
from portside.control.secrets import decrypt_secrets, hide_values
from portside.control.sources import GIT, hide_credentials
from portside.control.types import (
    Deployment,
    ListenerConfig,
    Revision,
    SecretReference,
    SourceConfig,
    SourceRevisionConfig,
)
from portside.kernel.aliases import canonical_source
from portside.kernel.clock import iso
from portside.kernel.db import Record
from portside.listener_api import DeploymentStatus, RevisionStatus, Secret

_LISTENER_REFUSED = (
    "The platform refuses the API key of its listener (401), which was revoked or has expired, so the deployment does "
    "not change. Give the listener a new key, in its CONTROL_PLANE_API_KEY_FILE or with a restart."
)
_KEY_REFUSED = (
    "The platform refuses its service key (401), which was revoked or has expired, so its traces are lost. It gets a "
    "new key when its listener polls again."
)


def to_deployment(scope: Scope, row: Record) -> Deployment:
    """Return a row of `find_deployments` as the API shows it."""
    return Deployment(
        id=row["id"],
        tenant_id=row["workspace_id"],
        name=row["name"],
        display_name=row["display_name"],
        source=row["source"],
        source_config=_to_source_config(scope, row),
        source_revision_config=_to_source_revision_config(row),
        secrets=_read_secrets(scope, row),
        ignored_secrets=row["ignored_secrets"],
        secret_references=msgspec.convert(row["secret_references"], list[SecretReference] | None),
        agent_access=to_access(row),
        sleep_after_s=row["sleep_after_s"],
        is_asleep=row["is_asleep"],
        pin_threads=row["pin_threads"],
        status=DeploymentStatus(row["status"]),
        status_message=_build_status_message(row),
        latest_revision_id=row["latest_revision_id"],
        active_revision_id=row["active_revision_id"],
        image_version=row["image_version"],
        server_version=row["server_version"],
        tracing_project_id=row["tracing_project_id"],
        created_at=iso(row["created_at"]),
        updated_at=iso(row["updated_at"]),
    )


def to_revision(row: Record) -> Revision:
    """Return a row of `get_revision` or `list_revisions` as the API shows it."""
    return Revision(
        id=row["id"],
        status=RevisionStatus(row["status"]),
        status_message=row["status_message"],
        source=row["source"],
        source_revision_config=_to_source_revision_config(row),
        created_at=iso(row["created_at"]),
        updated_at=iso(row["updated_at"]),
    )


def _may_see_secrets(scope: Scope) -> bool:
    return scope.actor.may("deployments:update") and not scope.actor.is_browser


def _build_status_message(row: Record) -> str | None:
    """Return the reason for a deployment's status: the listener's, that it is silent, or keys that are refused."""
    message: str | None = row["status_message"]
    if row["is_silent"]:
        message = f"Its listener was last seen at {iso(row['last_seen_at'])}; the deployment may still be running."

    parts = [message]
    if row["has_refused_listener"]:
        parts.append(_LISTENER_REFUSED)
    if row["has_refused_key"]:
        parts.append(_KEY_REFUSED)
    if row["poll_failure"] is not None:
        parts.append(f"Its repository cannot be polled, so a push starts no revision: {row['poll_failure']}")

    return " ".join(part for part in parts if part) or None


def _to_source_config(scope: Scope, row: Record) -> SourceConfig:
    """Show the fields of the source and null for others, so that clients can send the result back."""
    is_git = canonical_source(row["source"]) == GIT
    return SourceConfig(
        integration_id=row["integration_id"],
        repo_url=_mask_url(scope, row["repo_url"]),
        deployment_type=row["deployment_type"],
        build_on_push=row["build_on_push"] if is_git else None,
        custom_url=get_public_url(row, scope.addresses),
        resource_spec=None if row["resource_spec"] is None else to_resource_spec(row["resource_spec"]),
        listener_id=row["listener_id"],
        listener_config=ListenerConfig(row["k8s_namespace"]) if row["k8s_namespace"] else None,
        install_command=row["install_command"],
        build_command=row["build_command"],
    )


def _mask_url(scope: Scope, url: str | None) -> str | None:
    if url is None or _may_see_secrets(scope):
        return url

    return hide_credentials(url)


def _to_source_revision_config(row: Record) -> SourceRevisionConfig:
    return SourceRevisionConfig(
        repo_ref=row["repo_ref"],
        graph_config_path=row["graph_config_path"],
        langgraph_config_path=row["graph_config_path"],
        repo_commit_sha=row["repo_commit_sha"],
        repo_commit_author=row["repo_commit_author"],
        repo_commit_subject=row["repo_commit_subject"],
        image_uri=row["image_uri"],
        source_tarball_path=row["source_tarball_path"],
    )


def _read_secrets(scope: Scope, row: Record) -> list[Secret]:
    secrets = decrypt_secrets(scope.box, row["latest_revision_id"] or row["id"], row["secrets_sealed"])
    return secrets if _may_see_secrets(scope) else hide_values(secrets)

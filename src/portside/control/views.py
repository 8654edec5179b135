"""From rows to what the API shows. Values of secrets, and credentials inside addresses, are shown to editors only."""

from portside.control.git_source import hide_credentials
from portside.control.scope import Scope
from portside.control.secrets import open_secrets, without_values
from portside.control.types.deployments import Deployment, Revision, Secret, SourceConfig, SourceRevisionConfig
from portside.control.types.statuses import DeploymentStatus, RevisionStatus
from portside.kernel.clock import iso
from portside.kernel.db import Record


def show_deployment(scope: Scope, row: Record) -> Deployment:
    """Show a row of `find_deployments`."""
    return Deployment(
        id=row["id"],
        tenant_id=row["workspace_id"],
        name=row["name"],
        display_name=row["display_name"],
        source=row["source"],
        source_config=_source_config(scope, row),
        source_revision_config=_source_revision_config(row),
        secrets=_secrets(scope, row),
        status=DeploymentStatus(row["status"]),
        status_message=row["status_message"],
        latest_revision_id=row["latest_revision_id"],
        active_revision_id=row["active_revision_id"],
        created_at=iso(row["created_at"]),
        updated_at=iso(row["updated_at"]),
    )


def show_revision(row: Record) -> Revision:
    """Show a row of `get_revision` or `list_revisions`."""
    return Revision(
        id=row["id"],
        status=RevisionStatus(row["status"]),
        status_message=row["status_message"],
        source=row["source"],
        source_revision_config=_source_revision_config(row),
        created_at=iso(row["created_at"]),
        updated_at=iso(row["updated_at"]),
    )


def _may_see_secrets(scope: Scope) -> bool:
    return scope.actor.may("deployments:update")


def _source_config(scope: Scope, row: Record) -> SourceConfig:
    return SourceConfig(
        integration_id=row["integration_id"],
        repo_url=row["repo_url"] if _may_see_secrets(scope) else hide_credentials(row["repo_url"]),
        deployment_type=row["deployment_type"],
        build_on_push=row["build_on_push"],
        custom_url=row["custom_url"],
        install_command=row["install_command"],
        build_command=row["build_command"],
    )


def _source_revision_config(row: Record) -> SourceRevisionConfig:
    return SourceRevisionConfig(
        repo_ref=row["repo_ref"],
        graph_config_path=row["graph_config_path"],
        langgraph_config_path=row["graph_config_path"],
        repo_commit_sha=row["repo_commit_sha"],
    )


def _secrets(scope: Scope, row: Record) -> list[Secret]:
    secrets = open_secrets(scope.box, row["latest_revision_id"], row["secrets_sealed"])
    return secrets if _may_see_secrets(scope) else without_values(secrets)

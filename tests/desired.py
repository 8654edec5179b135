"""Desired deployments and revisions for tests, complete but for what a test sets."""

from typing import Any
from uuid import UUID, uuid4

from portside.listener_api import DeploymentStatus, DesiredDeployment, DesiredRevision, RevisionStatus


def build_desired_revision(**fields: Any) -> DesiredRevision:
    given: dict[str, Any] = {
        "id": uuid4(),
        "number": 1,
        "status": RevisionStatus.DEPLOYING,
        "source": "git_hosting",
        "repo_url": None,
        "repo_ref": None,
        "repo_commit_sha": None,
        "graph_config_path": None,
        "install_command": None,
        "build_command": None,
        "secrets": [],
        "resource_spec": {},
        "created_at": "2026-01-01T00:00:00Z",
    }

    return DesiredRevision(**{**given, **fields})


def build_desired_deployment(*revisions: DesiredRevision, **fields: Any) -> DesiredDeployment:
    given: dict[str, Any] = {
        "id": uuid4(),
        "name": "demo",
        "tenant_id": UUID(int=7),
        "status": DeploymentStatus.READY,
        "active_revision_id": None,
        "custom_url": None,
        "environment": {},
        "revisions": list(revisions),
    }

    return DesiredDeployment(**{**given, **fields})

"""The content of a new revision: inherited from earlier revisions, changed by a PATCH, and checked for completeness.

Secrets, secret references and the resource spec come from the latest revision. The code (ref, path, image, archive)
comes from the latest revision of the same source, because a deployment may have revisions of several sources.
"""

from typing import Any
from uuid import UUID

import msgspec

from portside.control import sources
from portside.control.resources import to_stored_fields
from portside.control.scope import Scope
from portside.control.secrets import apply_changes, check_secrets, decrypt_secrets
from portside.control.sources import check_push
from portside.control.sql import sql
from portside.control.types import DeploymentCreate, DeploymentPatch, SourceConfig, SourceRevisionRequest
from portside.kernel.aliases import canonical_source, source_names
from portside.kernel.db import Record, Transaction
from portside.listener_api import Secret

_FROM_SAME_SOURCE = ("repo_ref", "graph_config_path", "image_uri", "source_tarball_path")


class RevisionContent(msgspec.Struct, kw_only=True):
    """Everything that defines a revision.

    `repo_commit_sha` pins a commit of the ref. `built_from` is an earlier revision whose build is reused.
    """

    source: str
    secrets: list[Secret]
    secret_references: list[dict[str, str]] = []
    resource_spec: dict[str, Any] | None = None
    repo_ref: str | None = None
    repo_commit_sha: str | None = None
    graph_config_path: str | None = None
    image_uri: str | None = None
    source_tarball_path: str | None = None
    install_command: str | None = None
    build_command: str | None = None
    built_from: UUID | None = None


def build_first_content(body: DeploymentCreate) -> RevisionContent | None:
    """Return the content of a deployment's first revision; None if the code comes later. Raises BadCombination."""
    content = RevisionContent(source=body.source, secrets=[])
    patch = DeploymentPatch(
        source_config=body.source_config,
        source_revision_config=body.source_revision_config,
        secrets=body.secrets,
        secret_references=body.secret_references,
    )

    apply_patch(content, patch)
    if canonical_source(body.source) in sources.CODE_COMES_LATER and not has_code(content):
        return None

    check_content(content, build_on_push=body.source_config.build_on_push)
    return content


async def build_next_content(
    tx: Transaction, scope: Scope, deployment: Record, revision_source: str | None = None
) -> RevisionContent:
    """Return the content of the next revision of a locked deployment if nothing changes; no commit is pinned."""
    source = revision_source or deployment["source"]
    code = await tx.fetchrow(
        sql.latest_revision_of_source,
        deployment_id=deployment["id"],
        sources=source_names(canonical_source(source)),
    )

    content = await _inherit_content(tx, scope, deployment, source)
    if code is not None:
        for name in _FROM_SAME_SOURCE:
            setattr(content, name, code[name])

    return content


async def _inherit_content(tx: Transaction, scope: Scope, deployment: Record, source: str) -> RevisionContent:
    commands = {name: deployment[name] for name in ("install_command", "build_command")}
    latest_id = deployment["latest_revision_id"]
    if latest_id is None:
        secrets = decrypt_secrets(scope.box, deployment["id"], deployment["secrets_sealed"])
        return RevisionContent(source=source, secrets=secrets, **commands)

    latest = await tx.fetchrow(
        sql.get_revision, id=latest_id, deployment_id=deployment["id"], workspace_id=scope.workspace_id
    )
    assert latest is not None  # noqa: S101 - the deployment is locked and its latest revision is its own

    return RevisionContent(
        source=source,
        secrets=decrypt_secrets(scope.box, latest_id, latest["secrets_sealed"]),
        secret_references=latest["secret_references"] or [],
        resource_spec=latest["resource_spec"],
        **commands,
    )


def build_redeploy_content(scope: Scope, revision: Record) -> RevisionContent:
    """Return a revision's content, pinned to its commit and its build, to deploy it again."""
    return RevisionContent(
        source=revision["source"],
        secrets=decrypt_secrets(scope.box, revision["id"], revision["secrets_sealed"]),
        secret_references=revision["secret_references"] or [],
        built_from=(revision["built_from"] or revision["id"]) if revision["is_built"] else None,
        **{
            name: revision[name]
            for name in (
                "repo_ref",
                "repo_commit_sha",
                "graph_config_path",
                "image_uri",
                "source_tarball_path",
                "install_command",
                "build_command",
                "resource_spec",
            )
        },
    )


def apply_patch(content: RevisionContent, body: DeploymentPatch) -> None:
    """Apply a PATCH to inherited content; null keeps a value. Raises what `secrets.apply_changes` raises.

    An empty list of secrets removes all secrets, unless the PATCH also has `source_revision_config`: command-line
    clients send an empty list with every deploy that finds no local secrets, which must not delete secrets that were
    set elsewhere. An empty list of references removes all references.
    """
    revision = body.source_revision_config or SourceRevisionRequest()
    config = body.source_config or SourceConfig()

    for name in _FROM_SAME_SOURCE:
        setattr(content, name, getattr(revision, name) or getattr(content, name))

    for name in ("install_command", "build_command"):
        if getattr(config, name) is not None:
            setattr(content, name, getattr(config, name))

    if body.secrets or (body.secrets is not None and body.source_revision_config is None):
        content.secrets = body.secrets

    if body.secret_changes is not None:
        content.secrets = apply_changes(content.secrets, body.secret_changes)

    if body.secret_references is not None:
        content.secret_references = [msgspec.to_builtins(reference) for reference in body.secret_references]

    if config.resource_spec is not None:
        content.resource_spec = to_stored_fields(config.resource_spec)


def has_code(content: RevisionContent) -> bool:
    """Whether any code is named, even if it is not enough to build or run."""
    return any(getattr(content, name) for name in _FROM_SAME_SOURCE)


def check_content(content: RevisionContent, *, build_on_push: bool | None) -> None:
    """Refuse incomplete or inconsistent content. Raises BadCombination."""
    source = canonical_source(content.source)
    for name in sources.REQUIRED[source]:
        if not getattr(content, name):
            raise sources.build_required_error(source, f"source_revision_config.{name}")

    if source == sources.GIT:
        check_push(build_on_push=build_on_push, repo_ref=content.repo_ref)

    names = [reference["name"] for reference in content.secret_references]
    check_secrets([*content.secrets, *(Secret(name, "") for name in names)])

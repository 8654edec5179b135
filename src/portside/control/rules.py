"""What a create or a PATCH may say, field against field (spec: SourceConfig; contract: section 4).

A field that cannot be right by itself is a 422; fields that do not go together, or with what is stored, are a 400.
Nothing here reads or writes rows: PATCH rules get the row they compare with.
"""

import re

from portside.control import git_source
from portside.control.errors import BadCombination, Immutable, SourceNotAvailable
from portside.control.integrations import PLAIN_GIT
from portside.control.secrets import check_secrets
from portside.control.types.deployments import (
    DeploymentCreate,
    DeploymentPatch,
    SourceConfig,
    SourceRevisionRequest,
)
from portside.kernel.db import Record
from portside.kernel.errors import Invalid
from portside.kernel.spellings import canonical_source

MAX_TEXT_BYTES = 8192
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_FORBIDDEN_IN_COMMAND = re.compile(r"[\"`\\|;$><\n\r\0\t]|(?<!&)&(?!&)|&{3,}")
_ONLY_IMAGES = ("resource_spec", "listener_id", "listener_config")
_FIXED = ("integration_id", "repo_url", "deployment_type", "custom_url")


def check_create(body: DeploymentCreate) -> None:
    """Raises Invalid, SourceNotAvailable or BadCombination where no deployment can be made of the body."""
    if not _DNS_LABEL.fullmatch(body.name):
        raise Invalid.field(
            ["body", "name"], "must be a DNS label: a-z, 0-9 and -, no - at either end, at most 63 characters"
        )
    _check_source(body.source)
    _check_fields(body.source_config, body.source_revision_config, body)
    if body.source_config.custom_url is not None:
        raise BadCombination("source_config.custom_url is set by the platform for git_hosting deployments.")
    if body.source_config.integration_id not in (None, PLAIN_GIT.id):
        raise BadCombination(f"source_config.integration_id {body.source_config.integration_id} is not known.")
    _require("source_config.repo_url", body.source_config.repo_url)
    _require("source_revision_config.repo_ref", body.source_revision_config.repo_ref)
    _require("source_revision_config.graph_config_path", body.source_revision_config.graph_config_path)
    check_push(build_on_push=body.source_config.build_on_push, repo_ref=body.source_revision_config.repo_ref)


def check_patch(body: DeploymentPatch) -> None:
    """Check a PATCH by itself, before the row is known. Raises Invalid, SourceNotAvailable or BadCombination."""
    if body.revision_source is not None:
        _check_source(body.revision_source)
    _check_fields(body.source_config or SourceConfig(), body.source_revision_config or SourceRevisionRequest(), body)


def check_patch_against(body: DeploymentPatch, row: Record, latest_ref: str) -> None:
    """Check a PATCH against the deployment and its latest revision. Raises Immutable or BadCombination."""
    _unchanged("name", body.name, row["name"])
    if body.source is not None:
        _unchanged("source", canonical_source(body.source), canonical_source(row["source"]))
    config = body.source_config or SourceConfig()
    for name in _FIXED:
        _unchanged(f"source_config.{name}", getattr(config, name), row[name])
    ref = body.source_revision_config.repo_ref if body.source_revision_config else None
    build_on_push = row["build_on_push"] if config.build_on_push is None else config.build_on_push
    check_push(build_on_push=build_on_push, repo_ref=ref or latest_ref)


def makes_revision(body: DeploymentPatch) -> bool:
    """Whether a PATCH asks for a new revision (spec: moves that create or select revisions)."""
    revision = body.source_revision_config or SourceRevisionRequest()
    return any(value is not None for value in (revision.repo_ref, revision.graph_config_path, body.secrets))


def check_push(*, build_on_push: bool | None, repo_ref: str | None) -> None:
    """Check the two fields that exclude each other. Raises BadCombination; Invalid as pushes are not received yet."""
    if build_on_push and git_source.is_tag(repo_ref or ""):
        raise BadCombination("source_config.build_on_push must be false when source_revision_config.repo_ref is a tag.")
    if build_on_push:
        raise Invalid.field(
            ["body", "source_config", "build_on_push"], "is not available yet; send false", "not_supported"
        )


def _check_source(source: str) -> None:
    if canonical_source(source) != "git_hosting":
        raise SourceNotAvailable(
            f"The source {source} is not available on this installation yet; deploy from git_hosting."
        )


def _check_fields(
    config: SourceConfig, revision: SourceRevisionRequest, body: DeploymentCreate | DeploymentPatch
) -> None:
    if config.repo_url is not None:
        git_source.check_repo_url(config.repo_url)
    if revision.repo_ref is not None:
        git_source.check_repo_ref(revision.repo_ref)
    if revision.graph_config_path is not None:
        git_source.check_config_path(revision.graph_config_path)
    check_secrets(body.secrets or [])
    _check_command("source_config.install_command", config.install_command)
    _check_command("source_config.build_command", config.build_command)
    _refuse_image_fields(config, revision, body)


def _refuse_image_fields(
    config: SourceConfig, revision: SourceRevisionRequest, body: DeploymentCreate | DeploymentPatch
) -> None:
    given = [f"source_config.{name}" for name in _ONLY_IMAGES if getattr(config, name) is not None]
    if revision.image_uri is not None:
        given.append("source_revision_config.image_uri")
    if body.secret_references:
        given.append("secret_references")
    if given:
        raise BadCombination(f"{given[0]} can only be set for external_image deployments.")
    if revision.source_tarball_path is not None:
        raise BadCombination(
            "source_revision_config.source_tarball_path can only be set for internal_source revisions."
        )


def _check_command(name: str, command: str | None) -> None:
    if command is not None and _FORBIDDEN_IN_COMMAND.search(command):
        raise BadCombination(f'{name} must not hold any of " ` \\ | ; $ > <, a tab, a line break or a lone &.')


def _require(name: str, value: object) -> None:
    if value is None:
        raise BadCombination(f"{name} is required for git_hosting deployments.")


def _unchanged(name: str, value: object, stored: object) -> None:
    if value is not None and value != stored:
        raise Immutable(f"{name} cannot be changed after the deployment was created.")

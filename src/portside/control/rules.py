"""The rules for the fields of a create or a PATCH.

A field that is invalid by itself is a 422. Fields that conflict with each other or with the stored deployment are a
400. The rules read no rows: PATCH rules get the row to compare with. `sources.py` has the fields of each source;
`content.py` checks whether a revision is complete.
"""

import re
from typing import Any
from urllib.parse import urlsplit

from portside.control import sources
from portside.control.errors import BadCombination, Immutable
from portside.control.resources import check_resources
from portside.control.secrets import check_secrets
from portside.control.types import DNS_LABEL, DeploymentCreate, DeploymentPatch, SourceConfig, SourceRevisionRequest
from portside.kernel.aliases import canonical_source
from portside.kernel.db import Record
from portside.kernel.errors import Invalid
from portside.kernel.http.routes import refuse_field

MAX_TEXT_BYTES = 8192
NO_AGENTS = "is not supported: deployments belong to no agents here; select a deployment by its name"
_DNS_LABEL = re.compile(DNS_LABEL)
_HTTP_ADDRESS = re.compile(r"https?://[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?(?:/[^\s?#@]*)?", re.ASCII)
_FORBIDDEN_IN_COMMAND = re.compile(r"[\"`\\|;$><\n\r\0\t]|(?<!&)&(?!&)|&{3,}")
_FIXED = ("integration_id", "repo_url", "deployment_type", "listener_id")


def check_create(body: DeploymentCreate) -> None:
    """Check the body of a create. Raises Invalid, SourceNotAvailable or BadCombination."""
    if body.agent is not None:
        raise refuse_field("agent", NO_AGENTS)

    if not _DNS_LABEL.fullmatch(body.name):
        raise Invalid.field(
            ["body", "name"],
            "must be a DNS label: at most 63 characters of a-z, 0-9 and -, not starting or ending with -",
        )

    sources.check_source(body.source)
    source = canonical_source(body.source)
    config = body.source_config
    _check_fields(config, body.source_revision_config, body)

    sources.check_source_fields(source, source, config, body.source_revision_config)
    _check_references(source, body)
    _check_pins(source, body)

    if source != sources.IMAGE and config.custom_url is not None:
        raise BadCombination(f"source_config.custom_url is set by the platform for {source} deployments; leave it out.")
    if source == sources.GIT and config.repo_url is None:
        raise sources.build_required_error(source, "source_config.repo_url")
    if source == sources.IMAGE and config.resource_spec is None:
        raise sources.build_required_error(source, "source_config.resource_spec")


def check_patch(body: DeploymentPatch, row: Record | dict[str, Any]) -> None:
    """Check the body of a PATCH by itself and against the stored deployment, with the `custom_url` that clients see.

    Raises Invalid, SourceNotAvailable, Immutable and BadCombination.
    """
    source = canonical_source(row["source"])
    if body.revision_source is not None:
        sources.check_revision_source(body.revision_source, source)

    config = body.source_config or SourceConfig()
    revision = body.source_revision_config or SourceRevisionRequest()
    _check_fields(config, revision, body)

    if body.secrets is not None and body.secret_changes is not None:
        raise BadCombination("secrets replaces all secrets and secret_changes single ones; send one of them.")

    _check_unchanged(body, config, row)
    if source != sources.IMAGE:
        _check_same("source_config.custom_url", config.custom_url, row["custom_url"])

    sources.check_source_fields(source, canonical_source(body.revision_source or source), config, revision)
    _check_references(source, body)
    _check_pins(source, body)


def makes_revision(body: DeploymentPatch) -> bool:
    """Whether a PATCH creates a revision: it changes what is built or run, not only the deployment's own fields."""
    revision = body.source_revision_config or SourceRevisionRequest()
    config = body.source_config or SourceConfig()
    content_fields = (
        revision.repo_ref,
        revision.graph_config_path,
        revision.image_uri,
        revision.source_tarball_path,
        config.resource_spec,
        body.secrets,
        body.secret_changes,
        body.secret_references,
    )

    return any(value is not None for value in content_fields)


def _check_fields(
    config: SourceConfig, revision: SourceRevisionRequest, body: DeploymentCreate | DeploymentPatch
) -> None:
    """Check each field by itself."""
    if config.repo_url is not None:
        sources.check_repo_url(config.repo_url)

    if config.custom_url:
        _check_address(config.custom_url)

    if config.resource_spec is not None:
        check_resources(config.resource_spec)

    if revision.repo_ref is not None:
        sources.check_repo_ref(revision.repo_ref)

    if revision.graph_config_path is not None:
        sources.check_config_path(revision.graph_config_path)

    if revision.image_uri is not None:
        sources.check_image_uri(revision.image_uri)

    check_secrets(body.secrets or [])
    _check_command("source_config.install_command", config.install_command)
    _check_command("source_config.build_command", config.build_command)


def _check_references(source: str, body: DeploymentCreate | DeploymentPatch) -> None:
    if body.secret_references and source != sources.IMAGE:
        raise BadCombination("secret_references can only be set for external_image deployments; use secrets instead.")


def _check_pins(source: str, body: DeploymentCreate | DeploymentPatch) -> None:
    if body.pin_threads and source not in {sources.GIT, sources.ARCHIVE}:
        raise BadCombination(
            "pin_threads can only be set for deployments that are built from source: the code of an image is gone once "
            "its servers are replaced. Leave it out."
        )


def _check_unchanged(body: DeploymentPatch, config: SourceConfig, row: Record | dict[str, Any]) -> None:
    _check_same("name", body.name, row["name"])
    if body.source is not None:
        _check_same("source", canonical_source(body.source), canonical_source(row["source"]))

    for name in _FIXED:
        _check_same(f"source_config.{name}", getattr(config, name), row[name])

    namespace = config.listener_config.k8s_namespace if config.listener_config else None
    _check_same("source_config.listener_config.k8s_namespace", namespace, row["k8s_namespace"])


def _check_address(url: str) -> None:
    try:
        is_valid = bool(_HTTP_ADDRESS.fullmatch(url)) and urlsplit(url).port != 0
    except ValueError:
        is_valid = False

    if not is_valid:
        raise Invalid.field(["body", "source_config", "custom_url"], "must be an http or https address")


def _check_command(name: str, command: str | None) -> None:
    if command is not None and _FORBIDDEN_IN_COMMAND.search(command):
        raise BadCombination(f'{name} must not contain any of " ` \\ | ; $ > <, a tab, a line break or a single &.')


def _check_same(name: str, value: object, stored_value: object) -> None:
    """Refuse a value that differs from the stored one. Raises Immutable."""
    if value is not None and value != stored_value:
        raise Immutable(f"{name} cannot be changed after the deployment was created; create another deployment.")

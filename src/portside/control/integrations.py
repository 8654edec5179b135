"""Git integrations: accounts at git hosts, beside plain git, which is built in and needs no account.

An integration's token goes to its own host alone, and its webhook's secret to nobody twice. What a push does is in
`pushes.py`.
"""

import secrets
from uuid import UUID

from portside.control import git_hosts
from portside.control.errors import BadCombination
from portside.control.git_source import hide_credentials
from portside.control.scope import Scope
from portside.control.sql import sql
from portside.control.types.deployments import Secret
from portside.control.types.integrations import (
    GitRepository,
    Integration,
    IntegrationCreate,
    IntegrationPatch,
    PushWebhook,
)
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Record, Transaction
from portside.kernel.errors import Conflict, NotFound
from portside.kernel.ids import uuid7
from portside.kernel.outbound import OutboundRules

PLAIN_GIT = Integration(
    id=UUID("00000000-0000-4000-8000-676974000000"),
    installation_id=0,
    name="git",
    kind="git",
    base_url=None,
    has_token=False,
    has_webhook=False,
)


class IntegrationNotFound(NotFound):
    """The workspace has no integration with this id; the built-in one cannot be changed and lists no repositories."""

    code = "integration_not_found"


class IntegrationNameTaken(Conflict):
    """The workspace has an integration of this name already; choose another."""

    code = "integration_name_taken"


class IntegrationUsed(Conflict):
    """Deployments come from this integration; delete them first."""

    code = "integration_used"


async def list_integrations(scope: Scope) -> list[Integration]:
    """List the integrations that deployments may name, plain git first."""
    rows = await scope.db.fetch(sql.list_integrations, workspace_id=scope.workspace_id)
    return [PLAIN_GIT, *(Integration(**dict(row)) for row in rows)]


async def add_integration(scope: Scope, body: IntegrationCreate) -> Integration:
    """Add an account at a git host. Raises Invalid for its address, and IntegrationNameTaken."""
    if body.name == PLAIN_GIT.name:
        raise IntegrationNameTaken
    integration_id = uuid7()
    row = await scope.db.fetchrow(
        sql.insert_integration,
        id=integration_id,
        workspace_id=scope.workspace_id,
        kind=body.kind,
        name=body.name,
        base_url=git_hosts.base_url_of(body.kind, body.base_url),
        token_sealed=_seal(scope.box, integration_id, body.token) if body.token else None,
    )
    if row is None:
        raise IntegrationNameTaken
    return Integration(**dict(row))


async def change_integration(scope: Scope, integration_id: UUID, body: IntegrationPatch) -> Integration:
    """Give an integration a new token; what is built from now on uses it. Raises IntegrationNotFound."""
    async with scope.change() as tx:
        return Integration(**await _update(tx, scope, integration_id, token=body.token))


async def make_webhook(scope: Scope, integration_id: UUID, base_url: str) -> PushWebhook:
    """Make the secret of an integration's webhook, in place of any before it. Raises IntegrationNotFound."""
    secret = secrets.token_urlsafe(32)
    async with scope.db.transaction() as tx:
        await _update(tx, scope, integration_id, webhook_secret=secret)
    return PushWebhook(f"{base_url}/v1/webhooks/{integration_id}", secret)


async def _update(tx: Transaction, scope: Scope, integration_id: UUID, **given: str) -> Record:
    sealed = {name: _seal(scope.box, integration_id, value) for name, value in given.items()}
    row = await tx.fetchrow(
        sql.update_integration,
        id=integration_id,
        workspace_id=scope.workspace_id,
        token_sealed=sealed.get("token"),
        webhook_secret_sealed=sealed.get("webhook_secret"),
    )
    if row is None:
        raise IntegrationNotFound
    return row


async def remove_integration(scope: Scope, integration_id: UUID) -> None:
    """Remove an integration that no deployment comes from. Raises IntegrationNotFound and IntegrationUsed."""
    async with scope.db.transaction() as tx:
        found = await tx.fetchval(sql.lock_integration, id=integration_id, workspace_id=scope.workspace_id)
        if found is None:
            raise IntegrationNotFound
        names = [row["name"] for row in await tx.fetch(sql.deployments_of_integration, id=integration_id)]
        if names:
            raise IntegrationUsed(f"Deployments come from this integration; delete them first: {', '.join(names)}.")
        await tx.execute(sql.delete_integration, id=integration_id)


async def list_repositories(scope: Scope, integration_id: UUID, rules: OutboundRules) -> list[GitRepository]:
    """List the repositories that an integration's token reaches, at most 1,000.

    Raises IntegrationNotFound, and what `git_hosts.list_repositories` raises.
    """
    row = await scope.db.fetchrow(sql.get_integration, id=integration_id, workspace_id=scope.workspace_id)
    if row is None:
        raise IntegrationNotFound
    token = open_token(scope.box, integration_id, row["token_sealed"])
    return await git_hosts.list_repositories(integration_id, row["kind"], row["base_url"], token, rules)


async def check_named(tx: Transaction, scope: Scope, integration_id: UUID | None, repo_url: str | None) -> None:
    """Let a deployment name an integration and a repository at its host. Raises BadCombination."""
    if repo_url is not None and hide_credentials(repo_url) != repo_url:
        raise BadCombination(
            "source_config.repo_url must not hold a user name or a token: add the git host as an integration, and name "
            "it in source_config.integration_id."
        )
    if integration_id in {None, PLAIN_GIT.id}:
        return
    row = await tx.fetchrow(sql.hold_integration, id=integration_id, workspace_id=scope.workspace_id)
    if row is None:
        raise BadCombination(f"source_config.integration_id {integration_id} is not known.")
    if repo_url is not None and not git_hosts.is_at(row["base_url"], repo_url):
        raise BadCombination(
            f"source_config.repo_url must begin with {row['base_url']}/, the address of the integration "
            f"{row['name']}: its token is shown to no other host."
        )


def credential_of(box: SecretBox, row: Record) -> Secret | None:
    """Return the user and token for a deployment's repository, or None where there is none for its host.

    The row holds `repo_url` of the deployment, and `integration_id`, `kind`, `base_url` and `token_sealed` of its
    integration, which are null for plain git.
    """
    if row["token_sealed"] is None or not git_hosts.is_at(row["base_url"], row["repo_url"] or ""):
        return None
    token = open_token(box, row["integration_id"], row["token_sealed"])
    return None if token is None else Secret(git_hosts.USERS[row["kind"]], token)


def _seal(box: SecretBox, integration_id: UUID, value: str) -> bytes:
    return box.seal(value.encode(), str(integration_id))


def open_token(box: SecretBox, integration_id: UUID, sealed: bytes | None) -> str | None:
    """Decrypt a token or a webhook's secret."""
    return None if sealed is None else box.open(sealed, str(integration_id)).decode()

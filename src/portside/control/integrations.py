"""Git integrations: accounts at git hosts. Plain git is built in and needs no account.

An integration's token is sent to its own host only; its webhook secret is shown once. `git_hosts.py` calls the APIs of
the hosts, and `pushes.py` handles pushes.
"""

import secrets
from uuid import UUID

from portside.control.errors import BadCombination
from portside.control.git_hosts import fetch_repositories, is_at, parse_base_url
from portside.control.scope import Scope
from portside.control.sources import hide_credentials
from portside.control.sql import sql
from portside.control.types import GitRepository, Integration, IntegrationCreate, IntegrationPatch, PushWebhook
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Record, Transaction
from portside.kernel.errors import Conflict, NotFound
from portside.kernel.ids import uuid7
from portside.kernel.outbound import OutboundRules
from portside.listener_api import Secret

# Hosts accept any user name beside a token; these are the documented ones.
USERS: dict[str, str] = {"github": "x-access-token", "gitlab": "oauth2", "gitea": "oauth2"}


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
    """The workspace has no integration with this id. Plain git cannot be changed and lists no repositories."""

    code = "integration_not_found"


class IntegrationNameTaken(Conflict):
    """The workspace already has an integration of this name; choose another."""

    code = "integration_name_taken"


class IntegrationUsed(Conflict):
    """Deployments use this integration; delete them first."""

    code = "integration_used"


async def list_integrations(scope: Scope) -> list[Integration]:
    """List the integrations that deployments may name, plain git first."""
    rows = await scope.db.fetch(sql.list_integrations, workspace_id=scope.workspace_id)
    return [PLAIN_GIT, *(Integration(**dict(row)) for row in rows)]


async def create_integration(scope: Scope, body: IntegrationCreate) -> Integration:
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
        base_url=parse_base_url(body.kind, body.base_url),
        token_sealed=_encrypt(scope.box, integration_id, body.token) if body.token else None,
    )
    if row is None:
        raise IntegrationNameTaken

    return Integration(**dict(row))


async def update_integration(scope: Scope, integration_id: UUID, body: IntegrationPatch) -> Integration:
    """Give an integration a new token, which later builds use. Raises IntegrationNotFound."""
    async with scope.change() as tx:
        return Integration(**await _store_secret(tx, scope, integration_id, token=body.token))


async def create_webhook(scope: Scope, integration_id: UUID, base_url: str) -> PushWebhook:
    """Create an integration's webhook with a new secret, which replaces an older one. Raises IntegrationNotFound."""
    secret = secrets.token_urlsafe(32)
    async with scope.db.transaction() as tx:
        await _store_secret(tx, scope, integration_id, webhook_secret=secret)

    return PushWebhook(f"{base_url}/v1/webhooks/{integration_id}", secret)


async def _store_secret(tx: Transaction, scope: Scope, integration_id: UUID, **values: str) -> Record:
    """Store a new `token` or `webhook_secret`, and return the row. Raises IntegrationNotFound."""
    encrypted = {name: _encrypt(scope.box, integration_id, value) for name, value in values.items()}
    row = await tx.fetchrow(
        sql.update_integration,
        id=integration_id,
        workspace_id=scope.workspace_id,
        token_sealed=encrypted.get("token"),
        webhook_secret_sealed=encrypted.get("webhook_secret"),
    )
    if row is None:
        raise IntegrationNotFound

    return row


async def delete_integration(scope: Scope, integration_id: UUID) -> None:
    """Delete an integration that no deployment uses. Raises IntegrationNotFound and IntegrationUsed."""
    async with scope.db.transaction() as tx:
        locked_id = await tx.fetchval(sql.lock_integration, id=integration_id, workspace_id=scope.workspace_id)
        if locked_id is None:
            raise IntegrationNotFound

        rows = await tx.fetch(sql.deployments_of_integration, id=integration_id)
        if rows:
            names = [row["name"] for row in rows]
            raise IntegrationUsed(f"Deployments use this integration; delete them first: {', '.join(names)}.")

        await tx.execute(sql.delete_integration, id=integration_id)


async def list_repositories(scope: Scope, integration_id: UUID, rules: OutboundRules) -> list[GitRepository]:
    """List the repositories that an integration's token can read, at most 1,000.

    Raises IntegrationNotFound, and what `fetch_repositories` raises.
    """
    row = await scope.db.fetchrow(sql.get_integration, id=integration_id, workspace_id=scope.workspace_id)
    if row is None:
        raise IntegrationNotFound

    token = decrypt_token(scope.box, integration_id, row["token_sealed"])
    return await fetch_repositories(integration_id, rules, kind=row["kind"], base_url=row["base_url"], token=token)


async def check_integration(tx: Transaction, scope: Scope, integration_id: UUID | None, repo_url: str | None) -> None:
    """Check a deployment's integration, and that its repository is at the integration's host. Raises BadCombination."""
    if repo_url is not None and hide_credentials(repo_url) != repo_url:
        raise BadCombination(
            "source_config.repo_url must not contain a user name or a token; add an integration for the host and set "
            "source_config.integration_id instead."
        )

    if integration_id in {None, PLAIN_GIT.id}:
        return

    row = await tx.fetchrow(sql.lock_integration_for_use, id=integration_id, workspace_id=scope.workspace_id)
    if row is None:
        raise BadCombination(f"source_config.integration_id {integration_id} does not exist in this workspace.")

    if repo_url is not None and not is_at(row["base_url"], repo_url):
        raise BadCombination(
            f"source_config.repo_url must begin with {row['base_url']}/, the address of the integration "
            f"{row['name']}: its token is sent to no other host."
        )


def find_credential(box: SecretBox, row: Record) -> Secret | None:
    """Return the user name and token for a deployment's repository, or None without a token for its host.

    The row holds `repo_url` of the deployment, and `integration_id`, `kind`, `base_url` and `token_sealed` of its
    integration, which are null for plain git.
    """
    if row["token_sealed"] is None or not is_at(row["base_url"], row["repo_url"] or ""):
        return None

    token = decrypt_token(box, row["integration_id"], row["token_sealed"])
    return None if token is None else Secret(USERS[row["kind"]], token)


def _encrypt(box: SecretBox, integration_id: UUID, value: str) -> bytes:
    return box.encrypt(value.encode(), str(integration_id))


def decrypt_token(box: SecretBox, integration_id: UUID, encrypted: bytes | None) -> str | None:
    """Decrypt a token or a webhook's secret."""
    return None if encrypted is None else box.decrypt(encrypted, str(integration_id)).decode()

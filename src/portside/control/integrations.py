"""Git integrations: accounts at git hosts, and the APIs of these hosts. Plain git is built in and needs no account.

An integration's token is sent to its own host only; its webhook secret is shown once. `pushes.py` handles pushes.
"""

import secrets
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx2
import msgspec

from portside.control.errors import BadCombination
from portside.control.scope import Scope
from portside.control.sources import hide_credentials
from portside.control.sql import sql
from portside.control.types import (
    GitHostKind,
    GitRepository,
    Integration,
    IntegrationCreate,
    IntegrationPatch,
    PushWebhook,
)
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Record, Transaction
from portside.kernel.errors import BadRequest, Conflict, Invalid, NotFound
from portside.kernel.ids import uuid7
from portside.kernel.outbound import HostUnreachable, OutboundRules, fetch
from portside.listener_api import Secret

PUBLIC_HOSTS: dict[str, str] = {"github": "https://github.com", "gitlab": "https://gitlab.com"}
MAX_PAGES = 10
# Hosts accept any user name beside a token; these are the documented ones.
USERS: dict[str, str] = {"github": "x-access-token", "gitlab": "oauth2", "gitea": "oauth2"}
_PAGE = {"github": 100, "gitlab": 100, "gitea": 50}
_PORTS = {"http": 80, "https": 443}


class TokenRefused(BadRequest):
    """The git host rejected the integration's token; give the integration a new one."""

    code = "token_refused"


class _Owner(msgspec.Struct):
    login: str


class _ListedRepository(msgspec.Struct):
    """A repository as GitHub and Gitea list it."""

    id: int
    name: str
    owner: _Owner
    clone_url: str
    default_branch: str | None = None


class _Namespace(msgspec.Struct):
    full_path: str


class _GitLabProject(msgspec.Struct):
    """A repository as GitLab lists it."""

    id: int
    path: str
    namespace: _Namespace
    http_url_to_repo: str
    default_branch: str | None = None


def parse_base_url(kind: GitHostKind, given: str | None) -> str:
    """Return a host's base URL without a trailing slash. Raises Invalid."""
    url = given or PUBLIC_HOSTS.get(kind, "")
    field = ["body", "base_url"]
    if not url:
        raise Invalid.field(field, f"is required for {kind}", "missing")

    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0 and bool(httpx2.URL(url).host)
    except (ValueError, httpx2.InvalidURL):
        is_valid = False

    if not is_valid or any((parts.query, parts.fragment, "@" in parts.netloc, " " in url, ".." in parts.path)):
        raise Invalid.field(field, "must be an http or https address without user, password, query or fragment")

    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def is_at(base_url: str, repo_url: str) -> bool:
    """Whether a repository is at this host, so that its token may be sent there: same scheme, host, port and path.

    An address that cannot be read is at no host; an earlier version may have stored one.
    """
    try:
        base = urlsplit(base_url)
        repository = urlsplit(repo_url)
        is_same = _origin(base) == _origin(repository)
    except ValueError:
        return False

    return is_same and repository.path.startswith(base.path + "/") and ".." not in repository.path.split("/")


def _origin(parts: Any) -> tuple[str, str, int | None]:
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme)


async def fetch_repositories(
    integration_id: UUID, kind: GitHostKind, base_url: str, token: str | None, rules: OutboundRules
) -> list[GitRepository]:
    """List the repositories that a token can read, at most 10 pages.

    Raises TokenRefused, AddressNotAllowed, HostUnknown and HostUnreachable.
    """
    found: list[GitRepository] = []

    for page in range(1, MAX_PAGES + 1):
        items = await _page(kind, f"{_list_url(kind, base_url)}&page={page}", token, rules)
        found += [_to_git_repository(integration_id, item) for item in items]
        if len(items) < _PAGE[kind]:
            break

    return found


def _list_url(kind: GitHostKind, base_url: str) -> str:
    if kind == "gitlab":
        return f"{base_url}/api/v4/projects?membership=true&simple=true&order_by=id&per_page={_PAGE[kind]}"
    if kind == "gitea":
        return f"{base_url}/api/v1/user/repos?limit={_PAGE[kind]}"

    api = "https://api.github.com" if base_url == PUBLIC_HOSTS["github"] else f"{base_url}/api/v3"
    return f"{api}/user/repos?sort=full_name&per_page={_PAGE[kind]}"


async def _page(
    kind: GitHostKind, url: str, token: str | None, rules: OutboundRules
) -> list[_ListedRepository | _GitLabProject]:
    response = await fetch(
        url, {"Accept": "application/json", "User-Agent": "portside", **_token_header(kind, token)}, rules
    )
    if response.status in {401, 403}:
        raise TokenRefused(
            f"The git host answered {response.status}: the integration's token cannot list repositories. Give the "
            "integration another one."
        )

    host = urlsplit(url).hostname
    if response.status != 200:
        raise HostUnreachable(
            f"{host} answered {response.status} to the request for its repositories; check the integration's base_url."
        )

    try:
        listed: list[_ListedRepository | _GitLabProject] = msgspec.json.decode(
            response.body, type=list[_GitLabProject] if kind == "gitlab" else list[_ListedRepository]
        )
    except msgspec.MsgspecError as exc:
        raise HostUnreachable(f"{host} did not return a repository list of {kind}: {exc}") from exc

    return listed


def _token_header(kind: GitHostKind, token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if kind == "gitlab":
        return {"PRIVATE-TOKEN": token}

    return {"Authorization": f"token {token}" if kind == "gitea" else f"Bearer {token}"}


def _to_git_repository(integration_id: UUID, item: _ListedRepository | _GitLabProject) -> GitRepository:
    if isinstance(item, _GitLabProject):
        return GitRepository(
            integration_id, item.id, item.path, item.namespace.full_path, item.http_url_to_repo, item.default_branch
        )

    return GitRepository(integration_id, item.id, item.name, item.owner.login, item.clone_url, item.default_branch)


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
        return Integration(**await _update(tx, scope, integration_id, token=body.token))


async def create_webhook(scope: Scope, integration_id: UUID, base_url: str) -> PushWebhook:
    """Create an integration's webhook with a new secret, which replaces an older one. Raises IntegrationNotFound."""
    secret = secrets.token_urlsafe(32)
    async with scope.db.transaction() as tx:
        await _update(tx, scope, integration_id, webhook_secret=secret)

    return PushWebhook(f"{base_url}/v1/webhooks/{integration_id}", secret)


async def _update(tx: Transaction, scope: Scope, integration_id: UUID, **given: str) -> Record:
    encrypted = {name: _encrypt(scope.box, integration_id, value) for name, value in given.items()}
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
        found = await tx.fetchval(sql.lock_integration, id=integration_id, workspace_id=scope.workspace_id)
        if found is None:
            raise IntegrationNotFound

        names = [row["name"] for row in await tx.fetch(sql.deployments_of_integration, id=integration_id)]
        if names:
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
    return await fetch_repositories(integration_id, row["kind"], row["base_url"], token, rules)


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

"""Pushes to git hosts start revisions.

A delivery has effect once. It starts revisions of the deployments that use the integration of the webhook, have
build_on_push and follow the pushed branch. GitHub, GitLab and Gitea sign their deliveries, each in its way, and nothing
in a delivery is parsed before its signature is verified. `polling.py` handles git hosts that cannot call this platform.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import msgspec

from portside.control.content import build_next_content
from portside.control.integrations import decrypt_token
from portside.control.revisions import lock_deployment, start_revision
from portside.control.scope import Scope, ScopeFactory
from portside.control.sql import sql
from portside.control.types import PushResponse
from portside.kernel.db import Database, Record, Transaction
from portside.kernel.errors import Invalid, Unauthorized
from portside.kernel.reconcile import Status, Task
from portside.listener_api import DeploymentStatus

T = TypeVar("T")
MAX_PUSH_BYTES = 5 * 1024 * 1024
MAX_DEPLOYMENTS = 200
# A delivery that is older than that and was captured counts again: then the commit of that time is built.
DELIVERIES_KEPT_DAYS = 400
_NO_COMMIT = frozenset({"0" * 40, "0" * 64})
_BRANCH = "refs/heads/"
_DEFAULT_PORTS = {"http": 80, "https": 443, "ssh": 22, "git": 9418}
_GITLAB_DELIVERY_HEADERS = ("idempotency-key", "x-gitlab-event-uuid")
_EVENT_HEADERS = {"github": "x-github-event", "gitlab": "x-gitlab-event", "gitea": "x-gitea-event"}
_PUSHES = frozenset({"push", "Push Hook", "System Hook"})


class _PushedRepository(msgspec.Struct):
    """A repository in an event: the common field, then fields of GitHub and Gitea, then those of GitLab."""

    default_branch: str | None = None
    clone_url: str | None = None
    html_url: str | None = None
    ssh_url: str | None = None
    git_http_url: str | None = None
    git_ssh_url: str | None = None
    web_url: str | None = None


class _Event(msgspec.Struct):
    """What says which event it is: the system hooks of GitLab have one header for all, and some have only a name."""

    object_kind: str | None = None
    event_name: str | None = None


class _PushEvent(msgspec.Struct):
    ref: str
    after: str
    before: str | None = None
    created: bool | None = None
    deleted: bool | None = None
    repository: _PushedRepository | None = None
    project: _PushedRepository | None = None


class Push(msgspec.Struct, frozen=True):
    """The new head of a branch, with all addresses of its repository, normalized."""

    branch: str
    commit: str
    repositories: frozenset[str]
    is_default: bool


class PushNotSigned(Unauthorized):
    """The webhook does not exist or the signature is wrong; check its address and secret at the git host."""

    code = "push_not_signed"


async def receive_push(
    scopes: ScopeFactory, integration_id: UUID, headers: Mapping[str, str], body: bytes
) -> PushResponse:
    """Handle a delivery to an integration's webhook. Raises PushNotSigned, and Invalid for another body."""
    row = await scopes.db.fetchrow(sql.integration_of_webhook, id=integration_id)
    secret = decrypt_token(scopes.box, integration_id, row["webhook_secret_sealed"]) if row else None
    if row is None or secret is None or not is_signed(row["kind"], secret, headers, body):
        raise PushNotSigned

    push = parse_push(row["kind"], headers, body)
    if isinstance(push, str):
        return PushResponse(ignored=push)

    scope = scopes.for_workspace(row["organization_id"], row["workspace_id"])
    async with scope.change() as tx:
        delivery = read_delivery_id(row["kind"], headers, body)
        if await tx.fetchval(sql.insert_delivery, integration_id=integration_id, delivery_id=delivery) is None:
            return PushResponse(ignored="this delivery was already handled")

        revision_ids = []
        for deployment in await _find_followers(tx, row, push):
            revision_id = await build_commit(
                tx, scope, deployment["id"], branch=deployment["repo_ref"], commit=push.commit
            )
            if revision_id is not None:
                revision_ids.append(revision_id)

    if not revision_ids:
        return PushResponse(ignored="no deployment follows this branch, or all of them already have this commit")

    return PushResponse(revision_ids)


async def _find_followers(tx: Transaction, integration: Record, push: Push) -> list[Record]:
    rows = await tx.fetch(
        sql.deployments_to_build,
        workspace_id=integration["workspace_id"],
        integration_id=integration["id"],
        branch=push.branch,
        is_default=push.is_default,
    )

    followers = [row for row in rows if normalize_address(row["repo_url"] or "") in push.repositories]
    return followers[:MAX_DEPLOYMENTS]


async def build_commit(tx: Transaction, scope: Scope, deployment_id: UUID, *, branch: str, commit: str) -> UUID | None:
    """Start a revision of a commit, unless the deployment already has it or no longer follows the branch.

    The branch is HEAD for a deployment that names none. Apart from the commit, the revision has the content that the
    next revision would have anyway. Returns its id.
    """
    deployment = await lock_deployment(tx, scope, deployment_id)
    latest = await tx.fetchrow(sql.latest_content, id=deployment_id, commit=commit)
    if latest is None or latest["repo_ref"] != branch or not deployment["build_on_push"]:
        return None
    if deployment["status"] == DeploymentStatus.AWAITING_DELETE:
        return None

    await tx.execute(sql.record_seen_commit, deployment_id=deployment_id, ref=branch, commit=commit)
    if latest["repo_commit_sha"] == commit:
        return None

    content = await build_next_content(tx, scope, deployment)
    content.repo_commit_sha = commit
    return await start_revision(tx, scope, deployment_id, content)


class ExpiredPushDeliveries(Task):
    """Deletes the ids of old deliveries."""

    every_s = 3600.0
    deletes = True

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Delete the ids of deliveries older than `DELIVERIES_KEPT_DAYS`."""
        count = await self._db.execute(sql.delete_deliveries, after_days=DELIVERIES_KEPT_DAYS)
        return Status({"deleted": count})


def is_signed(kind: str, secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a delivery is signed with the secret; compared in constant time."""
    if kind == "gitlab":
        return hmac.compare_digest(headers.get("x-gitlab-token", "").encode(), secret.encode())

    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    signature = headers.get("x-hub-signature-256" if kind == "github" else "x-gitea-signature", "")
    return hmac.compare_digest(signature.removeprefix("sha256=").lower().encode(), digest.encode())


def read_delivery_id(kind: str, headers: Mapping[str, str], body: bytes) -> str:
    """Return an id that repeated deliveries share: the digest of the body; for GitLab the host's id if it sends one.

    GitHub and Gitea sign the body alone. With another id in its header, a delivery that somebody captured would count
    again. GitLab signs nothing: whoever captures a delivery has the token, too.
    """
    if kind == "gitlab":
        for name in _GITLAB_DELIVERY_HEADERS:
            if event_id := headers.get(name):
                return event_id[:200]

    return hashlib.sha256(body).hexdigest()


def parse_push(kind: str, headers: Mapping[str, str], body: bytes) -> Push | str:
    """Return the push, or a text that says why nothing is built. Raises Invalid for a body that is not an event."""
    event = headers.get(_EVENT_HEADERS[kind], "")
    if event not in _PUSHES:
        return f"the event {event[:100]!r} is not a push"

    body = _take_from_form(headers, body)
    hook = _decode(body, _Event)
    kind_of_event = hook.object_kind or hook.event_name or "push"
    if kind_of_event != "push":
        return f"the event {kind_of_event[:100]!r} is not a push"

    payload = _decode(body, _PushEvent)
    if not payload.ref.startswith(_BRANCH):
        return "only pushes to branches are built"
    if payload.deleted or payload.after in _NO_COMMIT:
        return "the branch was deleted"
    if payload.created or payload.before in _NO_COMMIT:
        return "the branch was created"

    is_commit_id = len(payload.after) in {40, 64} and set(payload.after) <= set("0123456789abcdef")
    if not is_commit_id:
        raise Invalid.field(["body", "after"], "must be a full commit id")

    branch = payload.ref.removeprefix(_BRANCH)
    repositories = [repository for repository in (payload.repository, payload.project) if repository is not None]
    return Push(
        branch=branch,
        commit=payload.after,
        repositories=_list_addresses(repositories),
        is_default=any(repository.default_branch == branch for repository in repositories),
    )


def _take_from_form(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the event of a body: GitHub can send it as a field of a form."""
    if not headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return body

    try:
        return parse_qs(body.decode(), max_num_fields=10).get("payload", [""])[0].encode()
    except ValueError as exc:
        raise Invalid.field(["body"], f"is not a push event: {exc}") from exc


def _decode(body: bytes, event: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=event)
    except ValueError as exc:
        raise Invalid.field(["body"], f"is not a push event: {exc}") from exc


def _list_addresses(repositories: Sequence[_PushedRepository]) -> frozenset[str]:
    addresses: list[str | None] = []
    for repository in repositories:
        # All fields but the first, default_branch, are addresses.
        addresses += msgspec.structs.astuple(repository)[1:]

    return frozenset(normalize_address(address) for address in addresses if address)


def normalize_address(url: str) -> str:
    """Return a repository's address for comparison: host and path.

    Scheme, user, default port, a `.git` suffix and the case of the host are dropped.
    """
    if "://" not in url:
        host, colon, path = url.partition(":")
        if not colon or "/" in host:
            return url.rstrip("/").removesuffix(".git")

        return f"{host.rpartition('@')[2].lower()}/{_normalize_path(path)}"

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return url

    host = (parts.hostname or "").lower()
    if port and port != _DEFAULT_PORTS.get(parts.scheme):
        host = f"{host}:{port}"

    return f"{host}/{_normalize_path(parts.path)}"


def _normalize_path(path: str) -> str:
    return path.strip("/").removesuffix(".git")

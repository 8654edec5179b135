"""The push events of git hosts: verify and parse deliveries of GitHub, GitLab and Gitea.

`pushes.py` starts the revisions. Nothing in a delivery is parsed before its signature is verified.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs, urlsplit

import msgspec

from portside.kernel.errors import Invalid

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


class _PushEvent(msgspec.Struct):
    ref: str
    after: str
    before: str | None = None
    created: bool | None = None
    deleted: bool | None = None
    repository: _PushedRepository | None = None
    project: _PushedRepository | None = None
    object_kind: str | None = None


class Push(msgspec.Struct, frozen=True):
    """The new head of a branch, with all addresses of its repository, normalized."""

    branch: str
    commit: str
    repositories: frozenset[str]
    is_default: bool


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

    payload = _decode(headers, body)
    if payload.object_kind not in {None, "push"}:
        return f"the event {payload.object_kind!r} is not a push"
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


def _decode(headers: Mapping[str, str], body: bytes) -> _PushEvent:
    try:
        if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            body = parse_qs(body.decode(), max_num_fields=10).get("payload", [""])[0].encode()
        return msgspec.json.decode(body, type=_PushEvent)
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

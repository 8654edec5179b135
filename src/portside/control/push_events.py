"""What git hosts send when something is pushed: whose it is, and what was pushed (contract: section 10).

Nothing of a delivery is believed, nor even read, before its signature is found good.
"""

import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import msgspec

from portside.kernel.errors import Invalid

MAX_PUSH_BYTES = 5 * 1024 * 1024
_NO_COMMIT = frozenset({"0" * 40, "0" * 64})
_BRANCH = "refs/heads/"
_DEFAULT_PORTS = {"http": 80, "https": 443, "ssh": 22, "git": 9418}
_DELIVERY_HEADERS = {
    "github": ("x-github-delivery",),
    "gitlab": ("idempotency-key", "x-gitlab-event-uuid"),
    "gitea": ("x-gitea-delivery",),
}
_EVENT_HEADERS = {"github": "x-github-event", "gitlab": "x-gitlab-event", "gitea": "x-gitea-event"}
_PUSHES = frozenset({"push", "Push Hook", "System Hook"})


class _Repository(msgspec.Struct):
    """A repository in an event: GitHub's and Gitea's names, then GitLab's."""

    clone_url: str | None = None
    html_url: str | None = None
    ssh_url: str | None = None
    git_http_url: str | None = None
    git_ssh_url: str | None = None
    web_url: str | None = None


class _Event(msgspec.Struct):
    ref: str
    after: str
    before: str | None = None
    created: bool | None = None
    deleted: bool | None = None
    repository: _Repository | None = None
    project: _Repository | None = None
    object_kind: str | None = None


class Push(msgspec.Struct, frozen=True):
    """A commit that is now the newest of a branch; the repository by every address that it goes by."""

    branch: str
    commit: str
    repositories: frozenset[str]


def is_signed(kind: str, secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a delivery comes from who knows the secret; compared in constant time."""
    if kind == "gitlab":
        return hmac.compare_digest(headers.get("x-gitlab-token", "").encode(), secret.encode())
    expected = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    shown = headers.get("x-hub-signature-256" if kind == "github" else "x-gitea-signature", "")
    return hmac.compare_digest(shown.removeprefix("sha256=").lower().encode(), expected.encode())


def delivery_id(kind: str, headers: Mapping[str, str], body: bytes) -> str:
    """Return what names a delivery, over its repetitions: the host's own word, or the digest of its body."""
    for name in _DELIVERY_HEADERS[kind]:
        if told := headers.get(name):
            return told[:200]
    return hashlib.sha256(body).hexdigest()


def read_push(kind: str, headers: Mapping[str, str], body: bytes) -> Push | str:
    """Return the push, or in words why there is nothing to build. Raises Invalid for a body that is no event."""
    event = headers.get(_EVENT_HEADERS[kind], "")
    if event not in _PUSHES:
        return f"the event {event[:100]!r} is no push"
    told = _decode(headers, body)
    if told.object_kind not in {None, "push"}:
        return f"the event {told.object_kind!r} is no push"
    if not told.ref.startswith(_BRANCH):
        return "only pushes to branches are built"
    if told.deleted or told.after in _NO_COMMIT:
        return "the branch was deleted"
    if told.created or told.before in _NO_COMMIT:
        return "the branch was created"
    if len(told.after) not in {40, 64} or not set(told.after) <= set("0123456789abcdef"):
        raise Invalid.field(["body", "after"], "must be a full commit id")
    return Push(told.ref.removeprefix(_BRANCH), told.after, _addresses(told.repository, told.project))


def _decode(headers: Mapping[str, str], body: bytes) -> _Event:
    try:
        if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            body = parse_qs(body.decode(), max_num_fields=10).get("payload", [""])[0].encode()
        return msgspec.json.decode(body, type=_Event)
    except ValueError as exc:
        raise Invalid.field(["body"], f"is no push event: {exc}") from exc


def _addresses(*repositories: _Repository | None) -> frozenset[str]:
    told = [address for repository in repositories if repository for address in msgspec.structs.astuple(repository)]
    return frozenset(normalise(address) for address in told if address)


def normalise(url: str) -> str:
    """Return a repository's address in the one form in which addresses are compared: host and path alone.

    Scheme, user, the scheme's own port and `.git` make no difference, nor does the case of the host.
    """
    if "://" not in url:
        host, colon, path = url.partition(":")
        if not colon or "/" in host:
            return url.rstrip("/").removesuffix(".git")
        return f"{host.rpartition('@')[2].lower()}/{_path(path)}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return url
    host = (parts.hostname or "").lower()
    shown = f"{host}:{port}" if port and port != _DEFAULT_PORTS.get(parts.scheme) else host
    return f"{shown}/{_path(parts.path)}"


def _path(path: str) -> str:
    return path.strip("/").removesuffix(".git")

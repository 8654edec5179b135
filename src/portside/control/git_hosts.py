"""What differs between git hosts: their addresses, how a token is shown to them, and how they list repositories."""

from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from portside.control.types.integrations import GitHostKind, GitRepository
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.outbound import HostUnreachable, OutboundRules, fetch

PUBLIC_HOSTS: dict[str, str] = {"github": "https://github.com", "gitlab": "https://gitlab.com"}
MAX_PAGES = 10
# With a token as password, any user name will do; these are the hosts' own words for it.
USERS: dict[str, str] = {"github": "x-access-token", "gitlab": "oauth2", "gitea": "oauth2"}
_PAGE = {"github": 100, "gitlab": 100, "gitea": 50}
_PORTS = {"http": 80, "https": 443}


class TokenRefused(BadRequest):
    """The git host does not accept the integration's token; give it a new one."""

    code = "token_refused"


class _Owner(msgspec.Struct):
    login: str


class _Repository(msgspec.Struct):
    """A repository as GitHub and Gitea list it."""

    id: int
    name: str
    owner: _Owner
    clone_url: str
    default_branch: str | None = None


class _Namespace(msgspec.Struct):
    full_path: str


class _Project(msgspec.Struct):
    """A repository as GitLab lists it."""

    id: int
    path: str
    namespace: _Namespace
    http_url_to_repo: str
    default_branch: str | None = None


def base_url_of(kind: GitHostKind, given: str | None) -> str:
    """Return where a host's repositories are, without a slash at the end. Raises Invalid."""
    url = given or PUBLIC_HOSTS.get(kind, "")
    where = ["body", "base_url"]
    if not url:
        raise Invalid.field(where, f"is required for {kind}", "missing")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or any((parts.query, parts.fragment, "@" in parts.netloc, " " in url, ".." in parts.path)):
        raise Invalid.field(where, "must be an http or https address without user, password, query and fragment")
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def is_at(base_url: str, repo_url: str) -> bool:
    """Whether a repository is at this host, so that its token may be shown there: same scheme, host, port and path."""
    base, repository = urlsplit(base_url), urlsplit(repo_url)
    return (
        _origin(base) == _origin(repository)
        and repository.path.startswith(base.path + "/")
        and ".." not in repository.path.split("/")
    )


def _origin(parts: Any) -> tuple[str, str, int | None]:
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme)


async def list_repositories(
    integration_id: UUID, kind: GitHostKind, base_url: str, token: str | None, rules: OutboundRules
) -> list[GitRepository]:
    """List what a token reaches, the first 10 pages of it. Raises TokenRefused, HostUnreachable, AddressNotAllowed."""
    found: list[GitRepository] = []
    for page in range(1, MAX_PAGES + 1):
        items = await _page(kind, f"{_list_url(kind, base_url)}&page={page}", token, rules)
        found += [_show(integration_id, item) for item in items]
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


async def _page(kind: GitHostKind, url: str, token: str | None, rules: OutboundRules) -> list[_Repository | _Project]:
    answer = await fetch(url, {"Accept": "application/json", "User-Agent": "portside", **_shown(kind, token)}, rules)
    if answer.status in {401, 403}:
        raise TokenRefused(f"The git host answered {answer.status}: the integration's token may not list repositories.")
    host = urlsplit(url).hostname
    if answer.status != 200:
        raise HostUnreachable(f"{host} answered {answer.status} when it was asked for repositories.")
    try:
        listed: list[_Repository | _Project] = msgspec.json.decode(
            answer.body, type=list[_Project] if kind == "gitlab" else list[_Repository]
        )
    except msgspec.MsgspecError as exc:
        raise HostUnreachable(f"{host} does not list repositories as {kind} does: {exc}") from exc
    return listed


def _shown(kind: GitHostKind, token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if kind == "gitlab":
        return {"PRIVATE-TOKEN": token}
    return {"Authorization": f"token {token}" if kind == "gitea" else f"Bearer {token}"}


def _show(integration_id: UUID, item: _Repository | _Project) -> GitRepository:
    if isinstance(item, _Project):
        return GitRepository(
            integration_id, item.id, item.path, item.namespace.full_path, item.http_url_to_repo, item.default_branch
        )
    return GitRepository(integration_id, item.id, item.name, item.owner.login, item.clone_url, item.default_branch)

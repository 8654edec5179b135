"""The APIs of git hosts: the addresses of GitHub, GitLab and Gitea, and the repositories that a token can read.

A token is sent to its own host only (`is_at`).
"""

from urllib.parse import SplitResult, urlsplit
from uuid import UUID

import httpx2
import msgspec

from portside.control.types import GitHostKind, GitRepository
from portside.kernel.errors import BadRequest, Invalid
from portside.kernel.outbound import HostUnreachable, OutboundRules, fetch

PUBLIC_HOSTS: dict[str, str] = {"github": "https://github.com", "gitlab": "https://gitlab.com"}
MAX_PAGES = 10
_PAGE_SIZES = {"github": 100, "gitlab": 100, "gitea": 50}
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


def parse_base_url(kind: GitHostKind, base_url: str | None) -> str:
    """Return a host's base URL, by default the public host's, without a trailing slash. Raises Invalid."""
    url = base_url or PUBLIC_HOSTS.get(kind, "")
    field = ["body", "base_url"]
    if not url:
        raise Invalid.field(field, f"is required for {kind}", "missing")

    try:
        parts = urlsplit(url)
        is_address = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0 and bool(httpx2.URL(url).host)
        has_more = any((parts.query, parts.fragment, "@" in parts.netloc, " " in url, ".." in parts.path))
    except (ValueError, httpx2.InvalidURL):
        is_address = False

    if not is_address or has_more:
        raise Invalid.field(field, "must be an http or https address without user, password, query or fragment")

    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"


def is_at(base_url: str, repo_url: str) -> bool:
    """Whether a repository is at this host, so that its token may be sent there: same scheme, host, port and path.

    An address that cannot be read is at no host; an earlier version may have stored one.
    """
    try:
        base = urlsplit(base_url)
        repository = urlsplit(repo_url)
        is_same = _get_origin(base) == _get_origin(repository)
    except ValueError:
        return False

    return is_same and repository.path.startswith(base.path + "/") and ".." not in repository.path.split("/")


def _get_origin(parts: SplitResult) -> tuple[str, str, int | None]:
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme)


async def fetch_repositories(
    integration_id: UUID, rules: OutboundRules, *, kind: GitHostKind, base_url: str, token: str | None
) -> list[GitRepository]:
    """List the repositories that a token can read, at most 10 pages.

    Raises TokenRefused, AddressNotAllowed, HostUnknown and HostUnreachable.
    """
    repositories: list[GitRepository] = []
    for page in range(1, MAX_PAGES + 1):
        items = await _fetch_page(kind, f"{_build_list_url(kind, base_url)}&page={page}", token, rules)
        repositories += [_to_git_repository(integration_id, item) for item in items]
        if len(items) < _PAGE_SIZES[kind]:
            break

    return repositories


def _build_list_url(kind: GitHostKind, base_url: str) -> str:
    if kind == "gitlab":
        return f"{base_url}/api/v4/projects?membership=true&simple=true&order_by=id&per_page={_PAGE_SIZES[kind]}"
    if kind == "gitea":
        return f"{base_url}/api/v1/user/repos?limit={_PAGE_SIZES[kind]}"

    api = "https://api.github.com" if base_url == PUBLIC_HOSTS["github"] else f"{base_url}/api/v3"
    return f"{api}/user/repos?sort=full_name&per_page={_PAGE_SIZES[kind]}"


async def _fetch_page(
    kind: GitHostKind, url: str, token: str | None, rules: OutboundRules
) -> list[_ListedRepository | _GitLabProject]:
    headers = {"Accept": "application/json", "User-Agent": "portside", **_build_token_header(kind, token)}
    response = await fetch(url, headers, rules)
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
        repositories: list[_ListedRepository | _GitLabProject] = msgspec.json.decode(
            response.body, type=list[_GitLabProject] if kind == "gitlab" else list[_ListedRepository]
        )
    except msgspec.MsgspecError as exc:
        raise HostUnreachable(f"{host} did not return a repository list of {kind}: {exc}") from exc

    return repositories


def _build_token_header(kind: GitHostKind, token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if kind == "gitlab":
        return {"PRIVATE-TOKEN": token}

    return {"Authorization": f"token {token}" if kind == "gitea" else f"Bearer {token}"}


def _to_git_repository(integration_id: UUID, item: _ListedRepository | _GitLabProject) -> GitRepository:
    if isinstance(item, _GitLabProject):
        return GitRepository(
            host_integration_id=integration_id,
            id=item.id,
            name=item.path,
            owner=item.namespace.full_path,
            url=item.http_url_to_repo,
            default_branch=item.default_branch,
        )

    return GitRepository(
        host_integration_id=integration_id,
        id=item.id,
        name=item.name,
        owner=item.owner.login,
        url=item.clone_url,
        default_branch=item.default_branch,
    )

"""The command line's way to a platform: its address, who asks there, and answers or one-line mistakes.

A key that is given comes first, then a login at that platform, then the key that the platform of this machine keeps.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from portside.kernel.errors import UserMistake

if TYPE_CHECKING:
    from portside.cli.logins import Login, Logins

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_URL = "http://127.0.0.1:8700"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
TIMEOUT_S = 60.0
UPLOAD_CHUNK = 256 * 1024
_AWAY = frozenset({502, 503, 504})
_NEEDS_WORKSPACE = "org_scoped_key_requires_workspace"
_WORKSPACE_HEADER = "X-Tenant-Id"
# A login may remember a workspace that is gone; these show which there are, and end the login.
_OF_NO_WORKSPACE = frozenset({"/workspaces", "/logout"})


class AwayError(UserMistake):
    """The platform does not answer, or says that it cannot at the moment."""


class Platform:
    """A platform that answers over HTTP; `workspace` is the one that the command line names, by its id.

    A command may act on the organization, and on a workspace only where one was named.
    """

    def __init__(self, url: str, api_key: str | None, login: "Login | None" = None) -> None:
        import httpx2

        self.url = url.rstrip("/")
        self.headers = {"X-Api-Key": api_key or ""} if login is None else _headers(login)
        self.workspace: str | None = None
        self._refused = (
            f"{self.url} does not accept this key; set PORTSIDE_API_KEY, or --home to the platform's folder"
            if login is None
            else f"the login at {self.url} is over; log in again with 'portside account login'"
        )
        self._client = httpx2.Client(base_url=self.url, headers=self.headers, timeout=TIMEOUT_S)

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def enter(self, workspace: str) -> None:
        """Act in a workspace from now on, named by its id, handle or name. Raises UserMistake where it is not there."""
        self.workspace = self.find_workspace(workspace)["id"]
        self.headers[_WORKSPACE_HEADER] = self._client.headers[_WORKSPACE_HEADER] = self.workspace

    def find_workspace(self, named: str) -> dict[str, Any]:
        """Return a workspace by its id, handle or name. Raises UserMistake where there is none, or more than one."""
        known = self.call("GET", "/workspaces")
        ways: tuple[Callable[[dict[str, Any]], bool], ...] = (
            lambda workspace: workspace["id"] == named or workspace["tenant_handle"] == named,
            lambda workspace: workspace["display_name"] == named,
        )
        for is_meant in ways:
            found = [workspace for workspace in known if is_meant(workspace)]
            if len(found) > 1:
                raise UserMistake(f"{len(found)} workspaces are named {named}; name one by its handle")
            if found:
                return dict(found[0])
        raise UserMistake(f"there is no workspace {named} that you may enter; 'portside workspaces list' shows them")

    def call(self, method: str, path: str, *, body: Any = None, **query: Any) -> Any:
        """Send a request and return the decoded answer. Raises UserMistake with the platform's own words."""
        answer = self._send(method, path, body, query)
        return answer.json() if answer.content else None

    def text(self, path: str, **query: Any) -> str:
        """Get something that is not JSON. Raises UserMistake like `call`."""
        return str(self._send("GET", path, None, query).text)

    def call_with_password(self, method: str, path: str, body: Any) -> Any:
        """Send a request with a password in it, which may be the one thing wrong. Raises UserMistake like `call`."""
        answer = self._request(method, path, body, {})
        if answer.status_code == 401:
            raise UserMistake(explain(answer))
        self._check(answer)
        return answer.json() if answer.content else None

    def _send(self, method: str, path: str, body: Any, query: dict[str, Any]) -> Any:
        answer = self._request(method, path, body, query)
        self._check(answer)
        return answer

    def _request(self, method: str, path: str, body: Any, query: dict[str, Any]) -> Any:
        import httpx2

        given = {name: value for name, value in query.items() if value is not None}
        request = self._client.build_request(method, path, json=body, params=given)
        if path in _OF_NO_WORKSPACE:
            request.headers.pop(_WORKSPACE_HEADER, None)
        try:
            return self._client.send(request)
        except httpx2.HTTPError as exc:
            raise AwayError(f"no platform answers at {self.url} ({exc}); start one with 'portside up'") from exc

    def upload(self, url: str, file: IO[bytes], size: int, headers: dict[str, str]) -> None:
        """PUT a file to an address of the platform's, showing how far it is. Raises UserMistake."""
        import httpx2

        file.seek(0)
        with click.progressbar(length=size, label="· uploading", file=sys.stderr) as progress:

            def chunks() -> Iterator[bytes]:
                while chunk := file.read(UPLOAD_CHUNK):
                    yield chunk
                    progress.update(len(chunk))

            told = {**headers, "Content-Length": str(size)}
            try:
                answer = httpx2.put(url, content=chunks(), headers=told, timeout=TIMEOUT_S)
            except httpx2.HTTPError as exc:
                raise UserMistake(f"the upload to {urlsplit(url).netloc} failed: {exc}") from exc
        self._check(answer)

    def _check(self, answer: Any) -> None:
        if answer.status_code == 401:
            raise UserMistake(self._refused)
        if answer.status_code == 403 and _word_of(answer) == _NEEDS_WORKSPACE:
            raise UserMistake("this is about a workspace, and none is known; name one with --workspace")
        if answer.is_error:
            mistake = AwayError if answer.status_code in _AWAY else UserMistake
            raise mistake(f"{answer.status_code}: {explain(answer)}")


def explain(answer: Any) -> str:
    """Return the `detail` of an error as text; a failed validation names each field."""
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return str(answer.text[:500] or answer.reason_phrase)
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, problem['loc'][1:]))}: {problem['msg']}" for problem in detail)
    return str(detail)


def _word_of(answer: Any) -> Any:
    try:
        return answer.json().get("error")
    except (ValueError, AttributeError):
        return None


def _headers(login: "Login") -> dict[str, str]:
    named = {} if login.workspace_id is None else {_WORKSPACE_HEADER: login.workspace_id}
    return {"Authorization": f"Bearer {login.token}", **named}


url_option = click.option(
    "--url", envvar="PORTSIDE_URL", default=DEFAULT_URL, show_default=True, help="The platform's address."
)
home_option = click.option("--home", envvar="PORTSIDE_HOME", default="~/.portside", help="Home folder of the platform.")
_key_option = click.option(
    "--api-key", envvar="PORTSIDE_API_KEY", help="API key. [default: the login there, or the key in the home folder]"
)
_workspace_option = click.option("--workspace", help="Act in this workspace (id, handle or name).")


def connection_options(command: F) -> F:
    """Add the options that say which platform to talk to, and as whom; the command gets it as `platform`."""
    from functools import wraps

    @url_option
    @_key_option
    @home_option
    @_workspace_option
    @wraps(command)
    def connected(*args: Any, url: str, api_key: str | None, home: str, workspace: str | None, **kwargs: Any) -> Any:
        with contextlib.closing(connect(url, api_key, home)) as platform:
            if workspace is not None:
                platform.enter(workspace)
            return command(*args, platform=platform, **kwargs)

    return connected  # type: ignore[return-value]


def connect(url: str, api_key: str | None, home: str) -> Platform:
    """Return a platform, as whoever has the best claim to ask there."""
    if api_key is not None:
        return Platform(url, api_key)
    if (login := logins_of(home).find(url.rstrip("/"))) is not None:
        return Platform(url, None, login)
    # The key of this machine's platform is not sent to others.
    is_here = urlsplit(url).hostname in LOOPBACK
    return Platform(url, _key_in(Path(home).expanduser()) if is_here else None)


def logins_of(home: str) -> "Logins":
    """Return the logins that a home folder keeps."""
    from portside.cli.logins import Logins

    return Logins(Path(home).expanduser())


def _key_in(home: Path) -> str | None:
    try:
        return (home / "api-key").read_text("utf-8").strip() or None
    except OSError:
        return None

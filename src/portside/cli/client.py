"""The client of a platform's API for commands: its address, its credentials, and errors as one line.

Credentials in order of precedence: an explicit key, the user's login at the platform, the key in this machine's home
folder. Secrets are typed or read from standard input, never from arguments, which other users can see.
"""

import contextlib
import os
import re
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from portside import __version__
from portside.cli.logins import Login, open_user_logins
from portside.kernel.errors import UserMistake
from portside.kernel.local_addresses import is_loopback_url

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8700"
DEFAULT_HOME = "~/.portside"
TIMEOUT_S = 60.0
UPLOAD_CHUNK = 256 * 1024
CA_FILE = "PORTSIDE_CA_FILE"
_UNKNOWN_AUTHORITY = "CERTIFICATE_VERIFY_FAILED"
_UNAVAILABLE = frozenset({502, 503, 504})
# How the default messages of errors name the header.
_RETRY_AFTER = re.compile("the number of seconds in Retry-After|Retry-After seconds")
_NEEDS_WORKSPACE = "org_scoped_key_requires_workspace"
_WORKSPACE_HEADER = "X-Tenant-Id"
# These routes must work even if the login's stored workspace was deleted.
_WITHOUT_WORKSPACE = frozenset({"/workspaces", "/logout"})
MAX_SECRET_LENGTH = 5000
MAX_VALUE_LENGTH = 64 * 1024
USAGE = "/api/v1/orgs/current/billing/granular-usage"

url_option = click.option(
    "--url",
    envvar="PORTSIDE_URL",
    help=f"The platform's address. [default: that of the platform in the home folder, or {DEFAULT_URL}]",
)
home_option = click.option("--home", envvar="PORTSIDE_HOME", default=DEFAULT_HOME, help="Home folder of the platform.")
_key_option = click.option(
    "--api-key", envvar="PORTSIDE_API_KEY", help="API key. [default: the login there, or the key in the home folder]"
)
_workspace_option = click.option("--workspace", help="Act in this workspace (id, handle or name).")


def ask_secret(name: str, *, hint: str = "") -> str:
    """Prompt for a secret, or read a line of standard input. Raises UserMistake without one.

    `hint` is added to the error message.
    """
    if sys.stdin.isatty():
        text = str(click.prompt(name, hide_input=True, err=True))
    else:
        text = sys.stdin.readline(MAX_SECRET_LENGTH)

    if not text.strip():
        raise UserMistake(f"no {name.lower()} was given; write it to standard input{hint}")

    return text.strip()


def ask_value(name: str) -> str:
    """Prompt for the value of a variable, or read all of standard input without a final line break.

    Raises UserMistake without a value, or for one that is too long.
    """
    if sys.stdin.isatty():
        text = str(click.prompt(name, hide_input=True, err=True))
    else:
        text = sys.stdin.read(MAX_VALUE_LENGTH + 2).removesuffix("\n").removesuffix("\r")

    if not text:
        raise UserMistake(f"no value of {name} was given; write it to standard input")
    if len(text) > MAX_VALUE_LENGTH:
        raise UserMistake(f"the value of {name} is longer than {MAX_VALUE_LENGTH} characters")

    return text


def load_authorities(environ: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return a context that trusts the certificate in PORTSIDE_CA_FILE besides the usual ones, or None without it.

    Raises UserMistake if the file cannot be read.
    """
    if not (file := environ.get(CA_FILE)):
        return None

    context = ssl.create_default_context()
    try:
        context.load_verify_locations(file)
    except OSError as exc:
        raise UserMistake(f"{CA_FILE}: {file} is not a readable PEM file with certificates ({exc})") from exc

    return context


def check_address(url: str) -> None:
    """Refuse an address that no request can be sent to. Raises UserMistake."""
    import httpx2

    try:
        urlsplit(url)
        httpx2.URL(url)
    except (ValueError, httpx2.InvalidURL) as exc:
        raise UserMistake(f"{url} is not the address of a platform, such as {DEFAULT_URL}: {exc}") from exc


class PlatformUnavailable(UserMistake):
    """The platform does not respond, or responds that it is unavailable."""


class Platform:
    """A platform's HTTP API. `workspace` is the id of the workspace that the command line names, if any.

    Some commands act on the organization unless a workspace is named.
    """

    def __init__(self, url: str, api_key: str | None, login: Login | None = None) -> None:
        import httpx2

        self.url = url.rstrip("/")
        self.headers = {"X-Api-Key": api_key or ""} if login is None else _build_headers(login)
        self.headers["User-Agent"] = f"portside/{__version__}"
        self.workspace: str | None = None
        self.has_login = login is not None

        # A shell expression for a key that agents accept, for example commands.
        self.key_in_shell = "$PORTSIDE_API_KEY"

        if login is not None:
            self._refusal = f"the login at {self.url} has ended; log in again with 'portside login {self.url}'"
        elif api_key:
            self._refusal = (
                f"{self.url} does not accept this key; set PORTSIDE_API_KEY, or --home to the platform's folder"
            )
        else:
            self._refusal = (
                f"you are not logged in at {self.url}, and no key was found; run 'portside login {self.url}', set "
                "PORTSIDE_API_KEY, or set --home to the platform's folder"
            )

        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise UserMistake("the API key holds a character that no key has; copy it again, without line breaks")

        check_address(self.url)
        self._trust = load_authorities(os.environ)
        self._client = httpx2.Client(
            base_url=self.url, headers=self.headers, timeout=TIMEOUT_S, verify=self._trust or True
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def use_workspace(self, workspace: str) -> None:
        """Send later requests to a workspace, found by id, handle or name. Raises UserMistake for an unknown one."""
        self.workspace = self.find_workspace(workspace)["id"]
        self.headers[_WORKSPACE_HEADER] = self.workspace
        self._client.headers[_WORKSPACE_HEADER] = self.workspace

    def find_workspace(self, name_or_id: str) -> dict[str, Any]:
        """Return a workspace by its id, handle or name. Raises UserMistake for an unknown or ambiguous one."""
        workspaces = self.call("GET", "/workspaces")
        matchers: tuple[Callable[[dict[str, Any]], bool], ...] = (
            lambda workspace: workspace["id"] == name_or_id or workspace["tenant_handle"] == name_or_id,
            lambda workspace: workspace["display_name"] == name_or_id,
        )

        for is_match in matchers:
            matches = [workspace for workspace in workspaces if is_match(workspace)]
            if len(matches) > 1:
                raise UserMistake(f"{len(matches)} workspaces are named {name_or_id}; use a handle instead")
            if matches:
                return dict(matches[0])

        raise UserMistake(f"there is no workspace {name_or_id} that you may use; 'portside workspaces list' shows them")

    def call(self, method: str, path: str, *, body: Any = None, **query: Any) -> Any:
        """Send a request and return the decoded response. Raises UserMistake with the platform's error message."""
        return self._decode(self._send(method, path, body, query))

    def text(self, path: str, **query: Any) -> str:
        """Get a response that is not JSON. Raises UserMistake like `call`."""
        return str(self._send("GET", path, None, query).text)

    def stream_lines(self, path: str, **query: Any) -> Iterator[str]:
        """Get a long response line by line, as it arrives. Raises UserMistake like `call`."""
        import httpx2

        params = {name: value for name, value in query.items() if value is not None}
        try:
            with self._client.stream("GET", path, params=params) as response:
                if response.is_error:
                    response.read()

                self._check(response)
                yield from response.iter_lines()
        except httpx2.HTTPError as exc:
            raise self._to_unavailable(exc) from exc

    def call_with_password(self, method: str, path: str, body: Any) -> Any:
        """Send a request with a password; a 401 then means a wrong password. Raises UserMistake like `call`."""
        response = self._request(method, path, body, {})
        if response.status_code == 401:
            raise UserMistake(explain(response))

        self._check(response)
        return self._decode(response)

    def post_form(self, path: str, form: Mapping[str, str]) -> tuple[int, Any]:
        """Send a form, and return the status and the decoded response. Raises PlatformUnavailable, or UserMistake."""
        import httpx2

        try:
            response = self._client.post(path, data=dict(form))
        except httpx2.HTTPError as exc:
            raise self._to_unavailable(exc) from exc

        self._check_no_redirect(response)
        if response.status_code in _UNAVAILABLE:
            raise PlatformUnavailable(f"{response.status_code}: {explain(response)}")

        try:
            decoded = msgspec.json.decode(response.content, type=dict[str, Any])
        except msgspec.MsgspecError as exc:
            raise UserMistake(f"there is no platform at {self.url}, or an older one ({response.status_code})") from exc

        if response.is_error:
            decoded["detail"] = explain(response)

        return response.status_code, decoded

    def _send(self, method: str, path: str, body: Any, query: dict[str, Any]) -> Any:
        response = self._request(method, path, body, query)
        self._check(response)
        return response

    def _request(self, method: str, path: str, body: Any, query: dict[str, Any]) -> Any:
        import httpx2

        params = {name: value for name, value in query.items() if value is not None}
        try:
            request = self._client.build_request(method, path, json=body, params=params)
        except ValueError as exc:
            raise UserMistake(f"an argument is not UTF-8 text, or not a finite number: {exc}") from exc

        if path in _WITHOUT_WORKSPACE:
            request.headers.pop(_WORKSPACE_HEADER, None)

        try:
            return self._client.send(request)
        except httpx2.HTTPError as exc:
            raise self._to_unavailable(exc) from exc

    def _to_unavailable(self, failure: Exception) -> UserMistake:
        if _UNKNOWN_AUTHORITY in str(failure):
            return UserMistake(
                f"this machine does not trust the certificate of {self.url} ({failure}); set {CA_FILE} to the file "
                "with the root certificate of its authority"
            )

        hint = "; start one with 'portside up'" if is_loopback_url(self.url) else ""
        return PlatformUnavailable(f"no platform responds at {self.url} ({failure}){hint}")

    def upload(self, url: str, file: IO[bytes], size: int, headers: dict[str, str]) -> None:
        """PUT a file to an address of the platform and show the progress. Raises UserMistake."""
        import httpx2

        file.seek(0)
        with click.progressbar(length=size, label="· uploading", file=sys.stderr) as progress:

            def chunks() -> Iterator[bytes]:
                while chunk := file.read(UPLOAD_CHUNK):
                    yield chunk
                    progress.update(len(chunk))

            try:
                response = httpx2.put(
                    url,
                    content=chunks(),
                    headers={**headers, "Content-Length": str(size)},
                    timeout=TIMEOUT_S,
                    verify=self._trust or True,
                )
            except httpx2.HTTPError as exc:
                raise UserMistake(f"the upload to {urlsplit(url).netloc} failed: {exc}") from exc

        self._check(response)

    def _decode(self, response: Any) -> Any:
        if not response.content:
            return None

        try:
            return response.json()
        except ValueError as exc:
            raise UserMistake(
                f"there is no platform at {self.url}: its answer is not JSON; name the platform's address with --url"
            ) from exc

    def _check_no_redirect(self, response: Any) -> None:
        """Raise UserMistake for a redirect: the platform sends none, but proxies send clients to https."""
        if response.has_redirect_location:
            raise UserMistake(
                f"{self.url} redirects to {response.headers['location']}; name the address that it leads to instead"
            )

    def _check(self, response: Any) -> None:
        self._check_no_redirect(response)
        if response.status_code == 401:
            raise UserMistake(self._refusal)
        if response.status_code == 403 and _read_error_code(response) == _NEEDS_WORKSPACE:
            raise UserMistake("this command needs a workspace; name one with --workspace")

        if response.is_error:
            mistake = PlatformUnavailable if response.status_code in _UNAVAILABLE else UserMistake
            raise mistake(f"{response.status_code}: {explain(response)}")


def build_usage_query(platform: Platform, *, days: int, by: str) -> dict[str, Any]:
    """Return the query of `USAGE` for the last days of the workspace, grouped by a dimension such as `project`."""
    end = datetime.now(UTC) + timedelta(minutes=1)
    return {
        "start_time": (end - timedelta(days=days)).isoformat(),
        "end_time": end.isoformat(),
        "workspace_ids": [platform.call("GET", "/auth")["tenant_id"]],
        "group_by": by,
    }


def explain(response: Any) -> str:
    """Return the `detail` of an error as text; a failed validation names each field.

    A response that says when to try again says it in a header, which nobody sees in a terminal.
    """
    return _with_seconds(_read_detail(response), response.headers.get("retry-after"))


def _with_seconds(detail: str, seconds: str | None) -> str:
    if seconds is None or not seconds.isdecimal():
        return detail

    text = _RETRY_AFTER.sub(f"{seconds} s", detail)
    if f"{seconds} s" in text:
        return text

    return f"{text.rstrip('.')}; try again in {seconds} s"


def _read_detail(response: Any) -> str:
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return str(response.text[:500] or response.reason_phrase)

    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, problem['loc'][1:]))}: {problem['msg']}" for problem in detail)

    return str(detail)


def _read_error_code(response: Any) -> Any:
    try:
        return response.json().get("error")
    except (ValueError, AttributeError):
        return None


def _build_headers(login: Login) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {login.token}"}
    if login.workspace_id is not None:
        headers[_WORKSPACE_HEADER] = login.workspace_id

    return headers


def connection_options(command: F) -> F:
    """Add the options for the platform and the credentials; the command gets the argument `platform`."""
    from functools import wraps

    @url_option
    @_key_option
    @home_option
    @_workspace_option
    @wraps(command)
    def connected(
        *args: Any, url: str | None, api_key: str | None, home: str, workspace: str | None, **kwargs: Any
    ) -> Any:
        with contextlib.closing(connect(url or read_address(home), api_key, home)) as platform:
            if workspace is not None:
                platform.use_workspace(workspace)
            return command(*args, platform=platform, **kwargs)

    return connected  # type: ignore[return-value]


def read_address(home: str) -> str:
    """Return where the platform of a home folder serves, or served last; the default address without such a folder."""
    try:
        return (Path(home).expanduser() / "address").read_text("utf-8").strip() or DEFAULT_URL
    except OSError:
        return DEFAULT_URL


def get_default_url() -> str:
    """Return the address that commands use without `--url` and `--home`."""
    return os.environ.get("PORTSIDE_URL") or read_address(os.environ.get("PORTSIDE_HOME") or DEFAULT_HOME)


def connect(url: str, api_key: str | None, home: str) -> Platform:
    """Return a platform with the credentials of the highest precedence. Raises UserMistake for an invalid address."""
    check_address(url)
    if api_key is not None:
        return Platform(url, api_key)
    if (login := open_user_logins().find(url)) is not None:
        return Platform(url, None, login)

    # The key of this machine's platform must not be sent to other hosts.
    is_local = is_loopback_url(url)
    folder = Path(home).expanduser()
    platform = Platform(url, _read_key(folder) if is_local else None)
    if is_local:
        platform.key_in_shell = f"$(cat {quote(str(folder.absolute() / 'api-key'))})"

    return platform


def _read_key(home: Path) -> str | None:
    try:
        return (home / "api-key").read_text("utf-8").strip() or None
    except OSError:
        return None

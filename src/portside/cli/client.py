"""The command line's way to a platform: its address, the key, and answers or one-line mistakes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import click

from portside.kernel.errors import UserMistake

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_URL = "http://127.0.0.1:8700"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
TIMEOUT_S = 60.0
UPLOAD_CHUNK = 256 * 1024


class Platform:
    """A platform that answers over HTTP."""

    def __init__(self, url: str, api_key: str | None) -> None:
        import httpx2

        self.url = url.rstrip("/")
        self.headers = {"X-Api-Key": api_key or ""}
        self._client = httpx2.Client(base_url=self.url, headers=self.headers, timeout=TIMEOUT_S)

    def call(self, method: str, path: str, *, body: Any = None, **query: Any) -> Any:
        """Send a request and return the decoded answer. Raises UserMistake with the platform's own words."""
        answer = self._send(method, path, body, query)
        return answer.json() if answer.content else None

    def text(self, path: str, **query: Any) -> str:
        """Get something that is not JSON. Raises UserMistake like `call`."""
        return str(self._send("GET", path, None, query).text)

    def _send(self, method: str, path: str, body: Any, query: dict[str, Any]) -> Any:
        import httpx2

        given = {name: value for name, value in query.items() if value is not None}
        try:
            answer = self._client.request(method, path, json=body, params=given)
        except httpx2.HTTPError as exc:
            raise UserMistake(f"no platform answers at {self.url} ({exc}); start one with 'portside up'") from exc
        self._check(answer)
        return answer

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
            raise UserMistake(
                f"{self.url} does not accept this key; set PORTSIDE_API_KEY, or --home to the platform's folder"
            )
        if answer.is_error:
            raise UserMistake(f"{answer.status_code}: {explain(answer)}")


def explain(answer: Any) -> str:
    """Return the `detail` of an error as text; a failed validation names each field."""
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return str(answer.text[:500] or answer.reason_phrase)
    if isinstance(detail, list):
        return "; ".join(f"{'.'.join(map(str, problem['loc'][1:]))}: {problem['msg']}" for problem in detail)
    return str(detail)


def connection_options(command: F) -> F:
    """Add the options that say which platform to talk to; the command gets it as `platform`."""
    from functools import wraps

    @click.option(
        "--url", envvar="PORTSIDE_URL", default=DEFAULT_URL, show_default=True, help="The platform's address."
    )
    @click.option("--api-key", envvar="PORTSIDE_API_KEY", help="API key. [default: the one in the home folder]")
    @click.option("--home", envvar="PORTSIDE_HOME", default="~/.portside", help="Home folder of the platform.")
    @wraps(command)
    def connected(*args: Any, url: str, api_key: str | None, home: str, **kwargs: Any) -> Any:
        # The key of this machine's platform is not sent to others.
        if api_key is None and urlsplit(url).hostname in LOOPBACK:
            api_key = _key_in(Path(home).expanduser())
        return command(*args, platform=Platform(url, api_key), **kwargs)

    return connected  # type: ignore[return-value]


def _key_in(home: Path) -> str | None:
    try:
        return (home / "api-key").read_text("utf-8").strip() or None
    except OSError:
        return None

"""The newest commit of a branch, as `git ls-remote` reads it.

git runs in an environment of its own, without prompts and without the machine's configuration. Address and token are in
that environment, because other users can read arguments; no file is written. git gets the token from a credential
helper that is configured for the one host.

A repository's address could point into the platform's own network. So the host is resolved and checked before git
runs. Over http git then connects to the checked addresses; over ssh and git:// it resolves the name again. git follows
no redirects. A redirect of the first request, which hosts send for renamed repositories, is read here, and its target
is checked in the same way.
"""

import asyncio
import base64
import contextlib
import ipaddress
import os
import re
import signal
import tempfile
from dataclasses import dataclass, replace
from urllib.parse import urljoin, urlsplit

from portside.kernel.errors import PortsideError
from portside.kernel.outbound import OutboundRules, classify_address, fetch, resolve
from portside.kernel.timeouts import timeout
from portside.listener_api import Secret

TIMEOUT_S = 20.0
_MAX_OUTPUT = 65_536
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_HELPER = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$PORTSIDE_USER" "$PORTSIDE_TOKEN"; }; f'
# Variables of the machine that git gets.
_PASSED_ON = ("PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
)
_REDIRECTS = 3
_REDIRECTED = re.compile(r"The requested URL returned error: 30[12378]\b")
_FIRST_REQUEST = "/info/refs?service=git-upload-pack"
_PORTS = {"http": 80, "https": 443}
# `name@host:path`, as ssh is written without a scheme.
_SHORT_SSH = re.compile(r"(?:[^/@:]+@)?(\[[^\]]+\]|[^/:@]+):")
_HOST = re.compile(r"[a-z0-9._-]+")


class PollFailed(Exception):
    """The repository could not be read; the text gives the reason and contains no credentials."""


class _Redirected(PollFailed):
    """The repository's host answered the first request with a redirect."""


@dataclass(frozen=True)
class _Remote:
    """A repository to read: its address, its credential and the checked network addresses of its host."""

    url: str
    credential: Secret | None
    addresses: tuple[str, ...] = ()

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port of an http address."""
        parts = urlsplit(self.url)
        return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]


async def fetch_newest_commit(url: str, branch: str, credential: Secret | None, rules: OutboundRules) -> str | None:
    """Return the head of a branch or of HEAD; None if the branch does not exist. Raises PollFailed."""
    head_ref = branch if branch == "HEAD" else f"refs/heads/{branch}"
    remote = await _resolve_remote(url, credential, rules)
    for _ in range(_REDIRECTS + 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                output = await _run(["git", "ls-remote", "--", "origin", head_ref], folder, remote)
            except _Redirected:
                remote = await _follow_redirect(remote, rules)
                continue

        for line in output.splitlines():
            commit, _, ref = line.partition("\t")
            if ref == head_ref:
                return commit

        return None

    raise PollFailed(f"the repository's host redirects more than {_REDIRECTS} times")


async def _resolve_remote(url: str, credential: Secret | None, rules: OutboundRules) -> _Remote:
    """Resolve and check an address's host; a folder of this machine has no host."""
    url, host = _read_address(url)
    if host is None:
        return _Remote(url, credential)

    try:
        async with timeout(TIMEOUT_S):
            addresses = await resolve(host, rules)
    except PortsideError as exc:
        raise PollFailed(exc.message) from exc
    except (OSError, TimeoutError) as exc:
        raise PollFailed(f"{host} cannot be resolved: {str(exc) or type(exc).__name__}") from exc

    return _Remote(url, credential, tuple(dict.fromkeys(addresses)))


def _read_address(url: str) -> tuple[str, str | None]:
    """Return the address to pass to git, and its host. Raises PollFailed.

    An http address is rebuilt from its parsed parts, so that git cannot parse another host from it.
    """
    if "://" not in url:
        match = _SHORT_SSH.match(url)
        return url, match[1].strip("[]") if match else None

    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode("ascii")
        port = parts.port
    except ValueError as exc:
        raise PollFailed(f"the repository's address is invalid: {exc}") from exc

    if parts.scheme == "file":
        return url, None
    if parts.scheme not in _PORTS:
        return url, host
    if "@" in parts.netloc or not (_HOST.fullmatch(host) or ":" in host):
        raise PollFailed("the repository's address has a user name or an invalid host")

    netloc = f"[{host}]" if ":" in host else host
    if port is not None:
        netloc += f":{port}"

    return parts._replace(netloc=netloc, fragment="").geturl(), host


async def _follow_redirect(remote: _Remote, rules: OutboundRules) -> _Remote:
    """Return the target of a redirected first request; it keeps the credential only on the same origin."""
    first = remote.url.rstrip("/") + _FIRST_REQUEST
    headers = {"User-Agent": "git/2"}
    if remote.credential is not None:
        pair = f"{remote.credential.name}:{remote.credential.value}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"

    try:
        response = await fetch(first, headers, rules)
    except PortsideError as exc:
        raise PollFailed(exc.message) from exc

    target = urljoin(first, response.location or "")
    if response.status not in {301, 302, 303, 307, 308} or not target.endswith(_FIRST_REQUEST):
        raise PollFailed("the repository's host redirects to an address that is not a repository")

    loses_tls = remote.url.startswith("https:") and not target.startswith("https:")
    if urlsplit(target).scheme not in _PORTS or loses_tls:
        raise PollFailed("the repository's host redirects to an address without TLS")

    new_remote = await _resolve_remote(target.removesuffix(_FIRST_REQUEST), remote.credential, rules)
    return new_remote if new_remote.origin == remote.origin else replace(new_remote, credential=None)


async def _run(argv: list[str], folder: str, remote: _Remote) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=folder,
            env=_build_environment(folder, remote),
            start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as exc:
        raise PollFailed(f"git cannot be run: {exc.strerror}") from exc

    assert process.stdout is not None  # noqa: S101 - narrows the type
    try:
        async with timeout(TIMEOUT_S):
            output = (await _read(process.stdout)).decode(errors="replace")
            code = await process.wait()
    except TimeoutError as exc:
        raise PollFailed(f"git did not end within {TIMEOUT_S:g} seconds") from exc
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    if code != 0:
        kind = _Redirected if _REDIRECTED.search(output) else PollFailed
        raise kind(_CREDENTIALS.sub("***@", output.strip()[-500:]) or f"git ended with {code}")

    return output


async def _read(stream: asyncio.StreamReader) -> bytes:
    """Read to the end, but keep only the first 64 kB, which is enough for a few refs."""
    output = b""
    while chunk := await stream.read(_MAX_OUTPUT):
        output = (output + chunk)[:_MAX_OUTPUT]

    return output


def _build_environment(home: str, remote: _Remote) -> dict[str, str]:
    """Return the environment of git: the settings for this repository, and nothing of the machine's."""
    settings = {
        "remote.origin.url": remote.url,
        "core.hooksPath": os.devnull,
        "safe.directory": "*",
        "http.followRedirects": "false",
        **_pin_addresses(remote),
    }

    # A proxy reaches public addresses, but not this network.
    is_public = all(classify_address(address) == "public" for address in remote.addresses)
    names = (*_PASSED_ON, *_PROXIES) if is_public else _PASSED_ON
    environment = {name: os.environ[name] for name in names if name in os.environ}

    if remote.credential is not None:
        parts = urlsplit(remote.url)
        settings[f"credential.{parts.scheme}://{parts.netloc}.helper"] = _HELPER
        environment |= {"PORTSIDE_USER": remote.credential.name, "PORTSIDE_TOKEN": remote.credential.value}

    for number, (key, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}

    return environment | {
        "HOME": home,
        "GIT_CONFIG_COUNT": str(len(settings)),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        "LC_ALL": "C",
    }


def _pin_addresses(remote: _Remote) -> dict[str, str]:
    """Return the setting that makes git connect to the checked addresses, whatever the name resolves to later."""
    if not remote.addresses or not remote.url.startswith(("http:", "https:")):
        return {}

    _scheme, host, port = remote.origin
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return {}

    addresses = [f"[{address}]" if ":" in address else address for address in remote.addresses]
    return {"http.curloptResolve": f"{host}:{port}:{','.join(addresses)}"}

"""Asking a repository for the newest commit of a branch, by `git ls-remote`.

git runs in an environment of its own, without prompts and without the machine's configuration. Address and token are in
that environment: arguments can be read by others, and no file is written. The token is told to git by a credential
helper, which is asked for the one host alone.
"""

import asyncio
import contextlib
import os
import re
import signal
import tempfile
from urllib.parse import urlsplit

from portside.control.types.deployments import Secret

TIMEOUT_S = 20.0
_MAX_OUTPUT = 65_536
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
_HELPER = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$PORTSIDE_USER" "$PORTSIDE_TOKEN"; }; f'
_PASSED_ON = (
    "PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy",
)  # fmt: skip


class LookFailed(Exception):
    """The repository could not be asked; the text says why, without what is secret."""


async def newest_commit(url: str, branch: str, credential: Secret | None) -> str | None:
    """Return the commit that a branch is at, or None where there is no such branch. Raises LookFailed."""
    with tempfile.TemporaryDirectory() as nowhere:
        output = await _run(["git", "ls-remote", "--", "origin", f"refs/heads/{branch}"], nowhere, url, credential)
    for line in output.splitlines():
        commit, _, ref = line.partition("\t")
        if ref == f"refs/heads/{branch}":
            return commit
    return None


async def _run(argv: list[str], folder: str, url: str, credential: Secret | None) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=folder, env=_environment(folder, url, credential), start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
    except OSError as exc:
        raise LookFailed(f"git cannot be run: {exc.strerror}") from exc
    assert process.stdout is not None  # noqa: S101 - narrows the type
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output = (await _read(process.stdout)).decode(errors="replace")
            code = await process.wait()
    except TimeoutError as exc:
        raise LookFailed(f"git did not end within {TIMEOUT_S:g} seconds") from exc
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if code != 0:
        raise LookFailed(_CREDENTIALS.sub("***@", output.strip()[-500:]) or f"git ended with {code}")
    return output


async def _read(stream: asyncio.StreamReader) -> bytes:
    """Read to the end and keep so much of it as a few refs need."""
    kept = b""
    while chunk := await stream.read(_MAX_OUTPUT):
        kept = (kept + chunk)[:_MAX_OUTPUT]
    return kept


def _environment(home: str, url: str, credential: Secret | None) -> dict[str, str]:
    configured = {"remote.origin.url": url, "core.hooksPath": os.devnull, "safe.directory": "*"}
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if credential is not None:
        parts = urlsplit(url)
        configured[f"credential.{parts.scheme}://{parts.netloc}.helper"] = _HELPER
        environment |= {"PORTSIDE_USER": credential.name, "PORTSIDE_TOKEN": credential.value}
    for number, (key, value) in enumerate(configured.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return environment | {
        "HOME": home,
        "GIT_CONFIG_COUNT": str(len(configured)),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        "LC_ALL": "C",
    }

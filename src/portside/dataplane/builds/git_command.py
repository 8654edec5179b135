"""The git command, as a program that trusts nothing it is given.

git runs without prompts, without the machine's configuration and in an environment of its own; only the well-known
transports are allowed. The address travels in the environment, because arguments are visible to other users. A user
name and password are never part of an address that git is told: it asks a helper for them, which answers from the
environment and for the repository's own host alone. So neither a command line nor a file on disk holds them.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from portside.dataplane.builds.commands import Command, minimal_environment, run
from portside.dataplane.builds.output import Output
from portside.dataplane.failures import BuildFailed
from portside.dataplane.types import Secret

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NETWORK = "git:http:https:ssh"
ANYWHERE = f"file:{NETWORK}"
_CONFIGURATION = """\
[safe]
	directory = *
[protocol]
	allow = never
[protocol "file"]
	allow = always
[protocol "git"]
	allow = always
[protocol "http"]
	allow = always
[protocol "https"]
	allow = always
[protocol "ssh"]
	allow = always
[http]
	lowSpeedLimit = 1000
	lowSpeedTime = 60
[core]
	hooksPath = /dev/null
[advice]
	detachedHead = false
"""
_USER, _PASSWORD = "PORTSIDE_GIT_USERNAME", "PORTSIDE_GIT_PASSWORD"
# `printf` is the shell's own: the values are in no command line.
_HELPER = f"""\
[credential "%s"]
	helper = "!f() {{ test \\"$1\\" = get && printf 'username=%%s\\\\npassword=%%s\\\\n' \
\\"${_USER}\\" \\"${_PASSWORD}\\"; }}; f"
"""


@dataclass(frozen=True)
class Git:
    """git for one build: the repository's address and what opens it."""

    address: str
    secret: Secret | None
    build: Path
    output: Output
    files: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", self.build / "source")
        if self.secret is not None and _CONTROL.search(self.secret.name + self.secret.value):
            raise BuildFailed("the repository's user name or password holds a control character")

    async def run(
        self, folder: Path, *arguments: str, output: Output | None = None, allowed: str = ANYWHERE
    ) -> list[str]:
        """Run one command in a folder and return its last lines; `allowed` are the transports. Raises BuildFailed."""
        environment = minimal_environment(
            os.environ,
            HOME=str(self.build),
            GIT_CONFIG_NOSYSTEM="1",
            GIT_CONFIG_GLOBAL=str(self._configuration()),
            GIT_ALLOW_PROTOCOL=allowed,
            GIT_TERMINAL_PROMPT="0",
            GIT_ASKPASS="false",
            GIT_NO_LAZY_FETCH="1",
            GIT_SSH_COMMAND="ssh -oBatchMode=yes",
            **self._origin(folder),
            **({} if self.secret is None else {_USER: self.secret.name, _PASSWORD: self.secret.value}),
        )
        command = Command(["git", "-c", "protocol.ext.allow=never", *arguments], folder, environment, self.build)
        outcome = await run(command, output or self.output)
        if outcome.code != 0:
            raise BuildFailed(_reason(outcome.tail) or f"git {arguments[0]} {outcome.ending}")
        return outcome.tail

    def forget(self) -> None:
        """Remove the configuration."""
        (self.build / "gitconfig").unlink(missing_ok=True)

    def _configuration(self) -> Path:
        path = self.build / "gitconfig"
        host = "" if self.secret is None else _HELPER % "/".join(self.address.split("/", 3)[:3])
        path.write_text(_CONFIGURATION + host)
        return path

    def _origin(self, folder: Path) -> dict[str, str]:
        """Name the origin of the repository itself; a submodule has its own."""
        if folder != self.files:
            return {}
        return {
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "remote.origin.url", "GIT_CONFIG_VALUE_0": self.address,
        }  # fmt: skip


def address_of(url: str, credential: Secret | None) -> tuple[str, Secret | None]:
    """Split an address from the user name and password that are in it, or else belong to it.

    Other transports than http know no password: there a user name stays in the address and a password is dropped.
    """
    parts = _split(url)
    if parts is None or not parts.netloc:
        return url, None
    userinfo, _, host = parts.netloc.rpartition("@")
    name, _, password = userinfo.partition(":")
    if parts.scheme not in {"http", "https"}:
        netloc = f"{name}@{host}" if name else host
        return parts._replace(netloc=netloc).geturl(), None
    given = Secret(unquote(name), unquote(password)) if userinfo else credential
    return parts._replace(netloc=host).geturl(), given


def is_local(url: str) -> bool:
    """Whether an address is a folder of this machine."""
    return url.startswith("file:") or ("://" not in url and not re.match(r"[^/]+:", url))


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url) if "://" in url else None
    except ValueError as exc:
        raise BuildFailed(f"the repository's address cannot be read: {exc}") from exc


def _reason(tail: list[str]) -> str:
    said = [line for line in tail if line.startswith(("fatal:", "error:", "remote:", "ERROR:"))]
    return "; ".join(said or tail[-3:])

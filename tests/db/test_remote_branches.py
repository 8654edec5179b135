"""Fetching the newest commit of a branch from real hosts that redirect: the targets that git may reach."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import RedirectResponse

from portside.control import git_remotes
from portside.control.git_remotes import PollFailed, fetch_newest_commit
from portside.kernel import outbound
from portside.kernel.http.server import Server, listen
from portside.kernel.outbound import OutboundResponse, OutboundRules
from portside.listener_api import Secret
from tests.api.git_host import TOKEN, GitHost, git_host
from tests.repositories import Repository

HERE = OutboundRules(allow_private=True, allow_loopback=True, timeout_s=600.0)
CREDENTIAL = Secret("x", TOKEN)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let git take as long as it needs on a busy machine."""
    monkeypatch.setattr(git_remotes, "TIMEOUT_S", 600.0)


class Redirecting:
    """A host in front of another one: what is below a path is elsewhere."""

    def __init__(self) -> None:
        self.targets: dict[str, str] = {}
        self.url = ""
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        path = scope["path"].removesuffix("/info/refs")
        await RedirectResponse(f"{self.targets[path]}/info/refs?service=git-upload-pack", 301)(scope, receive, send)


@pytest.fixture
async def redirecting_host() -> AsyncIterator[Redirecting]:
    host = Redirecting()
    stop = asyncio.Event()
    listening = listen("127.0.0.1", 0)
    host.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = Server(host, draining=asyncio.Event(), grace_s=1)

    await server.open([listening])
    serving = asyncio.create_task(server.serve_until(stop))
    yield host
    stop.set()
    await serving


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[GitHost]:
    async with git_host(tmp_path) as host:
        yield host


async def test_a_renamed_repository_is_found_and_its_host_keeps_the_token(host: GitHost, redirecting_host: Redirecting):
    commit = Repository(host.folder / "team" / "new.git").commit({"a": "1"})
    assert await fetch_newest_commit(f"{host.url}/team/new.git", "main", CREDENTIAL, HERE) == commit
    redirecting_host.targets = {"/old": f"{host.url}/team/new.git"}
    shown = len(host.shown)

    with pytest.raises(PollFailed):
        await fetch_newest_commit(f"{redirecting_host.url}/old", "main", CREDENTIAL, HERE)

    assert len(host.shown) == shown, "the token is for the host that was named"


async def test_redirects_of_one_host_are_followed_and_counted(host: GitHost, redirecting_host: Redirecting):
    commit = Repository(host.folder / "team" / "new.git").commit({"a": "1"})
    host.is_open = True
    redirecting_host.targets = {f"/{n}": f"{redirecting_host.url}/{n - 1}" for n in range(1, 6)}
    redirecting_host.targets["/0"] = f"{host.url}/team/new.git"
    assert await fetch_newest_commit(f"{redirecting_host.url}/2", "main", None, HERE) == commit

    with pytest.raises(PollFailed, match="more than 3 times"):
        await fetch_newest_commit(f"{redirecting_host.url}/5", "main", None, HERE)


@pytest.mark.parametrize(
    "target",
    [
        "http://git.example.com/new",  # without TLS
        "ftp://git.example.com/new",
        "file:///new",
    ],
)
async def test_a_redirect_without_tls_is_not_followed(target: str, monkeypatch: pytest.MonkeyPatch):
    redirect = OutboundResponse(301, b"", f"{target}/info/refs?service=git-upload-pack")
    asked: list[str] = []

    async def answer(url: str, headers: Any, rules: OutboundRules) -> OutboundResponse:
        asked.append(url)
        return redirect

    monkeypatch.setattr(git_remotes, "fetch", answer)
    remote = git_remotes._Remote("https://git.example.com/old", CREDENTIAL)
    with pytest.raises(PollFailed, match="without TLS"):
        await git_remotes._follow_redirect(remote, HERE)

    assert asked == ["https://git.example.com/old/info/refs?service=git-upload-pack"]


def test_a_proxy_is_used_for_public_hosts_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("DATABASE_URI", "postgres://of-the-platform")
    for addresses, expected in (
        (("93.184.215.14",), "http://proxy.example:3128"),
        (("10.0.0.1",), None),
        (("93.184.215.14", "10.0.0.1"), None),
    ):
        remote = git_remotes._Remote("https://git.example.com/a", CREDENTIAL, addresses)
        environment = git_remotes._build_environment("/home", remote)
        assert environment.get("HTTPS_PROXY") == expected
        assert "DATABASE_URI" not in environment
        assert environment["GIT_ALLOW_PROTOCOL"] == "file:git:http:https:ssh"
        assert (environment["GIT_TERMINAL_PROMPT"], environment["GIT_ASKPASS"]) == ("0", "false")


async def test_redirects_into_forbidden_networks_are_refused(
    host: GitHost, redirecting_host: Redirecting, monkeypatch: pytest.MonkeyPatch
):
    Repository(host.folder / "team" / "new.git").commit({"a": "1"})
    redirecting_host.targets = {"/old": f"http://localhost:{host.url.rpartition(':')[2]}/team/new.git"}

    # The redirecting host counts as public here: a test cannot have one that is.
    real = outbound.classify_address
    monkeypatch.setattr(
        outbound, "classify_address", lambda address: "public" if address == "127.0.0.1" else real(address)
    )
    monkeypatch.setattr(outbound.socket, "getaddrinfo", _localhost_is_another)

    with pytest.raises(PollFailed, match="loopback network"):
        await fetch_newest_commit(f"{redirecting_host.url}/old", "main", None, OutboundRules(timeout_s=600.0))

    assert redirecting_host.asked == 2
    assert host.asked == []


def _localhost_is_another(host: str, *_arguments: Any, **_options: Any) -> list[Any]:
    address = "127.0.0.2" if host == "localhost" else host
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]


async def test_git_connects_to_the_address_that_was_checked(host: GitHost, monkeypatch: pytest.MonkeyPatch):
    commit = Repository(host.folder / "team" / "new.git").commit({"a": "1"})
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(outbound.socket, "getaddrinfo", lambda *_arguments, **_options: found)
    url = f"http://git.invalid:{host.url.rpartition(':')[2]}/team/new.git"
    assert await fetch_newest_commit(url, "main", CREDENTIAL, HERE) == commit


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/x",
        "http://2130706433:1/x",
        "http://[::1]:1/x",
        "http://[::ffff:127.0.0.1]:1/x",
        "https://localhost/x",
        "git://127.0.0.1/x",
        "ssh://git@127.0.0.1/x",
        "git@localhost:x",
        "git@[::1]:x",
        "http://169.254.169.254/x",
        "http://public.example@127.0.0.1/x",
        "http://public.example\\@127.0.0.1/x",
    ],
)
async def test_forbidden_networks_are_refused_in_every_notation(url: str):
    with pytest.raises(PollFailed, match=r"network|has a user name|invalid"):
        await fetch_newest_commit(url, "main", None, OutboundRules())


async def test_local_folders_are_read(tmp_path: Path):
    repository = Repository(tmp_path / "local")
    commit = repository.commit({"a": "1"})
    for url in (str(tmp_path / "local"), f"file://{tmp_path / 'local'}"):
        assert await fetch_newest_commit(url, "main", None, OutboundRules()) == commit
        assert await fetch_newest_commit(url, "other", None, OutboundRules()) is None

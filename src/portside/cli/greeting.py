"""What `portside up` does after the start: it deploys the example agent, asks it a question, and prints a message.

The example is deployed at the first start, through the public API.
"""

import contextlib
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from portside.cli.client import DEFAULT_HOME, USAGE, Platform, build_usage_query
from portside.cli.output import get_program, say, show_text
from portside.cli.revisions import build_create_body, follow_revision
from portside.kernel.errors import UserMistake
from portside.kernel.local_addresses import is_loopback
from portside.platform.home import NAME, Home, make_repository

if TYPE_CHECKING:
    from portside.platform.settings import PlatformSettings

QUESTION = "Hello! What is 6*7?"
TRACE_WITHIN_S = 30.0
SERVING_WITHIN_S = 120.0


class Stopped(Exception):
    """The platform stops, and nobody waits for the example agent any more."""


class Greeter:
    """Deploys the example and prints the message after the start, until the platform stops."""

    def __init__(self, home: Home, settings: "PlatformSettings", new_key: str | None) -> None:
        self._home = home
        self._settings = settings
        self._new_key = new_key
        self._is_stopped = threading.Event()

    def deploy_and_greet(self, is_stopped: threading.Event, *, with_example: bool) -> None:
        """Deploy the example if it is wanted, and print the message."""
        self._is_stopped = is_stopped
        with contextlib.suppress(Stopped):
            self._deploy_and_greet(with_example=with_example)

    def say(self, line: str) -> None:
        """Print a progress line. Raises Stopped."""
        self.pause(0)
        say(line)

    def pause(self, seconds: float) -> None:
        """Wait. Raises Stopped as soon as the platform stops."""
        if self._is_stopped.wait(seconds):
            raise Stopped

    def _deploy_and_greet(self, *, with_example: bool) -> None:
        from portside.ingress.front import get_root_certificate
        from portside.platform.home import read_key

        home = self._home
        settings = self._settings

        key = read_key(home.api_key)
        if key is None:
            self.say(f"{home.api_key} does not exist; use an API key that you stored elsewhere")

        # A log is kept, and other people read it: it gets neither a key nor a link that signs in.
        is_logged = is_kept_as_log()
        new_key = None if is_logged else self._new_key

        greeting = Greeting(settings.local_url, new_key, home.path, public_url=settings.front.origin)
        if settings.front.origin is None and not is_in_container():
            greeting.network_url = _find_network_url(settings.host, settings.port)

        if settings.front.is_public and settings.tls == "internal":
            greeting.root_certificate = get_root_certificate(home.path)

        if with_example and key is not None:
            try:
                with contextlib.closing(Platform(settings.local_url, key)) as platform:
                    deploy_example(platform, home, greeting, say=self.say, pause=self.pause)
            except UserMistake as mistake:
                self.say(f"the example agent is not running: {mistake}")

        # Made last, because it is valid for a minute.
        if key is not None and is_loopback(settings.host) and settings.front.origin is None and not is_logged:
            with contextlib.closing(Platform(settings.local_url, key)) as platform:
                greeting.console_url = _create_console_link(platform, say=self.say)

        self.pause(0)
        greeting.show()


def _find_network_url(host: str, port: int) -> str | None:
    """Return where other machines reach a server that listens on all addresses of this one, or None."""
    probes = {"0.0.0.0": (socket.AF_INET, "192.0.2.1"), "::": (socket.AF_INET6, "2001:db8::1")}  # noqa: S104 - a lookup
    if host not in probes:
        return None

    family, anywhere = probes[host]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # This sends nothing: the system only chooses the address that it would send from.
            probe.connect((anywhere, 9))
            address = probe.getsockname()[0]
    except OSError:
        return None

    return f"http://[{address}]:{port}" if family == socket.AF_INET6 else f"http://{address}:{port}"


def is_in_journal() -> bool:
    """Whether systemd's journal takes what this process prints."""
    try:
        output = os.fstat(1)
    except OSError:
        return False

    return os.environ.get("JOURNAL_STREAM") == f"{output.st_dev}:{output.st_ino}"


def is_kept_as_log() -> bool:
    """Whether what this process prints is kept: by systemd's journal, or by what runs its container."""
    return is_in_journal() or (is_in_container() and not sys.stdout.isatty())


def is_in_container() -> bool:
    """Whether this process runs in a container: podman says so in this variable, and so does the image of Portside."""
    return "container" in os.environ


def _create_console_link(platform: Platform, *, say: Callable[[str], None]) -> str | None:
    try:
        return platform.url + str(platform.call("POST", "/users/me/sign-in-links")["path"])
    except UserMistake as mistake:
        # The key may be revoked or limited. People can still sign in on the page.
        say(f"no address signs in to the console by itself: {mistake}")
        return None


class Greeting(msgspec.Struct):
    """The message after the start. The API key is shown in full only at the first start."""

    url: str
    new_key: str | None
    home: Path
    agent_url: str | None = None
    reply: str | None = None
    traces: int | None = None
    public_url: str | None = None
    network_url: str | None = None
    console_url: str | None = None
    root_certificate: Path | None = None

    @property
    def local_agent_url(self) -> str | None:
        """The agent's address at the platform's own port, which needs neither certificates nor names."""
        return f"{self.url}/agents/{NAME}" if self.public_url else self.agent_url

    def show(self) -> None:
        """Print the message."""
        rows = [("Platform", self.url), ("API key", self._describe_key())]
        if self.public_url:
            rows.insert(0, ("Public address", self.public_url))
        if self.network_url:
            rows.insert(1, ("From elsewhere", self.network_url))
        if self.agent_url:
            rows.append(("Agent", self.agent_url))
        if self.reply:
            rows += [("You", QUESTION), ("Agent's reply", self.reply)]
        if self.traces is not None:
            rows.append(("Traces billed", str(self.traces)))

        show_text()
        for name, value in rows:
            show_text(f"  {name:<14} {value}")

        if self.root_certificate is not None:
            self._explain_trust(shlex.quote(str(self.root_certificate)))

        show_text("\n  Try next")
        for command in self._commands():
            show_text(f"    {command}")

        show_text("\n  Ctrl-C stops everything; deployments come back with the next start.")
        self._show_console()
        sys.stdout.flush()

    def _describe_key(self) -> str:
        file = self.home / "api-key"
        if self.new_key:
            return f"{self.new_key}   (in {file})"

        return f"in {file}" if file.exists() else "stored by you"

    def _show_console(self) -> None:
        """Say how to open the console: by an address that signs in, or by the one of the sign-in page."""
        command = f"{get_program()} console{self._where()}"
        if is_in_container() and not self.public_url and not self.console_url:
            show_text("\n  Open the console: this command, run in the container, prints an address that signs in once:")
            show_text("  portside console --print")
            return

        if self.console_url:
            show_text(f"\n  Open the console, signed in (once, within a minute; later run: {command}):")
            show_text(f"  {self.console_url}")
            return

        show_text(f"\n  Open the console, and sign in with your e-mail or an API key (on this machine: {command}):")
        show_text(f"  {self.public_url or self.network_url or self.url}/console/")

    def _explain_trust(self, file: str) -> None:
        show_text("\n  The public address has a certificate of the platform's own authority. Clients must trust its")
        show_text(f"  root certificate, {file}:")
        show_text(f"    curl --cacert {file} {self.public_url}/ok")
        show_text(f"    PORTSIDE_CA_FILE={file} portside login {self.public_url}")
        show_text(f"    SSL_CERT_FILE={file} for Python, NODE_EXTRA_CA_CERTS={file} for Node")

    def _where(self) -> str:
        """Return the option with which commands on this machine find the platform: its folder has its address."""
        is_default = is_in_container() or self.home == Path(DEFAULT_HOME).expanduser()
        return "" if is_default else f" --home {shlex.quote(str(self.home))}"

    def _commands(self) -> list[str]:
        where = self._where()
        if self.agent_url is None:
            return [
                f"{get_program()} deploy FOLDER_OR_ADDRESS_OF_A_REPOSITORY{where}",
                f"{get_program()} deployments list{where}",
                f"{get_program()} usage{where}",
            ]

        key = f'"X-Api-Key: $(cat {shlex.quote(str(self.home / "api-key"))})"'
        body = (
            '\'{"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "Hi, my name is Ada"}]}}\''
        )

        return [
            f"curl -s {self.local_agent_url}/runs/wait -H {key} -H 'Content-Type: application/json' -d {body}",
            f"{get_program()} deployments show {NAME}{where}",
            f"{get_program()} usage{where}",
        ]


def deploy_example(
    platform: Platform,
    home: Home,
    greeting: Greeting,
    *,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Deploy the example and ask it a question, once. Later starts only wait until it is serving."""
    deployment = _find_example(platform)
    if deployment is None:
        if home.example_done.exists():
            return

        home.example.parent.mkdir(parents=True, exist_ok=True)
        repository = make_repository(home.example)
        say(f"deploying {NAME} from {repository}")
        revision = {"repo_ref": "main", "graph_config_path": "langgraph.json"}
        body = build_create_body(platform, NAME, str(repository), revision)
        deployment = platform.call("POST", "/v2/deployments", body=body)

    if not home.example_done.exists():
        follow_revision(platform, deployment["id"], deployment["latest_revision_id"], say=say, pause=pause)

    _wait_until_serving(platform, greeting, say, pause)
    if home.example_done.exists():
        greeting.traces = _count_traces(platform)
        return

    greeting.reply = ask_agent(greeting.local_agent_url or "", platform.headers)
    greeting.traces = _wait_for_trace(platform, pause)
    home.example_done.touch()


def _find_example(platform: Platform) -> dict[str, Any] | None:
    deployments = platform.call("GET", "/v2/deployments", name=NAME)["resources"]
    return next((dict(deployment) for deployment in deployments if deployment["name"] == NAME), None)


def _wait_until_serving(
    platform: Platform, greeting: Greeting, say: Callable[[str], None], pause: Callable[[float], None]
) -> None:
    """Wait until the agent responds at its address. Raises UserMistake."""
    import httpx2

    say("waiting for the agent")
    deadline = time.monotonic() + SERVING_WITHIN_S
    while time.monotonic() < deadline:
        deployment = _find_example(platform) or {}
        greeting.agent_url = (deployment.get("source_config") or {}).get("custom_url")
        if greeting.agent_url and deployment.get("active_revision_id"):
            try:
                httpx2.get(f"{greeting.local_agent_url}/ok", timeout=SERVING_WITHIN_S).raise_for_status()
            except httpx2.HTTPError:
                pass
            else:
                return

        pause(0.3)

    raise UserMistake(f"{NAME} does not respond; see 'portside deployments logs {NAME}'")


def ask_agent(url: str, headers: dict[str, str]) -> str:
    """Ask the example agent the question, and return its reply. Raises UserMistake."""
    import httpx2

    body = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": QUESTION}]}}
    try:
        with httpx2.Client(base_url=url, headers=headers, timeout=120) as agent:
            thread = agent.post("/threads", json={}).raise_for_status().json()
            response = agent.post(f"/threads/{thread['thread_id']}/runs/wait", json=body).raise_for_status()
    except httpx2.HTTPError as exc:
        # The library adds a line with a link to a description of the status.
        reason = str(exc).partition("\n")[0]
        raise UserMistake(f"{NAME} does not answer: {reason}; see 'portside deployments logs {NAME}'") from exc

    values = response.json()
    if "messages" not in values:
        raise UserMistake(f"{NAME} failed: {values}; see 'portside deployments logs {NAME}'")

    return str(values["messages"][-1]["content"])


def _wait_for_trace(platform: Platform, pause: Callable[[float], None]) -> int:
    """Wait until the trace of the run has arrived, and return the number of traces."""
    deadline = time.monotonic() + TRACE_WITHIN_S
    while (count := _count_traces(platform)) == 0 and time.monotonic() < deadline:
        pause(0.3)

    return count


def _count_traces(platform: Platform) -> int:
    records = platform.call("GET", USAGE, **build_usage_query(platform, days=365, by="project"))["usage"]
    return sum(int(record["traces"]) for record in records if record["dimensions"].get("project_name") == NAME)

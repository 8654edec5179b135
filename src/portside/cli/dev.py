"""`portside dev`: serve the agent in this folder, and restart it when a file changes."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from portside.cli.output import say, show_text
from portside.kernel import interruption
from portside.kernel.aliases import EXECUTOR_VARIABLE, JAVASCRIPT_SUFFIXES
from portside.kernel.errors import UserMistake

if TYPE_CHECKING:
    from portside.agent.config import AgentConfig
    from portside.agent.settings import AgentSettings

LOOK_EVERY_MS = 500
WATCHED = (".py", ".json", ".env", ".toml", ".txt", *JAVASCRIPT_SUFFIXES)
IGNORED = ("/.git/", "/.venv/", "/node_modules/", "/__pycache__/", "/.next/", "/.turbo/", "/.langgraph_api/")


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), help="The graph configuration file. [default: the one in this folder]"
)
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [default: 2024]")
@click.option("--home", help="Home folder of the embedded Postgres, which is used without a database URL.")
@click.option("--reload/--no-reload", default=True, help="Restart when a file changes.")
def dev(config: Path | None, *, reload: bool, **options: object) -> None:
    """Serve the agent in this folder with the Python of this command; no package of the project is installed.

    JavaScript graphs run with the Node of the PATH if its version fits, else with one that is installed once into the
    home folder. The studio at /studio talks to the agent in a browser, offline and without an account. Threads survive
    restarts; they are stored in Postgres, as in production. New connections wait during a restart.
    """
    interruption.accept_sigint()
    from portside.agent.config import find_config, load_config
    from portside.agent.settings import AgentSettings
    from portside.kernel.embedded import EmbeddedPostgres
    from portside.kernel.logs import configure_logs
    from portside.kernel.settings import load_settings
    from portside.platform.settings import PlatformSettings

    path = (config or find_config(Path.cwd(), os.environ)).absolute()
    # The server logs ignored fields of the file; logging them here would repeat them.
    configure_logs(level="ERROR")
    agent_config = load_config(path, os.environ)
    version = ".".join(map(str, sys.version_info[:3]))

    say(f"Python {version} ({sys.executable}); nothing is installed, so it must have the project's packages")
    arguments = [f"--{name}={value}" for name, value in options.items() if value is not None]
    command = [sys.executable, "-m", "portside", "serve", f"--config={path}", "--studio", *arguments]
    settings = load_settings(AgentSettings, os.environ, host=options["host"], port=options["port"])

    # Acquired here, so that the database does not restart with each reload.
    platform = load_settings(PlatformSettings, os.environ, home=options["home"])
    # Reading the types of graphs takes seconds: they are read before somebody requests schemas.
    early = {f"{EXECUTOR_VARIABLE}PORTSIDE_PREPARE_SCHEMAS": "1"}
    node = prepare_node(agent_config, platform.home_path)

    environment = {**os.environ, **early, **node}
    server = DevServer(command, environment, settings)
    bundler = None
    embedded = None
    try:
        # Fail early on a busy port, before Postgres starts.
        server.listen()
        if agent_config.ui:
            bundler = _start_bundler(path, environment, is_watching=reload)

        if not _names_database():
            embedded = EmbeddedPostgres(platform.home_path, connections=platform.postgres_max_connections)
            embedded.acquire()

        _run(server, path.parent if reload else None)
    finally:
        server.stop_listening()
        if bundler is not None:
            bundler.kill()
            bundler.wait()

        if embedded is not None:
            embedded.release()


def prepare_node(config: "AgentConfig", home: Path) -> dict[str, str]:
    """Return what a server needs to execute JavaScript, as its settings; nothing if it has none or they are set.

    Installs into the home folder what this machine lacks. Raises UserMistake.
    """
    names = ("EXECUTOR_NODE", "EXECUTOR_JAVASCRIPT")
    if not (config.has_javascript or config.ui) or all(os.environ.get(name) for name in names):
        return {}

    from portside.dataplane.builds.config import read_node_version
    from portside.dataplane.builds.javascript import find_missing_packages, read_node_versions
    from portside.dataplane.builds.node import check_runtime, provide_node
    from portside.dataplane.failures import BuildFailed
    from portside.dataplane.masking import MaskedOutput

    try:
        check_runtime()
        if (command := find_missing_packages(config.folder)) is not None:
            raise UserMistake(f"the packages of {config.folder} are not installed; run {command}")

        versions = read_node_versions(config.folder, read_node_version(config.file))
        provided = interruption.run(provide_node(home / "dataplane", versions, MaskedOutput(say)))
    except BuildFailed as exc:
        raise UserMistake(str(exc)) from exc

    return {name: os.environ.get(name) or str(path) for name, path in zip(names, provided, strict=True)}


def _start_bundler(config: Path, environment: Mapping[str, str], *, is_watching: bool) -> "subprocess.Popen[bytes]":
    """Bundle the components of a configuration file, and again after each change if that is wanted."""
    program = [environment["EXECUTOR_NODE"], str(Path(environment["EXECUTOR_JAVASCRIPT"], "ui.mjs")), str(config)]
    return subprocess.Popen([*program, *["watch"] * is_watching], cwd=config.parent, stdin=subprocess.PIPE)


def _names_database() -> bool:
    return any(os.environ.get(name) for name in ("DATABASE_URI", "DATABASE_URL", "POSTGRES_URI"))


class DevServer:
    """The server of the agent, which is replaced after a change, and the socket that outlives it.

    Connections wait in the socket until the next server accepts them. While no server is about to, because the code has
    a mistake, there is no socket, and connections are refused.
    """

    def __init__(self, command: list[str], environment: dict[str, str], settings: "AgentSettings") -> None:
        from portside.agent.settings import Tier

        self._command = command
        self._environment = environment
        self._settings = settings

        # An executor of other machines does not serve the agent's address.
        self._is_listening = settings.tier != Tier.EXECUTOR
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def listen(self) -> None:
        """Open the socket, unless it is open. Raises DependencyUnavailable when the port is not available."""
        from portside.kernel.http.server import listen

        if self._socket is None and self._is_listening:
            self._socket = listen(self._settings.host, self._settings.port)

    def stop_listening(self) -> None:
        """Close the socket; connections that waited in it are refused."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def start(self) -> None:
        """Start a server on the socket. Raises DependencyUnavailable when the port is not available."""
        self.listen()
        descriptors = [] if self._socket is None else [self._socket.fileno()]
        arguments = [f"--listening-fd={descriptor}" for descriptor in descriptors]

        self._process = subprocess.Popen(
            [*self._command, *arguments], env=self._environment, pass_fds=descriptors, start_new_session=True
        )

    def stop(self) -> None:
        """Stop the server, and kill it if that takes long."""
        if self._process is None or self._process.poll() is not None:
            return

        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def get_exit_code(self) -> int | None:
        """Return with what the server exited by itself; None while it runs."""
        return None if self._process is None else self._process.poll()


def _run(server: DevServer, watched: Path | None) -> None:
    """Run the server until Ctrl-C or SIGTERM; restart it after changes below the watched folder.

    Without a folder, return when the server exits. Also exit if the first server finds no database, because no change
    of a file can fix that.
    """
    stop = threading.Event()
    with interruption.instead(stop.set):
        _serve_until(stop, server, watched)


def _serve_until(stop: threading.Event, server: DevServer, watched: Path | None) -> None:
    from portside.kernel.errors import DependencyUnavailable

    before = None if watched is None else _read_states(watched)
    server.start()
    try:
        if watched is None:
            _wait(server, stop)
            return

        from watchfiles import watch

        is_first = True
        for changes in watch(
            watched, watch_filter=_matters, stop_event=stop, rust_timeout=LOOK_EVERY_MS, yield_on_timeout=True
        ):
            changed = {file for _, file in changes}
            if before is not None:
                # The server may have read these files before the watch began.
                changed |= {file for file, _ in before ^ _read_states(watched)}
                before = None

            exit_code = server.get_exit_code()
            if exit_code is not None:
                server.stop_listening()

            if not changed:
                if is_first and exit_code == DependencyUnavailable.exit_code:
                    sys.exit(exit_code)
                continue

            names = sorted({Path(file).name for file in changed})
            show_text(f"· {', '.join(names[:3])} changed, restarting", err=True)
            server.stop()
            server.start()
            is_first = False
    finally:
        server.stop()


def _wait(server: DevServer, stop: threading.Event) -> None:
    """Wait for the server and exit with its status, or return after a signal."""
    while not stop.wait(LOOK_EVERY_MS / 1000):
        if (exit_code := server.get_exit_code()) is not None:
            sys.exit(exit_code)


def _read_states(folder: Path) -> set[tuple[str, tuple[int, ...]]]:
    """Return the path of each file that the server is restarted for, and what differs after a change of it."""
    states = set[tuple[str, tuple[int, ...]]]()
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_ignored(f"{parent}/{name}/")]
        for path in (f"{parent}/{name}" for name in names):
            if _matters(None, path):
                with contextlib.suppress(OSError):
                    status = Path(path).stat()
                    states.add((path, (status.st_ino, status.st_mtime_ns, status.st_size)))

    return states


def _matters(_change: object, path: str) -> bool:
    return path.endswith(WATCHED) and not _is_ignored(path)


def _is_ignored(path: str) -> bool:
    return any(part in path for part in IGNORED)

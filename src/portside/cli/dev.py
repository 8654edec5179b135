"""`portside dev`: the agent in this folder, started again when a file changes."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import click

LOOK_EVERY_MS = 500
IGNORED = ("/.git/", "/.venv/", "/node_modules/", "/__pycache__/")


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="The graph configuration file. [default: the one here]")
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [default: 2024]")
@click.option("--home", help="Home folder of the embedded Postgres, where no database is named.")
@click.option("--reload/--no-reload", default=True, help="Start again when a file changes.")
def dev(config: Path | None, *, reload: bool, **options: object) -> None:
    """Serve the agent in this folder. Threads outlive restarts; they are kept in Postgres as in production."""
    from portside.agent.config import find_config, load_config
    from portside.kernel.embedded import EmbeddedPostgres
    from portside.kernel.settings import load_settings
    from portside.platform.settings import PlatformSettings

    path = (config or find_config(Path.cwd(), os.environ)).absolute()
    load_config(path, os.environ)
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    command = [sys.executable, "-m", "portside", "serve", f"--config={path}", *given]
    # Held here, so that the database does not stop and start with each reload.
    home = load_settings(PlatformSettings, os.environ, home=options["home"]).home_path
    embedded = None if _names_database() else EmbeddedPostgres(home)
    if embedded is not None:
        embedded.acquire()
    try:
        _run(command, path.parent if reload else None)
    finally:
        if embedded is not None:
            embedded.release()


def _names_database() -> bool:
    return any(os.environ.get(name) for name in ("DATABASE_URI", "DATABASE_URL", "POSTGRES_URI"))


def _run(command: list[str], watched: Path | None) -> None:
    """Run the server until Ctrl-C or SIGTERM; start it again on changes below the watched folder.

    Without a folder this ends with the server, and so it does when the first one finds no port or no database: that
    is nothing that a change of a file mends.
    """
    from portside.kernel.errors import OutOfReach

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    server = _start(command)
    try:
        if watched is None:
            _wait(server, stop)
            return
        from watchfiles import watch

        first = server
        for changes in watch(
            watched, watch_filter=_matters, stop_event=stop, rust_timeout=LOOK_EVERY_MS, yield_on_timeout=True
        ):
            if not changes:
                if server is first and server.poll() == OutOfReach.exit_code:
                    sys.exit(OutOfReach.exit_code)
                continue
            names = sorted({Path(changed).name for _, changed in changes})
            click.echo(f"· {', '.join(names[:3])} changed, starting again", err=True)
            _stop(server)
            server = _start(command)
    finally:
        _stop(server)


def _wait(server: "subprocess.Popen[bytes]", stop: threading.Event) -> None:
    """Wait until the server ends, and end as it did; or until there is a signal."""
    while not stop.wait(LOOK_EVERY_MS / 1000):
        if server.poll() is not None:
            sys.exit(server.returncode)


def _start(command: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, start_new_session=True)


def _stop(server: "subprocess.Popen[bytes]") -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _matters(_change: object, path: str) -> bool:
    return path.endswith((".py", ".json", ".env", ".toml", ".txt")) and not any(part in path for part in IGNORED)

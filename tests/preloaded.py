"""Server processes that start with their modules imported, which is most of the cost of a start.

They are forked from one process that only imports modules; then they run the command as usual.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "portside.cli.main", "portside.cli.serve", "portside.agent.server", "portside.agent.local_graphs",
        "portside.cli.up", "portside.platform.app",
    ]
)  # fmt: skip
# The exit code of a process can be read once: of two threads that read it at the same time, one would see 255.
_lock = threading.Lock()


class PreloadedProcess:
    """A `portside` command in its own process and session, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self._process: BaseProcess = _SERVER.Process(
            target=_run, args=(arguments, environment, str(log), str(Path.cwd())), daemon=True
        )
        with _lock:
            self._process.start()
        self.pid: int = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        # The server that forks processes may know of the end before this one does.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _run(arguments: list[str], environment: dict[str, str], log: str, folder: str) -> None:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["portside", *arguments]
    from portside.cli.main import main

    main()

"""Processes of `portside` that start with their modules imported, which is most of the cost of a start.

They are forked from one process that only imports modules; then they run the command as usual.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests import warm_executors

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.warm"])
# The exit code of a process can be read once: of two threads that read it at the same time, one would see 255.
_lock = threading.Lock()
# Set in the process that only imports the tests (`tests/warm_workers.py`).
IMPORTS_TESTS = "PORTSIDE_TEST_IMPORTS"
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class PreloadedProcess:
    """A `portside` command in its own process and session, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        errors: Path | None = None,
        stdin: Path = Path(os.devnull),
        folder: Path | None = None,
    ) -> None:
        streams = (str(stdin), str(log), str(errors or log))
        self._process: BaseProcess = _SERVER.Process(
            target=_run, args=(arguments, dict(environment), streams, str(folder or Path.cwd())), daemon=True
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


def can_fork() -> bool:
    """Whether processes of the tests can be forked for the one that starts them."""
    return hasattr(os, "pidfd_open")


def start_server() -> None:
    """Start the process that forks the others, for the processes that will be forked from this one."""
    forkserver.ensure_running()


def share_server() -> None:
    """Use the server of the process from which this one was forked: it is no child of this one, and others use it."""
    forkserver._forkserver.ensure_running = _keep_server
    forkserver._forkserver._stop = _keep_server
    resource_tracker._resource_tracker._stop = _keep_server


def _keep_server() -> None:
    pass


def stop_forking() -> None:
    """End the process that forks the others, and remove its files, before the guard looks for what is left."""
    forkserver._forkserver._stop()
    util._exit_function()
    resource_tracker._resource_tracker._stop()


def run_command(
    *arguments: str,
    environment: Mapping[str, str] = os.environ,
    stdin: str = "",
    folder: Path | None = None,
    within_s: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as `subprocess.run` does. Raises TimeoutExpired; the command is killed then."""
    with tempfile.TemporaryDirectory() as created:
        read, written, errors = (Path(created, name) for name in ("stdin", "stdout", "stderr"))
        read.write_text(stdin)
        process = PreloadedProcess(
            list(arguments), environment, written, errors=errors, stdin=read, folder=folder or Path.cwd()
        )

        try:
            code = process.wait(within_s)
        finally:
            process.send_signal(signal.SIGKILL)

        return subprocess.CompletedProcess(list(arguments), code, written.read_text(), errors.read_text())


def _run(arguments: list[str], environment: dict[str, str], streams: tuple[str, str, str], folder: str) -> None:
    os.setsid()

    for number, (path, flags) in enumerate(zip(streams, (os.O_RDONLY, _APPEND, _APPEND), strict=True)):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)

    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - multiprocessing closed that of this process
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)

    # What the process that was forked may have read from its own environment.
    tempfile.tempdir = None
    time.tzset()
    sys.argv = ["portside", *arguments]
    if warm_executors.has_executors(arguments, environment):
        warm_executors.fork_executors()

    from portside.cli.main import main

    main()

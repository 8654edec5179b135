"""The processes of a run of the tests, forked from one that has collected all tests: five CPU-seconds for each.

The processes that it forks talk to the one that asked for them, and share one server that forks commands
(`tests/preloaded.py`). They select and order the tests themselves, by their own options.
"""

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import execnet.gateway_io
import pytest
from execnet.gateway_base import Popen2IO

from tests import preloaded

_MAX_REQUEST_BYTES = 200_000


class WarmWorkers:
    """Lets execnet fork the processes of this run, within the block."""

    def __init__(self, arguments: list[str]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.warm_workers", str(theirs.fileno()), *arguments]
        self._forking = subprocess.Popen(
            command,
            env={**os.environ, preloaded.IMPORTS_TESTS: "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

        theirs.close()
        self._usual = execnet.gateway_io.Popen2IOMaster
        execnet.gateway_io.Popen2IOMaster = self._connect  # type: ignore[assignment, misc]

    def _connect(self, _arguments: list[str], execmodel: Any) -> "_ForkedIO":
        read, their_output = os.pipe()
        their_input, written = os.pipe()
        request = {"environment": dict(os.environ), "folder": str(Path.cwd())}
        socket.send_fds(self._ours, [json.dumps(request).encode()], [their_input, their_output])
        os.close(their_input)
        os.close(their_output)
        # The answer comes when the tests are imported.
        return _ForkedIO(int(self._ours.recv(100)), written, read, execmodel)

    def stop(self) -> None:
        """End the process that forks, after those that it forked."""
        execnet.gateway_io.Popen2IOMaster = self._usual  # type: ignore[misc]
        self._ours.close()
        self._forking.wait()


class _ForkedIO(Popen2IO):
    """What execnet knows of a process that it started."""

    def __init__(self, pid: int, written: int, read: int, execmodel: Any) -> None:
        super().__init__(os.fdopen(written, "wb"), os.fdopen(read, "rb"), execmodel)
        self._pid = pid

    def wait(self) -> None:
        """Wait until it is over; only the process that forked it knows how it ended."""
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self._pid)
            try:
                select.select([descriptor], [], [])
            finally:
                os.close(descriptor)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)


# In the process that forks


class Collected:
    """The tests that this process has collected, for the sessions of those that it forks."""

    def __init__(self) -> None:
        self._environment_before = dict(os.environ)
        self._session: pytest.Session | None = None
        self._fixtures: Any = None
        self._has_failed = False

        # What modules of tests set when they were imported.
        self.environment: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._has_failed |= report.failed

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._session = session
        self._fixtures = session._fixturemanager
        self.environment = dict(os.environ.items() - self._environment_before.items())

    def share(self) -> None:
        """Let the session that this process begins have them. What could not be collected it collects itself."""
        session = self._session
        if session is None or self._has_failed:
            return

        usual = pytest.Session.from_config

        def begin(config: pytest.Config) -> pytest.Session:
            # This process has collected the files that these leave out.
            if config.option.ignore or config.option.ignore_glob:
                return usual(config)

            session.config = config
            config.pluginmanager.register(session, name="session")
            config.pluginmanager.register(ReportsTogether(), name="reports-together")
            session.perform_collect = self._select  # type: ignore[method-assign, assignment]
            return session

        pytest.Session.from_config = begin  # type: ignore[method-assign, assignment]

    def _select(self) -> list[pytest.Item]:
        """Do what the session would do with the tests that it collects."""
        session = self._session
        assert session is not None
        config = session.config

        for item in session.items:
            for node in item.iter_parents():
                node.config = config

        # It has the fixtures of all modules; that of the new session has those of plugins alone.
        session._fixturemanager = self._fixtures
        session._fixturemanager.config = config
        config.hook.pytest_collection_modifyitems(session=session, config=config, items=session.items)
        config.hook.pytest_collection_finish(session=session)
        session.testscollected = len(session.items)
        return session.items


class ReportsTogether:
    """Writes the reports of a test together when the test is over, because each write wakes two processes.

    Only that the test has begun is written at once.
    """

    def __init__(self) -> None:
        self._waits = False
        self._waiting: list[bytes] = []
        write = Popen2IO.write

        def write_later(channel: Popen2IO, message: bytes) -> None:
            if self._waits:
                self._waiting.append(message)
                return

            messages = [*self._waiting, message]
            self._waiting.clear()
            write(channel, b"".join(messages))

        Popen2IO.write = write_later  # type: ignore[method-assign]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[Any]:
        """End the wait before the message that follows a test, whatever happens in it."""
        try:
            return (yield)
        finally:
            self._waits = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Begin to wait: the message that the test has begun is written."""
        self._waits = True


def _serve(channel: socket.socket, collected: Collected) -> None:
    """Fork processes until the other end is closed, and wait for their ends.

    They are forked as C libraries expect it: in a process that the bare system call made, numpy would wait for threads
    that it does not have as soon as a library forks.
    """
    pids: list[int] = []
    while True:
        request, descriptors, _flags, _address = socket.recv_fds(channel, _MAX_REQUEST_BYTES, 2)
        if not request:
            break

        pid = os.fork()
        if pid == 0:
            channel.close()
            collected.share()
            _work(json.loads(request), collected.environment, *descriptors)

        for descriptor in descriptors:
            os.close(descriptor)

        pids.append(pid)
        channel.send(str(pid).encode())

    for pid in pids:
        os.waitpid(pid, 0)


def _work(request: dict[str, Any], set_by_tests: dict[str, str], stdin: int, stdout: int) -> NoReturn:
    """Be a process of the tests, as if execnet had started it."""
    code = 1
    try:
        for number, descriptor in enumerate((stdin, stdout)):
            os.dup2(descriptor, number)
            os.close(descriptor)

        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it stays open
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(set_by_tests | request["environment"])
        tempfile.tempdir = None
        # Or commands that this process starts would import this module.
        main = sys.modules["__main__"] = ModuleType("__main__")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        preloaded.share_server()
        # Until the tests are collected, as in `tests/conftest.py`.
        gc.disable()
        exec(eval(sys.stdin.readline()), vars(main))
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:  # noqa: BLE001 - the end of a process shows it
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()

        os._exit(code)


def _collect_tests(arguments: list[str]) -> Collected:
    collected = Collected()
    # All of them: the processes that are forked leave out what they are not to run.
    options = ["--collect-only", "-q", "-n0", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-m", ""]
    pytest.main([*options, *arguments], plugins=[collected])
    gc.collect()
    gc.freeze()
    return collected


if __name__ == "__main__":
    # Ctrl-C is for those that it forks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tests = _collect_tests(sys.argv[2:])
    preloaded.start_server()
    _serve(socket.socket(fileno=int(sys.argv[1])), tests)
    preloaded.stop_forking()

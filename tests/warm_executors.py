"""Executors of Python graphs, forked from a process that has imported LangGraph, which takes a second otherwise.

That process is a child of the server whose executors it forks, and makes them its own siblings: so the server is their
parent, waits for them and takes them along when it dies, as it does with those that it starts itself. The server of
these tests forks that process before it has threads; the process of the tests starts one for the tests that have a pool
of executors without a server (the fixture `warm_executors`).
"""

import asyncio
import contextlib
import ctypes
import importlib
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from portside.agent.executors import spawned_executor
from portside.agent.executors.spawned_executor import Program

NAME = "warm-executors"
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_CLONE_PARENT = 0x8000
# The number of the system call `clone`; elsewhere executors are started as usual.
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None
_MAX_REQUEST_BYTES = 200_000
# Both keep the lock of the interpreter.
_system = ctypes.PyDLL(None, use_errno=True)
_python = ctypes.pythonapi


def list_children(pid: int) -> list[int]:
    """Return the child processes of a server, without the one that forks executors."""
    children: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += [int(child) for child in tasks.read_text().split() if _read_name(child) != NAME]

    return children


def _read_name(pid: str) -> str:
    """Return the name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def has_executors(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a `portside` command starts executors of graphs."""
    return arguments[0] == "serve" and (environment.get("EXECUTORS", "0") != "0" or "executor" in arguments)


def fork_executors() -> None:
    """Let this process fork the executors that it will start. Call it while it has one thread."""
    if CLONE is None:
        return

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _serve(theirs)

    theirs.close()
    spawned_executor._spawn = _build_spawn(ours)


@contextlib.contextmanager
def forking_executors() -> Iterator[None]:
    """Let this process, which may have threads, fork the executors that it starts within the block."""
    if CLONE is None:
        yield
        return

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.warm_executors", str(theirs.fileno())]
    forking = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    usual = spawned_executor._spawn
    spawned_executor._spawn = _build_spawn(ours)
    try:
        yield
    finally:
        spawned_executor._spawn = usual
        ours.close()
        forking.wait()


# In the process that forks


def _serve(channel: socket.socket) -> NoReturn:
    """Fork executors until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _system.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _system.prctl(_PR_SET_NAME, NAME.encode())

    while True:
        request, descriptors, _flags, _address = socket.recv_fds(channel, _MAX_REQUEST_BYTES, 2)
        if not request:
            os._exit(0)

        pid = fork_sibling()
        if pid == 0:
            _execute(json.loads(request), *descriptors)

        for descriptor in descriptors:
            os.close(descriptor)

        channel.send(str(pid).encode())


def fork_sibling() -> int:
    """Fork a process whose parent is the parent of this one."""
    _python.PyOS_BeforeFork()
    pid = int(_system.syscall(CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        _python.PyOS_AfterFork_Child()
    else:
        _python.PyOS_AfterFork_Parent()

    return pid


def _execute(request: dict[str, Any], stdout: int, stderr: int) -> NoReturn:
    """Be an executor, as if this process had been started with the command."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((nothing, stdout, stderr)):
            os.dup2(descriptor, number)

        os.closerange(3, 1 << 20)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it stays open
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        _system.prctl(_PR_SET_NAME, b"python")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])

        # What this process may have read from its own environment, or has in common with the other executors.
        tempfile.tempdir = None
        time.tzset()
        random.seed()
        sys.argv = ["portside.executor", *request["arguments"]]
        from portside.executor.__main__ import main

        main()
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:  # noqa: BLE001 - the end of a process shows it
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()

        os._exit(code)


# In the server


def _build_spawn(channel: socket.socket) -> Any:
    """Return what starts executors in this process. Others that it forks, and other programs, start them as usual."""
    usual = spawned_executor._spawn
    owner = os.getpid()

    async def spawn(program: Program, path: str) -> Any:
        command = list(program.command)
        if os.getpid() != owner or command[0] != sys.executable or command[-2:] != ["-m", "portside.executor"]:
            return await usual(program, path)

        request = {
            "arguments": ["--socket", path],
            "environment": dict(program.environment),
            "folder": str(program.folder or os.getcwd()),  # noqa: PTH109 - as a string
        }

        read, written = os.pipe()
        sys.stdout.flush()
        socket.send_fds(channel, [json.dumps(request).encode()], [1, written])
        os.close(written)
        pid = int(channel.recv(100))

        process = ForkedProcess(pid)
        spawned_executor._prefer_for_oom_killer(pid)
        lines = asyncio.StreamReader(spawned_executor.MAX_LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(read, "rb", 0))
        spawned_executor._readers.spawn(spawned_executor._forward_lines(lines, pid))
        return process

    return spawn


class ForkedProcess:
    """A process that was forked, with what the product uses of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._loop = asyncio.get_running_loop()
        self._has_ended = asyncio.Event()
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    def _wait_for_end(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        # The loop may be closed, if the server ended before.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, os.waitstatus_to_exitcode(status))

    def _end(self, code: int) -> None:
        self.returncode = code
        self._has_ended.set()

    async def wait(self) -> int:
        await self._has_ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError

        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


if __name__ == "__main__":
    # What an executor imports.
    for name in ("langgraph.graph", "langgraph.graph.message", "portside.executor.process"):
        importlib.import_module(name)

    _serve(socket.socket(fileno=int(sys.argv[1])))

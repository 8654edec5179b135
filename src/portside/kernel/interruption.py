"""How a program ends by Ctrl-C (SIGINT) or by SIGTERM.

The first signal of either kind raises KeyboardInterrupt in the main thread, cancels the work of `run`, or does what
`instead` says. Whatever it began is then cleaned up as after an error. The next signal does not wait for that: it kills
every process that the program started, runs the callbacks of `at_once`, and ends the program.

The command line installs the handlers with `handled`. A program that serves may install its own meanwhile.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
EXIT_CODE = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PROC = Path("/proc")
# How long killed processes may take to go before the callbacks run.
_GONE_WITHIN_S = 2.0
_POLL_S = 0.01
# What `signal.set_wakeup_fd` takes and returns for none.
_NO_WAKEUP = -1


class _Interruption:
    """What the handlers know. A process that was forked has a copy, of which only `owner` may use the callbacks."""

    def __init__(self) -> None:
        self.owner: int | None = None
        self.is_interrupted = False
        self.is_ending = False
        self.is_deferring = False
        self.is_pending = False
        self.reaction: Callable[[], object] | None = None
        self.callbacks: dict[object, Callable[[], object]] = {}


_state = _Interruption()


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Handle the signals during the block. SIGINT stays ignored where it is, as in background jobs of a shell."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    _state.owner = os.getpid()
    _state.is_interrupted = False
    _state.is_ending = False

    _install()
    try:
        yield
    finally:
        # After an interruption little is left to do, and another one ends that too.
        if not _state.is_interrupted:
            _state.owner = None
            for number, handler in previous.items():
                signal.signal(number, handler)


def accept_sigint() -> None:
    """Handle SIGINT also where it was ignored: to a program that serves somebody sends it on purpose."""
    if _state.owner == os.getpid():
        signal.signal(signal.SIGINT, _handle)


def run(work: Coroutine[Any, Any, T], loop_factory: "Callable[[], asyncio.AbstractEventLoop] | None" = None) -> T:
    """Run asynchronous work, which the first signal cancels. Raises KeyboardInterrupt after that.

    The work may handle the signals itself with the event loop.
    """
    # Not at the top: it would make `--help` slow.
    import asyncio

    if _was_interrupted():
        work.close()

    check()
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_cancelled_by_signals(work))
    except asyncio.CancelledError:
        if _state.is_interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if _state.owner == os.getpid():
            # An event loop that is closed has removed the handlers.
            _install()


async def _cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    import asyncio

    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a runner makes a task

    with _woken_by_signals(loop), instead(lambda: loop.call_soon_threadsafe(task.cancel)):
        return await work


@contextlib.contextmanager
def _woken_by_signals(loop: "asyncio.AbstractEventLoop") -> Iterator[None]:
    """Wake the event loop for each signal, so that its handler is called.

    Without this a signal would wait for the next event if it arrives in another thread, or just before the loop begins
    to wait. A loop that already has handlers of its own is woken by them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)

        earlier = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if earlier != _NO_WAKEUP:
            signal.set_wakeup_fd(earlier)
            yield
            return

        loop.add_reader(reader, reader.recv, 4096)
        try:
            yield
        finally:
            loop.remove_reader(reader)
            current = signal.set_wakeup_fd(_NO_WAKEUP)
            if current not in {_NO_WAKEUP, writer.fileno()}:
                # The work installed handlers with the event loop.
                signal.set_wakeup_fd(current)


def check() -> None:
    """Raise KeyboardInterrupt if the program was interrupted: the first one may have been raised where it is ignored.

    An import that is tried, for example, may catch every exception.
    """
    if _was_interrupted():
        raise KeyboardInterrupt


def _was_interrupted() -> bool:
    return _state.is_interrupted and _state.owner == os.getpid()


@contextlib.contextmanager
def instead(reaction: Callable[[], object]) -> Iterator[None]:
    """Let the first signal call `reaction` during the block, in the main thread between any two instructions."""
    check()
    outer = _state.reaction
    _state.reaction = reaction

    try:
        yield
    finally:
        _state.reaction = outer


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let signals wait for the end of the block, which is short and must not be left half done."""
    _state.is_deferring = True
    try:
        yield
    finally:
        _state.is_deferring = False

    if _state.is_pending:
        _state.is_pending = False
        _interrupt()


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Clean up in the block: a signal does not interrupt that, but ends the program at once."""
    outer = _state.is_ending
    _state.is_ending = True
    try:
        yield
    finally:
        _state.is_ending = outer


def at_once(callback: Callable[[], object]) -> Callable[[], None]:
    """Call `callback` before the program ends at once; the returned function withdraws it.

    It has to be quick, and must not wait for a lock that the main thread may hold.
    """
    key = object()
    _state.callbacks[key] = callback

    def withdraw() -> None:
        _state.callbacks.pop(key, None)

    return withdraw


async def in_abandoned_thread(work: Callable[[threading.Event], T]) -> T:
    """Run work in a thread that the end of the program does not wait for; the event tells it that nobody waits."""
    import asyncio

    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    is_abandoned = threading.Event()

    def finish(set_result: Callable[[Any], None], value: object) -> None:
        if not result.done():
            set_result(value)

    def work_in_thread() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            outcome = (result.set_result, work(is_abandoned))
        except BaseException as exc:  # noqa: BLE001 - raised where somebody waits
            outcome = (result.set_exception, exc)

        # The event loop may have been closed meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, *outcome)

    threading.Thread(target=work_in_thread, name="abandoned", daemon=True).start()
    try:
        return await result
    finally:
        is_abandoned.set()


def leave(code: int) -> NoReturn:
    """End the program now: kill every process that it started, and run the callbacks of `at_once`."""
    kill_descendants()

    if _state.owner == os.getpid():
        for callback in list(_state.callbacks.values()):
            with contextlib.suppress(Exception):
                callback()

    os._exit(code)


def kill_descendants() -> None:
    """Kill the processes that this one started, and those that they started, on systems that list them (Linux)."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while pids := _list_descendants():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

        # Looked at last: on a busy machine the list alone may take that long.
        if time.monotonic() > deadline:
            return

        time.sleep(_POLL_S)


def _list_descendants() -> list[int]:
    """Return the ids of all processes below this one that have not ended."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdigit():
            continue

        with contextlib.suppress(OSError):
            # The name of the program, in parentheses, may contain spaces.
            state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))

    descendants = list(children.get(os.getpid(), ()))
    for pid in descendants:
        # The loop goes on with what is added.
        descendants += children.get(pid, ())

    return descendants


def _install() -> None:
    for number in _SIGNALS:
        if number != signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)


def _handle(_number: int, _frame: object) -> None:
    if _state.owner != os.getpid():
        raise KeyboardInterrupt

    if _state.is_deferring:
        _state.is_pending = True
    else:
        _interrupt()


def _interrupt() -> None:
    if _state.is_interrupted or _state.is_ending:
        leave(EXIT_CODE)

    _state.is_interrupted = True
    if _state.reaction is None:
        raise KeyboardInterrupt

    _state.reaction()

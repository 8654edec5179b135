"""The first signal ends a program with all its clean-up; the next one ends it, and what it started, at once."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from portside.kernel import interruption
from tests.conftest import eventually

PROGRAM = """
import asyncio, subprocess, sys, threading, time
from portside.kernel import interruption

def wait():
    print("ready", flush=True)
    # A signal interrupts a wait for a lock, and not only a sleep.
    threading.Event().wait(600)

try:
    with interruption.handled():
        {body}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(interruption.EXIT_CODE)
"""


@contextmanager
def program(body: str) -> "Iterator[subprocess.Popen[str]]":
    """Run a program until it says that it is ready."""
    indented = body.strip().replace("\n", "\n        ")
    started = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM.format(body=indented)], stdout=subprocess.PIPE, text=True
    )

    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield started
    finally:
        started.kill()
        started.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_cleans_up(number: signal.Signals) -> None:
    with program("try:\n    wait()\nfinally:\n    print('cleaned up', flush=True)") as started:
        started.send_signal(number)
        output, _ = started.communicate(timeout=300)

    assert (output, started.returncode) == ("cleaned up\ninterrupted\n", 130)


def test_first_signal_cancels_asynchronous_work() -> None:
    body = """
async def work():
    try:
        print("ready", flush=True)
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0)
        print("cleaned up", flush=True)

interruption.run(work())
"""

    with program(body) as started:
        started.send_signal(signal.SIGTERM)
        output, _ = started.communicate(timeout=300)

    assert (output, started.returncode) == ("cleaned up\ninterrupted\n", 130)


def test_signal_that_arrives_in_another_thread_wakes_the_event_loop() -> None:
    body = """
import signal

def interrupt(loop):
    is_waiting = threading.Event()
    loop.call_soon_threadsafe(is_waiting.set)
    is_waiting.wait()
    # By now the loop waits for events; if it does not yet, the signal ends the work as well.
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

async def work():
    print("ready", flush=True)
    threading.Thread(target=interrupt, args=[asyncio.get_running_loop()]).start()
    await asyncio.sleep(600)

interruption.run(work())
"""

    with program(body) as started:
        output, _ = started.communicate(timeout=300)

    assert (output, started.returncode) == ("interrupted\n", 130)


def test_interruption_that_was_ignored_counts_before_the_next_work() -> None:
    """An import that is tried may catch every exception."""
    body = """
async def work():
    print("worked", flush=True)

try:
    wait()
except BaseException:
    pass
interruption.run(work())
"""

    with program(body) as started:
        started.send_signal(signal.SIGINT)
        output, _ = started.communicate(timeout=300)

    assert (output, started.returncode) == ("interrupted\n", 130)


def test_short_step_is_finished_first() -> None:
    body = """
with interruption.deferred():
    try:
        print("ready", flush=True)
        sys.stdin.readline()
    except KeyboardInterrupt:
        print("half done", flush=True)
    print("done", flush=True)
"""

    indented = body.strip().replace("\n", "\n        ")
    started = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM.format(body=indented)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    started.send_signal(signal.SIGTERM)
    output, _ = started.communicate("go on\n", timeout=300)
    assert (output, started.returncode) == ("done\ninterrupted\n", 130)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="only Linux lists the processes below one")
@pytest.mark.parametrize("within_s", [2.0, 0.0], ids=["calm", "busy"])
async def test_second_signal_ends_everything_at_once(within_s: float) -> None:
    """Also a child in a session of its own, a clean-up that hangs, and where a list of the processes takes too long."""
    body = f"""
interruption._GONE_WITHIN_S = {within_s}
withdraw = interruption.at_once(lambda: print("withdrawn", flush=True))
withdraw()
interruption.at_once(lambda: print("at once", flush=True))
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
try:
    wait()
finally:
    print(child.pid, flush=True)
    wait()
"""

    with program(body) as started:
        assert started.stdout is not None
        started.send_signal(signal.SIGTERM)
        child = Path("/proc") / started.stdout.readline().strip()
        assert started.stdout.readline() == "ready\n"
        started.send_signal(signal.SIGTERM)

        output, _ = started.communicate(timeout=300)
        assert (output, started.returncode) == ("at once\n", 130)

    async def has_ended() -> bool:
        try:
            # It may still have an entry, if nobody has read how it ended.
            return "\nState:\tZ" in (child / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    await eventually(has_ended)


async def test_nobody_waits_for_an_abandoned_thread() -> None:
    """The thread learns that it is abandoned, and its result is returned if it is not."""
    assert await interruption.in_abandoned_thread(lambda _: os.getpid()) == os.getpid()

    begun = threading.Event()
    was_told = threading.Event()

    def work(is_abandoned: threading.Event) -> None:
        begun.set()
        is_abandoned.wait(600)
        was_told.set()

    waiting = asyncio.create_task(interruption.in_abandoned_thread(work))
    await asyncio.to_thread(begun.wait, 100)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert await asyncio.to_thread(was_told.wait, 100)

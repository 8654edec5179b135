"""Replacing the program of a running platform by another version, in the same process.

On `SIGNAL` the platform ends its requests and executes the installed program again. Its socket stays open, so requests
wait in its queue meanwhile. Agents, the front and the embedded Postgres continue: the front is still a child of this
process, and the next listener adopts the agents.
"""

import os
import signal
import socket
import sys
from pathlib import Path

import msgspec

from portside.kernel.files import write_private

SIGNAL = signal.SIGUSR2
_VARIABLE = "PORTSIDE_HANDED_OVER"
_PROGRAM = "next-interpreter"


class HandedOver(msgspec.Struct):
    """What the earlier program left open: descriptors, and the process id of the front."""

    listening: int
    postgres_lock: int | None = None
    front: int | None = None

    def socket(self) -> socket.socket:
        """Return the socket that the platform listens on."""
        listening = socket.socket(fileno=self.listening)
        listening.set_inheritable(False)
        listening.setblocking(False)
        return listening


def take_handed_over() -> HandedOver | None:
    """Return what an earlier program of this process left, once; None after a usual start."""
    text = os.environ.pop(_VARIABLE, None)
    return None if text is None else msgspec.json.decode(text, type=HandedOver)


def name_next(home: Path, interpreter: str) -> None:
    """Name the interpreter whose Portside replaces the running one."""
    write_private(home / _PROGRAM, f"{interpreter}\n")


def execute_next(home: Path, state: HandedOver) -> None:
    """Replace this program by the named one, or else by what is installed now. Raises OSError; else does not return."""
    try:
        interpreter = (home / _PROGRAM).read_text().strip()
        (home / _PROGRAM).unlink()
    except FileNotFoundError:
        interpreter = sys.executable

    for descriptor in (state.listening, state.postgres_lock):
        if descriptor is not None:
            os.set_inheritable(descriptor, True)

    environment = {**os.environ, _VARIABLE: msgspec.json.encode(state).decode()}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(interpreter, [interpreter, "-P", "-m", "portside", *sys.argv[1:]], environment)  # noqa: S606

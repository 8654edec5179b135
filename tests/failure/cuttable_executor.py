"""An interpreter for executors whose link can be cut: SIGUSR1 ends the connection to the server, not the process.

`interpreter` makes a program for EXECUTOR_PYTHON. It runs this file, which relays the link through a socket of its own,
in the process of the executor.
"""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
from pathlib import Path

CUT = signal.SIGUSR1


def interpreter(folder: Path) -> Path:
    """Return a program in a folder that starts executors of this environment."""
    program = folder / "cuttable-python"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P {shlex.quote(__file__)} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def main() -> None:
    from portside.executor.__main__ import main as execute

    # In all threads, so that the one that waits for the signal gets it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {CUT})
    server = sys.argv[sys.argv.index("--socket") + 1]
    own = Path(tempfile.mkdtemp(prefix="portside-"), "link")
    listener = socket.socket(socket.AF_UNIX)

    listener.bind(str(own))
    listener.listen()
    threading.Thread(target=_relay, args=(listener, own.parent, server), daemon=True).start()
    sys.argv = ["portside.executor", "--socket", str(own)]

    execute()


def _relay(listener: socket.socket, folder: Path, server: str) -> None:
    near, _ = listener.accept()
    shutil.rmtree(folder)

    far = socket.socket(socket.AF_UNIX)
    try:
        far.connect(server)
    except OSError:
        # The server has ended meanwhile.
        os._exit(1)

    for source, target in ((near, far), (far, near)):
        threading.Thread(target=_copy, args=(source, target), daemon=True).start()

    signal.sigwait({CUT})

    for each in (near, far):
        each.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    # Either end may be cut off or gone.
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()

"""Runs a program that Linux kills when its parent ends: `python with_parent.py PARENT PROGRAM ARGUMENT…`.

The program may open many descriptors, since each client holds one; root may grant more than the hard limit.

It is a program of its own because a process must ask for this itself, between its start and that of the program. Other
systems do not offer it; there the next platform stops a program that was left.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_DESCRIPTORS = 65_536


def main() -> None:
    """Replace this process by the program."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))

    # The parent may have ended before the call.
    if os.getppid() == int(parent):
        os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()

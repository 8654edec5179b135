"""`python -m portside.executor --socket PATH`: an executor process of the agent server that listens there."""

import argparse
import asyncio
import ctypes
import gc
import os
import signal
import sys

from portside.kernel.startup import defer_packages

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run until the server closes the link."""
    parser = argparse.ArgumentParser(prog="python -m portside.executor", description=__doc__)
    parser.add_argument("--socket", required=True, help="The unix socket that the agent server listens on.")
    arguments = parser.parse_args()

    # Ctrl-C in a terminal reaches the whole group of processes; the server decides when its executors end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()

    # The project is loaded before `tune_garbage_collection` switches it on again.
    gc.disable()
    defer_packages()
    from portside.executor.loops import new_event_loop
    from portside.executor.process import ExecutorProcess

    async def run() -> None:
        await ExecutorProcess(arguments.socket).run()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())
        sys.stderr.flush()

        # A thread that user code blocks would otherwise keep the process alive.
        os._exit(0)


def _end_with_parent() -> None:
    """Let the system end this process with its parent, where it can: a node that never yields reads no link."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()

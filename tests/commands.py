"""The command line run in this process, which is quicker than one of its own."""

import contextlib
import io
from typing import NamedTuple
from unittest import mock

from portside.cli import main as cli


class Done(NamedTuple):
    """What a command left behind, as a shell sees it."""

    returncode: int
    stdout: str
    stderr: str


def run_here(*arguments: str, stdin: str = "") -> Done:
    """Run a command that starts no server."""
    code = 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            with mock.patch("sys.stdin", io.StringIO(stdin)):
                cli.main(list(arguments))
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1

    return Done(code, out.getvalue(), err.getvalue())

"""How commands fail: an answer with one of the protocol's codes, not an HTTP error."""

from portside.kernel.errors import PortsideError


class CommandFailed(Exception):
    """The command was understood and could not be done."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def failure_of(error: PortsideError) -> CommandFailed:
    """Show an error of the resource API as a command's failure, with its status in front (contract: 13.1)."""
    return CommandFailed("unknown_error", f"{error.status}: {error}")

"""Notices that the tracing platform refuses the traces of this process.

The project's code and its libraries create tracing clients of their own, so only the log shows the refusals of all.
"""

import logging
import re
from collections.abc import Callable

_REFUSED = re.compile(r"\b(AuthError|Unauthorized|Forbidden|40[13] Client Error)\b|Authentication failed")


class _Refusals(logging.Filter):
    """Looks at the log of the tracing client."""

    def __init__(self) -> None:
        super().__init__()
        self.on_refused: Callable[[], object] = lambda: None

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every line."""
        if record.levelno >= logging.WARNING and _REFUSED.search(record.getMessage()):
            self.on_refused()
        return True


_refusals = _Refusals()


def watch_tracing(on_refused: Callable[[], object]) -> None:
    """Call a function from now on, in any thread, when the tracing platform refuses traces."""
    _refusals.on_refused = on_refused
    # A logger adds the same filter only once.
    logging.getLogger("langsmith.client").addFilter(_refusals)
